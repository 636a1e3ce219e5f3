/* SPDX-License-Identifier: Apache-2.0 */
/* The verbs event loop. See verbs_internal.h. */
#include "rdma/verbs.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lib/assert.h"
#include "rdma/verbs_internal.h"

#define DEFAULT_BUSY (10 * KVS_NSEC_PER_USEC)
#define PENDING_ROUNDS 4

static void run_all(struct kvs_verbs *vt)
{
	int i;

	(void)kvs_verbs_jobs_done(vt);
	(void)kvs_verbs_run_active(vt);
	if (!kvs_list_empty(&vt->answers))
		kvs_verbs_grants_answer(vt);
	for (i = 0; i < PENDING_ROUNDS && !kvs_list_empty(&vt->pend); i++)
		kvs_verbs_run_pending(vt);
}

/* Nothing to do but to wait: a little for completions, then for anything. */
static uint64_t prepare_sleep(struct kvs_verbs *vt, uint64_t timeout_ns)
{
	uint64_t now = kvs_verbs_now(vt);
	uint64_t end = vt->heard + vt->o.busy;
	uint64_t next;

	while (now < end && !vt->handled && !kvs_list_empty(&vt->active)) {
		(void)kvs_verbs_run_active(vt);
		now = kvs_verbs_now(vt);
	}
	if (!vt->handled)
		(void)kvs_verbs_arm_active(vt);
	if (vt->handled || !kvs_list_empty(&vt->pend))
		return 0;
	next = kvs_verbs_next_deadline(vt);
	if (next == KVS_TIME_NEVER)
		return timeout_ns;
	next = next > now ? next - now : 0;
	return next < timeout_ns ? next : timeout_ns;
}

static int verbs_poll(struct kvs_transport *t, uint64_t timeout_ns)
{
	struct kvs_verbs *vt = kvs_verbs_of(t);
	int rc;

	vt->handled = 0;
	run_all(vt);
	if (vt->handled || !kvs_list_empty(&vt->pend))
		timeout_ns = 0;
	else if (timeout_ns)
		timeout_ns = prepare_sleep(vt, timeout_ns);
	rc = kvs_transport_poll(vt->inner, timeout_ns);
	run_all(vt);
	/* Completions came first; what they did not settle may time out. */
	if (!kvs_list_empty(&vt->timed)) {
		kvs_verbs_run_deadlines(vt, kvs_verbs_now(vt));
		run_all(vt);
	}
	if (rc < 0)
		return rc;
	return rc + (int)vt->handled;
}

static void verbs_wake(struct kvs_transport *t)
{
	kvs_transport_wake(kvs_verbs_of(t)->inner);
}

static int verbs_listen(struct kvs_transport *t, const struct kvs_addr *addr,
			int (*accepted)(struct kvs_conn *c, void *arg),
			void *arg, struct kvs_listener **ret)
{
	return kvs_transport_listen(kvs_verbs_of(t)->inner, addr, accepted, arg,
				    ret);
}

static void verbs_discard(struct kvs_transport *t, int fd)
{
	kvs_transport_discard(kvs_verbs_of(t)->inner, fd);
}

static int verbs_watch(struct kvs_transport *t, int fd, short events,
		       void (*ready)(struct kvs_watch *w, short revents,
				     void *arg),
		       void *arg, struct kvs_watch **ret)
{
	return kvs_transport_watch(kvs_verbs_of(t)->inner, fd, events, ready,
				   arg, ret);
}

static void verbs_stats(const struct kvs_transport *t,
			struct kvs_transport_stats *st)
{
	struct kvs_transport_stats in;
	uint64_t *to = (uint64_t *)st;
	const uint64_t *from = (const uint64_t *)&in;
	size_t i;

	static_assert(sizeof(in) % sizeof(uint64_t) == 0, "counters only");
	kvs_transport_stats(kvs_verbs_of(t)->inner, &in);
	for (i = 0; i < sizeof(in) / sizeof(uint64_t); i++)
		to[i] += from[i];
}

static bool any_qp(const struct kvs_verbs *vt)
{
	const struct kvs_verbs_conn *vc;

	kvs_list_for_each_entry(vc, &vt->conns, node)
		if (vc->state != KVS_VERBS_TCP && !vc->given_up)
			return true;
	return false;
}

static void verbs_destroy(struct kvs_transport *t)
{
	struct kvs_verbs *vt = kvs_verbs_of(t);
	struct kvs_verbs_conn *vc;

	vt->closing = true;
	kvs_list_for_each_entry(vc, &vt->conns, node)
		if (vc->state != KVS_VERBS_TCP)
			kvs_verbs_die(vc, -ESHUTDOWN, false);
	while (vt->jobs || any_qp(vt))
		(void)verbs_poll(t, KVS_NSEC_PER_SEC / 10);
	kvs_verbs_sides_fini(vt);
	kvs_verbs_grants_dereg(vt);
	kvs_verbs_conns_let_go(vt);
	kvs_verbs_mem_free_all(vt);
	kvs_verbs_devs_close(vt);
	kvs_verbs_conns_end(vt);
	kvs_transport_destroy(vt->inner);
	kvs_verbs_grants_end(vt);
	KVS_ASSERT(kvs_list_empty(&vt->conns));
	KVS_ASSERT(kvs_list_empty(&vt->owners));
	pthread_mutex_destroy(&vt->mem_lock);
	free((char *)vt->o.devices);
	vt->t.magic = 0;
	free(vt);
}

