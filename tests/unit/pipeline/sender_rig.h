/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A sender under test and a daemon played by the test itself: raw sockets, the
 * wire codec, and one thread, so that every message is sent and awaited where
 * the test says. What the sender's callbacks report is kept in a log.
 *
 * "Nothing was said" is checked without sleeping by rig_quiet(): two rounds of
 * KEEPALIVE, whose answers travel behind whatever the sender had to say.
 */
#ifndef KVS_TESTS_SENDER_RIG_H
#define KVS_TESTS_SENDER_RIG_H

#include <pthread.h>
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>
#include <stdbool.h>
#include <stdint.h>

#include "kvstage/device.h"
#include "kvstage/sender.h"
#include "lib/rng.h"
#include "pipeline/geometry.h"
#include "pipeline/layout.h"
#include "pipeline/wire.h"

#define RIG_DATA_MAX 16
#define RIG_EVENTS_MAX 65536
#define RIG_SESSION 0x5e55107ULL
#define RIG_WAIT_MS 20000

enum rig_event_type { RIG_GRANTED, RIG_FREE, RIG_DONE };

struct rig_event {
	enum rig_event_type type;
	struct kvs_send_room *room;
	uint64_t id;
	uint64_t generation;
	void *cookie;
	int status;
	char text[KVS_WIRE_TEXT];
};

/* What the daemon expects of one room, and what it got. */
struct rig_room {
	uint64_t id;
	uint64_t generation;
	uint32_t first_layer;
	uint32_t n_layers;
	struct kvs_geometry geo;
	unsigned char *mem; /* extents, one after the other */
	unsigned char *got; /* bytes received, one flag each */
	uint64_t bytes;
};

struct rig {
	/* set before rig_start(); zero is a default */
	struct kvs_sender_opts o;
	uint32_t keepalive_ms;
	int rcvbuf; /* of the daemon's sockets, bytes */
	uint64_t batch_bytes; /* told with every grant */
	uint32_t call_timeout_ms; /* likewise */

	struct kvs_layout *layout;
	void **buffers; /* source pool */
	void **on_device; /* the same in memory of o.device; NULL: none */
	uint32_t source_pages;

	int listener;
	unsigned int port;
	int control; /* -1: none */
	int data[RIG_DATA_MAX];
	unsigned int n_data; /* open ones */
	unsigned int accepted; /* data connections, ever */
	bool hold; /* do not read payloads */
	bool refuse_data; /* close data connections at HELLO */
	struct rig_room *room[64];
	unsigned int n_rooms;
	uint64_t late_bytes; /* of rooms not known here */
	uint32_t chunk_most; /* bytes of the largest chunk that came */
	struct kvs_wire_scratch scratch;

	pthread_t creating;
	struct kvs_sender *s;
	int create_err;
	char err[600];

	pthread_mutex_t lock;
	pthread_cond_t cond;
	struct rig_event *ev;
	size_t n_ev;
};

/* @buffers: kind, layer, item_len, items. Makes the source pool, random. */
struct rig *rig_new(const struct kvs_layer_buffer *buffers, uint32_t n,
		    uint32_t page_size, uint32_t source_pages,
		    struct kvs_rng *rng);
void rig_free(struct rig *g);

/* The source pool in hidden memory of a soft device, which is opened. */
void rig_to_device(struct rig *g, const struct kvs_device_opts *o);

/* Create in a thread; the test plays the daemon meanwhile. */
void rig_create_begin(struct rig *g);
/* Joins; g->s and g->create_err are set. */
void rig_create_end(struct rig *g);
/* The whole handshake, in order. */
void rig_start(struct rig *g);

void rig_accept_control(struct rig *g);
void rig_send(int fd, const struct kvs_msg *m);
/* Next message; serves the data connections while it waits. */
void rig_recv(struct rig *g, struct kvs_msg *ret);
void rig_expect(struct rig *g, enum kvs_wire_type type, struct kvs_msg *ret);
/* The control connection is closed by the sender. */
void rig_expect_end(struct rig *g);
/* Nothing was said on the control connection. */
void rig_quiet(struct rig *g);
/* Serve data connections until cond(arg). */
void rig_serve_until(struct rig *g, bool (*cond)(struct rig *g, void *arg),
		     void *arg);
bool rig_control_readable(struct rig *g);
void rig_close_data(struct rig *g, unsigned int i, bool reset);

void rig_reply_hello(struct rig *g, uint16_t version);
struct rig_room *rig_room_new(struct rig *g, uint64_t id, uint64_t generation,
			      uint64_t tokens, uint32_t extent_tokens,
			      uint32_t first_layer, uint32_t n_layers,
			      uint32_t aux_len);
void rig_room_forget(struct rig *g, struct rig_room *r);
void rig_grant(struct rig *g, const struct rig_room *r);
void rig_refuse(struct rig *g, uint64_t id, int err, unsigned int class,
		const char *text);
void rig_complete(struct rig *g, const struct rig_room *r);
void rig_abort(struct rig *g, uint64_t id, uint64_t generation);
/* Take LAST, check the total, read the rest of the bytes, COMPLETE. */
void rig_finish_room(struct rig *g, struct rig_room *r);
/* The same when LAST was taken already. */
void rig_finish_last(struct rig *g, struct rig_room *r,
		     const struct kvs_msg *last);
/* Every page of every buffer in range equals its source. */
void rig_check_pages(struct rig *g, const struct rig_room *r,
		     const uint32_t *pages);

/* Waits for the n-th event (from 0) of this kind for room @id. */
struct rig_event rig_wait(struct rig *g, enum rig_event_type type, uint64_t id,
			  unsigned int n);
unsigned int rig_count(struct rig *g, enum rig_event_type type, uint64_t id);
/* Serves data until the room has nothing outstanding / something has. */
void rig_wait_outstanding(struct rig *g, struct kvs_send_room *r, bool some);

/* Seed from KVS_TEST_SEED or the clock; printed. */
uint64_t rig_seed(void);

#endif /* KVS_TESTS_SENDER_RIG_H */
