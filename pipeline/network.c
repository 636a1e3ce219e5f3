/* SPDX-License-Identifier: Apache-2.0 */
#include "pipeline/network.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "lib/units.h"

int kvs_network_number(const char *text, unsigned int max, int *ret)
{
	uint64_t v;

	*ret = -1;
	if (!text || !strcmp(text, "auto"))
		return 0;
	if (kvs_parse_u64(text, &v) || v > max)
		return -EINVAL;
	*ret = (int)v;
	return 0;
}

static int parse(const struct kvs_network_opts *o, struct kvs_verbs_opts *v,
		 char *err, size_t errlen)
{
	unsigned int i;
	int mtu;

	v->devices = o->device;
	v->node = o->node;
	v->port = o->port;
	v->no_grants = o->no_grants;
	if (kvs_network_number(o->gid_index, 255, &v->gid_index)) {
		snprintf(err, errlen,
			 "rdma.gid_index = \"%s\": allowed: auto, "
			 "or 0 to 255",
			 o->gid_index);
		return -EINVAL;
	}
	if (kvs_network_number(o->mtu, 4096, &mtu)) {
		snprintf(err, errlen,
			 "rdma.mtu = \"%s\": allowed: auto, 256, "
			 "512, 1024, 2048, 4096",
			 o->mtu);
		return -EINVAL;
	}
	v->mtu = mtu < 0 ? 0 : (unsigned int)mtu;
	for (i = 0; i < KVS_VERBS_GRANT_KINDS; i++) {
		if (!o->grant || !strcmp(o->grant, kvs_verbs_grant_name[i]))
			break;
	}
	if (i == KVS_VERBS_GRANT_KINDS) {
		snprintf(err, errlen,
			 "rdma.grant = \"%s\": allowed: auto, "
			 "window, mr, qp",
			 o->grant);
		return -EINVAL;
	}
	v->grant = (enum kvs_verbs_grant_kind)i;
	return 0;
}

static void describe(const struct kvs_transport *t, bool grants, char *note)
{
	struct kvs_verbs_info info[KVS_VERBS_DEVS_MAX];
	unsigned int n = kvs_verbs_devices(t, info, KVS_VERBS_DEVS_MAX);
	unsigned int i;
	size_t at = 0;

	for (i = 0; i < n && at < KVS_NETWORK_NOTE; i++) {
		if (!info[i].used)
			continue;
		at += (size_t)snprintf(
			note + at, KVS_NETWORK_NOTE - at,
			"%s%s port %u, %s, GID index %d (%s), MTU %u%s%s%s",
			at ? "; " : "verbs: ", info[i].device, info[i].port,
			info[i].link, info[i].gid_index, info[i].gid,
			info[i].mtu, grants ? ", grants by " : "",
			grants ? info[i].grant : "",
			grants && !strcmp(info[i].grant, "qp")
				? ", which confine nobody"
				: "");
	}
}

/* Nothing is wrong: this machine, or this build, has none. */
static bool none_there(int rc)
{
	return rc == -EOPNOTSUPP || rc == -ENODEV;
}

/* What asked for the device that is not there. */
static void explain(const struct kvs_network_opts *o, bool named, char *err,
		    size_t errlen)
{
	char what[KVS_NETWORK_NOTE];

	/* it names the setting already */
	if (!strncmp(err, "rdma.device", strlen("rdma.device")))
		return;
	snprintf(what, sizeof(what), "%s", err);
	if (named)
		snprintf(err, errlen, "rdma.device = \"%.64s\": %s", o->device,
			 what);
	else
		snprintf(err, errlen, "transport.data = verbs: %s", what);
}

int kvs_network_create(const struct kvs_network_opts *o,
		       struct kvs_transport **ret, char *note, char *err,
		       size_t errlen)
{
	bool must = o->data && !strcmp(o->data, "verbs");
	bool named = o->device && strcmp(o->device, "auto") != 0;
	struct kvs_verbs_opts v = { 0 };
	int rc;

	note[0] = '\0';
	if (o->data && strcmp(o->data, "auto") && strcmp(o->data, "tcp") &&
	    strcmp(o->data, "verbs")) {
		snprintf(err, errlen,
			 "transport \"%.32s\": allowed: auto, tcp, "
			 "verbs",
			 o->data);
		return -EINVAL;
	}
	if (!must && ((o->data && !strcmp(o->data, "tcp")) ||
		      (o->device && !strcmp(o->device, "off")))) {
		snprintf(note, KVS_NETWORK_NOTE, "TCP only, as set");
		return kvs_tcp_create(&o->tcp, ret, err, errlen);
	}
	rc = parse(o, &v, err, errlen);
	if (rc)
		return rc;
	rc = kvs_verbs_create(&o->tcp, &v, ret, err, errlen);
	if (!rc) {
		describe(*ret, !o->no_grants, note);
		return 0;
	}
	if (must || named) {
		if (rc == -ENODEV)
			explain(o, named, err, errlen);
		return rc;
	}
	if (!none_there(rc))
		return rc;
	snprintf(note, KVS_NETWORK_NOTE, "%s, TCP only",
		 rc == -ENODEV ? err : "no verbs device");
	/* why verbs could not be had is no error of this call */
	if (errlen)
		err[0] = '\0';
	return kvs_tcp_create(&o->tcp, ret, err, errlen);
}
