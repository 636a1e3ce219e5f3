/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/claim/claim_sender.h"

static const struct kvs_layer_buffer big[] = { { KVS_BUFFER_K, 0, CLAIM_PAGE,
						 0 } };

struct rig *claim_sender(void)
{
	struct kvs_rng rng;
	struct rig *g;

	kvs_rng_init(&rng, 11);
	g = rig_new(big, 1, 16, CLAIM_PAGES, &rng);
	g->o.data_connections = 1;
	g->o.chunk_max = CLAIM_CHUNK * CLAIM_PAGE;
	g->o.window = CLAIM_CHUNK * CLAIM_PAGE;
	g->rcvbuf = 65536;
	rig_start(g);
	return g;
}

struct kvs_send_room *claim_stuck(struct rig *g, uint64_t id,
				  uint64_t generation, struct rig_room **ret)
{
	uint32_t map[CLAIM_PAGES];
	struct kvs_send_room *r;
	struct kvs_msg m;

	for (uint32_t i = 0; i < CLAIM_PAGES; i++)
		map[i] = i;
	g->hold = true;
	assert_int_equal(kvs_send_open(g->s, id, NULL, CLAIM_PAGES * 16, g, &r),
			 0);
	rig_expect(g, KVS_WIRE_OPEN, &m);
	*ret = rig_room_new(g, id, generation, CLAIM_PAGES * 16,
			    CLAIM_CHUNK * 16, 0, 1, 0);
	rig_grant(g, *ret);
	for (uint32_t p = 0; p < CLAIM_PAGES; p += CLAIM_CHUNK)
		assert_int_equal(
			kvs_send_pages(r, p, map + p, CLAIM_CHUNK, NULL), 0);
	rig_wait_outstanding(g, r, true);
	return r;
}

static void count(const struct kvs_msg *m, uint64_t generation,
		  struct claim_heard *h)
{
	switch (m->type) {
	case KVS_WIRE_ABORT_ACK:
		h->acks += m->abort.generation == generation;
		break;
	case KVS_WIRE_ABORT_NAK:
		h->naks += m->abort.generation == generation;
		break;
	case KVS_WIRE_ABORT:
		h->aborts += m->abort.generation == generation;
		break;
	case KVS_WIRE_LAST:
		h->lasts += m->last.generation == generation;
		break;
	case KVS_WIRE_HELLO:
	case KVS_WIRE_LAYOUT:
	case KVS_WIRE_OPEN:
	case KVS_WIRE_GRANT:
	case KVS_WIRE_REFUSE:
	case KVS_WIRE_CHUNK:
	case KVS_WIRE_CHUNK_DONE:
	case KVS_WIRE_COMPLETE:
	case KVS_WIRE_ERROR:
	case KVS_WIRE_KEEPALIVE:
	case KVS_WIRE_CHALLENGE:
	case KVS_WIRE_RESPONSE:
	case KVS_WIRE_PROOF:
	case KVS_WIRE_TYPE_MAX:
		fail_msg("%s was not expected", kvs_wire_type_name(m->type));
	}
}

void claim_hear(struct rig *g, uint64_t generation, struct claim_heard *h)
{
	struct kvs_msg ask = { .type = KVS_WIRE_KEEPALIVE };
	struct kvs_msg m;

	for (int i = 0; i < 2; i++) {
		ask.keepalive.seq++;
		rig_send(g->control, &ask);
		for (;;) {
			rig_recv(g, &m);
			if (m.type == KVS_WIRE_KEEPALIVE)
				break;
			count(&m, generation, h);
		}
		assert_true(m.keepalive.reply);
	}
}
