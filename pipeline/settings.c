/* SPDX-License-Identifier: Apache-2.0 */
/*
 * DOC: settings
 *
 * settings.def is the only list. It becomes struct kvs_settings in the header
 * and a table of descriptions here; everything else (defaults, ranges, the
 * printed file, what a reload takes) walks that table.
 */
#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/un.h>

#include "lib/assert.h"
#include "lib/clock.h"
#include "lib/units.h"
#include "pipeline/network.h"
#include "pipeline/settings_internal.h"

/* the columns min and max mean something else in each type */
#define KVS_DESC_SIZE(lo, hi) .min = (lo), .max = (hi)
#define KVS_DESC_DURATION(lo, hi) .min = (lo), .max = (hi)
#define KVS_DESC_U32(lo, hi) .min = (lo), .max = (hi)
#define KVS_DESC_BOOL(lo, hi) .max = (hi)
#define KVS_DESC_STRING(lo, hi) .max = (hi)
#define KVS_DESC_CHOICE(lo, hi) .choices = (hi)

const struct kvs_setting_desc kvs_setting_descs[] = {
#define KVS_SETTING(s, k, f, T, d, lo, hi, r, t)              \
	{                                                     \
		.section = #s,                                \
		.key = #k,                                    \
		.def = (d),                                   \
		.text = (t),                                  \
		.type = KVS_SETTING_##T,                      \
		.reload = (r),                                \
		.off = offsetof(struct kvs_settings, f),      \
		.len = sizeof(((struct kvs_settings *)0)->f), \
		KVS_DESC_##T(lo, hi),                         \
	},
#include "pipeline/settings.def"
#undef KVS_SETTING
};

const unsigned int kvs_setting_count = KVS_SETTINGS;

static const char *const kvs_setting_type_name[KVS_SETTING_TYPE_MAX] = {
	[KVS_SETTING_SIZE] = "size",	 [KVS_SETTING_DURATION] = "duration",
	[KVS_SETTING_U32] = "number",	 [KVS_SETTING_BOOL] = "bool",
	[KVS_SETTING_STRING] = "string", [KVS_SETTING_CHOICE] = "choice",
};

static struct kvs_setting_info
	kvs_setting_infos[KVS_ARRAY_SIZE(kvs_setting_descs)];
static char kvs_setting_ranges[KVS_ARRAY_SIZE(kvs_setting_descs)]
			      [KVS_SETTING_RANGE];
static struct kvs_settings kvs_settings_default;
/* guards the making of the three above; they are constant afterwards */
static pthread_once_t kvs_settings_once = PTHREAD_ONCE_INIT;

/* What the file takes, and exact: the largest unit that leaves no rest. */
static void kvs_setting_number(uint64_t v, const struct kvs_setting_desc *d,
			       char *buf, size_t len)
{
	static const struct {
		const char *suffix;
		uint64_t scale;
	} sizes[] = { { "T", 1ULL << 40 },
		      { "G", 1ULL << 30 },
		      { "M", 1ULL << 20 },
		      { "K", 1ULL << 10 },
		      { "", 1 } },
	  durations[] = { { "h", 3600 * KVS_NSEC_PER_SEC },
			  { "m", 60 * KVS_NSEC_PER_SEC },
			  { "s", KVS_NSEC_PER_SEC },
			  { "ms", KVS_NSEC_PER_MSEC },
			  { "us", KVS_NSEC_PER_USEC },
			  { "ns", 1 } };
	size_t i = 0;

	if (!v || d->type == KVS_SETTING_U32) {
		snprintf(buf, len, "%" PRIu64, v);
	} else if (d->type == KVS_SETTING_SIZE) {
		while (v % sizes[i].scale)
			i++;
		snprintf(buf, len, "%" PRIu64 "%s", v / sizes[i].scale,
			 sizes[i].suffix);
	} else {
		while (v % durations[i].scale)
			i++;
		snprintf(buf, len, "%" PRIu64 "%s", v / durations[i].scale,
			 durations[i].suffix);
	}
}

