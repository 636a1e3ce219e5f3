/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/workload.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lib/rng.h"
#include "lib/units.h"
#include "pipeline/layout.h"
#include "pipeline/presets.h"
#include "pipeline/reshard.h"
#include "pipeline/wire.h"
#include "pipeline/wire_text.h"
#include "tools/pattern.h"

enum {
	KEY_TRACE = 0x2000,
	KEY_GENERATE,
	KEY_REQUESTS,
	KEY_MODEL,
	KEY_TP,
	KEY_LAYERS,
	KEY_PAGE_SIZE,
	KEY_MAX_INPUT,
	KEY_SEED,
	KEY_ROOM_BASE,
	KEY_AUX_LEN,
	KEY_PEER,
	KEY_NRANKS,
	KEY_PREFILL_TP,
	KEY_PREFILL_PAGE,
};

static const struct argp_option workload_options[] = {
	{ NULL, 0, NULL, 0, "Workload, the same for senders and engine:", 1 },
	{ "trace", KEY_TRACE, "FILE", 0, "Replay a Mooncake JSONL trace", 1 },
	{ "generate", KEY_GENERATE, NULL, 0,
	  "Make the requests up (the default)", 1 },
	{ "requests", KEY_REQUESTS, "N", 0, "This many (default 300)", 1 },
	{ "model", KEY_MODEL, "NAME", 0,
	  "Geometry of a model (default: 4,608 bytes a token)", 1 },
	{ "tp", KEY_TP, "N", 0,
	  "Ranks of the decode engine, which share each room (default 1)", 1 },
	{ "layers", KEY_LAYERS, "N", 0, "Only the first N layers", 1 },
	{ "page-size", KEY_PAGE_SIZE, "TOKENS", 0,
	  "Tokens a page (default: the model's)", 1 },
	{ "max-input", KEY_MAX_INPUT, "TOKENS", 0, "Cut longer prompts", 1 },
	{ "seed", KEY_SEED, "N", 0, "Of generator and data (default 1)", 1 },
	{ "room-base", KEY_ROOM_BASE, "N", 0,
	  "Room id of the first request (default 1)", 1 },
	{ "aux-len", KEY_AUX_LEN, "BYTES", 0,
	  "Aux block of each rank (default 256)", 1 },
	{ "peer", KEY_PEER, "NAME", 0,
	  "Name of the prefill instance (default prefill)", 1 },
	{ "nranks", KEY_NRANKS, "N", 0, "Its ranks (default 1)", 1 },
	{ "prefill-tp", KEY_PREFILL_TP, "N", 0,
	  "Of which so many share the heads of a layer (default 1)", 1 },
	{ "prefill-page-size", KEY_PREFILL_PAGE, "TOKENS", 0,
	  "Tokens a page of the prefill instance (default: as --page-size)",
	  1 },
	{ 0 },
};

void kvs_workload_defaults(struct kvs_workload_opts *o)
{
	*o = (struct kvs_workload_opts){
		.requests = KVS_WORKLOAD_REQUESTS,
		.tp = 1,
		.seed = 1,
		.room_base = 1,
		.aux_len = KVS_WORKLOAD_AUX,
		.peer = "prefill",
		.n_ranks = 1,
		.prefill_tp = 1,
	};
}

static uint64_t workload_number(struct argp_state *state, const char *name,
				const char *arg, uint64_t min, uint64_t max)
{
	uint64_t v;

	if (kvs_parse_u64(arg, &v) || v < min || v > max)
		argp_error(state, "--%s: %s is not a number from %llu to %llu",
			   name, arg, (unsigned long long)min,
			   (unsigned long long)max);
	return v;
}

