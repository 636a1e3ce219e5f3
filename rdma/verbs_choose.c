/* SPDX-License-Identifier: Apache-2.0 */
/* Which kind of grants a device gets: as it is set, or as is known of its
 * driver; tried before it is used; and what is told of that. */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "rdma/verbs_internal.h"

void kvs_verbs_kinds(const struct kvs_verbs_dev *d, struct kvs_verbs_info *info)
{
	const char *what;
	unsigned int k;

	for (k = 0; k < KVS_VERBS_GRANT_KINDS; k++) {
		what = "not tried";
		if (!d->ctx)
			what = "-";
		else if (k == KVS_VERBS_GRANT_WINDOW && !info->windows)
			what = "none";
		snprintf(info->kind[k], sizeof(info->kind[k]), "%s", what);
	}
}

static int try_kind(struct kvs_verbs_dev *d, enum kvs_verbs_grant_kind kind,
		    struct kvs_verbs_info *info, char *why, size_t len)
{
	int rc;

	if (kind == KVS_VERBS_GRANT_WINDOW && !info->windows) {
		snprintf(why, len, "it has no windows");
		return -EOPNOTSUPP;
	}
	rc = kvs_verbs_trial(d, kind, why, len);
	snprintf(info->kind[kind], sizeof(info->kind[kind]), "%s%s",
		 rc ? "failed: " : "passed", rc ? why : "");
	return rc;
}

/* @no_window: why not by windows, where that would be the first choice. */
static void say_why(const struct kvs_verbs *vt, const struct kvs_verbs_dev *d,
		    struct kvs_verbs_info *info, const char *no_window)
{
	const char *known = strcmp(d->prov->driver, "?") != 0
				    ? "as is known of "
				    : "rests on least, as nothing is known of ";

	info->trial = kvs_verbs_trial_text(d->grant);
	if (vt->o.grant != KVS_VERBS_GRANT_AUTO)
		snprintf(info->why, sizeof(info->why), "rdma.grant = %s%s%s",
			 kvs_verbs_grant_name[vt->o.grant],
			 *no_window ? ", although: " : "", no_window);
	else
		snprintf(info->why, sizeof(info->why), "auto: %s%s%s%s%s",
			 *no_window ? "by window " : "", known, info->driver,
			 *no_window ? ", but: " : "", no_window);
}

int kvs_verbs_choose_grant(const struct kvs_verbs *vt, struct kvs_verbs_dev *d,
			   struct kvs_verbs_info *info)
{
	bool asked = vt->o.grant == KVS_VERBS_GRANT_WINDOW;
	bool qp = vt->o.grant == KVS_VERBS_GRANT_QP;
	char no_window[128] = "";
	char why[128] = "";
	int rc;

	snprintf(info->note, sizeof(info->note), "in use");
	d->grant = KVS_VERBS_GRANT_MR;
	if (vt->o.no_grants)
		return 0;
	if (asked || (vt->o.grant == KVS_VERBS_GRANT_AUTO &&
		      d->prov->grant == KVS_VERBS_GRANT_WINDOW)) {
		rc = try_kind(d, KVS_VERBS_GRANT_WINDOW, info, no_window,
			      sizeof(no_window));
		if (!rc || (asked && info->windows))
			d->grant = KVS_VERBS_GRANT_WINDOW;
		if (rc && asked && !info->windows) {
			snprintf(info->note, sizeof(info->note), "%s",
				 no_window);
			return rc;
		}
		if (rc)
			snprintf(info->note, sizeof(info->note), "in use; %s",
				 no_window);
	}
	if (d->grant != KVS_VERBS_GRANT_WINDOW) {
		d->grant = qp ? KVS_VERBS_GRANT_QP : KVS_VERBS_GRANT_MR;
		rc = try_kind(d, d->grant, info, why, sizeof(why));
		if (rc) {
			snprintf(info->note, sizeof(info->note),
				 "tried out: %s", why);
			return rc;
		}
		if (qp)
			snprintf(
				info->note, sizeof(info->note),
				"in use; a writer is not confined to its room");
	}
	say_why(vt, d, info, no_window);
	return 0;
}
