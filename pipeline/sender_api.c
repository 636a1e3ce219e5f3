/* SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>
#include <string.h>

#include "pipeline/layout.h"
#include "pipeline/sender_internal.h"
#include "pipeline/wire_text.h"

int kvs_send_open(struct kvs_sender *s, uint64_t room,
		  const unsigned char *nonce, uint64_t tokens, void *user,
		  struct kvs_send_room **ret)
{
	struct kvs_send_room *r;
	int err;

	KVS_CHECK_MAGIC(s, KVS_SENDER_MAGIC);
	if (!room || !tokens || tokens > KVS_TOKENS_MAX || !ret)
		return -EINVAL;
	r = calloc(1, sizeof(*r));
	if (!r)
		return -ENOMEM;
	r->magic = KVS_SEND_ROOM_MAGIC;
	r->s = s;
	r->id = room;
	r->tokens = tokens;
	r->pages = (uint32_t)((tokens + s->layout->page_size - 1) /
			      s->layout->page_size);
	r->user = user;
	if (nonce)
		memcpy(r->nonce, nonce, sizeof(r->nonce));
	pthread_mutex_init(&r->lock, NULL);
	kvs_list_init(&r->hash_node);
	kvs_list_init(&r->all_node);
	kvs_list_init(&r->jobs);
	kvs_list_init(&r->dirty_node);
	kvs_list_init(&r->run_node);
	kvs_timer_init(&r->timer, kvs_send_room_open_due);
	r->m_open =
		(struct kvs_send_mail){ .type = KVS_SEND_MAIL_OPEN, .room = r };
	r->m_finish = (struct kvs_send_mail){ .type = KVS_SEND_MAIL_FINISH,
					      .room = r };
	r->m_abort = (struct kvs_send_mail){ .type = KVS_SEND_MAIL_ABORT,
					     .room = r };
	r->m_close = (struct kvs_send_mail){ .type = KVS_SEND_MAIL_CLOSE,
					     .room = r };
	r->seen = calloc((r->pages + 7) / 8, 1);
	err = r->seen ? kvs_send_room_insert(r) : -ENOMEM;
	if (err) {
		kvs_send_room_free(r);
		return err;
	}
	*ret = r;
	kvs_sender_mail(s, &r->m_open);
	return 0;
}

static struct kvs_send_job *job_create(struct kvs_send_room *r,
				       const uint32_t *items, uint32_t n,
				       void *cookie)
{
	size_t bytes = (size_t)n * sizeof(*items);
	struct kvs_send_job *j = malloc(sizeof(*j) + bytes);

	if (!j)
		return NULL;
	*j = (struct kvs_send_job){
		.mail = { .type = KVS_SEND_MAIL_JOB, .room = r },
		.cookie = cookie,
	};
	kvs_list_init(&j->node);
	if (n)
		memcpy(j->items, items, bytes);
	j->g.items = j->items;
	j->g.n = n;
	return j;
}

static int may_post_locked(const struct kvs_send_room *r)
{
	if (r->shut || r->aborting)
		return -ECANCELED;
	return r->finishing ? -EINVAL : 0;
}

/* Under the lock, so that whoever shuts the room knows how many to expect. */
static void post_locked(struct kvs_send_room *r, struct kvs_send_job *j)
{
	r->posted++;
	kvs_sender_mail(r->s, &j->mail);
}

/* Each page once: all of them, or nothing is marked. */
static int mark_pages_locked(struct kvs_send_room *r, uint32_t first,
			     uint32_t n)
{
	uint32_t p;

	for (p = first; p < first + n; p++) {
		if (r->seen[p / 8] & (1u << p % 8))
			return -EINVAL;
	}
	for (p = first; p < first + n; p++)
		r->seen[p / 8] |= (unsigned char)(1u << p % 8);
	return 0;
}

int kvs_send_pages(struct kvs_send_room *r, uint32_t first_page,
		   const uint32_t *pages, uint32_t n, void *cookie)
{
	const struct kvs_layout *l;
	struct kvs_send_job *j;
	uint32_t i;
	int err;

	KVS_CHECK_MAGIC(r, KVS_SEND_ROOM_MAGIC);
	l = r->s->layout;
	if (!pages || !n)
		return -EINVAL;
	if (first_page >= r->pages || n > r->pages - first_page)
		return -ERANGE;
	for (i = 0; l->capacity && i < n; i++) {
		if (pages[i] >= l->capacity / l->page_size)
			return -ERANGE;
	}
	j = job_create(r, pages, n, cookie);
	if (!j)
		return -ENOMEM;
	j->g.what = KVS_GATHER_PAGES;
	j->g.first = first_page;
	pthread_mutex_lock(&r->lock);
	err = may_post_locked(r);
	if (!err)
		err = mark_pages_locked(r, first_page, n);
	if (!err)
		post_locked(r, j);
	pthread_mutex_unlock(&r->lock);
	if (err)
		free(j);
	return err;
}

