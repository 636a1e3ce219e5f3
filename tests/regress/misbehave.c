/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/regress/misbehave.h"

#include <stdio.h>

static struct kvs_layer_buffer buffers[] = {
	{ KVS_BUFFER_KV, 0, PS_PAGE, 0 }, { KVS_BUFFER_KV, 1, PS_PAGE, 0 },
	{ KVS_BUFFER_KV, 2, PS_PAGE, 0 }, { KVS_BUFFER_KV, 3, PS_PAGE, 0 },
	{ KVS_BUFFER_MAMBA, 3, 1536, 2 },
};
const struct kvs_layout mis_layout = {
	.size = sizeof(mis_layout),
	.page_size = PS_TOKENS,
	.dtype = KVS_DTYPE_BF16,
	.n_buffers = KVS_ARRAY_SIZE(buffers),
	.buffers = buffers,
	.aux_max = 1024,
};

void mis_start(struct rig *g, struct pe *e)
{
	rig_init(g, rig_engine(), "2M");
	rig_set(g, "extent.tokens", "128");
	rig_up(g);
	pe_up(e, g->set.engine_socket, &mis_layout);
	e->aux_len = MIS_AUX;
}

void mis_admit(struct pe *e, struct pe_room *r, uint32_t slot, const char *peer,
	       uint64_t room, uint32_t n_ranks)
{
	snprintf(e->peer, sizeof(e->peer), "%s", peer);
	pe_admit(e, r, slot, room, MIS_PAGES * PS_TOKENS, n_ranks);
	pe_wait(e, r, KVS_STATUS_ADMITTED);
}

void mis_open(struct ps *p, struct ps_room *w, uint64_t room, uint64_t seed)
{
	assert_int_equal(ps_open(p, room, MIS_PAGES * PS_TOKENS), 0);
	ps_granted(p, w, seed, 8 * PS_PAGE);
}

uint64_t mis_errors(const struct rig *g)
{
	uint64_t n = 0;

	for (int i = 0; i < KVS_PROTO_MAX; i++)
		n += rig_proto(g, i);
	return n;
}
