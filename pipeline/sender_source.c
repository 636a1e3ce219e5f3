/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How the network gets at source pages. Host memory is read where it is. Memory
 * of a device is read by RDMA itself where the device says that this can be and
 * a trial shows that it is so: what was copied to the device arrives, written
 * by each device of the network from there. Else it is copied to the bounce
 * ring first.
 */
#include <errno.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "gpu/device.h"
#include "lib/assert.h"
#include "lib/err.h"
#include "lib/log.h"
#include "lib/random.h"
#include "lib/units.h"
#include "pipeline/layout.h"
#include "pipeline/sender_internal.h"

#define BOUNCE_DEFAULT (64ULL << 20) /* bytes */
#define IN_FLIGHT 4 /* chunks that the ring has room for */

static const char *const names[] = {
	[KVS_SOURCE_AUTO] = "auto",	    [KVS_SOURCE_HOST] = "host",
	[KVS_SOURCE_PEER_MEM] = "peer-mem", [KVS_SOURCE_DMA_BUF] = "dma-buf",
	[KVS_SOURCE_BOUNCE] = "bounce",
};

const char *kvs_source_name(enum kvs_source source)
{
	return (size_t)source < KVS_ARRAY_SIZE(names) ? names[source] : "?";
}

static bool has_source(const struct kvs_sender_opts *o)
{
	return o->size >= sizeof(*o);
}

int kvs_sender_source_check(const struct kvs_sender_opts *o, char *err,
			    size_t errlen)
{
	if (!has_source(o))
		return 0;
	if ((size_t)o->source >= KVS_ARRAY_SIZE(names)) {
		snprintf(err, errlen, "sender: no source of number %d",
			 (int)o->source);
		return -EINVAL;
	}
	if (!o->device && o->source > KVS_SOURCE_HOST) {
		snprintf(err, errlen,
			 "sender: source %s is for memory of a device, and "
			 "there is none",
			 names[o->source]);
		return -EINVAL;
	}
	if (o->device && o->source == KVS_SOURCE_HOST) {
		snprintf(err, errlen,
			 "sender: source host is not for memory of device %s",
			 kvs_device_name(o->device));
		return -EINVAL;
	}
	if (o->bounce_bytes && (o->bounce_bytes < KVS_SEND_RING_MIN ||
				o->bounce_bytes > KVS_BOUNCE_MAX ||
				o->bounce_bytes % KVS_SEND_RING_BLOCK)) {
		snprintf(err, errlen,
			 "sender: bounce_bytes %llu: a multiple of %u from %u "
			 "to %llu is allowed",
			 (unsigned long long)o->bounce_bytes,
			 KVS_SEND_RING_BLOCK, KVS_SEND_RING_MIN,
			 (unsigned long long)KVS_BOUNCE_MAX);
		return -EINVAL;
	}
	return 0;
}

void kvs_sender_source_copy_opts(struct kvs_sender *s,
				 const struct kvs_sender_opts *o)
{
	if (!has_source(o))
		return;
	s->device = o->device;
	s->source_wanted = o->source;
	s->bounce_bytes = o->bounce_bytes ? o->bounce_bytes : BOUNCE_DEFAULT;
}

/* ---- probing ---- */

/* @at without a descriptor becomes one with. The descriptor is the caller's. */
static int export(struct kvs_device *d, enum kvs_source kind,
		  struct kvs_mem_at *at, char *why, size_t len)
{
	int r;

	at->fd = -1;
	at->offset = 0;
	if (kind != KVS_SOURCE_DMA_BUF)
		return 0;
	r = kvs_device_export(d, at->addr, at->len, &at->fd, &at->offset);
	if (r)
		snprintf(why, len, "the device gives no descriptor: %s",
			 kvs_err_name(r));
	return r;
}

static int upload(struct kvs_device *d, void *dev, void *host, uint64_t len)
{
	struct kvs_copy_run run = {
		.host = host,
		.dev = dev,
		.item_len = len,
		.n = 1,
	};
	struct kvs_copy c = { .runs = &run, .n_runs = 1, .dir = KVS_COPY_H2D };
	int r = kvs_device_copy(d, &c);

	while (!r && kvs_device_query(d, &c) == -EINPROGRESS)
		sched_yield();
	return r ? r : kvs_device_query(d, &c);
}

/* With a little memory of the same device. */
static int try_kind(const struct kvs_sender_opts *o, enum kvs_source kind,
		    struct kvs_transport *t, char *why, size_t len)
{
	unsigned char bytes[KVS_MEM_TRY];
	struct kvs_mem_at at = { .len = sizeof(bytes) };
	int r;