const char *kvs_setting_range(const struct kvs_setting_desc *d, char *buf)
{
	char lo[32], hi[32];

	switch (d->type) {
	case KVS_SETTING_SIZE:
	case KVS_SETTING_DURATION:
	case KVS_SETTING_U32:
		kvs_setting_number(d->min, d, lo, sizeof(lo));
		kvs_setting_number(d->max, d, hi, sizeof(hi));
		snprintf(buf, KVS_SETTING_RANGE, "%s to %s", lo, hi);
		break;
	case KVS_SETTING_BOOL:
		snprintf(buf, KVS_SETTING_RANGE, "yes|no");
		break;
	case KVS_SETTING_STRING:
		snprintf(buf, KVS_SETTING_RANGE, "text of at most %zu bytes",
			 d->len - 1);
		break;
	case KVS_SETTING_CHOICE:
		snprintf(buf, KVS_SETTING_RANGE, "%s", d->choices);
		break;
	case KVS_SETTING_TYPE_MAX:
		buf[0] = '\0';
		break;
	}
	return buf;
}

static void kvs_settings_make(void)
{
	char err[512];
	unsigned int i;

	for (i = 0; i < kvs_setting_count; i++) {
		const struct kvs_setting_desc *d = &kvs_setting_descs[i];

		kvs_setting_infos[i] = (struct kvs_setting_info){
			.section = d->section,
			.key = d->key,
			.type = kvs_setting_type_name[d->type],
			.def = d->def,
			.range = kvs_setting_range(d, kvs_setting_ranges[i]),
			.text = d->text,
			.reload = d->reload,
		};
		/* our own table, so a bad default is our mistake */
		KVS_ASSERT(!kvs_setting_parse(d, d->def, &kvs_settings_default,
					      err, sizeof(err)));
	}
}

static const struct kvs_settings *kvs_settings_defaults(void)
{
	pthread_once(&kvs_settings_once, kvs_settings_make);
	return &kvs_settings_default;
}

void kvs_settings_init(struct kvs_settings *s)
{
	*s = *kvs_settings_defaults();
}

const struct kvs_setting_info *kvs_setting_info(unsigned int i)
{
	kvs_settings_defaults();
	return i < kvs_setting_count ? &kvs_setting_infos[i] : NULL;
}

static const void *kvs_setting_field(const struct kvs_settings *s,
				     const struct kvs_setting_desc *d)
{
	return (const char *)s + d->off;
}

static bool kvs_setting_equal(const struct kvs_setting_desc *d,
			      const struct kvs_settings *a,
			      const struct kvs_settings *b)
{
	const void *x = kvs_setting_field(a, d), *y = kvs_setting_field(b, d);

	/* what lies behind the end of a text does not count */
	if (d->type == KVS_SETTING_STRING || d->type == KVS_SETTING_CHOICE)
		return !strcmp(x, y);
	return !memcmp(x, y, d->len);
}

const char *kvs_setting_value(const struct kvs_settings *s, unsigned int i,
			      char *buf, size_t len)
{
	const struct kvs_setting_desc *d;
	const void *p;
	uint32_t u;
	uint64_t v;
	bool b;

	if (len)
		buf[0] = '\0';
	if (i >= kvs_setting_count)
		return buf;
	d = &kvs_setting_descs[i];
	p = kvs_setting_field(s, d);
	/* "300s" and not "5m", when that is how the default is written */
	if (kvs_setting_equal(d, s, kvs_settings_defaults())) {
		snprintf(buf, len, "%s", d->def);
		return buf;
	}
	switch (d->type) {
	case KVS_SETTING_SIZE:
	case KVS_SETTING_DURATION:
		memcpy(&v, p, sizeof(v));
		kvs_setting_number(v, d, buf, len);
		break;
	case KVS_SETTING_U32:
		memcpy(&u, p, sizeof(u));
		kvs_setting_number(u, d, buf, len);
		break;
	case KVS_SETTING_BOOL:
		memcpy(&b, p, sizeof(b));
		snprintf(buf, len, "%s", b ? "yes" : "no");
		break;
	case KVS_SETTING_STRING:
	case KVS_SETTING_CHOICE:
		snprintf(buf, len, "%s", (const char *)p);
		break;
	case KVS_SETTING_TYPE_MAX:
		break;
	}
	return buf;
}

