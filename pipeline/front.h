/* SPDX-License-Identifier: Apache-2.0 */
/*
 * DOC: front
 *
 * The daemon's front thread: control connections of senders (front_session.c,
 * front_control.c, front_auth.c), sockets of engines (front_engine.c,
 * front_attach.c, front_group.c), and
 * the directory that says which room id is live, on which node and for whom
 * (directory.c). It owns no memory of rooms: it checks, routes and posts.
 *
 * Everything here belongs to the front thread, but for what nodes post.
 */
#ifndef KVS_PIPELINE_FRONT_H
#define KVS_PIPELINE_FRONT_H

#include <pthread.h>

#include "lib/u64map.h"
#include "pipeline/attach_msg.h"
#include "pipeline/auth.h"
#include "pipeline/auth_source.h"
#include "pipeline/node.h"
#include "pipeline/service.h"

/* Generations are counter << NODE_BITS | node: the id names its node. */
#define KVS_NODE_BITS 5
#define KVS_NODE_MASK ((1u << KVS_NODE_BITS) - 1)
static_assert(KVS_NODES_MAX <= 1 << KVS_NODE_BITS, "a node fits the id");

/* An engine that a room is received for. */
struct kvs_entry_member {
	uint32_t engine; /* this attachment of its rank, and no later one */
	uint32_t slot; /* KVS_SLOT_NONE: it has not admitted the room yet */
};

/* A live room, by its id. */
struct kvs_entry {
	uint64_t room;
	uint64_t generation;
	uint32_t engine;
	uint32_t node;
	unsigned char nonce[16];
	char peer[KVS_PEER_NAME];
	bool aborted; /* by the operator; its node has been told */
	uint32_t n_members; /* 0: no group */
	struct kvs_entry_member *members; /* behind the ranks */
	struct kvs_host *host; /* its layout; NULL: that of its engines */
	uint64_t tokens; /* what the first of them asked for */
	uint32_t aux_len;
	uint32_t flags;
	uint32_t tp;
	uint32_t page_size;
	uint16_t *tp_ranks; /* behind the members; NULL: all 0 */
	uint32_t n_ranks;
	struct kvs_rank_slice ranks[];
};

/* How many failed attempts are remembered, to answer their late OPENs, unless
 * the front is told otherwise. */
#define KVS_ENDED_MAX 4096
#define KVS_ENDED_TEXT 128 /* bytes, NUL included */

struct kvs_ended {
	uint64_t room; /* 0: unused */
	unsigned char nonce[16];
	int err;
	char text[KVS_ENDED_TEXT];
};

enum kvs_session_state {
	KVS_SESSION_HELLO, /* connected, nothing said; handshake timer */
	KVS_SESSION_AUTH, /* owes its RESPONSE; handshake timer */
	KVS_SESSION_LAYOUT, /* known; owes its layout; handshake timer */
	KVS_SESSION_UP, /* in use; keepalive timer */
};

/* An OPEN that came before its admit. */
struct kvs_parked {
	struct kvs_list node; /* on session->parked */
	struct kvs_list by_room; /* chain of one room id */
	struct kvs_session *s;
	uint64_t since; /* ns */
	struct kvs_msg_open m;
	/* Withdrawn: what its engine will be told, when it admits the attempt;
	 * else NULL. */
	struct kvs_msg_refuse *withdrawn;
};

/* A HELLO that is not believed yet. */
struct kvs_auth_attempt {
	struct kvs_msg_hello hello;
	struct kvs_auth_exchange x;
	unsigned int key; /* index; once verified */
};