	r = kvs_device_alloc(o->device, at.len, &at.addr);
	if (r) {
		snprintf(why, len, "the device has no memory for a trial: %s",
			 kvs_err_name(r));
		return r;
	}
	r = kvs_random_fill(bytes, sizeof(bytes));
	if (!r)
		r = upload(o->device, at.addr, bytes, sizeof(bytes));
	if (r)
		snprintf(why, len, "the device takes no copies: %s",
			 kvs_err_name(r));
	if (!r)
		r = export(o->device, kind, &at, why, len);
	if (!r) {
		r = kvs_transport_try_at(t, &at, bytes, why, len);
		if (at.fd >= 0)
			(void)close(at.fd);
	}
	kvs_device_free(o->device, at.addr);
	return r;
}

static int register_kind(const struct kvs_sender_opts *o, enum kvs_source kind,
			 struct kvs_transport *t, char *why, size_t len)
{
	uint32_t n = o->layout->n_buffers, i;
	struct kvs_mem **mem = calloc(n, sizeof(*mem));
	int r = mem ? 0 : -ENOMEM;

	if (!mem)
		snprintf(why, len, "out of memory");
	for (i = 0; i < n && !r; i++) {
		struct kvs_mem_at at = {
			.addr = o->buffers[i],
			.len = o->buffer_len[i],
		};

		r = export(o->device, kind, &at, why, len);
		if (r)
			break;
		r = kvs_transport_register_at(t, &at, &mem[i], why, len);
		if (at.fd >= 0)
			(void)close(at.fd);
	}
	/* those that were go with the transport, or now */
	for (i = 0; r && mem && i < n; i++)
		kvs_mem_release(mem[i]);
	free(mem);
	return r;
}

static int probe_kind(const struct kvs_sender_opts *o, enum kvs_source kind,
		      struct kvs_transport *t, char *why, size_t len)
{
	struct kvs_device_info info;
	bool has;
	int r;

	kvs_device_info(o->device, &info);
	has = kind == KVS_SOURCE_PEER_MEM ? info.peer_mem : info.dma_buf;
	if (!kvs_transport_one_sided(t)) {
		snprintf(why, len, "the data goes over tcp");
		return -EOPNOTSUPP;
	}
	for (uint32_t i = 0; i < o->layout->n_buffers; i++) {
		if (o->buffer_len && o->buffer_len[i])
			continue;
		snprintf(why, len, "the length of buffer %u is not given", i);
		return -EOPNOTSUPP;
	}
	if (!has) {
		snprintf(why, len, "the device does not have it");
		return -EOPNOTSUPP;
	}
	r = try_kind(o, kind, t, why, len);
	return r ? r : register_kind(o, kind, t, why, len);
}

int kvs_sender_source_probe(const struct kvs_sender_opts *o,
			    struct kvs_sender_place *p, char *err,
			    size_t errlen)
{
	static const enum kvs_source kinds[] = { KVS_SOURCE_PEER_MEM,
						 KVS_SOURCE_DMA_BUF };
	char why[96] = "";
	size_t at, i;

	p->direct = KVS_SOURCE_AUTO;
	p->note[0] = '\0';
	if (!kvs_sender_has_device(o))
		return 0;
	for (i = 0; i < KVS_ARRAY_SIZE(kinds); i++) {
		if (o->source != KVS_SOURCE_AUTO && o->source != kinds[i])
			continue;
		if (!probe_kind(o, kinds[i], p->t, why, sizeof(why))) {
			p->direct = kinds[i];
			return 0;
		}
		at = strlen(p->note);
		snprintf(p->note + at, sizeof(p->note) - at, "; no %s: %s",
			 names[kinds[i]], why);
		if (o->source == kinds[i]) {
			snprintf(err, errlen, "sender: source %s: %s",
				 names[kinds[i]], why);
			return -EOPNOTSUPP;
		}
	}
	return 0;
}

/* ---- choosing ---- */

/* A page that RDMA writes is one write, so one chunk, so one piece. */
static int ring_holds_items(const struct kvs_sender *s, char *err,
			    size_t errlen)
{
	char ring[KVS_UNITS_BUF], item[KVS_UNITS_BUF];
	uint32_t i;

	for (i = 0; s->one_sided && i < s->layout->n_buffers; i++) {
		uint32_t len = s->layout->buffers[i].item_len;

		if (len <= s->bounce_bytes)
			continue;
		snprintf(err, errlen,
			 "a page of buffer %u has %s, more than the bounce "
			 "ring of %s",
			 i, kvs_format_size(len, item),
			 kvs_format_size(s->bounce_bytes, ring));
		return -EINVAL;
	}
	return 0;
}