/* Paragraph of comment lines, at most 78 columns. */
static void kvs_settings_print_comment(const char *text, FILE *f)
{
	size_t col = 0;

	while (*text) {
		size_t n = strcspn(text, " ");

		if (col && col + 1 + n > 78) {
			fputc('\n', f);
			col = 0;
		}
		if (!col) {
			fputc('#', f);
			col = 1;
		}
		fprintf(f, " %.*s", (int)n, text);
		col += 1 + n;
		text += n;
		text += strspn(text, " ");
	}
	if (col)
		fputc('\n', f);
}

int kvs_settings_print(const struct kvs_settings *s, FILE *f)
{
	const char *section = "";
	unsigned int i;

	for (i = 0; i < kvs_setting_count; i++) {
		const struct kvs_setting_info *info = kvs_setting_info(i);
		char value[KVS_STRING_MAX], note[KVS_SETTING_RANGE + 384];

		if (strcmp(section, info->section)) {
			fprintf(f, "%s[%s]\n", i ? "\n" : "", info->section);
			section = info->section;
		}
		fputc('\n', f);
		kvs_settings_print_comment(info->text, f);
		snprintf(note, sizeof(note), "%s: %s; default %s%s", info->type,
			 info->range, *info->def ? info->def : "empty",
			 info->reload ? "" : "; a change needs a restart");
		kvs_settings_print_comment(note, f);
		kvs_setting_value(s, i, value, sizeof(value));
		fprintf(f, "%s =%s%s\n", info->key, *value ? " " : "", value);
	}
	return ferror(f) ? -EIO : 0;
}

int kvs_settings_reload(struct kvs_settings *s, const struct kvs_settings *from,
			char *err, size_t errlen)
{
	size_t used = 0;
	unsigned int i;
	int n = 0;

	if (errlen)
		err[0] = '\0';
	for (i = 0; i < kvs_setting_count; i++) {
		const struct kvs_setting_desc *d = &kvs_setting_descs[i];
		int w;

		if (kvs_setting_equal(d, s, from))
			continue;
		if (d->reload) {
			memcpy((char *)s + d->off, (const char *)from + d->off,
			       d->len);
			continue;
		}
		w = snprintf(used < errlen ? err + used : NULL,
			     used < errlen ? errlen - used : 0, "%s%s.%s",
			     n ? ", " : "", d->section, d->key);
		if (w > 0)
			used += (size_t)w;
		n++;
	}
	return n;
}

const char *kvs_setting_where(const struct kvs_settings_origin *o,
			      unsigned int i, char *buf, size_t len)
{
	size_t used;

	if (len)
		buf[0] = '\0';
	if (i >= KVS_SETTINGS)
		return buf;
	if (o->option[i]) {
		snprintf(buf, len, "option --%s-",
			 kvs_setting_descs[i].section);
		used = strnlen(buf, len);
		snprintf(buf + used, len - used, "%s",
			 kvs_setting_descs[i].key);
		for (; used < len && buf[used]; used++)
			if (buf[used] == '_')
				buf[used] = '-';
	} else if (o->line[i]) {
		snprintf(buf, len, "%s:%u", o->file, o->line[i]);
	}
	return buf;
}

/* One check of all; the first complaint is the one that is told. */
struct kvs_settings_checker {
	const struct kvs_settings *s;
	const struct kvs_settings_origin *o;
	char *err;
	size_t errlen;
};

static int kvs_settings_bad(struct kvs_settings_checker *c, unsigned int a,
			    unsigned int b, const char *fmt, ...)
	__attribute__((format(printf, 4, 5)));

/* The message begins with where each of @of that is no default came from. */
static int kvs_settings_bad_of(struct kvs_settings_checker *c,
			       const unsigned int *of, size_t n,
			       const char *text)
{
	char at[512];
	size_t used = 0;
	bool any = false;

	if (c->errlen)
		c->err[0] = '\0';
	for (size_t i = 0; i < n && used < c->errlen; i++) {
		kvs_setting_where(c->o, of[i], at, sizeof(at));
		if (!*at)
			continue;
		snprintf(c->err + used, c->errlen - used, "%s%s",
			 any ? ", " : "", at);
		used = strnlen(c->err, c->errlen);
		any = true;
	}
	if (used < c->errlen)
		snprintf(c->err + used, c->errlen - used, "%s%s",
			 any ? ": " : "", text);
	return -EINVAL;
}

