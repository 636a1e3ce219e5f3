/* SPDX-License-Identifier: Apache-2.0 */
/*
 * DOC: frame
 *
 * The framing every transport agrees on; what is inside a frame is the wire
 * protocol's business (pipeline/wire.h). A frame is this header, then
 * len - 16 bytes of body, then, on data connections only, @payload bytes that
 * are received straight into the place the upper layer names.
 * Frames that carry a payload are exactly KVS_DATA_FRAME bytes long.
 */
#ifndef KVS_RDMA_FRAME_H
#define KVS_RDMA_FRAME_H

#include <assert.h>

#include "lib/le.h"

#define KVS_FRAME_MAGIC 0x5753564bu /* "KVSW" */
#define KVS_FRAME_MAX 65536u /* bytes, header included */
#define KVS_DATA_FRAME 64u /* bytes, header included */
#define KVS_PAYLOAD_MAX (1u << 30) /* bytes */
/* Types from here on are a transport's own; the wire protocol has none. */
#define KVS_FRAME_OWN 0xff00u
#define KVS_FRAME_VERBS 0xff01u /* rdma/verbs_wire.h */

struct kvs_frame {
	kvs_le32 magic;
	kvs_le16 type;
	kvs_le16 flags; /* 0 in version 1 */
	kvs_le32 len; /* bytes of the frame, this header included */
	kvs_le32 payload; /* bytes that follow the frame */
};
static_assert(sizeof(struct kvs_frame) == 16, "frame header is 16 bytes");

#endif /* KVS_RDMA_FRAME_H */
