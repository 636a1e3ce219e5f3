/* SPDX-License-Identifier: Apache-2.0 */
/*
 * DOC: settings, read
 *
 * Values by name, and the file. libinih cuts lines into section, key and
 * value; the reader under it counts lines for the messages and takes out what
 * inih would swallow: lines longer than its buffer, NUL bytes, and indented
 * lines, which it would add to the value above.
 */
#include <errno.h>
#include <fcntl.h>
#include <ini.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "lib/assert.h"
#include "lib/units.h"
#include "pipeline/settings_internal.h"

#define KVS_NAME_MAX 64 /* bytes of "section.key" that are looked at */

static const char *const kvs_setting_hint[KVS_SETTING_TYPE_MAX] = {
	[KVS_SETTING_SIZE] = "not a size such as 512M, 4GiB or 4294967296",
	[KVS_SETTING_DURATION] = "not a duration such as 30s, 250ms or 5m",
	[KVS_SETTING_U32] = "not a number",
	[KVS_SETTING_BOOL] = "neither yes nor no",
	[KVS_SETTING_STRING] =
		("not a plain text: control bytes, a blank at an "
		 "end, or a ';' that would begin a comment"),
	[KVS_SETTING_CHOICE] = "not one of the choices",
};

/* A message may end up on a terminal: no control bytes, and not too long. */
static const char *kvs_setting_quote(const char *s, char *buf, size_t len)
{
	char *p;

	if (snprintf(buf, len, "%s", s) >= (int)len)
		memcpy(buf + len - 4, "...", 4);
	for (p = buf; *p; p++)
		if ((unsigned char)*p < 0x20 || *p == 0x7f)
			*p = '?';
	return buf;
}

static int kvs_setting_bad(const struct kvs_setting_desc *d, const char *value,
			   const char *why, int ret, char *err, size_t errlen)
{
	char range[KVS_SETTING_RANGE], quoted[80];

	snprintf(err, errlen, "%s.%s = \"%s\": %s; allowed: %s", d->section,
		 d->key, kvs_setting_quote(value, quoted, sizeof(quoted)), why,
		 kvs_setting_range(d, range));
	return ret;
}

static int kvs_setting_parse_bool(const char *value, bool *ret_b)
{
	static const struct {
		const char *name;
		bool value;
	} names[] = { { "yes", true }, { "no", false },	   { "true", true },
		      { "on", true },  { "false", false }, { "off", false },
		      { "1", true },   { "0", false } };
	size_t i;

	for (i = 0; i < KVS_ARRAY_SIZE(names); i++) {
		if (!strcmp(value, names[i].name)) {
			*ret_b = names[i].value;
			return 0;
		}
	}
	return -EINVAL;
}

static bool kvs_setting_is_choice(const char *choices, const char *value)
{
	size_t n = strlen(value);

	for (;;) {
		size_t len = strcspn(choices, "|");

		if (len == n && !memcmp(choices, value, n))
			return true;
		if (!choices[len])
			return false;
		choices += len + 1;
	}
}

/* Would a file that has it be read as it is? */
static bool kvs_setting_is_plain(const char *value)
{
	char before = ' ';

	if (*value == ' ')
		return false;
	for (; *value; before = *value++) {
		if ((unsigned char)*value < 0x20 || *value == 0x7f)
			return false;
		if ((before == ' ' && *value == ';') ||
		    (*value == ' ' && !value[1]))
			return false;
	}
	return true;
}

static int kvs_setting_parse_number(const struct kvs_setting_desc *d,
				    const char *value, uint64_t *ret_v)
{
	switch (d->type) {
	case KVS_SETTING_SIZE:
		return kvs_parse_size(value, ret_v);
	case KVS_SETTING_DURATION:
		return kvs_parse_duration(value, ret_v);
	case KVS_SETTING_U32:
		return kvs_parse_u64(value, ret_v);
	case KVS_SETTING_BOOL:
	case KVS_SETTING_STRING:
	case KVS_SETTING_CHOICE:
	case KVS_SETTING_TYPE_MAX:
		break;
	}
	return -EINVAL;
}