/* What is wrong with settings @a and @b, which may be the same one. */
static int kvs_settings_bad(struct kvs_settings_checker *c, unsigned int a,
			    unsigned int b, const char *fmt, ...)
{
	const unsigned int of[] = { a, b };
	char text[1024];
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(text, sizeof(text), fmt, ap);
	va_end(ap);
	return kvs_settings_bad_of(c, of, a == b ? 1 : 2, text);
}

static int kvs_settings_check_path(struct kvs_settings_checker *c,
				   unsigned int i, const char *name,
				   const char *path)
{
	const size_t max = sizeof(((struct sockaddr_un *)0)->sun_path) - 1;

	if (!*path)
		return kvs_settings_bad(c, i, i, "%s = \"\": needs a path",
					name);
	if (strlen(path) > max)
		return kvs_settings_bad(c, i, i,
					"%s = \"%s\": a Unix socket's path has "
					"at most %zu bytes, this one %zu",
					name, path, max, strlen(path));
	return 0;
}

/* "auto", or node numbers with commas between, each once. */
static int kvs_settings_check_nodes(struct kvs_settings_checker *c)
{
	const char *nodes = c->s->pool_nodes, *p = nodes;
	char item[KVS_STRING_MAX];
	uint64_t seen[16] = { 0 }, v;

	if (!strcmp(nodes, "auto"))
		return 0;
	for (;;) {
		size_t n = strcspn(p, ",");

		snprintf(item, sizeof(item), "%.*s", (int)n, p);
		if (kvs_parse_u64(item, &v) || v >= 1024 ||
		    (seen[v / 64] & 1ULL << v % 64))
			return kvs_settings_bad(
				c, KVS_SETTING_OF_pool_nodes,
				KVS_SETTING_OF_pool_nodes,
				"pool.nodes = \"%s\": \"%s\" is wrong; "
				"allowed: auto, or different node numbers "
				"from 0 to 1023 with commas between",
				nodes, item);
		seen[v / 64] |= 1ULL << v % 64;
		if (!p[n])
			return 0;
		p += n + 1;
	}
}

static bool kvs_setting_port_is_zero(const char *addr)
{
	const char *colon = strrchr(addr, ':');

	return colon && !strcmp(colon, ":0");
}

static uint64_t kvs_add_sat(uint64_t a, uint64_t b)
{
	return a > UINT64_MAX - b ? UINT64_MAX : a + b;
}

bool kvs_settings_hold_suffices(const struct kvs_settings *s, char *text,
				size_t len)
{
	uint64_t sum = kvs_add_sat(kvs_add_sat(s->hold_assume_propagation,
					       s->hold_assume_remaining),
				   s->transfer_call_timeout);
	struct kvs_settings least = { .hold_timeout = sum };
	char have[32], p[32], r[32], c[32], all[32];

	snprintf(text, len,
		 "hold.timeout (%s) %s hold.assume_propagation (%s) + "
		 "hold.assume_remaining (%s) + transfer.call_timeout (%s) = %s",
		 kvs_setting_value(s, KVS_SETTING_OF_hold_timeout, have,
				   sizeof(have)),
		 s->hold_timeout > sum ? "exceeds" : "does not exceed",
		 kvs_setting_value(s, KVS_SETTING_OF_hold_assume_propagation, p,
				   sizeof(p)),
		 kvs_setting_value(s, KVS_SETTING_OF_hold_assume_remaining, r,
				   sizeof(r)),
		 kvs_setting_value(s, KVS_SETTING_OF_transfer_call_timeout, c,
				   sizeof(c)),
		 kvs_setting_value(&least, KVS_SETTING_OF_hold_timeout, all,
				   sizeof(all)));
	return s->hold_timeout > sum;
}

