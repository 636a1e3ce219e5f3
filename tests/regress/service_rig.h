/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A daemon core in this process, on loopback, with its numbers at hand. The
 * puppets that talk to it (puppet_sender.h, puppet_engine.h) use plain
 * sockets, so that they can lie, stall and die where the library would not.
 *
 * Outcomes are waited for by polling the snapshot under a deadline.
 */
#ifndef KVS_TESTS_SERVICE_RIG_H
#define KVS_TESTS_SERVICE_RIG_H

#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include <cmocka.h>

#include "lib/assert.h"
#include "lib/clock.h"
#include "lib/log.h"
#include "lib/rng.h"
#include "pipeline/service.h"
#include "pipeline/wire.h"

#define RIG_DEADLINE (30 * KVS_NSEC_PER_SEC)

struct rig {
	struct kvs_settings set;
	struct kvs_topology *topo;
	struct kvs_service *svc;
	struct kvs_snapshot *snap;
	unsigned int port;
	char dir[64];
	atomic_uint errors; /* lines logged at level err */
	atomic_uint warnings; /* at level warn */
	char first_error[256];
	bool errors_expected;
	/* optional, set before rig_up(): every line, from any thread */
	void (*log)(enum kvs_log_level level, const char *line, void *arg);
	void *log_arg;
};

/* Settings for a test: a pool of @pool bytes of 4K pages, TCP by @engine
 * ("sock", "uring"). */
void rig_init(struct rig *g, const char *engine, const char *pool);
void rig_set(struct rig *g, const char *name, const char *value);
void rig_up(struct rig *g);
/* Waits until every room is gone and every byte is free, fails when that does
 * not happen or when something was logged as an error, ends the daemon. */
void rig_down(struct rig *g);

/* Can this machine run a daemon with io_uring? */
bool rig_has_uring(void);
/* Runs @tests with "sock", then, where there is one, with "uring"; the engine
 * is the tests' initial state: rig_engine(state). */
#define rig_run_both(tests)                                               \
	((rig_group("sock"), cmocka_run_group_tests(tests, NULL, NULL)) + \
	 (rig_has_uring() ? (rig_group("uring"),                          \
			     cmocka_run_group_tests(tests, NULL, NULL))   \
			  : 0))
void rig_group(const char *engine);
const char *rig_engine(void);

/* Fresh numbers in g->snap. */
void rig_refresh(struct rig *g);
uint64_t rig_bytes(const struct rig *g, enum kvs_extent_state st);
uint64_t rig_proto(const struct rig *g, enum kvs_proto_error e);
uint64_t rig_failures(const struct rig *g, enum kvs_room_cause c);
uint64_t rig_admits(const struct rig *g, enum kvs_admit_result r);
uint64_t rig_late_bytes(const struct rig *g);
uint64_t rig_repeated(const struct rig *g);
uint64_t rig_received(const struct rig *g);
uint64_t rig_done(const struct rig *g);
uint64_t rig_drains(const struct rig *g, enum kvs_drain_outcome o,
		    enum kvs_proof p);
uint64_t rig_acks_ignored(const struct rig *g, enum kvs_ack_ignored why);
uint64_t rig_strays(const struct rig *g, enum kvs_stray s);
unsigned int rig_warnings(const struct rig *g); /* lines logged so far */
uint32_t rig_data_connections(const struct rig *g);
unsigned int rig_rooms(struct rig *g);
/* The room's listing; false when there is none. Of several (an old attempt
 * that is held and a new one) the youngest. */
bool rig_room(struct rig *g, uint64_t room, struct kvs_room_info *ret);
bool rig_room_in(struct rig *g, uint64_t room, const char *state);
/* Parties in the drains of all rooms with this id; -1 when there is none. */
int rig_parties(struct rig *g, uint64_t room);

/* Another process: this program again, with @args; it talks to us on its
 * descriptor RIG_CHILD_FD, our end of which is returned. It must not be
 * forked, as it would keep the daemon's sockets open. */
#define RIG_CHILD_FD 3
pid_t rig_spawn(const char *const args[], int *ret_fd);
/* Wait until it says that it has come so far. */
void rig_child_said(int fd);
void rig_child_say(void); /* in the child */
void rig_kill(pid_t pid, int *fd); /* SIGKILL, and wait for its end */

/* Resident memory of this process, bytes. */
uint64_t rig_rss(void);
uint64_t rig_seed(void); /* KVS_TEST_SEED or random; printed */
uint64_t rig_now(void); /* ns */
/* Sorts @v; prints median, 99th percentile and maximum; returns the last. */
uint64_t rig_print_times(const char *what, uint64_t *v, size_t n);

uint64_t rig_until(void);
void rig_pause(uint64_t until, const char *what, const char *file, int line);
/* Poll until @cond holds; @cond sees fresh numbers of @g. */
#define rig_wait(g, cond)                                            \
	for (uint64_t until_ = rig_until(); rig_refresh(g), !(cond); \
	     rig_pause(until_, #cond, __FILE__, __LINE__))

#endif /* KVS_TESTS_SERVICE_RIG_H */