int kvs_setting_parse(const struct kvs_setting_desc *d, const char *value,
		      struct kvs_settings *s, char *err, size_t errlen)
{
	const char *hint = kvs_setting_hint[d->type];
	char *field = (char *)s + d->off;
	uint64_t v = 0;
	uint32_t u;
	bool b;
	int ret = -EINVAL;

	switch (d->type) {
	case KVS_SETTING_SIZE:
	case KVS_SETTING_DURATION:
	case KVS_SETTING_U32:
		ret = kvs_setting_parse_number(d, value, &v);
		if (ret == -EINVAL)
			break;
		if (ret == -ERANGE || v > d->max)
			return kvs_setting_bad(d, value, "too large", -ERANGE,
					       err, errlen);
		if (v < d->min)
			return kvs_setting_bad(d, value, "too small", -ERANGE,
					       err, errlen);
		u = (uint32_t)v;
		memcpy(field,
		       d->type == KVS_SETTING_U32 ? (void *)&u : (void *)&v,
		       d->len);
		return 0;
	case KVS_SETTING_BOOL:
		ret = kvs_setting_parse_bool(value, &b);
		if (ret)
			break;
		memcpy(field, &b, d->len);
		return 0;
	case KVS_SETTING_STRING:
	case KVS_SETTING_CHOICE:
		if (d->choices && !kvs_setting_is_choice(d->choices, value))
			break;
		if (!kvs_setting_is_plain(value))
			break;
		if (strlen(value) >= d->len)
			return kvs_setting_bad(d, value, "too long", -ERANGE,
					       err, errlen);
		memset(field, 0, d->len);
		snprintf(field, d->len, "%s", value);
		return 0;
	case KVS_SETTING_TYPE_MAX:
		break;
	}
	return kvs_setting_bad(d, value, hint, ret, err, errlen);
}

/* Edit distance (insert, delete, replace) of the first KVS_NAME_MAX bytes. */
static unsigned int kvs_name_distance(const char *a, const char *b)
{
	size_t la = strnlen(a, KVS_NAME_MAX), lb = strnlen(b, KVS_NAME_MAX);
	unsigned int row[KVS_NAME_MAX + 1];
	size_t i, j;

	for (j = 0; j <= lb; j++)
		row[j] = (unsigned int)j;
	for (i = 1; i <= la; i++) {
		unsigned int diagonal = row[0];

		row[0] = (unsigned int)i;
		for (j = 1; j <= lb; j++) {
			unsigned int best = diagonal + (a[i - 1] != b[j - 1]);

			if (row[j] + 1 < best)
				best = row[j] + 1;
			if (row[j - 1] + 1 < best)
				best = row[j - 1] + 1;
			diagonal = row[j];
			row[j] = best;
		}
	}
	return row[lb];
}

/* "pool.page_size" and "pool-page-size" are the same name. */
static void kvs_name_fold(char *name)
{
	for (; *name; name++)
		if (*name == '.' || *name == '_')
			*name = '-';
}

static int kvs_setting_unknown(const char *name, const char *value, char *err,
			       size_t errlen)
{
	const struct kvs_setting_desc *best = &kvs_setting_descs[0];
	unsigned int best_distance = UINT_MAX, i;
	char folded[KVS_NAME_MAX + 1], quoted[80], shown[80];

	snprintf(folded, sizeof(folded), "%s", name);
	kvs_name_fold(folded);
	for (i = 0; i < kvs_setting_count; i++) {
		const struct kvs_setting_desc *d = &kvs_setting_descs[i];
		char known[KVS_NAME_MAX + 1];
		unsigned int distance;

		snprintf(known, sizeof(known), "%s-%s", d->section, d->key);
		kvs_name_fold(known);
		distance = kvs_name_distance(folded, known);
		if (distance < best_distance) {
			best = d;
			best_distance = distance;
		}
	}
	snprintf(err, errlen,
		 "%s = \"%s\": there is no such setting; the closest is "
		 "\"%s.%s\"",
		 kvs_setting_quote(name, quoted, sizeof(quoted)),
		 kvs_setting_quote(value, shown, sizeof(shown)), best->section,
		 best->key);
	return -ENOENT;
}

