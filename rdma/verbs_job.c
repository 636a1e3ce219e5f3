/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Blocking calls away from the thread that polls: registering a gigabyte takes
 * tens of milliseconds, an address that nobody answers for a second. Two
 * threads, so that the one does not wait for the other.
 */
#include <errno.h>
#include <signal.h>

#include "lib/assert.h"
#include "rdma/verbs_internal.h"

static void *side_main(void *arg)
{
	struct kvs_verbs_side *s = arg;
	struct kvs_verbs *vt = s->vt;
	struct kvs_verbs_job *j;

	pthread_setname_np(pthread_self(), "kvs-verbs");
	pthread_mutex_lock(&vt->lock);
	for (;;) {
		while (kvs_list_empty(&s->todo) && !vt->stop)
			pthread_cond_wait(&s->cond, &vt->lock);
		if (kvs_list_empty(&s->todo))
			break;
		j = kvs_list_first(&s->todo, struct kvs_verbs_job, node);
		kvs_list_del(&j->node);
		pthread_mutex_unlock(&vt->lock);
		j->run(j);
		pthread_mutex_lock(&vt->lock);
		kvs_list_add_tail(&vt->done, &j->node);
		/* under the lock: whoever ends us joins first */
		kvs_transport_wake(vt->inner);
	}
	pthread_mutex_unlock(&vt->lock);
	return NULL;
}

void kvs_verbs_sides_init(struct kvs_verbs *vt)
{
	unsigned int i;

	pthread_mutex_init(&vt->lock, NULL);
	kvs_list_init(&vt->done);
	for (i = 0; i < KVS_VERBS_SIDES; i++) {
		vt->side[i].vt = vt;
		pthread_cond_init(&vt->side[i].cond, NULL);
		kvs_list_init(&vt->side[i].todo);
	}
}

void kvs_verbs_sides_fini(struct kvs_verbs *vt)
{
	unsigned int i;

	pthread_mutex_lock(&vt->lock);
	vt->stop = true;
	for (i = 0; i < KVS_VERBS_SIDES; i++)
		pthread_cond_signal(&vt->side[i].cond);
	pthread_mutex_unlock(&vt->lock);
	for (i = 0; i < KVS_VERBS_SIDES; i++) {
		if (vt->side[i].started)
			pthread_join(vt->side[i].thread, NULL);
		pthread_cond_destroy(&vt->side[i].cond);
	}
	KVS_ASSERT(kvs_list_empty(&vt->done) && !vt->jobs);
	pthread_mutex_destroy(&vt->lock);
}

/* Signals are for the program's own threads. */
static int side_start(struct kvs_verbs_side *s)
{
	sigset_t all, old;
	int rc;

	if (s->started)
		return 0;
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &old);
	rc = pthread_create(&s->thread, NULL, side_main, s);
	pthread_sigmask(SIG_SETMASK, &old, NULL);
	s->started = !rc;
	return -rc;
}

void kvs_verbs_submit(struct kvs_verbs *vt, enum kvs_verbs_side_id side,
		      struct kvs_verbs_job *j)
{
	struct kvs_verbs_side *s = &vt->side[side];
	bool here = side_start(s) != 0;

	vt->jobs++;
	if (here)
		j->run(j);
	pthread_mutex_lock(&vt->lock);
	kvs_list_add_tail(here ? &vt->done : &s->todo, &j->node);
	pthread_cond_signal(&s->cond);
	pthread_mutex_unlock(&vt->lock);
	if (here)
		kvs_transport_wake(vt->inner);
}

unsigned int kvs_verbs_jobs_done(struct kvs_verbs *vt)
{
	struct kvs_verbs_job *j;
	struct kvs_list now;
	unsigned int n = 0;

	if (!vt->jobs)
		return 0;
	kvs_list_init(&now);
	pthread_mutex_lock(&vt->lock);
	kvs_list_splice_tail(&now, &vt->done);
	pthread_mutex_unlock(&vt->lock);
	while (!kvs_list_empty(&now)) {
		j = kvs_list_first(&now, struct kvs_verbs_job, node);
		kvs_list_del(&j->node);
		vt->jobs--;
		n++;
		j->done(j);
	}
	return n;
}