/* argp_error() does not come back, but for a caller that asked it to. */
static error_t workload_parse(int key, char *arg, struct argp_state *state)
{
	struct kvs_workload_opts *o = state->input;
	char peer[KVS_PEER_NAME];

	switch (key) {
	case ARGP_KEY_INIT:
		kvs_workload_defaults(o);
		return 0;
	case KEY_TRACE:
		o->trace = arg;
		return 0;
	case KEY_GENERATE:
		o->generate = true;
		return 0;
	case ARGP_KEY_END:
		if (o->trace && o->generate)
			argp_error(state, "--trace and --generate: only one");
		return 0;
	case KEY_REQUESTS:
		o->requests = workload_number(state, "requests", arg, 1,
					      KVS_TRACE_REQUESTS_MAX);
		return 0;
	case KEY_MODEL:
		o->model = arg;
		return 0;
	case KEY_TP:
		o->tp = (uint32_t)workload_number(state, "tp", arg, 1,
						  KVS_GROUP_MAX);
		return 0;
	case KEY_LAYERS:
		o->layers = (uint32_t)workload_number(state, "layers", arg, 1,
						      65535);
		return 0;
	case KEY_PAGE_SIZE:
		o->page_size = (uint32_t)workload_number(
			state, "page-size", arg, 1, KVS_PAGE_SIZE_MAX);
		return 0;
	case KEY_MAX_INPUT:
		o->max_input = (uint32_t)workload_number(
			state, "max-input", arg, 1, KVS_TOKENS_MAX);
		return 0;
	case KEY_SEED:
		o->seed = workload_number(state, "seed", arg, 0, UINT64_MAX);
		return 0;
	case KEY_ROOM_BASE:
		/* the last request's id must not wrap around to 0 */
		o->room_base =
			workload_number(state, "room-base", arg, 1,
					UINT64_MAX - KVS_TRACE_REQUESTS_MAX);
		return 0;
	case KEY_AUX_LEN:
		o->aux_len = (uint32_t)workload_number(state, "aux-len", arg, 0,
						       KVS_AUX_MAX);
		return 0;
	case KEY_PEER:
		kvs_wire_text_put(peer, sizeof(peer), arg);
		if (!*arg || strcmp(peer, arg))
			argp_error(state,
				   "--peer: \"%s\" is not a name of 1 to %zu "
				   "bytes without control characters",
				   peer, sizeof(peer) - 1);
		o->peer = arg;
		return 0;
	case KEY_NRANKS:
		o->n_ranks = (uint32_t)workload_number(state, "nranks", arg, 1,
						       KVS_RANKS_MAX);
		return 0;
	case KEY_PREFILL_TP:
		o->prefill_tp = (uint32_t)workload_number(state, "prefill-tp",
							  arg, 1, KVS_TP_MAX);
		return 0;
	case KEY_PREFILL_PAGE:
		o->prefill_page = (uint32_t)workload_number(
			state, "prefill-page-size", arg, 1, KVS_PAGE_SIZE_MAX);
		return 0;
	default:
		return ARGP_ERR_UNKNOWN;
	}
}

const struct argp kvs_workload_argp = {
	.options = workload_options,
	.parser = workload_parse,
};

static int workload_requests(struct kvs_workload *w, char *err, size_t errlen)
{
	const struct kvs_workload_opts *o = &w->o;
	struct kvs_trace_shape shape = {
		.n = o->requests,
		.input = KVS_TRACE_CHAT_INPUT,
		.output = KVS_TRACE_CHAT_OUTPUT,
		.rate = KVS_TRACE_CHAT_RATE,
		.max_input = o->max_input,
	};
	int ret;

	if (o->trace)
		return kvs_trace_read(o->trace, o->requests, o->max_input,
				      &w->trace, err, errlen);
	ret = kvs_trace_generate(o->seed, &shape, &w->trace);
	if (ret)
		snprintf(err, errlen, "%zu requests cannot be generated",
			 o->requests);
	return ret;
}

/* What tp_rank @rank of @tp has, all layers. */
static int workload_layout(const struct kvs_workload *w, uint32_t tp,
			   uint32_t rank, uint32_t page_size,
			   struct kvs_layout **ret, char *err, size_t errlen)
{
	struct kvs_preset_opts p = {
		.tp = tp,
		.tp_rank = rank,
		.layers = w->o.layers,
		.page_size = page_size,
		.aux_max = w->o.aux_len > KVS_WORKLOAD_AUX ? w->o.aux_len
							   : KVS_WORKLOAD_AUX,
		.capacity = w->o.capacity,
		.max_context = w->o.max_context,
	};

	return kvs_preset_layout(w->o.model, &p, ret, err, errlen);
}

/* Both sides' first ranks; as a room would be asked for, so that what cannot be
 * resharded is refused here already. */
