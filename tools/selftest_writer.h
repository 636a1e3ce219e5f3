/* SPDX-License-Identifier: Apache-2.0 */
/*
 * DOC: selftest writer
 *
 * A prefill rank that stops in the middle of a chunk and goes on after it was
 * told not to: what kvstagectl selftest needs and the library's sender never
 * does. It speaks the protocol correctly, with blocking sockets, and answers
 * for what it does: no acknowledgement while a chunk is not over.
 */
#ifndef KVS_TOOLS_SELFTEST_WRITER_H
#define KVS_TOOLS_SELFTEST_WRITER_H

#include <stddef.h>
#include <stdint.h>

#include "pipeline/geometry.h"
#include "pipeline/wire.h"
#include "rdma/addr.h"

#define KVS_WRITER_CONNS 2u /* data connections */
#define KVS_WRITER_PIECE (1u << 20) /* bytes of a chunk */

struct kvs_writer {
	const struct kvs_layout *layout; /* one buffer a layer */
	const char *peer;
	uint64_t run; /* of the marks */
	uint32_t rank; /* sends the layer of this number */
	uint32_t n_ranks;
	unsigned int seconds; /* that anything may take */
	const char *key_file; /* NULL: none */
	int control; /* -1: none */
	int data[KVS_WRITER_CONNS];
	uint32_t worker; /* that they go to */
	uint64_t session;
	struct kvs_wire_scratch *scratch;
	struct kvs_addr addr;
	char err[KVS_WIRE_TEXT + 256]; /* why the last call failed */
};

/* A room as this rank sends it. */
struct kvs_writer_room {
	uint64_t id;
	uint32_t number; /* in the run, for the marks */
	struct kvs_msg_grant grant;
	struct kvs_geometry geo;
	/* where the next chunk begins */
	uint32_t extent;
	uint64_t off; /* bytes of the layer's run in it */
	uint64_t sent; /* bytes of whole chunks */
	/* the chunk that is stopped in its middle */
	unsigned char *buf; /* NULL: none */
	size_t buf_len;
	size_t buf_done;
	unsigned int conn; /* that it stops on */
};

/* Connect and agree. @addr: "host:port". 0 or -errno. */
int kvs_writer_open(struct kvs_writer *w, const char *addr);
void kvs_writer_close(struct kvs_writer *w);

/* OPEN, and wait for the grant: 0; -ECONNREFUSED what the daemon said;
 * -errno. */
int kvs_writer_room(struct kvs_writer *w, uint64_t id,
		    const unsigned char nonce[16], uint32_t number,
		    uint64_t tokens, struct kvs_writer_room *ret);
void kvs_writer_room_fini(struct kvs_writer_room *r);

/* Send the next chunk, or only @part of 100 of it: the room is stopped there
 * then. 1: sent; 0: nothing was left; -errno. */
int kvs_writer_chunk(struct kvs_writer *w, struct kvs_writer_room *r,
		     unsigned int conn, unsigned int part);
/* Go on with the stopped chunk, up to @part of 100. */
int kvs_writer_go_on(struct kvs_writer *w, struct kvs_writer_room *r,
		     unsigned int part);
/* Everything that is left, and LAST. */
int kvs_writer_finish(struct kvs_writer *w, struct kvs_writer_room *r,
		      unsigned int conn);
/* The daemon has read all that was sent on the connection. */
int kvs_writer_sync(struct kvs_writer *w, unsigned int conn);
/* ABORT_ACK: nothing of the room is outstanding any more. */
int kvs_writer_acknowledge(struct kvs_writer *w, struct kvs_writer_room *r);

#endif /* KVS_TOOLS_SELFTEST_WRITER_H */