/* A sender rank: its control connection. */
struct kvs_session {
	uint64_t id; /* random; the token of its data connections */
	struct kvs_front *f;
	struct kvs_conn *c;
	enum kvs_session_state state;
	struct kvs_list node; /* on front->sessions */
	char peer[KVS_PEER_NAME];
	uint32_t rank;
	uint32_t n_ranks;
	uint64_t caps;
	uint64_t instance;
	struct kvs_layout *layout;
	struct kvs_timer timer;
	uint64_t heard; /* ns, last frame */
	/* It has shown that it knows the key, or there is none. Until then it
	 * is on front->strangers. */
	bool trusted;
	struct kvs_list stranger;
	uint64_t source; /* kvs_auth_source() */
	enum kvs_auth_failure failing; /* why, when it ends as a stranger */
	struct kvs_auth_attempt *attempt; /* from HELLO to its answer */
	struct kvs_list parked;
	uint32_t n_parked;
	/* last layout verdict that was "matches" */
	uint32_t matched_engine;
	uint32_t matched_host; /* id; 0: the engine's own layout */
	struct kvs_slice matched;
	bool lost; /* the nodes know that it is over */
	int end_err; /* why it is being closed */
	const char *end_why;
};

struct kvs_slot {
	uint64_t generation; /* of the live room in it; 0: free */
	uint64_t before; /* of the one that was in it last */
	uint64_t room; /* 0: a retraction */
};

/* A packet or word that could not be handed over yet. */
struct kvs_engine_out {
	struct kvs_list node;
	uint64_t word;
	uint32_t slot;
	bool has_word;
	size_t len; /* of the packet; 0: none */
	unsigned char packet[];
};

struct kvs_front_engine;

/**
 * struct kvs_front_port - how an engine is reached
 * @send: one packet: 0; -EAGAIN not now; other: the connection is broken
 * @want: call kvs_front_engine_flush() when a packet can be sent, or do not
 * @close: the connection ends; once
 * @free: what is left, with the engine; @close came before
 * @identify: at ATTACH: is the process known, and who it says it is? 0 or not
 * @pages: make its status page, n_slots zeros at words: 0 or -errno
 * @answer: send ATTACHED, and what goes with it: the page, and a pool for
 *          each that the packet names: 0 or -errno
 * @watch_exit: call kvs_front_engine_exited() when its process has exited:
 *              0 or -errno
 *
 * None calls back. The daemon's is a socket (front_socket.c).
 */
struct kvs_front_port {
	int (*send)(struct kvs_front_engine *e, const void *p, size_t len);
	void (*want)(struct kvs_front_engine *e, bool on);
	void (*close)(struct kvs_front_engine *e);
	void (*free)(struct kvs_front_engine *e);
	int (*identify)(struct kvs_front_engine *e);
	int (*pages)(struct kvs_front_engine *e);
	int (*answer)(struct kvs_front_engine *e,
		      const struct kvs_packet_attached *p,
		      const struct kvs_region *const *pools);
	int (*watch_exit)(struct kvs_front_engine *e);
};

/* An engine process. */
struct kvs_front_engine {
	struct kvs_list node;
	struct kvs_front *f;
	const struct kvs_front_port *port;
	void *port_arg; /* the port's; so are the next four */
	int fd;
	int pidfd; /* -1 before ATTACH */
	struct kvs_watch *watch;
	struct kvs_watch *pid_watch;
	uint32_t number;
	bool open; /* no end of file yet */
	pid_t pid;
	bool attached;
	bool detached; /* said goodbye */
	bool exited; /* pidfd readable */
	uint32_t nodes_left; /* that have not said that nothing is left */
	bool dead; /* freed at the end of the turn */
	struct kvs_timer handshake; /* after its loss: how long it lingers */
	char name[KVS_ENGINE_NAME];
	char group[KVS_ENGINE_NAME]; /* "": alone */
	uint32_t rank; /* in the group */
	uint32_t n_ranks; /* of the group */
	struct kvs_layout *layout;
	uint32_t home; /* node index its rooms go to */
	_Atomic uint64_t *words; /* n_slots of the status page */
	int status_fd;
	uint32_t n_slots;
	struct kvs_slot *slots;
	struct kvs_list out;
	uint32_t n_out;
};

struct kvs_front {
	struct kvs_settings settings;
	const struct kvs_clock *clock;
	struct kvs_topology *topo;
	uint64_t instance;
	uint64_t started; /* ns */
	struct kvs_node *nodes;
	unsigned int n_nodes;