static int workload_layouts(struct kvs_workload *w, char *err, size_t errlen)
{
	struct kvs_slice slices[KVS_TP_MAX];
	struct kvs_reshard_prefill p = {
		.tp = w->o.prefill_tp,
		.n_ranks = w->o.prefill_tp,
		.slices = slices,
	};
	char why[KVS_PRESET_ERR];
	struct kvs_layout *room;
	bool tp_bad;
	int ret;

	if (w->o.n_ranks % w->o.prefill_tp) {
		snprintf(err, errlen,
			 "--nranks %u: not a multiple of --prefill-tp %u",
			 w->o.n_ranks, w->o.prefill_tp);
		return -EINVAL;
	}
	ret = workload_layout(w, w->o.tp, 0, w->o.page_size, &w->layout, err,
			      errlen);
	if (ret)
		return ret;
	p.page_size = w->o.prefill_page ? w->o.prefill_page
					: w->layout->page_size;
	ret = workload_layout(w, p.tp, 0, p.page_size, &w->prefill, why,
			      sizeof(why));
	if (ret) {
		/* with the decode's page size it could be */
		tp_bad = p.page_size == w->layout->page_size ||
			 workload_layout(w, p.tp, 0, w->layout->page_size,
					 &room, err, errlen);
		if (!tp_bad)
			free(room);
		snprintf(err, errlen, "--prefill-%s: %s",
			 tp_bad ? "tp" : "page-size", why);
		return ret;
	}
	for (uint32_t r = 0; r < p.tp; r++)
		slices[r] = (struct kvs_slice){ 0, UINT16_MAX + 1, p.tp, r };
	ret = kvs_reshard_layout(
		(const struct kvs_layout *const[]){ w->layout }, 1, &p, false,
		&room, err, errlen);
	if (ret)
		return ret == -EPROTOTYPE ? -EINVAL : ret;
	free(room);
	return 0;
}

int kvs_workload_open(const struct kvs_workload_opts *o,
		      struct kvs_workload *ret, char *err, size_t errlen)
{
	struct kvs_workload w = { .o = *o };
	int res;

	if (!w.o.model) {
		w.o.model = KVS_WORKLOAD_MODEL;
		if (!w.o.layers)
			w.o.layers = KVS_WORKLOAD_LAYERS;
	}
	res = workload_layouts(&w, err, errlen);
	if (res) {
		free(w.layout);
		free(w.prefill);
		return res;
	}
	for (uint32_t b = 0; b < w.layout->n_buffers; b++)
		if (w.layout->buffers[b].layer >= w.n_layers)
			w.n_layers = w.layout->buffers[b].layer + 1u;
	res = workload_requests(&w, err, errlen);
	if (res) {
		free(w.layout);
		free(w.prefill);
		return res;
	}
	*ret = w;
	return 0;
}

void kvs_workload_close(struct kvs_workload *w)
{
	kvs_trace_fini(&w->trace);
	free(w->layout);
	free(w->prefill);
	w->layout = NULL;
	w->prefill = NULL;
}

uint64_t kvs_workload_room(const struct kvs_workload *w, size_t i)
{
	return w->o.room_base + i;
}

uint64_t kvs_workload_tokens(const struct kvs_workload *w, size_t i)
{
	return w->trace.req[i].input;
}

void kvs_workload_nonce(const struct kvs_workload *w, size_t i,
			unsigned char ret[16])
{
	uint64_t room = kvs_workload_room(w, i);
	uint64_t half[2];

	half[0] = kvs_mix64(kvs_mix64(w->o.seed + 1) ^ room);
	half[1] = kvs_mix64(half[0] + room);
	memcpy(ret, half, sizeof(half));
}

uint64_t kvs_workload_seed(const struct kvs_workload *w, uint64_t room,
			   unsigned int kind, unsigned int layer)
{
	return kvs_pattern_seed(w->o.seed, room, kind, layer);
}

uint32_t kvs_workload_pages(const struct kvs_workload *w, uint64_t tokens)
{
	uint32_t size = w->layout->page_size;

	return (uint32_t)((tokens + size - 1) / size);
}

uint32_t kvs_workload_items(const struct kvs_layer_buffer *b, uint32_t pages)
{
	if (kvs_buffer_kind_is_paged(b->kind))
		return pages;
	if (b->kind == KVS_BUFFER_SWA && pages < b->items)
		return pages;
	return b->items;
}

uint32_t kvs_workload_prefill_pages(const struct kvs_workload *w,
				    uint64_t tokens)
{
	uint32_t size = w->prefill->page_size;

	return (uint32_t)((tokens + size - 1) / size);
}