static const struct kvs_setting_desc *kvs_setting_find(const char *section,
						       const char *key)
{
	unsigned int i;

	for (i = 0; i < kvs_setting_count; i++)
		if (!strcmp(kvs_setting_descs[i].section, section) &&
		    !strcmp(kvs_setting_descs[i].key, key))
			return &kvs_setting_descs[i];
	return NULL;
}

/* The dotted name as it is; the dashed one, of options, with any dashes. */
static const struct kvs_setting_desc *kvs_setting_by_name(const char *name)
{
	char known[KVS_NAME_MAX + 1];
	unsigned int i;

	for (i = 0; i < kvs_setting_count; i++) {
		const struct kvs_setting_desc *d = &kvs_setting_descs[i];

		snprintf(known, sizeof(known), "%s.%s", d->section, d->key);
		if (!strcmp(known, name))
			return d;
		kvs_name_fold(known);
		if (!strcmp(known, name))
			return d;
	}
	return NULL;
}

int kvs_settings_set(struct kvs_settings *s, const char *name,
		     const char *value, char *err, size_t errlen)
{
	const struct kvs_setting_desc *d;

	if (!name || !value) {
		snprintf(err, errlen, "a setting needs a name and a value");
		return -EINVAL;
	}
	d = kvs_setting_by_name(name);
	if (!d)
		return kvs_setting_unknown(name, value, err, errlen);
	return kvs_setting_parse(d, value, s, err, errlen);
}

/* One reading of a file. */
struct kvs_settings_file {
	const char *path;
	FILE *f;
	unsigned int line; /* last one read */
	struct kvs_settings *s;
	unsigned int *seen; /* by setting: its line, 0: not set */
	int ret; /* first error */
	char *err;
	size_t errlen;
};

static void kvs_settings_file_error(struct kvs_settings_file *c, int ret,
				    unsigned int line, const char *fmt, ...)
	__attribute__((format(printf, 4, 5)));

static void kvs_settings_file_error(struct kvs_settings_file *c, int ret,
				    unsigned int line, const char *fmt, ...)
{
	va_list ap;
	int n;

	if (c->ret)
		return;
	c->ret = ret;
	n = snprintf(c->err, c->errlen, "%s:%u: ", c->path, line);
	if (n < 0 || (size_t)n >= c->errlen)
		return;
	va_start(ap, fmt);
	vsnprintf(c->err + n, c->errlen - (size_t)n, fmt, ap);
	va_end(ap);
}

/* "[section] junk" and "key: value", which inih takes. */
static bool kvs_settings_line_is_odd(const char *line)
{
	size_t n;

	if (!strncmp(line, "\xef\xbb\xbf", 3))
		line += 3; /* the mark some editors begin a file with */
	if (*line == '#' || *line == ';')
		return false;
	if (*line != '[') {
		n = strcspn(line, "=:");
		return line[n] == ':';
	}
	n = strcspn(line, "]");
	if (!line[n])
		return false;
	line += n + 1;
	n = strspn(line, " \t\r\n");
	return line[n] && (!n || line[n] != ';');
}

/* fgets() for inih, see DOC. After an error there is nothing more to read. */
static char *kvs_settings_read_line(char *buf, int size, void *arg)
{
	struct kvs_settings_file *c = arg;
	bool indent = true;
	int n = 0, ch;

	if (c->ret)
		return NULL;
	ch = getc(c->f);
	if (ch == EOF)
		return NULL;
	c->line++;
	for (; ch != EOF && ch != '\n'; ch = getc(c->f)) {
		if (!ch) {
			kvs_settings_file_error(c, -EINVAL, c->line,
						"has a NUL byte: not a text");
			return NULL;
		}
		if (indent && (ch == ' ' || ch == '\t'))
			continue;
		indent = false;
		if (n + 2 >= size) {
			kvs_settings_file_error(c, -EINVAL, c->line,
						"longer than %d bytes",
						size - 2);
			return NULL;
		}
		buf[n++] = (char)ch;
	}
	buf[n++] = '\n';
	buf[n] = '\0';
	if (kvs_settings_line_is_odd(buf)) {
		kvs_settings_file_error(c, -EINVAL, c->line,
					"neither [section] nor key = value");
		return NULL;
	}
	return buf;
}

