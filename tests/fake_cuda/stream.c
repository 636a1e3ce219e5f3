/* SPDX-License-Identifier: Apache-2.0 */
/* Streams, events, and what is done on them. */
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "lib/assert.h"
#include "pinned/poison.h"
#include "tests/fake_cuda/internal.h"

enum op_kind {
	OP_MOVES,
	OP_LAUNCH,
	OP_RECORD,
	OP_WAIT,
};

struct op {
	struct kvs_list node;
	enum op_kind kind;
	struct move *moves;
	size_t n_moves;
	struct kvs_scatter_launch launch;
	bool to_host;
	uint32_t threads;
	kvs_cuda_event event;
	uint64_t seq;
	int faults; /* a copy that is the context's end, with this error */
};

struct kvs_cuda_event {
	uint64_t recorded; /* times */
	uint64_t done; /* of which the stream has come to */
	uint64_t refs; /* by operations, and by its owner */
};

struct kvs_cuda_stream {
	pthread_t thread;
	struct kvs_list ops;
	bool stop;
};

/* ---- events ---- */

static void unref(kvs_cuda_event e)
{
	if (!--e->refs)
		free(e);
}

int fake_event_create(kvs_cuda_event *ret, unsigned int flags)
{
	int r = enter("cuEventCreate", true);

	if (!r && flags != KVS_CUDA_EVENT_DISABLE_TIMING)
		r = KVS_CUDA_INVALID_VALUE;
	if (r)
		return leave(r);
	*ret = calloc(1, sizeof(**ret));
	KVS_ASSERT(*ret);
	(*ret)->refs = 1;
	fake.n.events++;
	return leave(0);
}

int fake_event_destroy(kvs_cuda_event e)
{
	int r = enter("cuEventDestroy", false);

	unref(e);
	fake.n.events--;
	return leave(r ? r : fake.dead);
}

int fake_event_query(kvs_cuda_event e)
{
	int r = enter("cuEventQuery", true);

	if (!r && e->done < e->recorded)
		r = KVS_CUDA_NOT_READY;
	return leave(r);
}

/* ---- a stream's thread ---- */

static void pause_ns(uint64_t ns)
{
	struct timespec ts = { .tv_sec = (time_t)(ns / 1000000000u),
			       .tv_nsec = (long)(ns % 1000000000u) };

	(void)nanosleep(&ts, NULL);
}

static void make_moves(struct op *op)
{
	size_t i, j;

	if (fake.shuffle)
		for (i = op->n_moves - 1; op->n_moves && i > 0; i--) {
			struct move t = op->moves[i];

			j = kvs_rng_below(&fake.rng, i + 1);
			op->moves[i] = op->moves[j];
			op->moves[j] = t;
		}
	fake.n.copies += op->n_moves;
	(void)pthread_mutex_unlock(&fake.lock);
	for (i = 0; i < op->n_moves; i++)
		kvs_dma_move(op->moves[i].to, op->moves[i].from,
			     op->moves[i].len);
	(void)pthread_mutex_lock(&fake.lock);
}

/* A copy or a launch. Lock held. */
static void work(struct op *op)
{
	uint64_t ns = fake.slow_ns;
	int r = 0;

	if (fake.break_in && !--fake.break_in)
		die(fake.break_error);
	if (op->faults)
		die(op->faults);
	if (fake.dead)
		return;
	if (ns) {
		(void)pthread_mutex_unlock(&fake.lock);
		pause_ns(ns);
		(void)pthread_mutex_lock(&fake.lock);
	}
	fake.working++;
	if (op->kind == OP_MOVES)
		make_moves(op);
	else
		r = run_launch(&op->launch, op->to_host, op->threads);
	fake.working--;
	(void)pthread_cond_broadcast(&fake.changed);
	if (r)
		die(r);
}

static void one(struct op *op)
{
	switch (op->kind) {
	case OP_MOVES:
	case OP_LAUNCH:
		work(op);
		break;
	case OP_RECORD:
		if (op->event->done < op->seq)
			op->event->done = op->seq;
		(void)pthread_cond_broadcast(&fake.changed);
		break;
	case OP_WAIT:
		while (op->event->done < op->seq && !fake.dead)
			(void)pthread_cond_wait(&fake.changed, &fake.lock);
		break;
	}
	if (op->event)
		unref(op->event);
	free(op->moves);
	free(op);
}

