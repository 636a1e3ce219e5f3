/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How the network gets at source pages. Host memory is read where it is. Memory
 * of a device is copied to the bounce ring first.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "gpu/device.h"
#include "lib/assert.h"
#include "lib/log.h"
#include "lib/units.h"
#include "pipeline/layout.h"
#include "pipeline/sender_internal.h"

#define BOUNCE_DEFAULT (64ULL << 20) /* bytes */
#define BOUNCE_MAX (64ULL << 30) /* bytes */
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
				o->bounce_bytes > BOUNCE_MAX ||
				o->bounce_bytes % KVS_SEND_RING_BLOCK)) {
		snprintf(err, errlen,
			 "sender: bounce_bytes %llu: not a multiple of %u from "
			 "%u to %llu",
			 (unsigned long long)o->bounce_bytes,
			 KVS_SEND_RING_BLOCK, KVS_SEND_RING_MIN,
			 (unsigned long long)BOUNCE_MAX);
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
	char size[KVS_UNITS_BUF];
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
	snprintf(s->source_note, sizeof(s->source_note),
		 "memory of device %s, by a ring of %s",
		 kvs_device_name(s->device),
		 kvs_format_size(s->bounce_bytes, size));
	return 0;
}

int kvs_sender_source_begin(struct kvs_sender *s, char *err, size_t errlen)
{
	enum kvs_source source = KVS_SOURCE_HOST;
	int r = 0;

	if (s->source_wanted == KVS_SOURCE_PEER_MEM ||
	    s->source_wanted == KVS_SOURCE_DMA_BUF) {
		snprintf(err, errlen, "source %s: the data goes over tcp",
			 names[s->source_wanted]);
		return -EOPNOTSUPP;
	}
	if (s->device) {
		source = KVS_SOURCE_BOUNCE;
		r = bounce_begin(s, err, errlen);
	}
	if (r)
		return r;
	pthread_mutex_lock(&s->lock);
	s->source = source;
	pthread_mutex_unlock(&s->lock);
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
