/* SPDX-License-Identifier: Apache-2.0 */
/*
 * DOC: admission
 *
 * Who gets a worker's memory next. Three queues, served in this order:
 *
 *   health    rooms admitted as health checks, from a reserve of their own
 *   opened    rooms that a rank has opened: they are being sent
 *   unopened  rooms that nobody sends yet; served while no opened one waits
 *
 * A room that gets memory before a rank opened it (ADMITTED) has it on *loan*:
 * when an opened room does not fit, loans are called in, the latest first, and
 * the room waits again. It was granted to nobody, so it is free at once (R1).
 * Its status word stays ADMITTED, since words only grow, and its open.timeout
 * goes on. So an engine that admits far more than its ranks send cannot fill
 * the pool with rooms that nobody sends.
 *
 * Rooms and bytes of each peer are counted from the admit until the memory is
 * free, holds included, and limited by admission.peer_rooms and peer_bytes.
 *
 * The reserve is one extent, set aside when the first health room comes and
 * taken again as the rooms that used it end.
 */
#ifndef KVS_PIPELINE_ADMISSION_H
#define KVS_PIPELINE_ADMISSION_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "lib/list.h"
#include "lib/u64map.h"
#include "pinned/pool.h"
#include "pinned/wait.h"

struct kvs_room;
struct kvs_room_request;
struct kvs_worker;

/* What one peer's rooms have or ask for; exists while it has a room. */
struct kvs_admission_peer {
	struct kvs_admission_peer *next; /* of the same key */
	uint64_t key;
	uint32_t rooms;
	uint64_t bytes;
	char name[];
};

struct kvs_admission {
	struct kvs_u64map peers; /* by a hash of the name */
	struct kvs_waitq unopened; /* opened rooms wait in the pool's queue */
	struct kvs_waitq health;
	struct kvs_list loans; /* ADMITTED rooms, the latest last */
	uint64_t loan_bytes;
	uint64_t waiting_bytes; /* asked for by all who wait */
	struct kvs_extents reserve;
	bool reserve_wanted; /* a health room came */
	uint64_t health_bytes; /* memory of health rooms */
	/* bytes given back, in this window and in the one before */
	uint64_t window_at; /* ns */
	uint64_t window_bytes;
	uint64_t before_bytes;
};

void kvs_admission_init(struct kvs_worker *w);
/* Asserts that no room is left. */
void kvs_admission_fini(struct kvs_worker *w);

/**
 * kvs_admission_check() - may the peer have one more room of @need bytes?
 *
 * Return: 0; -E2BIG never (the room alone passes a limit); -EDQUOT not now:
 * the peer has too many rooms or bytes. @err names setting and value.
 */
int kvs_admission_check(struct kvs_worker *w, const struct kvs_room_request *q,
			uint64_t need, char *err, size_t errlen);
/* Count a room for its peer, and forget it: 0 or -ENOMEM. */
int kvs_admission_enter(struct kvs_room *r);
void kvs_admission_leave(struct kvs_room *r);

/* Bytes set aside for health rooms once there is one. */
uint64_t kvs_admission_reserve_size(const struct kvs_worker *w);

/* May a new room try at once, or must it queue behind others? */
bool kvs_admission_may_pass(struct kvs_room *r);
/* It took memory at once, before any who wait. */
void kvs_admission_passed(struct kvs_room *r);
/* No place in the queues any more (admission.queue)? */
bool kvs_admission_full(const struct kvs_room *r);
uint32_t kvs_admission_waiting(const struct kvs_worker *w);

/* Wait in the queue that is the room's now; does not tell anybody. */
void kvs_admission_queue(struct kvs_room *r);
/* Out of whichever queue; harmless when in none. */
void kvs_admission_cancel(struct kvs_room *r);

/**
 * kvs_admission_alloc() - memory for a room, loans called in if need be
 * @lens: of its extents
 * Return: as kvs_pool_alloc().
 */
int kvs_admission_alloc(struct kvs_room *r, const uint64_t *lens);
/* ADMITTED: what it has is on loan until the first OPEN. */
void kvs_admission_lend(struct kvs_room *r);
/* It is being sent, or over. Harmless when it had no loan. */
void kvs_admission_unlend(struct kvs_room *r);
/* Take its memory away again; nobody was granted it. */
void kvs_admission_take(struct kvs_room *r);
/* Memory of a room is free again, @bytes of it. */
void kvs_admission_released(struct kvs_room *r, uint64_t bytes);
/* Serve the queues; memory was freed or somebody left. */
void kvs_admission_run(struct kvs_worker *w);

/**
 * kvs_admission_retry() - when to ask again for @bytes, ms
 *
 * What is asked for, by those who wait and by this one, over the rate at which
 * memory came back lately; between 100 ms and admission.timeout, a second
 * where nothing came back.
 */
uint32_t kvs_admission_retry(const struct kvs_worker *w, uint64_t bytes);

#endif /* KVS_PIPELINE_ADMISSION_H */