static void *stream_main(void *arg)
{
	kvs_cuda_stream s = arg;

	(void)pthread_mutex_lock(&fake.lock);
	for (;;) {
		struct op *op;

		while ((kvs_list_empty(&s->ops) && !s->stop) ||
		       (fake.hold && !fake.dead))
			(void)pthread_cond_wait(&fake.changed, &fake.lock);
		if (kvs_list_empty(&s->ops))
			break;
		op = kvs_list_first(&s->ops, struct op, node);
		kvs_list_del(&op->node);
		one(op);
	}
	(void)pthread_mutex_unlock(&fake.lock);
	return NULL;
}

int fake_priority_range(int *least, int *greatest)
{
	int r = enter("cuCtxGetStreamPriorityRange", true);

	*least = 0;
	*greatest = -5;
	return leave(r);
}

int fake_stream_create(kvs_cuda_stream *ret, unsigned int flags, int priority)
{
	int r = enter("cuStreamCreateWithPriority", true);
	kvs_cuda_stream s;

	/* the engine's kernels come first */
	if (!r && (flags != KVS_CUDA_STREAM_NON_BLOCKING || priority != 0))
		r = KVS_CUDA_INVALID_VALUE;
	if (r)
		return leave(r);
	s = calloc(1, sizeof(*s));
	KVS_ASSERT(s);
	kvs_list_init(&s->ops);
	KVS_ASSERT(!pthread_create(&s->thread, NULL, stream_main, s));
	fake.n.streams++;
	*ret = s;
	return leave(0);
}

int fake_stream_destroy(kvs_cuda_stream s)
{
	int r = enter("cuStreamDestroy", false);

	s->stop = true;
	fake.n.streams--;
	(void)pthread_cond_broadcast(&fake.changed);
	(void)leave(0);
	(void)pthread_join(s->thread, NULL);
	free(s);
	return r;
}

/* ---- calls that put something on a stream ---- */

static struct op *add_op(kvs_cuda_stream s, enum op_kind kind)
{
	struct op *op = calloc(1, sizeof(*op));

	KVS_ASSERT(op && !s->stop);
	op->kind = kind;
	kvs_list_add_tail(&s->ops, &op->node);
	(void)pthread_cond_broadcast(&fake.changed);
	return op;
}

int fake_event_record(kvs_cuda_event e, kvs_cuda_stream s)
{
	int r = enter("cuEventRecord", true);
	struct op *op;

	if (r)
		return leave(r);
	op = add_op(s, OP_RECORD);
	op->event = e;
	op->seq = ++e->recorded;
	e->refs++;
	return leave(0);
}

int fake_stream_wait(kvs_cuda_stream s, kvs_cuda_event e, unsigned int flags)
{
	int r = enter("cuStreamWaitEvent", true);
	struct op *op;

	if (!r && flags)
		r = KVS_CUDA_INVALID_VALUE;
	if (r)
		return leave(r);
	op = add_op(s, OP_WAIT);
	op->event = e;
	op->seq = e->recorded;
	e->refs++;
	return leave(0);
}

/* @batch: stricter, as what the driver does with others there is not said. */
static int find_move(struct move *m, kvs_cuda_ptr to, kvs_cuda_ptr from,
		     size_t len, bool batch, int *faults)
{
	bool pageable[2], raw[2];
	void *src = NULL;

	if (!len || resolve(to, len, &pageable[0], &raw[0], &m->to) ||
	    resolve(from, len, &pageable[1], &raw[1], &src))
		return KVS_CUDA_INVALID_VALUE;
	if (batch && (pageable[0] || pageable[1]))
		return KVS_CUDA_INVALID_VALUE;
	if (batch && (raw[0] || raw[1]))
		*faults = KVS_CUDA_ILLEGAL_ADDRESS;
	m->from = src;
	m->len = len;
	return 0;
}

