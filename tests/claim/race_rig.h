/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The race of sgl-project/sglang#24527 and #36610, step by step: room A has a
 * write under way that nobody can call back when it is aborted, room B wants
 * A's pages, and the write comes at the worst moment. How bytes travel is a
 * parameter, struct race_transport.
 *
 * Nothing is left to time: every step returns when what it is about can be
 * seen to have happened. What happened to the memory of the rooms is read
 * from the log.
 */
#ifndef KVS_TESTS_RACE_RIG_H
#define KVS_TESTS_RACE_RIG_H

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "kvstage/device.h"
#include "kvstage/engine.h"
#include "lib/log.h"
#include "lib/rule.h"
#include "pinned/drain.h"
#include "pinned/pool.h"

#define RACE_BUFFERS 4u /* K of two layers, then V; rank n sends layer n */
#define RACE_ITEM_MAX 8192u /* bytes of a page in one buffer */
#define RACE_RANKS 2u
#define RACE_EXTENTS 32u
#define RACE_LATE 0xa7e1a7eu /* seed of A's bytes */
#define RACE_OWN 0x0b0b0b0bu /* of B's */

/* When the late write comes. */
enum race_moment {
	RACE_BEFORE_READY, /* B has all its bytes and is not READY */
	RACE_BEFORE_COPY, /* B is READY */
	RACE_DURING_COPY, /* B's copy to the device was launched */
	RACE_MOMENTS
};
extern const char *const race_moment_name[RACE_MOMENTS];

/* How A's hold ends. */
enum race_end {
	RACE_ACK, /* the write ends, its rank acknowledges, B may begin */
	RACE_NAK, /* its rank cannot tell: revoked, B begins, the write comes */
	RACE_ENDS
};
extern const char *const race_end_name[RACE_ENDS];

struct race_shape {
	unsigned int pool, a, b; /* pages */
	bool two_peers; /* B is sent by another prefill instance than A */
	bool both_fit; /* B needs none of A's pages */
};

struct race_room {
	unsigned int index; /* 0: A, 1: B */
	uint64_t id;
	uint64_t seed; /* of its bytes */
	unsigned int pages;
	unsigned int peer; /* 0 or 1 */
	/* from the log */
	uint32_t n_extents;
	uint64_t off[RACE_EXTENTS], len[RACE_EXTENTS]; /* bytes in the pool */
};

#define RACE_LINES 4096u
#define RACE_LINE 160u

struct race {
	const struct race_transport *t;
	uint64_t page; /* bytes of a page in all buffers */
	struct race_shape shape;
	bool torn; /* a grant ends with its connection only */
	struct kvs_device *device;
	void *dev[RACE_BUFFERS];
	uint32_t *slots; /* device page of each page of B */
	unsigned int n_lines;
	char (*lines)[RACE_LINE]; /* of the daemon's log */
};

/* Writes that a rank began after it was proven that it reaches nothing. */
struct race_late {
	unsigned int n;
	unsigned int refused; /* by the device */
	unsigned int cut; /* ended with their connection */
	unsigned int landed; /* or so their writer was told */
};

/**
 * struct race_transport - how bytes travel; each call waits for its effect
 * @item: bytes of a page in one buffer
 * @extent_pages: pages of a full extent
 * @byte: what a source has in a place of a room
 * @up: a daemon with a pool of shape.pages, two ranks of two peers, an engine
 * @down: asserts that all is free and nothing is left
 * @admit: the engine asks for the room; an answer of the daemon is there
 * @grant: its ranks have opened it and are granted (memory is there)
 * @launch: rank 1's write of the K of its layer into the room's first extent
 *          has begun: its first bytes came, the rest will, whatever we do
 * @land: that rest has come, and what the daemon does with it is done
 * @abort: the engine gave the room up, it and both ranks know
 * @answer: a rank's answer to that, and it has been taken
 * @fill: every byte of both ranks is placed
 * @last: they have said so, and the room is READY
 * @commit: its copy to the device has been launched
 * @done: the copy is over
 * @settle: every room is over
 * @status, @bytes, @drains: numbers
 * @late: of all so far; NULL: not counted
 * @stubborn: rank 1 goes on writing from @launch on whatever it was told, and
 *            then @land is: one more of its writes has ended. Its connections
 *            may break of that, so B is always another peer's
 * @rounds: instead of the test's; 0: as many
 * @grant_kind: verbs
 */
struct race_transport {
	const char *name;
	const char *grant_kind;
	unsigned int rounds;
	bool stubborn;
	unsigned int item;
	unsigned int extent_pages;
	unsigned char (*byte)(const struct race_room *r, uint32_t buffer,
			      uint32_t page, uint32_t at);
	void (*up)(struct race *x);
	void (*down)(struct race *x);
	void (*admit)(struct race *x, struct race_room *r);
	void (*grant)(struct race *x, struct race_room *r);
	void (*launch)(struct race *x, struct race_room *r);
	void (*land)(struct race *x, struct race_room *r);
	void (*abort)(struct race *x, struct race_room *r);
	void (*answer)(struct race *x, struct race_room *r, unsigned int rank,
		       enum race_end how);
	void (*fill)(struct race *x, struct race_room *r);
	void (*last)(struct race *x, struct race_room *r);
	void (*commit)(struct race *x, struct race_room *r);
	void (*done)(struct race *x, struct race_room *r);
	enum kvs_status (*status)(struct race *x, struct race_room *r);
	void (*settle)(struct race *x);
	uint64_t (*bytes)(struct race *x, enum kvs_extent_state st);
	uint64_t (*drains)(struct race *x, enum kvs_drain_outcome o,
			   enum kvs_proof p);
	void (*late)(struct race *x, struct race_late *ret);
};

extern const struct race_transport race_tcp_sock, race_tcp_uring, race_loop,
	race_verbs_mr, race_verbs_paths, race_verbs_window, race_verbs_qp;
/* Is there a device? Says why not, or which. */
bool race_verbs_there(void);

/* Is the hold there? Not in a build with KVS_MUTATE and the rule taken out. */
static inline bool race_held(void)
{
	return KVS_RULE(R1, HOLD);
}

/* The rig up with a device; down again, all free. */
void race_up(struct race *x, const struct race_transport *t,
	     const struct race_shape *s, bool hold_copy);
void race_down(struct race *x);
void race_room_init(struct race_room *r, unsigned int index, uint64_t id,
		    const struct race_shape *s);

/* For a transport's rig: takes a line of the log, from any thread. */
void race_log(enum kvs_log_level level, const char *line, void *arg);
/* The first line from number @from on that begins with "room @id " and goes on
 * with @what after its generation; -1: none. */
int race_line(struct race *x, const struct race_room *r, const char *what,
	      unsigned int from);
unsigned int race_count(struct race *x, const struct race_room *r,
			const char *what);
/* Where the room lies. */
void race_locate(struct race *x, struct race_room *r);
/* Bytes of the pool that are in both. */
uint64_t race_common(const struct race_room *a, const struct race_room *b);

/* What is wrong on the device. */
struct race_wrong {
	uint64_t bytes;
	uint64_t of_a; /* bytes of A's late write among them */
	char where[200]; /* the first, and what it is */
};
void race_compare(struct race *x, const struct race_room *a,
		  const struct race_room *b, struct race_wrong *ret);

#endif /* KVS_TESTS_RACE_RIG_H */