static int bounce_begin(struct kvs_sender *s, char *err, size_t errlen)
{
	const struct kvs_send_ring_opts o = {
		.device = s->device,
		.bytes = s->bounce_bytes,
		.clock = s->clock,
		.timers = &s->timers,
		.copied = kvs_send_chunk_copied,
	};
	uint64_t most = s->bounce_bytes / IN_FLIGHT;
	char size[KVS_UNITS_BUF], tried[KVS_SEND_NOTE];
	struct kvs_mem *mem;
	int r;

	r = ring_holds_items(s, err, errlen);
	if (!r)
		r = kvs_send_ring_init(&s->ring, &o, err, errlen);
	/* it goes with the transport */
	if (!r && s->one_sided)
		r = kvs_transport_register(s->t, s->ring.mem, s->bounce_bytes,
					   &mem, err, errlen);
	if (r)
		return r;
	if (s->chunk_max > most)
		s->chunk_max = most;
	memcpy(tried, s->source_note, sizeof(tried));
	snprintf(s->source_note, sizeof(s->source_note),
		 "memory of device %s, by a ring of %s%.150s",
		 kvs_device_name(s->device),
		 kvs_format_size(s->bounce_bytes, size), tried);
	return 0;
}

/* Why what the transport could do is of no use with this daemon, or NULL. */
static const char *not_direct(const struct kvs_sender *s)
{
	if (!s->one_sided)
		return "the data goes over tcp, as this daemon has no RDMA";
	/* the CPU would have to read every byte */
	if (s->digest != KVS_DIGEST_NONE)
		return "the daemon wants a checksum of the bytes";
	return NULL;
}

static int choose(struct kvs_sender *s, enum kvs_source *ret, char *err,
		  size_t errlen)
{
	const char *not = s->direct ? not_direct(s) : NULL;

	*ret = KVS_SOURCE_HOST;
	if (!s->device)
		return 0;
	if (s->direct && !not ) {
		snprintf(s->source_note, sizeof(s->source_note),
			 "memory of device %s, which RDMA reads",
			 kvs_device_name(s->device));
		*ret = s->direct;
		return 0;
	}
	if (s->source_wanted == s->direct && not ) {
		snprintf(err, errlen, "source %s: %s", names[s->direct], not );
		return -EOPNOTSUPP;
	}
	if (not )
		snprintf(s->source_note, sizeof(s->source_note), "; no %s: %s",
			 names[s->direct], not );
	*ret = KVS_SOURCE_BOUNCE;
	return bounce_begin(s, err, errlen);
}

int kvs_sender_source_begin(struct kvs_sender *s, char *err, size_t errlen)
{
	enum kvs_source source;
	int r;

	/* nobody else looks at it before it is chosen */
	pthread_mutex_lock(&s->lock);
	r = choose(s, &source, err, errlen);
	if (!r)
		s->source = source;
	pthread_mutex_unlock(&s->lock);
	if (r)
		return r;
	kvs_log_debug("sender %s/%u: source %s%s%s", s->peer, s->rank,
		      names[source], s->source_note[0] ? ": " : "",
		      s->source_note);
	return 0;
}

void kvs_sender_source_end(struct kvs_sender *s)
{
	kvs_send_ring_fini(&s->ring);
}

int kvs_sender_stats(struct kvs_sender *s, struct kvs_sender_stats *ret)
{
	size_t size = ret->size;
	struct kvs_sender_stats st = { .size = size };

	KVS_CHECK_MAGIC(s, KVS_SENDER_MAGIC);
	if (size < offsetof(struct kvs_sender_stats, bounce_bytes))
		return -EINVAL;
	pthread_mutex_lock(&s->lock);
	st.source = s->source;
	memcpy(st.note, s->source_note, sizeof(st.note));
	pthread_mutex_unlock(&s->lock);
	if (st.source == KVS_SOURCE_BOUNCE)
		st.bounce_bytes = s->bounce_bytes;
	st.copies = atomic_load(&s->ring.copies);
	st.copied_bytes = atomic_load(&s->ring.copied_bytes);
	st.ring_waits = atomic_load(&s->ring.waits);
	st.quarantined_bytes = kvs_send_ring_quarantined(&s->ring);
	memcpy(ret, &st, size < sizeof(st) ? size : sizeof(st));
	ret->size = size;
	return 0;
}