/* What belongs to the inner transport (control connections, listeners,
 * watches) has its table and never comes here. */
static const struct kvs_transport_ops verbs_ops = {
	.destroy = verbs_destroy,
	.poll = verbs_poll,
	.wake = verbs_wake,
	.listen = verbs_listen,
	.connect = kvs_verbs_connect,
	.adopt = kvs_verbs_adopt,
	.detach = kvs_verbs_detach,
	.discard = verbs_discard,
	.send = kvs_verbs_send,
	.write = kvs_verbs_write,
	.read = kvs_verbs_read,
	.stop_payload = kvs_verbs_stop_payload,
	.close = kvs_verbs_close,
	.watch = verbs_watch,
	.set_owner = kvs_verbs_set_owner,
	.mem_register = kvs_verbs_register,
	.mem_register_at = kvs_verbs_register_at,
	.mem_try_at = kvs_verbs_try_at,
	.mem_release = kvs_verbs_unregister,
	.stats = verbs_stats,
	.grant_size = sizeof(struct kvs_verbs_grant),
	.grant_open = kvs_verbs_grant_open,
	.grant_close = kvs_verbs_grant_close,
	.grant_cancel = kvs_verbs_grant_cancel,
};

static int check(const struct kvs_verbs_opts *v, char *err, size_t errlen)
{
	if (v->gid_index < -1 || v->gid_index > 255) {
		snprintf(err, errlen, "GID index %d: allowed -1 to 255",
			 v->gid_index);
		return -EINVAL;
	}
	if (v->port > 255) {
		snprintf(err, errlen, "port %u: allowed 0 to 255", v->port);
		return -EINVAL;
	}
	if (v->mtu &&
	    (v->mtu < 256 || v->mtu > 4096 || (v->mtu & (v->mtu - 1)))) {
		snprintf(err, errlen,
			 "mtu %u: allowed 0, 256, 512, 1024, 2048, 4096",
			 v->mtu);
		return -EINVAL;
	}
	return 0;
}

int kvs_verbs_create(const struct kvs_transport_opts *o,
		     const struct kvs_verbs_opts *v, struct kvs_transport **ret,
		     char *err, size_t errlen)
{
	static const struct kvs_verbs_opts defaults = {
		.node = -1,
		.gid_index = -1,
	};
	struct kvs_verbs *vt;
	char none[1];
	int rc;

	if (!err || !errlen) {
		err = none;
		errlen = sizeof(none);
	}
	if (!v)
		v = &defaults;
	rc = check(v, err, errlen);
	if (rc)
		return rc;
	snprintf(err, errlen, "out of memory");
	vt = calloc(1, sizeof(*vt));
	if (!vt)
		return -ENOMEM;
	vt->ops = verbs_ops;
	vt->ops.name = vt->name;
	kvs_transport_init(&vt->t, &vt->ops, o);
	vt->t.one_sided = true;
	vt->o = *v;
	if (!vt->o.busy)
		vt->o.busy = DEFAULT_BUSY;
	vt->o.devices = strdup(v->devices ? v->devices : "auto");
	kvs_list_init(&vt->conns);
	kvs_list_init(&vt->pend);
	kvs_list_init(&vt->active);
	kvs_list_init(&vt->timed);
	kvs_list_init(&vt->owners);
	kvs_list_init(&vt->grants);
	kvs_list_init(&vt->waiting);
	kvs_list_init(&vt->answers);
	rc = -ENOMEM;
	if (!vt->o.devices)
		goto out_free;
	rc = kvs_tcp_create(o, &vt->inner, err, errlen);
	if (rc)
		goto out_free;
	snprintf(vt->name, sizeof(vt->name), "verbs+%s",
		 kvs_transport_name(vt->inner));
	pthread_mutex_init(&vt->mem_lock, NULL);
	kvs_verbs_sides_init(vt);
	rc = kvs_verbs_devs_open(vt, err, errlen);
	if (rc) {
		kvs_verbs_sides_fini(vt);
		kvs_verbs_devs_close(vt);
		pthread_mutex_destroy(&vt->mem_lock);
		kvs_transport_destroy(vt->inner);
		goto out_free;
	}
	err[0] = '\0';
	*ret = &vt->t;
	return 0;
out_free:
	free((char *)vt->o.devices);
	free(vt);
	return rc;
}

unsigned int kvs_verbs_devices(const struct kvs_transport *t,
			       struct kvs_verbs_info *ret, unsigned int n)
{
	const struct kvs_verbs *vt;

	if (t->ops->destroy != verbs_destroy)
		return 0;
	vt = kvs_verbs_of(t);
	if (n > vt->n_info)
		n = vt->n_info;
	memcpy(ret, vt->info, n * sizeof(*ret));
	return n;
}

void kvs_verbs_counters(const struct kvs_transport *t,
			struct kvs_verbs_counts *ret)
{
	if (t->ops->destroy == verbs_destroy)
		*ret = kvs_verbs_of(t)->counts;
	else
		memset(ret, 0, sizeof(*ret));
}