uint64_t kvs_workload_covered(const struct kvs_workload *w, uint64_t tokens)
{
	return (uint64_t)kvs_workload_prefill_pages(w, tokens) *
	       w->prefill->page_size;
}

/* All heads of each token in one plane: items follow one another. */
static bool workload_whole(const struct kvs_layout *l, uint32_t b)
{
	struct kvs_buffer_cut c = kvs_layout_cut(l, b);

	return !c.heads || (c.planes == 1 && kvs_layout_tp(l) == 1);
}

uint32_t kvs_workload_n_pieces(const struct kvs_layout *l, uint32_t b)
{
	return workload_whole(l, b) ? 1
				    : kvs_layout_cut(l, b).planes *
					      kvs_layout_item_tokens(l, b);
}

struct kvs_workload_piece kvs_workload_piece(const struct kvs_layout *l,
					     uint32_t b, uint64_t item,
					     uint32_t k)
{
	uint32_t tokens = kvs_layout_item_tokens(l, b), heads, first;
	struct kvs_buffer_cut c = kvs_layout_cut(l, b);
	uint64_t len = l->buffers[b].item_len, token, unit;

	if (workload_whole(l, b))
		return (struct kvs_workload_piece){ 0, item * len, len,
						    item * tokens };
	heads = kvs_cut_heads(c.heads, kvs_layout_tp(l), l->tp_rank, &first);
	unit = len / (c.planes * tokens * heads);
	token = item * tokens + k % tokens;
	return (struct kvs_workload_piece){
		.off = (uint64_t)k * heads * unit,
		.at = ((token * c.planes + k / tokens) * c.heads + first) *
		      unit,
		.len = heads * unit,
		.token = token,
	};
}

struct kvs_rank_slice kvs_workload_slice(const struct kvs_workload *w,
					 uint32_t rank)
{
	uint64_t n = w->o.n_ranks / w->o.prefill_tp, layers = w->n_layers;
	uint32_t stage = rank / w->o.prefill_tp;
	uint32_t first = (uint32_t)(stage * layers / n);
	uint32_t end = (uint32_t)((stage + 1ULL) * layers / n);

	return (struct kvs_rank_slice){ first, end - first };
}

struct kvs_slice kvs_workload_sends(const struct kvs_workload *w, uint32_t rank)
{
	struct kvs_rank_slice s = kvs_workload_slice(w, rank);

	return (struct kvs_slice){ s.first_layer, s.n_layers, w->o.prefill_tp,
				   rank % w->o.prefill_tp };
}

int kvs_workload_decode_layout(const struct kvs_workload *w, uint32_t rank,
			       struct kvs_layout **ret)
{
	char err[256];

	return workload_layout(w, w->o.tp, rank, w->layout->page_size, ret, err,
			       sizeof(err));
}

int kvs_workload_rank_layout(const struct kvs_workload *w, uint32_t rank,
			     struct kvs_layout **ret)
{
	struct kvs_rank_slice s = kvs_workload_slice(w, rank);
	struct kvs_layout *all, l;
	struct kvs_buffer_cut *cuts;
	char err[256];
	int res;

	res = workload_layout(w, w->o.prefill_tp, rank % w->o.prefill_tp,
			      w->prefill->page_size, &all, err, sizeof(err));
	if (res)
		return res;
	/* the copy's size must be plain, see kvs_layout_dup() */
	l = *all;
	l.size = sizeof(l);
	l.buffers = calloc(l.n_buffers, sizeof(*l.buffers));
	cuts = calloc(l.n_buffers, sizeof(*cuts));
	res = -ENOMEM;
	if (!l.buffers || !cuts)
		goto out;
	l.n_buffers = 0;
	for (uint32_t b = 0; b < all->n_buffers; b++) {
		const struct kvs_layer_buffer *lb = &all->buffers[b];

		if (lb->layer < s.first_layer ||
		    lb->layer - s.first_layer >= s.n_layers)
			continue;
		cuts[l.n_buffers] = kvs_layout_cut(all, b);
		l.buffers[l.n_buffers++] = *lb;
	}
	if (!l.n_buffers) {
		cuts[0] = kvs_layout_cut(all, 0);
		l.buffers[l.n_buffers++] = all->buffers[0];
	}
	l.cuts = all->cuts ? cuts : NULL;
	res = kvs_layout_dup(&l, ret);
out:
	free(l.buffers);
	free(cuts);
	free(all);
	return res;
}
