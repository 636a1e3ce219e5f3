/* SPDX-License-Identifier: Apache-2.0 */
/*
 * DOC: simulation
 *
 * One schedule is one world: a daemon (front, one node), the sender ranks of a
 * prefill instance, engines with a device each, on one loop fabric, one thread
 * and one virtual clock. It is the product's code; only what a process has
 * around it (sockets, threads, pidfds, memfds) is played here. A seed draws
 * the plan (sim_plan.c), what each actor does (sim_sender.c, sim_engine.c) and
 * who goes next (sim_step.c).
 *
 * The linker puts sim_watch.c between the daemon's parts (--wrap), so that
 * every event of a room is seen with the state it meets, and every hand-out
 * and release of memory is written down apart from the pool's own books.
 * sim_check.c compares after each step.
 *
 * In half of the schedules requests are prompts that have beginnings in
 * common, and daemon and engines keep them (sim_cache.c); in half of them
 * requests leave the device once they are there, and come back
 * (sim_retract.c).
 */
#ifndef KVS_TOOLS_SIM_SIM_H
#define KVS_TOOLS_SIM_SIM_H

#include <stdbool.h>
#include <stdint.h>

#include "gpu/soft.h"
#include "lib/clock.h"
#include "lib/random.h"
#include "lib/rng.h"
#include "lib/timer.h"
#include "pinned/region.h"
#include "pipeline/engine_internal.h"
#include "pipeline/front.h"
#include "pipeline/node.h"
#include "pipeline/sender_internal.h"
#include "rdma/loop.h"
#include "tools/sim/cover.h"

#define SIM_RANKS 3
#define SIM_ENGINES 4 /* processes, one after the other or side by side */
#define SIM_ATTEMPTS 12
#define SIM_LAYERS 4
#define SIM_BUFFERS 12
#define SIM_PAGES 12 /* of one room */
#define SIM_ITEMS 40 /* source pages of a rank, device pages of an engine */
#define SIM_ITEM_LEN 128 /* bytes, most */
#define SIM_AUX 96 /* bytes, most */
#define SIM_SLOTS 16
#define SIM_PROMPTS 3 /* that attempts may have in common */
#define SIM_QUERIES 4
#define SIM_AWAYS 128 /* retractions of a schedule, and more */
#define SIM_POOL_MAX (256u << 10) /* bytes */
#define SIM_GRANULE 4096u /* the pool's alignment */
#define SIM_US KVS_NSEC_PER_USEC
#define SIM_MS KVS_NSEC_PER_MSEC

struct sim;

/* What one rank is made to do wrong with one room. */
enum sim_wrong {
	SIM_RIGHT,
	SIM_WRONG_SHORT, /* finishes without its last piece */
	SIM_WRONG_TOKENS, /* believes in another length */
	SIM_WRONG_AUX, /* brings a shorter aux block */
	SIM_WRONG_NO_OPEN, /* never opens */
	SIM_WRONG_NO_FINISH, /* opens, never finishes */
	SIM_WRONG_ABORT, /* gives up on the way */
	SIM_WRONG_CLOSE, /* closes its handle on the way */
	SIM_WRONG_MAX
};

/* One rank's part of one attempt: what it still has to do. */
struct sim_send {
	struct sim *w;
	struct sim_attempt *a;
	struct sim_rank *k;
	struct kvs_timer act;
	struct kvs_send_room *r; /* NULL: not open, or closed */
	enum sim_wrong wrong;
	unsigned int steps; /* API calls made after the open */
	unsigned int wrong_at; /* the step it goes wrong at */
	bool opened;
	bool finished;
	bool done; /* done() came */
	int status; /* of done() */
	uint32_t next_page;
	uint32_t buffer; /* next state buffer to look at */
	bool aux_sent;
	unsigned char aux[SIM_AUX];
};

/* Where a request is that was committed, and goes on. */
enum sim_away_phase {
	SIM_AWAY_NONE,
	SIM_AWAY_HERE, /* on the device; it may leave */
	SIM_AWAY_LEAVING, /* kvs_retract() was called */
	SIM_AWAY_OUT, /* its device pages serve others */
	SIM_AWAY_COMING, /* kvs_resume() was called */
};

