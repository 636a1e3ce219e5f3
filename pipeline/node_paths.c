/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which data connection of a one-sided rank a room uses. A write that is
 * refused breaks its connection and costs whoever else is on it, so rooms are
 * spread, and one that broke so gets no new rooms for a while: a writer that
 * does not stop meets nobody there. A large room goes over several, on as many
 * devices as there are; but never over all that there are, if more than one a
 * device, so that it cannot cost all of them either.
 */
#include <errno.h>
#include <stdlib.h>

#include "lib/log.h"
#include "pipeline/node_internal.h"

static struct kvs_session_paths *paths_of(const struct kvs_node *n,
					  uint64_t session)
{
	const struct kvs_worker_session *s =
		kvs_u64map_get(&n->worker->sessions, session);

	return s ? s->paths : NULL;
}

void kvs_node_path_add(struct kvs_worker_session *s, struct kvs_data_conn *dc)
{
	if (s->paths)
		s->paths->conn[dc->path] = dc;
}

bool kvs_node_path_further(const struct kvs_worker_session *s)
{
	for (unsigned int i = 0; s->paths && i < KVS_PATHS_MAX; i++)
		if (s->paths->conn[i])
			return true;
	return false;
}

void kvs_node_path_lost(struct kvs_node *n, struct kvs_data_conn *dc, int err)
{
	struct kvs_session_paths *p = paths_of(n, dc->session);

	if (!p)
		return;
	if (p->conn[dc->path] == dc)
		p->conn[dc->path] = NULL;
	if (err != -EACCES || dc->closing || !n->settings.rdma_avoid)
		return;
	p->avoid[dc->path] = kvs_clock_now(n->clock) + n->settings.rdma_avoid;
	kvs_log_info("a write was refused on data connection %u of session "
		     "%llx: its rooms avoid that for a while",
		     dc->path, (unsigned long long)dc->session);
}

void kvs_node_path_use(struct kvs_node *n, uint64_t session, uint16_t path,
		       uint64_t bytes)
{
	struct kvs_session_paths *p = paths_of(n, session);

	if (p)
		p->bytes[path] += bytes;
}

void kvs_node_path_release(struct kvs_node *n, uint64_t session, uint16_t path,
			   uint64_t bytes)
{
	struct kvs_session_paths *p = paths_of(n, session);

	if (p)
		p->bytes[path] -= bytes;
}

static bool usable(const struct kvs_data_conn *dc)
{
	return dc && !dc->close && !dc->closing && !dc->dying;
}

static unsigned int rail_of(const struct kvs_data_conn *dc)
{
	return kvs_conn_rail(dc->c) % KVS_PATHS_MAX;
}

/* What of a connection counts against it, the weightiest first. */
struct kvs_path_cost {
	uint64_t avoid; /* ns; 0: it need not be */
	unsigned int rail; /* chosen ones on its device */
	uint64_t bytes;
};

static bool cheaper(const struct kvs_path_cost *a,
		    const struct kvs_path_cost *b)
{
	if (a->avoid != b->avoid)
		return a->avoid < b->avoid;
	if (a->rail != b->rail)
		return a->rail < b->rail;
	return a->bytes < b->bytes;
}

unsigned int kvs_node_paths_choose(const struct kvs_node *n,
				   const struct kvs_worker_session *s,
				   uint64_t bytes, unsigned int most,
				   struct kvs_data_conn **ret)
{
	const struct kvs_session_paths *p = s->paths;
	uint64_t now = kvs_clock_now(n->clock);
	unsigned int on_rail[KVS_PATHS_MAX] = { 0 };
	unsigned int i, best, count = 0, there = 0, want = 1;
	uint64_t taken = 0;

	for (i = 0; p && i < KVS_PATHS_MAX; i++)
		there += usable(p->conn[i]);
	if (bytes >= n->settings.rdma_stripe_min)
		want = there / 2 > n->rails ? there / 2 : n->rails;
	if (want > most)
		want = most ? most : 1;
	while (count < want && count < there) {
		struct kvs_path_cost least = { 0 };

		best = KVS_PATHS_MAX;
		for (i = 0; i < KVS_PATHS_MAX; i++) {
			struct kvs_path_cost c = {
				.avoid = p->avoid[i] > now ? p->avoid[i] : 0,
				.bytes = p->bytes[i],
			};

			if (taken & 1ULL << i || !usable(p->conn[i]))
				continue;
			c.rail = on_rail[rail_of(p->conn[i])];
			if (best < KVS_PATHS_MAX && !cheaper(&c, &least))
				continue;
			best = i;
			least = c;
		}
		/* several only of those that need not be avoided */
		if (count && least.avoid)
			break;
		taken |= 1ULL << best;
		on_rail[rail_of(p->conn[best])]++;
		ret[count++] = p->conn[best];
	}
	return count;
}
