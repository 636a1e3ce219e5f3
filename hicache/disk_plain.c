/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Engine: threads that call preadv and pwritev. Each takes the first slot of
 * one queue and puts it on another, whose eventfd wakes the owner.
 */
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "hicache/disk_internal.h"
#include "lib/assert.h"

struct plain {
	struct kvs_fs *fs;
	pthread_mutex_t lock; /* of the next four */
	pthread_cond_t more;
	struct kvs_list todo;
	struct kvs_list done;
	bool stop;
	int fd;
	unsigned int n;
	pthread_t threads[KVS_DISK_THREADS_MAX];
};

static void *plain_thread(void *arg)
{
	struct plain *p = arg;
	struct kvs_disk_slot *s;
	uint64_t one = 1;

	pthread_mutex_lock(&p->lock);
	for (;;) {
		while (kvs_list_empty(&p->todo) && !p->stop)
			pthread_cond_wait(&p->more, &p->lock);
		if (kvs_list_empty(&p->todo))
			break;
		s = kvs_list_first(&p->todo, struct kvs_disk_slot, node);
		kvs_list_del(&s->node);
		pthread_mutex_unlock(&p->lock);
		s->result = kvs_disk_call(p->fs, s);
		pthread_mutex_lock(&p->lock);
		kvs_list_add_tail(&p->done, &s->node);
		/* It fails only when it is readable anyway. */
		if (write(p->fd, &one, sizeof(one)) < 0)
			continue;
	}
	pthread_mutex_unlock(&p->lock);
	return NULL;
}

static void plain_fini(struct kvs_disk *d)
{
	struct plain *p = d->engine;
	unsigned int i;

	pthread_mutex_lock(&p->lock);
	p->stop = true;
	pthread_cond_broadcast(&p->more);
	pthread_mutex_unlock(&p->lock);
	for (i = 0; i < p->n; i++)
		pthread_join(p->threads[i], NULL);
	pthread_cond_destroy(&p->more);
	pthread_mutex_destroy(&p->lock);
	if (p->fd >= 0)
		close(p->fd);
	free(p);
}

/* Signals are for others. */
static int start_thread(struct plain *p)
{
	sigset_t all, before;
	int rc;

	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	rc = -pthread_create(&p->threads[p->n], NULL, plain_thread, p);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	if (!rc)
		p->n++;
	return rc;
}

static int plain_init(struct kvs_disk *d, const struct kvs_disk_opts *o,
		      char *err, size_t errlen)
{
	unsigned int n = o->threads ? o->threads : KVS_DISK_THREADS_DEFAULT;
	struct plain *p = calloc(1, sizeof(*p));
	int rc = 0;

	if (!p) {
		if (err)
			snprintf(err, errlen, "out of memory");
		return -ENOMEM;
	}
	d->engine = p;
	p->fs = d->fs;
	kvs_list_init(&p->todo);
	kvs_list_init(&p->done);
	pthread_mutex_init(&p->lock, NULL);
	pthread_cond_init(&p->more, NULL);
	p->fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (p->fd < 0)
		rc = -errno;
	while (!rc && p->n < n)
		rc = start_thread(p);
	/* Fewer are enough. */
	if (p->n)
		return 0;
	if (err)
		snprintf(err, errlen, "threads: %s", strerror(-rc));
	plain_fini(d);
	return rc;
}

static void plain_submit(struct kvs_disk *d, struct kvs_disk_slot *s)
{
	struct plain *p = d->engine;

	pthread_mutex_lock(&p->lock);
	kvs_list_add_tail(&p->todo, &s->node);
	pthread_cond_signal(&p->more);
	pthread_mutex_unlock(&p->lock);
}

static void plain_turn(struct kvs_disk *d)
{
	struct plain *p = d->engine;
	KVS_LIST_HEAD(done);
	struct kvs_disk_slot *s;
	uint64_t count;

	if (read(p->fd, &count, sizeof(count)) < 0)
		return;
	pthread_mutex_lock(&p->lock);
	kvs_list_splice_tail(&done, &p->done);
	pthread_mutex_unlock(&p->lock);
	while (!kvs_list_empty(&done)) {
		s = kvs_list_first(&done, struct kvs_disk_slot, node);
		kvs_list_del(&s->node);
		kvs_disk_complete(d, s, s->result);
	}
}

static int plain_fd(const struct kvs_disk *d)
{
	const struct plain *p = d->engine;

	return p->fd;
}

const struct kvs_disk_engine kvs_disk_plain = {
	.name = "plain",
	.init = plain_init,
	.fini = plain_fini,
	.submit = plain_submit,
	.turn = plain_turn,
	.fd = plain_fd,
};