/* A committed request that leaves the device, and comes back; with the pages
 * of its attempt. */
struct sim_away {
	enum sim_away_phase phase;
	unsigned int rounds; /* how often it still leaves; 0: never */
	kvs_handle h;
	enum kvs_status seen;
	int abort_status; /* status at which it is given up; -1: never */
	bool aborted;
	bool drop; /* it ends while it is out */
	bool scribbled; /* a page of it is still being computed, ... */
	uint64_t written_at; /* ns; ... until then */
	int write_error; /* and then ends with it; 0: well */
	struct kvs_timer act;
};

enum sim_attempt_state {
	SIM_PLANNED,
	SIM_ADMITTED, /* the engine has a handle */
	SIM_ENDED, /* DONE or FAILED was seen and the handle given back */
	SIM_LOST, /* its engine died first */
};

/* One admit of one room id. */
struct sim_attempt {
	struct sim *w;
	unsigned int nr; /* index; names its bytes */
	enum sim_attempt_state state;
	uint64_t id;
	struct sim_attempt *before; /* had the same id; or NULL */
	bool cut; /* still on its way when all was put right */
	bool nonce;
	uint64_t tokens;
	uint32_t pages;
	uint32_t aux_len;
	uint32_t n_ranks;
	/* its first pages are those of a prompt that others have, too */
	unsigned int prompt;
	uint32_t shared; /* pages */
	struct sim_attempt *follows; /* admitted after that one; or NULL */
	bool named; /* the engine tells the hashes */
	bool use_cache; /* and takes what is cached */
	bool cached_known;
	uint32_t cached; /* pages that are not sent; 0 until that is known */
	struct sim_away away;
	struct kvs_rank_slice slice[SIM_RANKS];
	struct sim_send send[SIM_RANKS];
	struct sim_engine *eng;
	struct kvs_timer act; /* when the engine thinks of it next */
	uint64_t generation; /* 0 until the engine learns it */
	kvs_handle h;
	enum kvs_status seen;
	int abort_status; /* status at which the engine aborts; -1: never */
	bool abort_due;
	bool aborted;
	bool no_commit; /* the engine forgets it */
	bool committed; /* kvs_engine_commit() was called */
	bool copied; /* DONE; its bytes were compared */
	unsigned int ends; /* how often the engine saw an end */
	uint32_t dev_pages[SIM_PAGES];
	uint32_t dev_items[SIM_BUFFERS * SIM_PAGES];
	uint32_t n_dev_items;
	bool dev_held;
	/* what the daemon did with it, as sim_watch.c saw it */
	bool acked[SIM_RANKS];
	bool granted[SIM_RANKS];
};

/* A rank of the prefill instance; a process each, that may die and return. */
struct sim_rank {
	struct sim *w;
	uint32_t nr;
	struct kvs_sender *s; /* NULL: dead */
	struct kvs_transport *t;
	unsigned int instance;
	bool dirty; /* mail, or a turn that did something */
	bool stopping;
	bool crashed; /* the fabric killed its endpoint */
	bool two_sided; /* on a one-sided network */
	bool pulled; /* and what it sends is read from it */
	unsigned int asked; /* ABORTs that came to this instance */
	unsigned int answered;
	struct kvs_timer act; /* crash, or return */
	uint64_t not_before; /* ns; the thread does not run */
	struct kvs_layout layout;
	struct kvs_layer_buffer lb[SIM_BUFFERS];
	unsigned char *base[SIM_BUFFERS];
	uint32_t free_items[SIM_ITEMS];
	uint32_t n_free;
	struct kvs_list jobs; /* calls whose source items are not free yet */
};

