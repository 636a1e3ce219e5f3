/* SPDX-License-Identifier: Apache-2.0 */
#include "rdma/verbs_wire.h"

#include <assert.h>
#include <errno.h>
#include <stdbool.h>
#include <string.h>

#define MSG_MAGIC 0x514bu /* "KQ" */
#define BITS24 0xffffffu

struct wire_blob {
	struct kvs_frame f;
	kvs_le16 version;
	unsigned char what;
	unsigned char link;
	unsigned char mtu;
	unsigned char rd_in;
	unsigned char rd_out;
	unsigned char zero;
	kvs_le32 qpn;
	kvs_le32 psn;
	kvs_le16 lid;
	kvs_le16 slots;
	kvs_le32 msg;
	unsigned char gid[16];
	kvs_le32 err;
	kvs_le32 number;
	kvs_le64 sent;
	unsigned char zero3[24];
};
static_assert(sizeof(struct wire_blob) == KVS_VERBS_BLOB, "blob");

struct wire_msg {
	kvs_le16 magic;
	unsigned char type;
	unsigned char zero;
	kvs_le32 len;
	kvs_le32 credits;
	kvs_le32 zero2;
};
static_assert(sizeof(struct wire_msg) == KVS_VERBS_MSG_HEAD, "header");

void kvs_verbs_blob_encode(const struct kvs_verbs_blob *b,
			   unsigned char buf[KVS_VERBS_BLOB])
{
	struct wire_blob w = {
		.f = {
			.magic = kvs_put32(KVS_FRAME_MAGIC),
			.type = kvs_put16(KVS_FRAME_VERBS),
			.len = kvs_put32(KVS_VERBS_BLOB),
		},
		.version = kvs_put16(KVS_VERBS_VERSION),
		.what = (unsigned char)b->what,
		.link = (unsigned char)b->link,
		.mtu = b->mtu,
		.rd_in = b->rd_in,
		.rd_out = b->rd_out,
		.qpn = kvs_put32(b->qpn),
		.psn = kvs_put32(b->psn),
		.lid = kvs_put16(b->lid),
		.slots = kvs_put16(b->slots),
		.msg = kvs_put32(b->msg),
		.err = kvs_put32(b->err),
		.number = kvs_put32(b->number),
		.sent = kvs_put64(b->sent),
	};

	memcpy(w.gid, b->gid, sizeof(w.gid));
	memcpy(buf, &w, sizeof(w));
}

static bool ends_ok(const struct kvs_verbs_blob *b)
{
	return b->link >= KVS_VERBS_INFINIBAND &&
	       b->link <= KVS_VERBS_ROCE_V2 && b->mtu >= 1 && b->mtu <= 5 &&
	       b->qpn && b->qpn <= BITS24 && b->psn <= BITS24 && b->slots &&
	       b->slots <= KVS_VERBS_SLOTS_MAX && b->msg >= KVS_VERBS_MSG_MIN &&
	       b->msg <= KVS_VERBS_MSG_MAX;
}

int kvs_verbs_blob_decode(const struct kvs_frame *f, struct kvs_verbs_blob *ret)
{
	struct wire_blob w;

	if (kvs_get16(f->type) != KVS_FRAME_VERBS || kvs_get16(f->flags) ||
	    kvs_get32(f->len) != sizeof(w) || kvs_get32(f->payload))
		return -EPROTO;
	memcpy(&w, f, sizeof(w));
	if (kvs_get16(w.version) != KVS_VERBS_VERSION)
		return -EPROTONOSUPPORT;
	*ret = (struct kvs_verbs_blob){
		.what = w.what,
		.link = w.link,
		.mtu = w.mtu,
		.rd_in = w.rd_in,
		.rd_out = w.rd_out,
		.qpn = kvs_get32(w.qpn),
		.psn = kvs_get32(w.psn),
		.lid = kvs_get16(w.lid),
		.slots = kvs_get16(w.slots),
		.msg = kvs_get32(w.msg),
		.err = kvs_get32(w.err),
		.number = kvs_get32(w.number),
		.sent = kvs_get64(w.sent),
	};
	memcpy(ret->gid, w.gid, sizeof(w.gid));
	if (ret->number > KVS_VERBS_BRANCH_MAX)
		return -EPROTO;
	switch (w.what) {
	case KVS_VERBS_OFFER:
	case KVS_VERBS_ANSWER:
		return ends_ok(ret) ? 0 : -EPROTO;
	case KVS_VERBS_FIN:
		return ret->err <= 4095 ? 0 : -EPROTO;
	default:
		return -EPROTO;
	}
}

void kvs_verbs_msg_encode(const struct kvs_verbs_msg *m,
			  unsigned char buf[KVS_VERBS_MSG_HEAD])
{
	struct wire_msg w = {
		.magic = kvs_put16(MSG_MAGIC),
		.type = (unsigned char)m->type,
		.len = kvs_put32(m->len),
		.credits = kvs_put32(m->credits),
	};

	memcpy(buf, &w, sizeof(w));
}

int kvs_verbs_msg_decode(const unsigned char *buf, size_t n,
			 struct kvs_verbs_msg *ret)
{
	struct wire_msg w;

	if (n < sizeof(w))
		return -EPROTO;
	memcpy(&w, buf, sizeof(w));
	ret->type = w.type;
	ret->len = kvs_get32(w.len);
	ret->credits = kvs_get32(w.credits);
	if (kvs_get16(w.magic) != MSG_MAGIC || w.zero ||
	    ret->len != n - sizeof(w) || ret->credits > KVS_VERBS_SLOTS_MAX)
		return -EPROTO;
	switch (w.type) {
	case KVS_VERBS_MSG_FRAME:
		return ret->len ? 0 : -EPROTO;
	case KVS_VERBS_MSG_CREDIT:
		return ret->len ? -EPROTO : 0;
	default:
		return -EPROTO;
	}
}
