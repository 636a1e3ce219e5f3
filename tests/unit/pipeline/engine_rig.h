/* SPDX-License-Identifier: Apache-2.0 */
/*
 * An engine under test and a daemon played by the test: a real Unix socket,
 * memfds as the daemon makes them, and every packet and status word sent
 * where the test says. Only the handshake has a thread of its own, since
 * attaching blocks.
 */
#ifndef KVS_TESTS_ENGINE_RIG_H
#define KVS_TESTS_ENGINE_RIG_H

#include <pthread.h>
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "gpu/device.h"
#include "gpu/soft.h"
#include "kvstage/engine.h"
#include "lib/rng.h"
#include "pipeline/attach_msg.h"
#include "pipeline/geometry.h"

#define RIG_POOL (4u << 20) /* bytes */
#define RIG_OFFLOAD (1u << 20)
#define RIG_SLOTS 64u
#define RIG_EXTENT_TOKENS 64u
#define RIG_PAGE_SIZE 16u
#define RIG_DEVICE_PAGES 256u
#define RIG_DEVICE_STATES 16u
#define RIG_WAIT_MS 20000
#define RIG_AUX 48u
#define RIG_RETRY 1500 /* ms; in every FAILED */
#define RIG_RANKS 2u

/* How the handshake is answered; all zero: properly. */
struct rig_script {
	int refuse; /* positive errno: REFUSED with @text */
	const char *text;
	bool hang_up; /* close instead of an answer */
	bool unsealed_status;
	bool unsealed_pool;
	bool no_memfd; /* the pool is a pipe */
	uint64_t say_size; /* announce the pool as this large */
	uint32_t say_slots;
	uint32_t say_pools;
	bool cut; /* the packet is too short */
	bool bad_magic;
};

struct rig {
	struct rig_script script;
	uint32_t n_slots;
	struct kvs_soft_plan plan;
	/* a device without a thread instead, which moves by kvs_soft_run() */
	const struct kvs_soft_virtual_opts *virtual;
	/* or one of another backend */
	const struct kvs_device_opts *opts;
	bool hybrid; /* with fixed-count buffers */

	char dir[64];
	char path[96];
	int listen_fd;
	int fd; /* the daemon's end; -1: dead */
	int status_fd;
	int pool_fd;
	int offload_fd;
	_Atomic uint64_t *words;
	unsigned char *pool; /* the daemon's own mapping */
	pid_t attached; /* process that the passed pidfd names */
	pthread_t thread;

	struct kvs_layer_buffer buffers[8];
	struct kvs_layout layout;
	struct kvs_engine *engine;
	struct kvs_device *device;
	void *dev[8];
	uint64_t dev_len[8];
	uint64_t generation; /* last one given out */
	struct kvs_rng rng;
	char err[256];
};

/* A room as both sides know it. */
struct rig_room {
	kvs_handle h;
	uint32_t slot;
	uint64_t generation;
	uint64_t tokens;
	struct kvs_geometry geo;
	uint64_t off[64];
	uint32_t pages[RIG_DEVICE_PAGES];
	uint32_t items[RIG_DEVICE_PAGES];
	uint32_t n_items;
};

/* Make the daemon's side and start answering; returns before an attach. */
void rig_listen(struct rig *g);
/* rig_listen(), attach, open the device. */
void rig_start(struct rig *g);
int rig_attach(struct rig *g);
/* What the handshake's thread did is seen after this. */
void rig_answered(struct rig *g);
void rig_stop(struct rig *g);
/* The daemon dies: its end of the socket closes. */
void rig_die(struct rig *g);

void rig_word(struct rig *g, const struct rig_room *m, int err,
	      enum kvs_status st);
void rig_send(struct rig *g, const void *p, size_t len);
/* The engine's next packet; fails the test when it is not of @type. */
size_t rig_expect(struct rig *g, enum kvs_packet_type type, void *buf,
		  size_t len);
/* A packet about @m; returns its err member. */
int rig_expect_room(struct rig *g, enum kvs_packet_type type,
		    const struct rig_room *m);
/* The engine has said nothing. */
void rig_quiet(struct rig *g);

/* Admit a room; the daemon has read the ADMIT and said nothing. */
void rig_admit(struct rig *g, struct rig_room *m, uint64_t tokens);
/* A READY packet with good places, filled; returns its length. */
size_t rig_make_ready(struct rig *g, struct rig_room *m,
		      struct kvs_packet_ready *p);
/* Send it, then the word. */
void rig_ready(struct rig *g, struct rig_room *m);
/* The packet alone. */
void rig_say_failed(struct rig *g, const struct rig_room *m, int err,
		    unsigned int class, const char *text);
/* The packet, then the word. */
void rig_failed(struct rig *g, const struct rig_room *m, int err,
		unsigned int class, const char *text);
/* rig_ready(), then commit with random places on the device. */
void rig_claim(struct rig *g, struct rig_room *m);
void rig_commit_args(struct rig *g, struct rig_room *m, struct kvs_commit *c);
/* The daemon takes the claim; the copy is submitted (and may be over). */
void rig_take(struct rig *g, struct rig_room *m);
/* progress() until the copy of @m has ended. */
void rig_copied(struct rig *g, struct rig_room *m);
/* Device memory holds what the extents hold, and nothing else changed. */
void rig_check_device(struct rig *g, const struct rig_room *m);
void rig_clear_device(struct rig *g);
/* End the room on both sides, release the handle. */
void rig_room_fini(struct rig *g, struct rig_room *m);

#endif /* KVS_TESTS_ENGINE_RIG_H */