	struct kvs_transport *transport;
	struct kvs_mailbox mailbox;
	struct kvs_timerq timers;
	struct kvs_listener *listener;
	struct kvs_wire_scratch *scratch;
	int attach_fd;
	struct kvs_watch *attach_watch;
	struct kvs_timer attach_again; /* set: out of descriptors */
	uint64_t attach_failed; /* ns; when accepting failed last */
	char attach_path[KVS_STRING_MAX];

	struct kvs_auth_keys keys; /* none: nobody is asked */
	struct kvs_auth_sources *sources;
	struct kvs_list strangers; /* sessions, the oldest first */
	uint32_t n_strangers;
	uint64_t auth_failures[KVS_AUTH_FAILURE_MAX];
	uint64_t auth_handshakes[KVS_AUTH_KEYS_MAX]; /* good ones, by key */
	uint64_t refused; /* over listen.max_connections, key and all */
	uint64_t refused_told; /* of these and the transport's, in the log */
	uint64_t refused_at; /* ns; when it was told; 0: never */

	struct kvs_list sessions;
	struct kvs_u64map by_id; /* sessions UP or LAYOUT */
	uint32_t n_sessions;
	struct kvs_list engines;
	uint32_t n_engines;
	uint32_t next_engine;
	uint64_t next_generation; /* counter */
	struct kvs_u64map rooms; /* room id -> struct kvs_entry */
	struct kvs_host_cache hosts; /* layouts of resharded rooms */
	struct kvs_u64map parked; /* room id -> first struct kvs_parked */
	struct kvs_u64map ended; /* room id -> entry of ended_ring */
	struct kvs_ended *ended_ring;
	uint32_t ended_max; /* entries */
	uint32_t ended_next;
	struct kvs_timer sweep; /* of parked OPENs */
	bool draining;
	bool reap; /* an engine is dead */

	uint64_t protocol_errors[KVS_PROTO_MAX];
	uint64_t admits[KVS_ADMIT_MAX];
	uint64_t strays[KVS_STRAY_MAX];

	pthread_t thread;
	bool running;
	atomic_bool stop;
	sem_t woken; /* the stopper is through with the transport */
};

struct kvs_front_opts {
	const struct kvs_settings *settings; /* checked; copied */
	const struct kvs_clock *clock; /* NULL: real */
	struct kvs_topology *topo;
	struct kvs_node *nodes; /* n_nodes are the caller's to set */
	uint32_t ended_max; /* failed attempts remembered; 0: KVS_ENDED_MAX */
	uint64_t secret; /* for hash tables */
};

/*
 * front.c. The daemon: init, start (transport, sockets), run (thread). To end:
 * forget the nodes (nothing posts to them any more), stop the nodes, stop the
 * front, fini.
 *
 * Without a thread or sockets of its own (a simulation): init, bind it to a
 * transport, and let that accept with kvs_session_accept(); then a turn
 * whenever something may have happened. To end: close, stop, fini.
 */
int kvs_front_init(struct kvs_front *f, const struct kvs_front_opts *o);
void kvs_front_fini(struct kvs_front *f);
void kvs_front_bind(struct kvs_front *f, struct kvs_transport *t);
int kvs_front_start(struct kvs_front *f, char *err, size_t errlen);
/* From now on these keys are accepted, and no others; copied. Who is connected
 * stays. Before the thread runs, or on it. */
void kvs_front_keys(struct kvs_front *f, const struct kvs_auth_keys *k);
int kvs_front_run(struct kvs_front *f);
/* Wait at most @wait ns (KVS_TIME_NEVER: for ever), handle what has come, then
 * what is due. */
void kvs_front_turn(struct kvs_front *f, uint64_t wait);
/* ns of the next deadline, KVS_TIME_NEVER. */
uint64_t kvs_front_next(const struct kvs_front *f);
/* End everything that could post to a node. */
void kvs_front_close(struct kvs_front *f);
void kvs_front_forget_nodes(struct kvs_front *f);
void kvs_front_stop(struct kvs_front *f);
/* What nodes post to it. */
extern const struct kvs_node_up kvs_front_up;