/* An engine process. */
struct sim_engine {
	struct sim *w;
	unsigned int nr;
	struct kvs_engine *e; /* NULL: not yet, or freed */
	struct kvs_front_engine *fe; /* the daemon's; NULL: gone */
	bool attached;
	bool refused;
	bool keeps; /* it has named a space for its cache */
	bool leaving; /* it detaches */
	bool dead; /* the process runs no more */
	bool exited; /* and the daemon was told */
	bool eof; /* its end of the socket is closed */
	bool daemon_closed; /* the daemon's end is */
	bool want; /* the daemon waits for room in the socket */
	bool watched;
	struct kvs_list to_daemon; /* tools/packets.h */
	struct kvs_list to_engine;
	struct kvs_timer tick; /* its scheduler's turn */
	struct kvs_timer act; /* its death, or its leaving */
	struct kvs_timer end; /* of file */
	struct kvs_timer exit;
	struct kvs_timer flush;
	uint64_t nap; /* ns; between two ticks when nothing happens */
	_Atomic uint64_t words[SIM_SLOTS];
	struct kvs_device *dev;
	void *buffer[SIM_BUFFERS];
	uint32_t free_pages[SIM_ITEMS];
	uint32_t n_free;
	unsigned int live; /* attempts ADMITTED here, what is away, queries */
};

/* An engine asks what is cached, or has it forgotten. */
struct sim_query {
	struct sim *w;
	struct kvs_timer act;
	struct sim_engine *eng; /* whom the answer is for; NULL: none */
	unsigned int prompt;
	uint32_t blocks;
	bool drop;
	kvs_handle h;
};

/* What is drawn once. */
struct sim_plan {
	bool clean; /* nothing goes wrong, everybody has time: all must end well */
	unsigned int n_ranks;
	unsigned int n_engines;
	unsigned int n_attempts;
	uint64_t pool; /* bytes */
	double eagain; /* a socket is full */
	double pause; /* a thread does not run for a while */
	uint64_t pause_max; /* ns */
	uint64_t gap; /* ns; between two calls of an actor, about */
	bool daemon_ends;
	uint64_t daemon_ends_at;
	struct kvs_loop_plan net;
	double short_write; /* not as the network's plan draws it */
	struct kvs_soft_chances gpu;
	bool one_sided;
	bool cache; /* engines name what they have received */
	uint32_t block_pages; /* of the cache */
	unsigned int n_queries;
	unsigned int n_flushes; /* by the operator */
	bool away; /* requests leave the device, and come back */
	uint64_t offload; /* bytes of the pool for them; 0: there is none */
	double idle_sums; /* a turn does not come to sums */
};

/* What one rank did with one generation, written down apart from both ends. */
struct sim_record {
	uint64_t generation;
	uint32_t rank;
	unsigned int launched; /* writes whose end the sender was not told */
	bool failed; /* one of them */
	bool acked; /* the daemon has read an ABORT_ACK */
};
#define SIM_RECORDS 128

/* A key that was told to a rank, and for which generation. */
struct sim_key {
	uint64_t generation;
	uint32_t rkey;
};
#define SIM_KEYS 8192 /* more than the chunks of a schedule */

/* Who owns each granule of a pool, written down apart from the pool. */
struct sim_shadow {
	uint64_t generation; /* of a room or a retraction; 0: free */
	bool cached; /* left by that room */
};

struct sim {
	uint64_t seed;
	struct kvs_rng rng; /* plan and schedule */
	struct kvs_rng ids; /* the product's random bytes */
	struct kvs_vclock clock;
	struct kvs_settings set;
	struct sim_plan plan;
	struct sim_cover *cover;
	bool verbose;
	unsigned int depth; /* of notes */

	struct kvs_layout layout; /* the engines' */
	struct kvs_layer_buffer lb[SIM_BUFFERS];

	struct kvs_fabric *net;
	struct kvs_front front;
	struct kvs_node node;
	struct kvs_transport *front_t;
	struct kvs_transport *node_t;
	struct kvs_region region;
	struct kvs_region offload;
	uint64_t front_not_before;
	uint64_t node_not_before;
	bool node_ran; /* in this step */
	bool polled; /* its transport was, in this step */
	bool look; /* rooms may have changed in this step */
	bool daemon_up;
	bool daemon_draining;
	bool daemon_crashed; /* the fabric killed it */
	struct kvs_timer daemon_act;

	struct sim_rank rank[SIM_RANKS];
	struct sim_engine engine[SIM_ENGINES];
	unsigned int n_engines; /* begun */
	struct sim_attempt attempt[SIM_ATTEMPTS];
	struct sim_query query[SIM_QUERIES];
	struct kvs_timer flush; /* the operator's */
	struct kvs_timerq acts;
	struct kvs_list pulls;
	bool healing; /* no faults any more */
	uint64_t healed_at; /* ns */
	bool mercy; /* what was still stuck then has been killed */
	struct kvs_timer release; /* what is stalled goes on */
	uint64_t steps;