static int kvs_settings_check_hold(struct kvs_settings_checker *c)
{
	static const unsigned int terms[] = {
		KVS_SETTING_OF_hold_timeout,
		KVS_SETTING_OF_hold_assume_propagation,
		KVS_SETTING_OF_hold_assume_remaining,
		KVS_SETTING_OF_transfer_call_timeout,
	};
	char sum[512], text[640];

	if (kvs_settings_hold_suffices(c->s, sum, sizeof(sum)) ||
	    strcmp(c->s->hold_check, "error"))
		return 0;
	snprintf(text, sizeof(text),
		 "%s: senders that are well would be revoked; hold.check = "
		 "warn allows it",
		 sum);
	return kvs_settings_bad_of(c, terms, KVS_ARRAY_SIZE(terms), text);
}

static int kvs_settings_check_rdma(struct kvs_settings_checker *c)
{
	const struct kvs_settings *s = c->s;
	int index;

	if (kvs_network_number(s->rdma_gid_index, 255, &index))
		return kvs_settings_bad(c, KVS_SETTING_OF_rdma_gid_index,
					KVS_SETTING_OF_rdma_gid_index,
					"rdma.gid_index = \"%s\": allowed: "
					"auto, or 0 to 255",
					s->rdma_gid_index);
	if (!*s->rdma_device)
		return kvs_settings_bad(c, KVS_SETTING_OF_rdma_device,
					KVS_SETTING_OF_rdma_device,
					"rdma.device = \"\": allowed: auto, "
					"off, or names with commas between");
	if (!strcmp(s->rdma_device, "off") &&
	    !strcmp(s->transport_data, "verbs"))
		return kvs_settings_bad(c, KVS_SETTING_OF_rdma_device,
					KVS_SETTING_OF_transport_data,
					"rdma.device = off leaves no device "
					"for transport.data = verbs");
	return 0;
}

int kvs_settings_check_origin(const struct kvs_settings *s,
			      const struct kvs_settings_origin *o, char *err,
			      size_t errlen)
{
	struct kvs_settings_checker c = { s, o, err, errlen };
	int ret;

	ret = kvs_settings_check_path(&c, KVS_SETTING_OF_engine_socket,
				      "engine.socket", s->engine_socket);
	if (!ret)
		ret = kvs_settings_check_path(&c, KVS_SETTING_OF_ctl_socket,
					      "ctl.socket", s->ctl_socket);
	if (!ret)
		ret = kvs_settings_check_nodes(&c);
	if (!ret)
		ret = kvs_settings_check_hold(&c);
	if (!ret)
		ret = kvs_settings_check_rdma(&c);
	if (ret)
		return ret;
	if (!strcmp(s->engine_socket, s->ctl_socket))
		return kvs_settings_bad(&c, KVS_SETTING_OF_engine_socket,
					KVS_SETTING_OF_ctl_socket,
					"engine.socket and ctl.socket are both "
					"\"%s\"; they must differ",
					s->ctl_socket);
	if (*s->listen_port_file &&
	    !strcmp(s->listen_port_file, s->http_port_file))
		return kvs_settings_bad(&c, KVS_SETTING_OF_listen_port_file,
					KVS_SETTING_OF_http_port_file,
					"listen.port_file and http.port_file "
					"are both \"%s\"; they must differ",
					s->http_port_file);
	if (!strcmp(s->listen_address, s->http_address) &&
	    !kvs_setting_port_is_zero(s->http_address))
		return kvs_settings_bad(&c, KVS_SETTING_OF_listen_address,
					KVS_SETTING_OF_http_address,
					"listen.address and http.address are "
					"both \"%s\"; they must differ",
					s->http_address);
	if (s->offload_size && s->offload_size < 65536)
		return kvs_settings_bad(&c, KVS_SETTING_OF_offload_size,
					KVS_SETTING_OF_offload_size,
					"pool.offload_size = \"%" PRIu64
					"\": allowed: 0, or 64K and more, as "
					"for pool.size",
					s->offload_size);
	return 0;
}

int kvs_settings_check(const struct kvs_settings *s, char *err, size_t errlen)
{
	static const struct kvs_settings_origin nowhere;

	return kvs_settings_check_origin(s, &nowhere, err, errlen);
}