/* Returns non-zero when all is well: inih's convention. */
static int kvs_settings_take(void *arg, const char *section, const char *key,
			     const char *value)
{
	struct kvs_settings_file *c = arg;
	const struct kvs_setting_desc *d;
	char name[128], text[512];
	unsigned int i;
	int ret;

	if (c->ret)
		return 0;
	if (!*section) {
		kvs_settings_file_error(c, -EINVAL, c->line,
					"\"%s\" stands before any [section]",
					kvs_setting_quote(key, name, 64));
		return 0;
	}
	d = kvs_setting_find(section, key);
	if (!d) {
		snprintf(name, sizeof(name), "%s.%s", section, key);
		ret = kvs_setting_unknown(name, value, text, sizeof(text));
		kvs_settings_file_error(c, ret, c->line, "%s", text);
		return 0;
	}
	i = (unsigned int)(d - kvs_setting_descs);
	if (c->seen[i]) {
		kvs_settings_file_error(c, -EINVAL, c->line,
					"%s.%s = \"%s\": set before, in line "
					"%u; a setting may stand once",
					d->section, d->key,
					kvs_setting_quote(value, name, 80),
					c->seen[i]);
		return 0;
	}
	c->seen[i] = c->line;
	ret = kvs_setting_parse(d, value, c->s, text, sizeof(text));
	if (ret) {
		kvs_settings_file_error(c, ret, c->line, "%s", text);
		return 0;
	}
	return 1;
}

int kvs_settings_load(struct kvs_settings *s, const char *path, char *err,
		      size_t errlen)
{
	struct kvs_settings_origin o;

	return kvs_settings_load_origin(s, path, &o, err, errlen);
}

/* A pipe could keep us waiting, and a reload would find it empty. */
static int kvs_settings_open(const char *path, FILE **ret)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
	struct stat st;
	int err = 0;

	if (fd < 0)
		return -errno;
	if (fstat(fd, &st))
		err = -errno;
	else if (!S_ISREG(st.st_mode))
		err = S_ISDIR(st.st_mode) ? -EISDIR : -EINVAL;
	*ret = err ? NULL : fdopen(fd, "re");
	if (!err && !*ret)
		err = -errno;
	if (err)
		close(fd);
	return err;
}

int kvs_settings_load_origin(struct kvs_settings *s, const char *path,
			     struct kvs_settings_origin *o, char *err,
			     size_t errlen)
{
	struct kvs_settings_origin origin = { .file = path };
	struct kvs_settings copy = *s;
	struct kvs_settings_file c = {
		.path = path,
		.s = &copy,
		.seen = origin.line,
		.err = err,
		.errlen = errlen,
	};
	int bad;

	bad = kvs_settings_open(path, &c.f);
	if (bad) {
		snprintf(err, errlen, "%s: cannot open: %s", path,
			 bad == -EINVAL ? "not a regular file"
					: strerror(-bad));
		return bad;
	}
	errno = 0;
	bad = ini_parse_stream(kvs_settings_read_line, &c, kvs_settings_take,
			       &c);
	if (ferror(c.f)) {
		c.ret = errno ? -errno : -EIO;
		snprintf(err, errlen, "%s: cannot read: %s", path,
			 strerror(-c.ret));
	} else if (bad > 0 && (!c.ret || (unsigned int)bad < c.line)) {
		/* inih goes on after a line it cannot cut; that one is first */
		c.ret = 0;
		kvs_settings_file_error(&c, -EINVAL, (unsigned int)bad,
					"neither [section] nor key = value");
	} else if (bad < 0 && !c.ret) {
		c.ret = -ENOMEM;
		snprintf(err, errlen, "%s: %s", path, strerror(ENOMEM));
	}
	(void)fclose(c.f); /* it was only read */
	if (!c.ret) {
		*s = copy;
		*o = origin;
	}
	return c.ret;
}