int fake_copy(kvs_cuda_ptr dst, kvs_cuda_ptr src, size_t len, kvs_cuda_stream s)
{
	int r = enter("cuMemcpyAsync", true);
	struct move m;
	struct op *op;
	int faults = 0;

	if (!r)
		r = find_move(&m, dst, src, len, false, &faults);
	if (r)
		return leave(r);
	op = add_op(s, OP_MOVES);
	op->moves = malloc(sizeof(m));
	KVS_ASSERT(op->moves);
	*op->moves = m;
	op->n_moves = 1;
	return leave(0);
}

static int batch(kvs_cuda_ptr *dst, kvs_cuda_ptr *src, size_t *len, size_t n,
		 const struct kvs_cuda_copy_attr *attrs, const size_t *attr_at,
		 size_t n_attrs, kvs_cuda_stream s)
{
	struct move *m;
	struct op *op;
	int faults = 0;
	size_t i;
	int r = 0;

	if (!n || !s || n_attrs != 1 || attr_at[0] ||
	    attrs[0].order != KVS_CUDA_ORDER_STREAM || attrs[0].flags)
		return KVS_CUDA_INVALID_VALUE;
	m = calloc(n, sizeof(*m));
	KVS_ASSERT(m);
	for (i = 0; i < n && !r; i++)
		r = find_move(&m[i], dst[i], src[i], len[i], true, &faults);
	if (r) {
		free(m);
		return r;
	}
	op = add_op(s, OP_MOVES);
	op->moves = m;
	op->n_moves = n;
	op->faults = faults;
	fake.n.batches++;
	return 0;
}

int fake_copy_batch(kvs_cuda_ptr *dst, kvs_cuda_ptr *src, size_t *len, size_t n,
		    struct kvs_cuda_copy_attr *attrs, size_t *attr_at,
		    size_t n_attrs, kvs_cuda_stream s)
{
	int r = enter("cuMemcpyBatchAsync", true);

	if (!r)
		r = batch(dst, src, len, n, attrs, attr_at, n_attrs, s);
	return leave(r);
}

int fake_copy_batch_12(kvs_cuda_ptr *dst, kvs_cuda_ptr *src, size_t *len,
		       size_t n, struct kvs_cuda_copy_attr *attrs,
		       size_t *attr_at, size_t n_attrs, size_t *ret_failed,
		       kvs_cuda_stream s)
{
	int r = enter("cuMemcpyBatchAsync", true);

	*ret_failed = SIZE_MAX;
	if (!r)
		r = batch(dst, src, len, n, attrs, attr_at, n_attrs, s);
	return leave(r);
}

int fake_copy_to_host(void *dst, kvs_cuda_ptr src, size_t len)
{
	int r = enter("cuMemcpyDtoH", true);
	bool pageable, raw;
	void *from = NULL;

	if (!r)
		r = resolve(src, len, &pageable, &raw, &from);
	if (!r && pageable)
		r = KVS_CUDA_INVALID_VALUE;
	(void)leave(0);
	if (!r)
		kvs_dma_move(dst, from, len);
	return r;
}

/* NOLINTNEXTLINE(readability-function-size): the driver's arguments */
int fake_launch(kvs_cuda_func f, unsigned int grid_x, unsigned int grid_y,
		unsigned int grid_z, unsigned int block_x, unsigned int block_y,
		unsigned int block_z, unsigned int shared, kvs_cuda_stream s,
		void **args, void **extra)
{
	int r = enter("cuLaunchKernel", true);
	struct op *op;

	if (!r && (!grid_x || grid_y != 1 || grid_z != 1 || block_y != 1 ||
		   block_z != 1 || block_x != KVS_SCATTER_BLOCK || shared ||
		   extra || !args || !s))
		r = KVS_CUDA_INVALID_VALUE;
	if (r)
		return leave(r);
	op = add_op(s, OP_LAUNCH);
	/* arguments are read in the call */
	memcpy(&op->launch, args[0], sizeof(op->launch));
	op->to_host = func_to_host(f);
	op->threads = grid_x * block_x;
	fake.n.launches++;
	if (grid_x > fake.n.blocks_max)
		fake.n.blocks_max = grid_x;
	return leave(0);
}