/* front_session.c: connections and identity */
int kvs_session_accept(struct kvs_conn *c, void *front);
/* Close a session; its rooms fail. */
void kvs_session_end(struct kvs_session *s, int err, const char *why);
int kvs_session_send(struct kvs_session *s, const struct kvs_msg *m);
void kvs_session_refuse(struct kvs_session *s, const struct kvs_msg_open *m,
			uint64_t generation, int err, const char *text);
/* Does the rank's layout serve the engine's? Cached. */
int kvs_session_match(struct kvs_session *s, const struct kvs_front_engine *e,
		      const struct kvs_entry *x, uint32_t rank, char *err,
		      size_t errlen);

/* The same without its slice and without capacities; not cached. */
int kvs_session_layouts(const struct kvs_session *s,
			const struct kvs_front_engine *e, char *err,
			size_t errlen);
/* Its HELLO is believed: answer it. 0 or -errno. */
int kvs_session_welcome(struct kvs_session *s, const struct kvs_msg_hello *h);
/* Tell it what is wrong with its layout, and close. */
void kvs_session_refuse_layout(struct kvs_session *s, const char *text);

/* front_capacity.c: R11, with capacity.check; 0 or -EPROTOTYPE and @err */
int kvs_capacity_engine(const struct kvs_front_engine *e, char *err,
			size_t errlen);
int kvs_capacity_session(const struct kvs_session *s,
			 const struct kvs_front_engine *e, char *err,
			 size_t errlen);
/* An engine attached: refuse the sessions that would be refused now. */
void kvs_capacity_sessions(struct kvs_front *f);
/* Would anybody that is attached be refused under these settings? */
int kvs_capacity_reload(struct kvs_front *f, const struct kvs_settings *set,
			char *err, size_t errlen);

/* front_auth.c: who may connect */
/* May it be heard at all? 0; -EACCES. Sets s->source. */
int kvs_session_auth_accept(struct kvs_session *s);
/* It has shown the key: is there a place for it, or its own former one? If
 * not, it is told, and closed. */
bool kvs_session_place(struct kvs_session *s, const struct kvs_msg_hello *h);
/* Connections that the transport lets in. */
unsigned int kvs_front_connections(const struct kvs_settings *set);
/* Tell of those refused for want of a place; a line a minute at most. */
void kvs_front_tell_refused(struct kvs_front *f);
/* Ask it for the key. 0 or -errno. */
int kvs_session_challenge(struct kvs_session *s, const struct kvs_msg_hello *h);
/* It answers; if rightly, kvs_session_welcome() follows. 0 or -errno. */
int kvs_session_response(struct kvs_session *s,
			 const struct kvs_msg_response *r);
/* Our own code, when it was asked for one: 1; else 0. -errno. */
int kvs_session_prove(struct kvs_session *s, const struct kvs_msg_hello *answer,
		      struct kvs_msg *ret);
/* A stranger ends, and @why is its fault: count it, maybe log it. One that
 * has not said anything is counted only: it may be looking if we are there. */
void kvs_session_auth_failed(struct kvs_session *s, const char *why);
/* Forget what is kept of its handshake. */
void kvs_session_auth_fini(struct kvs_session *s);

/* front_control.c: messages about rooms */
int kvs_session_message(struct kvs_session *s, const struct kvs_msg *m);

/* front_socket.c: where engines come from */
int kvs_engine_listen(struct kvs_front *f, char *err, size_t errlen);

/* front_engine.c: packets of attached engines */
/* A connection, which owes its ATTACH: 0; -EAGAIN too many; -ENOMEM. */
int kvs_front_engine_new(struct kvs_front *f, const struct kvs_front_port *port,
			 pid_t pid, struct kvs_front_engine **ret);
/* A packet came; @cut: not all of it. */
void kvs_front_engine_receive(struct kvs_front_engine *e, const void *buf,
			      size_t len, bool cut);