	struct sim_record record[SIM_RECORDS];
	uint32_t n_records;
	struct sim_key key[SIM_KEYS];
	uint32_t n_keys; /* ever told */
	/* ns a grant may take to close, with an attempt that fails, its
	 * connections torn down, and another attempt */
	uint64_t revoke_max;
	struct sim_shadow shadow[SIM_POOL_MAX / SIM_GRANULE];
	struct sim_shadow offload_shadow[SIM_POOL_MAX / SIM_GRANULE];
	uint64_t away[SIM_AWAYS]; /* generations of retractions */
	uint32_t n_aways; /* ever made */
	uint64_t retracting; /* generation of the one being made */
	const char *actor; /* whose step it is */
	char failure[512];
};

/* sim_plan.c */
void sim_plan(struct sim *w);

/* sim_world.c. The memory of the pool, of sources and of devices is made once
 * a process and used by one schedule after the other. */
int sim_world_open(struct sim *w);
void sim_world_close(struct sim *w);
/* The daemon's process ends, whatever it holds. */
void sim_daemon_end(struct sim *w);

/* sim_sender.c */
void sim_rank_init(struct sim_rank *k);
void sim_rank_begin(struct sim_rank *k);
/* Free it in the middle of things: SIGKILL. */
void sim_rank_kill(struct sim_rank *k);
/* And maybe let it come back. */
void sim_rank_crash(struct sim_rank *k);
void sim_rank_heal(struct sim_rank *k);
bool sim_rank_idle(const struct sim_rank *k);
bool sim_rank_due(const struct sim_rank *k);
uint64_t sim_rank_next(const struct sim_rank *k);
void sim_rank_turn(struct sim_rank *k);
void sim_send_init(struct sim_send *s);

/* sim_engine.c, sim_port.c */
int sim_engine_begin(struct sim *w);
void sim_engine_turn(struct sim_engine *g);
void sim_engine_wake(struct sim_engine *g, uint64_t within);
void sim_engine_free(struct sim_engine *g);
/* Nothing is left of the process. */
void sim_engine_heal(struct sim_engine *g);
bool sim_engine_idle(const struct sim_engine *g);
void sim_engine_stuck(struct sim_engine *g);
void sim_attempt_init(struct sim_attempt *a);
/* It will never be admitted. */
void sim_attempt_drop(struct sim_attempt *a);
/* Of those that take requests; NULL. */
struct sim_engine *sim_engine_any(struct sim *w);
/* Device pages for all of an attempt: false, not now. */
bool sim_pages_take(struct sim_attempt *a);
void sim_pages_give(struct sim_attempt *a);
extern const struct kvs_eng_port sim_eng_port;
extern const struct kvs_front_port sim_front_port;
/* A packet that is due for the daemon, or the end of file behind them. */
bool sim_port_due(const struct sim_engine *g);
uint64_t sim_port_next(const struct sim_engine *g);
void sim_port_deliver(struct sim_engine *g);
void sim_port_free(struct sim_engine *g);

/* sim_pull.c: the receiver reads what rank @k would send. As kvs_conn_write(). */
int sim_pull_start(struct sim_rank *k, struct kvs_conn *c, struct kvs_tx *tx);
/* Its process ends, and @s with it. */
void sim_pull_abandon(struct sim_rank *k, struct kvs_sender *s);
/* Is anything still read into a generation's memory? */
bool sim_pull_reads(const struct sim *w, uint64_t generation);
void sim_pull_free(struct sim *w);

/* sim_cache.c */
/* Hashes of the whole blocks of an attempt, into @v. Return: how many. */
uint32_t sim_hashes(const struct sim_attempt *a, uint8_t (*v)[16]);
void sim_cache_begin(struct sim *w);
/* An engine's turn, and its end. */
void sim_queries_look(struct sim_engine *g);
void sim_queries_drop(struct sim_engine *g);
/* At the end: let all go that is kept. */
void sim_cache_end(struct sim *w);