static int mark_items_locked(struct kvs_send_room *r, uint32_t buffer,
			     uint32_t n, uint32_t *ret_first)
{
	const struct kvs_layer_buffer *b = &r->s->layout->buffers[buffer];
	uint32_t most = b->items;

	if (b->kind == KVS_BUFFER_SWA && most > r->pages)
		most = r->pages;
	if (!r->items)
		r->items = calloc(r->s->layout->n_buffers, sizeof(*r->items));
	if (!r->items)
		return -ENOMEM;
	if (n > most - r->items[buffer])
		return -ERANGE;
	*ret_first = r->items[buffer];
	r->items[buffer] += n;
	return 0;
}

int kvs_send_state(struct kvs_send_room *r, uint32_t buffer,
		   const uint32_t *items, uint32_t n, void *cookie)
{
	const struct kvs_layout *l;
	struct kvs_send_job *j;
	int err;

	KVS_CHECK_MAGIC(r, KVS_SEND_ROOM_MAGIC);
	l = r->s->layout;
	if (!items || !n || buffer >= l->n_buffers ||
	    kvs_buffer_kind_is_paged(l->buffers[buffer].kind))
		return -EINVAL;
	if (n > l->buffers[buffer].items)
		return -ERANGE;
	j = job_create(r, items, n, cookie);
	if (!j)
		return -ENOMEM;
	j->g.what = KVS_GATHER_STATE;
	j->g.buffer = buffer;
	pthread_mutex_lock(&r->lock);
	err = may_post_locked(r);
	if (!err)
		err = mark_items_locked(r, buffer, n, &j->g.first);
	if (!err)
		post_locked(r, j);
	pthread_mutex_unlock(&r->lock);
	if (err)
		free(j);
	return err;
}

int kvs_send_aux(struct kvs_send_room *r, const void *data, uint32_t len,
		 void *cookie)
{
	struct kvs_send_job *j;
	int err;

	KVS_CHECK_MAGIC(r, KVS_SEND_ROOM_MAGIC);
	if (!data || !len)
		return -EINVAL;
	if (len > r->s->layout->aux_max)
		return -ERANGE;
	j = job_create(r, NULL, 0, cookie);
	if (!j)
		return -ENOMEM;
	j->g.what = KVS_GATHER_AUX;
	j->g.data = data;
	j->g.n = len;
	pthread_mutex_lock(&r->lock);
	err = may_post_locked(r);
	if (!err && r->aux_queued)
		err = -EINVAL;
	if (!err) {
		r->aux_queued = true;
		post_locked(r, j);
	}
	pthread_mutex_unlock(&r->lock);
	if (err)
		free(j);
	return err;
}

int kvs_send_finish(struct kvs_send_room *r)
{
	int err;

	KVS_CHECK_MAGIC(r, KVS_SEND_ROOM_MAGIC);
	pthread_mutex_lock(&r->lock);
	err = may_post_locked(r);
	if (!err) {
		r->finishing = true;
		kvs_sender_mail(r->s, &r->m_finish);
	}
	pthread_mutex_unlock(&r->lock);
	return err;
}

int kvs_send_abort(struct kvs_send_room *r, int err, const char *text)
{
	KVS_CHECK_MAGIC(r, KVS_SEND_ROOM_MAGIC);
	if (err < 0)
		err = -err;
	if (err < 1 || err > 4095)
		err = ECANCELED;
	pthread_mutex_lock(&r->lock);
	if (!r->aborting && !r->shut) {
		r->aborting = true;
		r->abort_err = err;
		kvs_wire_text_put(r->abort_text, sizeof(r->abort_text),
				  text ? text : "aborted by the prefill side");
		kvs_sender_mail(r->s, &r->m_abort);
	}
	pthread_mutex_unlock(&r->lock);
	return 0;
}

void kvs_send_close(struct kvs_send_room *r)
{
	KVS_CHECK_MAGIC(r, KVS_SEND_ROOM_MAGIC);
	kvs_sender_mail(r->s, &r->m_close);
}

void *kvs_send_user(const struct kvs_send_room *r)
{
	return r->user;
}

uint64_t kvs_send_room_id(const struct kvs_send_room *r)
{
	return r->id;
}

uint32_t kvs_send_outstanding(const struct kvs_send_room *r)
{
	return atomic_load(&r->outstanding);
}