/* Packets can be sent again. */
void kvs_front_engine_flush(struct kvs_front_engine *e);
/* Its process is gone. */
void kvs_front_engine_exited(struct kvs_front_engine *e);
void kvs_engines_reap(struct kvs_front *f);
struct kvs_front_engine *kvs_front_engine(struct kvs_front *f, uint32_t number);
void kvs_front_engine_free(struct kvs_front_engine *e);
/* A node has no room of a lost engine any more. */
void kvs_front_engine_over(struct kvs_front *f, uint32_t number);
/* The connection ends (or broke the protocol). */
void kvs_front_engine_lost(struct kvs_front_engine *e, const char *why);
void kvs_front_engine_word(struct kvs_front_engine *e, uint32_t slot,
			   uint64_t word, const struct kvs_packet *p,
			   size_t len);
void kvs_front_engine_packet(struct kvs_front_engine *e, const void *buf,
			     size_t len);

/* front_attach.c: the first packet */
void kvs_front_attach(struct kvs_front_engine *e, const void *buf, size_t len);

/* front_group.c: ranks of one engine, and their rooms */
/* May it attach as the rank that it says? 0; -EEXIST, -EPROTOTYPE, @err. */
int kvs_front_group_check(const struct kvs_front_engine *e, char *err,
			  size_t errlen);
/* Layouts of the ranks of its group that are attached, its own among them (or
 * alone): how many. */
uint32_t kvs_front_group_layouts(const struct kvs_front_engine *e,
				 const struct kvs_layout *ret[KVS_GROUP_MAX]);
/* The layout of a room that it asks for: as kvs_host_get(). */
int kvs_front_host(struct kvs_front_engine *e, const struct kvs_room_request *q,
		   struct kvs_host **ret, char *err, size_t errlen);
/* The numbers of all ranks, if they are attached: how many; -EAGAIN, @err. */
int kvs_front_group_members(const struct kvs_front_engine *e,
			    uint32_t ret[KVS_GROUP_MAX], char *err,
			    size_t errlen);
/**
 * kvs_front_group_join() - an engine admits a room that is there
 * @e: engine
 * @x: the room that has the id
 * @p: what it asks for
 * Return: 0; -EEXIST the room is not its own, or it has a handle of it; -EINVAL
 * it asks for something else than the first did; -ENOMEM; with @err.
 */
int kvs_front_group_join(struct kvs_front_engine *e, struct kvs_entry *x,
			 const struct kvs_packet_admit *p, char *err,
			 size_t errlen);

/* directory.c: live room ids and OPENs that wait for one */
/* Takes @host over when it returns 0. */
int kvs_directory_add(struct kvs_front *f, const struct kvs_room_request *q,
		      uint32_t node, struct kvs_host *host);
struct kvs_entry *kvs_directory_get(struct kvs_front *f, uint64_t room);
/* The id may be admitted again; only if it still means @generation. */
void kvs_directory_end(struct kvs_front *f, uint64_t room, uint64_t generation,
		       int err, const char *text);
/* Did this very attempt fail lately? Its positive errno with why, or 0.
 * Without a nonce an attempt cannot be told from the next one: 0. */
int kvs_directory_ended(struct kvs_front *f, uint64_t room,
			const unsigned char nonce[16], char *text, size_t len);
int kvs_park(struct kvs_session *s, const struct kvs_msg_open *m);
void kvs_unpark(struct kvs_parked *p);
/* The session's OPEN of the room is no more wanted. With a nonce the refusal
 * waits in its place for the admit of that attempt; else it is forgotten.
 * False: there was none. */
bool kvs_parked_withdraw(struct kvs_session *s, const struct kvs_msg_refuse *m);
/* Give the parked OPENs of a room that now exists to its node. */
void kvs_parked_run(struct kvs_front *f, const struct kvs_entry *e);
/* Refuse those that have waited longer than open.timeout. */
void kvs_parked_sweep(struct kvs_front *f);
/* Check the layout, then hand an OPEN to the room's node. */
void kvs_front_open(struct kvs_session *s, const struct kvs_entry *e,
		    const struct kvs_msg_open *m);

#endif /* KVS_PIPELINE_FRONT_H */