/* sim_retract.c */
void sim_away_init(struct sim_attempt *a);
/* It is DONE: does it go on? Then its pages stay its own. */
bool sim_away_begin(struct sim_attempt *a);
/* An engine's turn, and its end. */
void sim_away_look(struct sim_attempt *a);
void sim_away_drop(struct sim_attempt *a);

/* sim_bytes.c: what each byte of an attempt must be. */
void sim_bytes(unsigned char *p, uint64_t len, unsigned int attempt,
	       unsigned int rank, unsigned int kind, unsigned int layer,
	       uint32_t item);
/* First byte that differs, or -1. */
int64_t sim_bytes_differ(const unsigned char *p, uint64_t len,
			 unsigned int attempt, unsigned int rank,
			 unsigned int kind, unsigned int layer, uint32_t item);
/* The same of item @item of buffer @b of @a: a page or, with a state buffer,
 * one of its items. */
void sim_item(const struct sim_attempt *a, uint32_t b, uint32_t item,
	      unsigned char *p);
int64_t sim_item_differ(const struct sim_attempt *a, uint32_t b, uint32_t item,
			const unsigned char *p);

/* sim_check.c */
void sim_check_step(struct sim *w);
void sim_check_done(struct sim_attempt *a);
/* All bytes of it on the device. */
void sim_check_device(struct sim_attempt *a, const char *rule);
void sim_check_end(struct sim *w);
void sim_check_aux(struct sim_attempt *a, uint32_t rank, const void *p,
		   uint32_t len);

/* sim_step.c */
int sim_run(struct sim *w);

/* sim_watch.c: the world whose daemon is running; set by sim_run(). */
extern struct sim *sim_now;
/* The two names of a function that the linker wraps. */
#define REAL(ret, name, ...)            \
	ret __real_##name(__VA_ARGS__); \
	ret __wrap_##name(__VA_ARGS__)

struct kvs_room *sim_room_of(struct kvs_worker *w, uint64_t generation);
/* An event of a room, NULL: it is gone. */
void sim_seen(const struct kvs_room *r, enum sim_event e);
/* sim_watch_away.c: is it a retraction that the packet is about? Then seen. */
bool sim_away_packet(struct kvs_worker *w, enum kvs_packet_type type,
		     const struct kvs_packet_room *p);
void sim_seen_away(const struct kvs_retraction *t, enum sim_away_event e);
void sim_seen_aways(struct kvs_worker *w, enum sim_away_event e);
/* sim_promise.c: of this generation and rank; find: NULL, not yet seen. */
struct sim_record *sim_record_find(uint64_t generation, uint32_t rank);
struct sim_record *sim_record_of(uint64_t generation, uint32_t rank);
/* From the fabric. */
void sim_crashed(void *arg, struct kvs_transport *t);
void sim_placed(void *arg, const struct kvs_loop_placed *p);

static inline uint64_t sim_time(const struct sim *w)
{
	return w->clock.t;
}

static inline bool sim_chance(struct sim *w, double p)
{
	return p > 0 && kvs_rng_double(&w->rng) < p;
}

/* Uniform in [lo, hi]. */
static inline uint64_t sim_between(struct sim *w, uint64_t lo, uint64_t hi)
{
	return lo + kvs_rng_below(&w->rng, hi - lo + 1);
}

static inline void sim_act(struct sim *w, struct kvs_timer *t, uint64_t after)
{
	(void)kvs_timer_set(&w->acts, t, sim_time(w) + after);
}

/* ns until an actor tries again what could not be done. */
static inline uint64_t sim_patience(struct sim *w)
{
	return sim_between(w, w->plan.gap, 10 * w->plan.gap + 2 * SIM_MS);
}

/* The schedule found something: the first one counts. */
void sim_fail(struct sim *w, const char *fmt, ...)
	__attribute__((format(printf, 2, 3)));
/* A line of the history. @room 0: none. */
void sim_note(struct sim *w, uint64_t room, const char *state, const char *fmt,
	      ...) __attribute__((format(printf, 4, 5)));

/* A fault that this simulation plays itself. */
static inline void sim_fault(struct sim *w, enum sim_fault f)
{
	w->cover->fault[f]++;
}

static inline void sim_kept(struct sim *w, enum sim_kept k)
{
	w->cover->kept[k]++;
}

#endif /* KVS_TOOLS_SIM_SIM_H */
