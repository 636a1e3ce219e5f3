/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Claims: every row of settings.def has a default that lies in its range, can
 * be set under both of its names, and says its range in every refusal; a size
 * means bytes and nothing else (sglang#29034, #30581); a file is taken whole
 * or not at all, and its errors name file, line, setting, value and allowed
 * range; a name that does not exist is answered with the closest one; a
 * setting that stands twice is an error; what is printed reads back as the
 * same; a reload takes what may change and names what may not.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "lib/assert.h"
#include "lib/rng.h"
#include "pipeline/settings.h"

static char err[1024];

static void assert_has(const char *text, const char *part)
{
	if (!strstr(text, part))
		fail_msg("\"%s\" is not in \"%s\"", part, text);
}

/* Writes @n bytes to a temporary file; its path in @path. */
static void write_file(char *path, const char *text, size_t n)
{
	int fd;

	strncpy(path, "/tmp/kvs-settings-XXXXXX", 32);
	fd = mkstemp(path);
	assert_true(fd >= 0);
	assert_int_equal(write(fd, text, n), (ssize_t)n);
	close(fd);
}

static int load_bytes(struct kvs_settings *s, const char *text, size_t n,
		      char *path)
{
	int ret;

	write_file(path, text, n);
	memset(err, 0, sizeof(err));
	ret = kvs_settings_load(s, path, err, sizeof(err));
	unlink(path);
	return ret;
}

static int load(struct kvs_settings *s, const char *text)
{
	char path[32];

	return load_bytes(s, text, strlen(text), path);
}

/* The load fails with @ret, at @line, with @part in the message. */
static void expect_file_error(const char *text, int want, unsigned int line,
			      const char *part)
{
	struct kvs_settings s, before;
	char path[32], where[64];
	int ret;

	kvs_settings_init(&s);
	memcpy(&before, &s, sizeof(s));
	ret = load_bytes(&s, text, strlen(text), path);
	if (ret != want)
		fail_msg("ret %d, want %d, for:\n%s\n%s", ret, want, text, err);
	snprintf(where, sizeof(where), "%s:%u: ", path, line);
	assert_has(err, where);
	assert_has(err, part);
	assert_memory_equal(&s, &before, sizeof(s));
}

static void defaults(void **state)
{
	struct kvs_settings s;

	(void)state;
	kvs_settings_init(&s);
	assert_string_equal(s.listen_address, "127.0.0.1:7410");
	assert_int_equal(s.pool_size, 4ULL << 30);
	assert_int_equal(s.hold_timeout, 30000000000ULL);
	assert_int_equal(s.extent_tokens, 2048);
	assert_true(s.pool_strict);
	assert_false(s.hold_require_ack);
	assert_string_equal(s.pool_page_size, "auto");
	assert_int_equal(kvs_settings_check(&s, err, sizeof(err)), 0);
}

/* Every row: described, settable by both names, its default printed back. */
static void every_setting(void **state)
{
	const struct kvs_setting_info *info;
	struct kvs_settings s, fresh;
	unsigned int i;

	(void)state;
	kvs_settings_init(&fresh);
	for (i = 0; (info = kvs_setting_info(i)); i++) {
		char name[128], value[KVS_STRING_MAX], *p;

		kvs_settings_init(&s);
		assert_true(*info->text && *info->range && *info->type);
		kvs_setting_value(&s, i, value, sizeof(value));
		assert_string_equal(value, info->def);

		snprintf(name, sizeof(name), "%s.%s", info->section, info->key);
		assert_int_equal(
			kvs_settings_set(&s, name, value, err, sizeof(err)), 0);
		for (p = name; *p; p++)
			if (*p == '.' || *p == '_')
				*p = '-';
		assert_int_equal(
			kvs_settings_set(&s, name, value, err, sizeof(err)), 0);
		assert_memory_equal(&s, &fresh, sizeof(s));
	}
	assert_true(i > 30);
	assert_null(kvs_setting_info(i));
	assert_null(kvs_setting_info(UINT32_MAX));
}

/* A refusal names setting, value and range, and changes nothing. */
static void every_refusal(void **state)
{
	static const char bad[] = "no\tgood\x01";
	const struct kvs_setting_info *info;
	struct kvs_settings s, before;
	unsigned int i;

	(void)state;
	kvs_settings_init(&s);
	memcpy(&before, &s, sizeof(s));
	for (i = 0; (info = kvs_setting_info(i)); i++) {
		char name[128];

		snprintf(name, sizeof(name), "%s.%s", info->section, info->key);
		assert_int_equal(kvs_settings_set(&s, name, bad, err,
						  sizeof(err)),
				 -EINVAL);
		assert_has(err, name);
		assert_has(err, info->range);
		assert_has(err, "\"no?good?\"");
		assert_memory_equal(&s, &before, sizeof(s));
	}
}

struct
try {
	const char *name;
	const char *value;
	int ret;
	uint64_t v;
};

/* A size is bytes of the pool on each node, in any of the usual spellings. */
static void sizes(void **state)
{
	static const struct try tries[] = {
		{ "pool.size", "8G", 0, 8ULL << 30 },
		{ "pool.size", "8GiB", 0, 8ULL << 30 },
		{ "pool.size", "8000000000", 0, 8000000000ULL },
		{ "pool.size", "65536", 0, 65536 },
		{ "pool.size", "1024T", 0, 1ULL << 50 },
		{ "pool.size", "65535", -ERANGE, 0 },
		{ "pool.size", "1025T", -ERANGE, 0 },
		{ "pool.size", "0", -ERANGE, 0 },
		{ "pool.size", "99999999999999999999", -ERANGE, 0 },
		{ "pool.size", "16777216T", -ERANGE, 0 },
		{ "pool.size", "-1", -EINVAL, 0 },
		{ "pool.size", "8GiBx", -EINVAL, 0 },
		{ "pool.size", "", -EINVAL, 0 },
		{ "pool.size", " 8G", -EINVAL, 0 },
		{ "pool.size", "8 G", -EINVAL, 0 },
		{ "pool.size", "8.5G", -EINVAL, 0 },
		{ "pool.size", "0x1000000", -EINVAL, 0 },
		{ "pool.size", "nan", -EINVAL, 0 },
		{ "pool.size", "50%", -EINVAL, 0 },
	};
	struct kvs_settings s;
	size_t i;

	(void)state;
	for (i = 0; i < KVS_ARRAY_SIZE(tries); i++) {
		const struct try *t = &tries[i];
		int ret;

		kvs_settings_init(&s);
		ret = kvs_settings_set(&s, t->name, t->value, err, sizeof(err));
		if (ret != t->ret ||
		    s.pool_size != (t->ret ? 4ULL << 30 : t->v))
			fail_msg("%s = \"%s\": ret %d size %llu", t->name,
				 t->value, ret,
				 (unsigned long long)s.pool_size);
		if (ret) {
			assert_has(err, "pool.size");
			assert_has(err, "64K to 1024T");
		}
	}
}

/* What is printed is what is loaded. */
static void print_and_load(const struct kvs_settings *s)
{
	struct kvs_settings again;
	char *text = NULL;
	size_t len = 0;
	FILE *f = open_memstream(&text, &len);

	assert_non_null(f);
	assert_int_equal(kvs_settings_print(s, f), 0);
	assert_int_equal(fclose(f), 0);
	kvs_settings_init(&again);
	assert_int_equal(load(&again, text), 0);
	assert_string_equal(again.listen_port_file, s->listen_port_file);
	assert_string_equal(again.http_port_file, s->http_port_file);
	free(text);
}

static void other_types(void **state)
{
	struct kvs_settings s;
	char longest[KVS_STRING_MAX + 1];

	(void)state;
	kvs_settings_init(&s);
#define SET(n, v) kvs_settings_set(&s, n, v, err, sizeof(err))
	assert_int_equal(SET("hold.timeout", "250ms"), 0);
	assert_int_equal(s.hold_timeout, 250000000);
	assert_int_equal(SET("hold.timeout", "30"), -EINVAL);
	assert_has(err, "duration");
	assert_int_equal(SET("hold.timeout", "25h"), -ERANGE);
	assert_has(err, "1ms to 24h");
	assert_int_equal(s.hold_timeout, 250000000);

	assert_int_equal(SET("engine.max", "64"), 0);
	assert_int_equal(SET("engine.max", "65"), -ERANGE);
	assert_int_equal(SET("engine.max", "4294967297"), -ERANGE);
	assert_int_equal(SET("engine.max", "0"), -ERANGE);
	assert_int_equal(s.engine_max, 64);

	assert_int_equal(SET("hold.require_ack", "on"), 0);
	assert_true(s.hold_require_ack);
	assert_int_equal(SET("hold.require_ack", "0"), 0);
	assert_false(s.hold_require_ack);
	assert_int_equal(SET("hold.require_ack", "YES"), -EINVAL);
	assert_has(err, "yes|no");

	assert_int_equal(SET("pool.page_size", "2M"), 0);
	assert_string_equal(s.pool_page_size, "2M");
	assert_int_equal(SET("pool.page_size", "2M|4K"), -EINVAL);
	assert_int_equal(SET("pool.page_size", ""), -EINVAL);
	assert_int_equal(SET("pool.page_size", "2"), -EINVAL);
	assert_has(err, "auto|1G|2M|4K");

	memset(longest, 'x', sizeof(longest) - 1);
	longest[KVS_STRING_MAX] = '\0';
	assert_int_equal(SET("http.port_file", longest), -ERANGE);
	assert_has(err, "at most 183 bytes");
	longest[KVS_STRING_MAX - 1] = '\0';
	assert_int_equal(SET("http.port_file", longest), 0);
	/* the longest one fits a line of the printed file */
	assert_int_equal(SET("listen.port_file", longest), 0);
	print_and_load(&s);
	/* a file would not give these back */
	assert_int_equal(SET("http.port_file", "a ; b"), -EINVAL);
	assert_has(err, "begin a comment");
	assert_int_equal(SET("http.port_file", ";a"), -EINVAL);
	assert_int_equal(SET("http.port_file", " a"), -EINVAL);
	assert_int_equal(SET("http.port_file", "a "), -EINVAL);
	assert_int_equal(SET("http.port_file", " "), -EINVAL);
	assert_int_equal(SET("http.port_file", "a;b c:d=e #f [g]"), 0);
	print_and_load(&s);
	/* what a shorter value leaves behind does not matter */
	assert_int_equal(SET("http.port_file", "a"), 0);
	assert_string_equal(s.http_port_file, "a");
#undef SET
}

static void closest_name(void **state)
{
	static const struct {
		const char *name, *closest;
	} tries[] = {
		{ "pool.sizeq", "pool.size" },
		{ "pol-size", "pool.size" },
		{ "hold.time_out", "hold.timeout" },
		{ "listen.addrezz", "listen.address" },
		{ "pool-pagesize", "pool.page_size" },
		{ "", "" },
		{ "pool_size", "" },
		{ "pool", "" },
		{ "POOL.SIZE", "" },
	};
	struct kvs_settings s, before;
	char *huge = malloc(100000);
	size_t i;

	(void)state;
	kvs_settings_init(&s);
	memcpy(&before, &s, sizeof(s));
	for (i = 0; i < KVS_ARRAY_SIZE(tries); i++) {
		char want[64];

		assert_int_equal(kvs_settings_set(&s, tries[i].name, "1", err,
						  sizeof(err)),
				 -ENOENT);
		snprintf(want, sizeof(want), "closest is \"%s",
			 tries[i].closest);
		assert_has(err, want);
	}
	memset(huge, 'a', 99999);
	huge[99999] = '\0';
	assert_int_equal(kvs_settings_set(&s, huge, "1", err, sizeof(err)),
			 -ENOENT);
	assert_true(strlen(err) < 300);
	assert_int_equal(kvs_settings_set(&s, "pool.size", huge, err,
					  sizeof(err)),
			 -EINVAL);
	assert_true(strlen(err) < 300);
	assert_int_equal(kvs_settings_set(&s, "pool.size", NULL, err,
					  sizeof(err)),
			 -EINVAL);
	/* a message that does not fit is cut, none at all is fine */
	assert_int_equal(kvs_settings_set(&s, "nope", "1", err, 8), -ENOENT);
	assert_int_equal(strlen(err), 7);
	assert_int_equal(kvs_settings_set(&s, "nope", "1", NULL, 0), -ENOENT);
	assert_memory_equal(&s, &before, sizeof(s));
	free(huge);
}

static void file_good(void **state)
{
	struct kvs_settings s;

	(void)state;
	kvs_settings_init(&s);
	assert_int_equal(load(&s, "\xef\xbb\xbf# a: comment\n"
				  "; another\n"
				  "\n"
				  "[pool] ; of it\n"
				  "size = 64M ; half of it\r\n"
				  "\tnodes=0,1\n"
				  "   strict = no\n"
				  "[http]\n"
				  "address = [::1]:0\n"
				  "[pool]\n"
				  "page_size = 4K\n"
				  "[listen]\n"
				  "port_file ="),
			 0);
	assert_int_equal(s.pool_size, 64ULL << 20);
	assert_string_equal(s.pool_nodes, "0,1");
	assert_false(s.pool_strict);
	assert_string_equal(s.http_address, "[::1]:0");
	assert_string_equal(s.pool_page_size, "4K");
	assert_string_equal(s.listen_port_file, "");
	/* a file is laid over what is there */
	assert_int_equal(load(&s, "[pool]\nsize = 1G\n"), 0);
	assert_int_equal(s.pool_size, 1ULL << 30);
	assert_string_equal(s.pool_page_size, "4K");
	assert_int_equal(load(&s, ""), 0);
}

static void file_bad(void **state)
{
	char line[512], path[32];
	struct kvs_settings s;

	(void)state;
	expect_file_error("[pool]\n\nsize = lots\n", -EINVAL, 3,
			  "pool.size = \"lots\": not a size");
	expect_file_error("[pool]\n\nsize = lots\n", -EINVAL, 3,
			  "allowed: 64K to 1024T");
	expect_file_error("[engine]\nmax = 65\n", -ERANGE, 2,
			  "engine.max = \"65\": too large; allowed: 1 to 64");
	expect_file_error("[pool]\nsize = 4G # big\n", -EINVAL, 2,
			  "\"4G # big\"");
	expect_file_error(
		"[pool]\nxize = 4G\n", -ENOENT, 2,
		"pool.xize = \"4G\": there is no such setting; the closest is \"pool.size\"");
	expect_file_error(
		"[pol]\nsize = 4G\n", -ENOENT, 2,
		"pol.size = \"4G\": there is no such setting; the closest is \"pool.size\"");
	expect_file_error("size = 4G\n", -EINVAL, 1,
			  "\"size\" stands before any [section]");
	expect_file_error("[pool]\nsize = 64M\nstrict = no\n[log]\n"
			  "level = info\n[pool]\nsize = 64M\n",
			  -EINVAL, 7, "in line 2; a setting may stand once");
	expect_file_error("[pool]\nsize\n", -EINVAL, 2,
			  "neither [section] nor key = value");
	expect_file_error("[pool\nsize = 4G\n", -EINVAL, 1,
			  "neither [section] nor key = value");
	expect_file_error("[pool]\nsize: 1G\n", -EINVAL, 2,
			  "neither [section] nor key = value");
	expect_file_error("[pool] junk\nsize = 4G\n", -EINVAL, 1,
			  "neither [section] nor key = value");
	expect_file_error("[pool]#junk\nsize = 4G\n", -EINVAL, 1, "neither");
	/* the first error is the one that is told */
	expect_file_error("[pool]\nsize 4G\nstrict = maybe\n", -EINVAL, 2,
			  "neither");
	expect_file_error("[pool]\nstrict = maybe\nsize\n", -EINVAL, 2,
			  "\"maybe\"");
	/* an indented line is a line, not more of the one above */
	expect_file_error("[listen]\nport_file = /x\n   junk\n", -EINVAL, 3,
			  "neither");
	expect_file_error("[pool]\nsize = 64M\n  size = 65M\n", -EINVAL, 3,
			  "in line 2");
	/* a line is taken whole or not at all */
	snprintf(line, sizeof(line), "[listen]\nport_file = %0300d\n", 7);
	expect_file_error(line, -EINVAL, 2, "longer than");
	kvs_settings_init(&s);
	assert_int_equal(load_bytes(&s, "[pool]\nsi\0ze = 4G\n", 18, path),
			 -EINVAL);
	assert_has(err, ":2: has a NUL byte");
}

static void file_absent(void **state)
{
	struct kvs_settings s;
	char fifo[64];

	(void)state;
	kvs_settings_init(&s);
	assert_int_equal(kvs_settings_load(&s, "/nonexistent/kvstaged.conf",
					   err, sizeof(err)),
			 -ENOENT);
	assert_has(err, "/nonexistent/kvstaged.conf: cannot open");
	assert_int_equal(kvs_settings_load(&s, "/", err, sizeof(err)), -EISDIR);
	assert_has(err, "/: cannot open");
	/* one that nobody writes to is not waited for */
	snprintf(fifo, sizeof(fifo), "/tmp/kvs-settings-fifo-%d",
		 (int)getpid());
	assert_int_equal(mkfifo(fifo, 0600), 0);
	assert_int_equal(kvs_settings_load(&s, fifo, err, sizeof(err)),
			 -EINVAL);
	assert_has(err, "not a regular file");
	assert_int_equal(unlink(fifo), 0);
	assert_int_equal(kvs_settings_load(&s, "/dev/zero", err, sizeof(err)),
			 -EINVAL);
	assert_has(err, "/dev/zero: cannot open: not a regular file");
}

/* Bytes of any kind: an answer, and nothing changed when it is an error. */
static void file_random(void **state)
{
	static const char *const words[] = { "[pool]",	  "\n",	     "size",
					     " = ",	  "4G",	     "[",
					     "]",	  "=",	     ";",
					     "[hold]\n",  "timeout", "30s",
					     "\xff\x00x", "\r\n",    "#" };
	uint64_t seed = 20251129;
	struct kvs_rng rng;
	int round;

	(void)state;
	print_message("seed %llu\n", (unsigned long long)seed);
	kvs_rng_init(&rng, seed);
	for (round = 0; round < 500; round++) {
		struct kvs_settings s, before;
		char text[512], path[32];
		size_t n = 0;
		int ret, words_left = (int)kvs_rng_below(&rng, 40);

		while (words_left--) {
			size_t w = kvs_rng_below(&rng, KVS_ARRAY_SIZE(words));
			size_t len = strlen(words[w]);

			memcpy(text + n, words[w], len);
			n += len;
			if (!kvs_rng_below(&rng, 8))
				text[n++] = (char)kvs_rng_below(&rng, 256);
		}
		kvs_settings_init(&s);
		memcpy(&before, &s, sizeof(s));
		ret = load_bytes(&s, text, n, path);
		if (ret) {
			assert_memory_equal(&s, &before, sizeof(s));
			assert_has(err, path);
		} else {
			assert_int_equal(err[0], 0);
		}
	}
}

/* What is printed loads as the same settings, at defaults and off them. */
static void printed_reads_back(void **state)
{
	struct kvs_settings s, back;
	char *text, path[32];
	size_t n;
	FILE *f;
	int round;

	(void)state;
	kvs_settings_init(&s);
	for (round = 0; round < 2; round++) {
		text = NULL;
		f = open_memstream(&text, &n);
		assert_non_null(f);
		assert_int_equal(kvs_settings_print(&s, f), 0);
		fclose(f);
		kvs_settings_init(&back);
		if (load_bytes(&back, text, n, path))
			fail_msg("%s", err);
		assert_memory_equal(&back, &s, sizeof(s));
		free(text);
		s.pool_size = (3ULL << 30) + 1;
		s.hold_timeout = 1500000001;
		s.hold_require_ack = true;
		s.engine_max = 7;
		memset(s.listen_port_file, 0, sizeof(s.listen_port_file));
		memcpy(s.listen_port_file, "/a b", 4);
	}
}

static void relations(void **state)
{
	static const struct {
		const char *text, *first, *second;
	} bad[] = {
		{ "[engine]\nsocket = /a\n[ctl]\nsocket = /a\n",
		  "engine.socket", "ctl.socket" },
		{ "[listen]\nport_file = /a\n[http]\nport_file = /a\n",
		  "listen.port_file", "http.port_file" },
		{ "[listen]\naddress = 127.0.0.1:9\n"
		  "[http]\naddress = 127.0.0.1:9\n",
		  "listen.address", "http.address" },
		{ "[engine]\nsocket =\n", "engine.socket", "path" },
		{ "[ctl]\nsocket = /0123456789012345678901234567890123456789012"
		  "345678901234567890123456789012345678901234567890123456789012"
		  "34567\n",
		  "ctl.socket", "107" },
		{ "[pool]\noffload_size = 1\n", "pool.offload_size", "64K" },
		{ "[hold]\ntimeout = 16s\n", "hold.timeout (16s)", "= 16s" },
		{ "[hold]\nassume_remaining = 19s\n", "hold.timeout (30s)",
		  "hold.assume_remaining (19s)" },
		{ "[hold]\nassume_propagation = 15s\n", "hold.timeout (30s)",
		  "hold.assume_propagation (15s)" },
		{ "[transfer]\ncall_timeout = 24s\n", "hold.timeout (30s)",
		  "transfer.call_timeout (24s)" },
		{ "[pool]\nnodes = 0,,1\n", "pool.nodes", "auto" },
		{ "[pool]\nnodes = 0,1,0\n", "pool.nodes", "different" },
		{ "[rdma]\ngid_index = 256\n", "rdma.gid_index", "auto" },
		{ "[rdma]\ndevice =\n", "rdma.device", "off" },
		{ "[rdma]\ndevice = off\n[transport]\ndata = verbs\n",
		  "rdma.device", "transport.data" },
		{ "[pool]\nnodes = 1024\n", "pool.nodes", "1023" },
		{ "[pool]\nnodes =\n", "pool.nodes", "auto" },
		{ "[pool]\nnodes = 0,\n", "pool.nodes", "auto" },
		{ "[pool]\nnodes = -1\n", "pool.nodes", "auto" },
	};
	static const char *const good[] = {
		"[pool]\nnodes = 0\n",
		"[pool]\nnodes = 3,1,1023\n",
		"[http]\naddress = off\n",
		("[listen]\naddress = 127.0.0.1:0\n"
		 "[http]\naddress = 127.0.0.1:0\n"),
		"[pool]\noffload_size = 64K\n",
		"[hold]\ntimeout = 16001ms\n",
		"[transfer]\ncall_timeout = 23999ms\n",
		"[hold]\ntimeout = 1ms\ncheck = warn\n",
		("[hold]\ntimeout = 2ms\nassume_propagation = 0\n"
		 "assume_remaining = 0\n[transfer]\ncall_timeout = 1ms\n"),
	};
	struct kvs_settings s;
	size_t i;

	(void)state;
	for (i = 0; i < KVS_ARRAY_SIZE(bad); i++) {
		kvs_settings_init(&s);
		if (load(&s, bad[i].text))
			fail_msg("%s", err);
		if (kvs_settings_check(&s, err, sizeof(err)) != -EINVAL)
			fail_msg("not refused: %s", bad[i].text);
		assert_has(err, bad[i].first);
		assert_has(err, bad[i].second);
	}
	for (i = 0; i < KVS_ARRAY_SIZE(good); i++) {
		kvs_settings_init(&s);
		assert_int_equal(load(&s, good[i]), 0);
		if (kvs_settings_check(&s, err, sizeof(err)))
			fail_msg("%s: %s", good[i], err);
	}
}

/* A check names the place of each value that is not a default. */
static void origins(void **state)
{
	char path[32], where[128], want[256];
	struct kvs_settings_origin o = { 0 };
	struct kvs_settings s;
	static const char text[] = "[pool]\n\nnodes = 0,0\n"
				   "[engine]\nsocket = /a\n";

	(void)state;
	kvs_settings_init(&s);
	write_file(path, text, sizeof(text) - 1);
	assert_int_equal(
		kvs_settings_load_origin(&s, path, &o, err, sizeof(err)), 0);
	unlink(path);
	snprintf(want, sizeof(want), "%s:3: pool.nodes = \"0,0\": ", path);
	assert_int_equal(kvs_settings_check_origin(&s, &o, err, sizeof(err)),
			 -EINVAL);
	assert_memory_equal(err, want, strlen(want));
	assert_int_equal(
		kvs_settings_set(&s, "pool.nodes", "x", err, sizeof(err)), 0);
	o.option[KVS_SETTING_OF_pool_nodes] = true;
	assert_int_equal(kvs_settings_check_origin(&s, &o, err, sizeof(err)),
			 -EINVAL);
	assert_has(err, "option --pool-nodes: pool.nodes = \"x\": ");
	/* both of two that clash, but no default */
	assert_int_equal(kvs_settings_set(&s, "pool.nodes", "auto", err,
					  sizeof(err)),
			 0);
	assert_int_equal(
		kvs_settings_set(&s, "ctl.socket", "/a", err, sizeof(err)), 0);
	assert_int_equal(kvs_settings_check_origin(&s, &o, err, sizeof(err)),
			 -EINVAL);
	snprintf(want, sizeof(want), "%s:5: engine.socket and ctl.socket",
		 path);
	assert_memory_equal(err, want, strlen(want));
	o.option[KVS_SETTING_OF_ctl_socket] = true;
	assert_int_equal(kvs_settings_check_origin(&s, &o, err, sizeof(err)),
			 -EINVAL);
	snprintf(want, sizeof(want),
		 "%s:5, option --ctl-socket: engine.socket and ctl.socket",
		 path);
	assert_memory_equal(err, want, strlen(want));
	/* of a sum, every term */
	kvs_settings_init(&s);
	memset(&o, 0, sizeof(o));
	assert_int_equal(kvs_settings_set(&s, "hold.assume_propagation", "1h",
					  err, sizeof(err)),
			 0);
	o.option[KVS_SETTING_OF_hold_assume_propagation] = true;
	assert_int_equal(kvs_settings_check_origin(&s, &o, err, sizeof(err)),
			 -EINVAL);
	snprintf(want, sizeof(want),
		 "option --hold-assume-propagation: hold.timeout (30s)");
	assert_memory_equal(err, want, strlen(want));
	o.option[KVS_SETTING_OF_hold_assume_remaining] = true;
	o.option[KVS_SETTING_OF_transfer_call_timeout] = true;
	assert_int_equal(kvs_settings_check_origin(&s, &o, err, sizeof(err)),
			 -EINVAL);
	snprintf(want, sizeof(want),
		 "option --hold-assume-propagation, option "
		 "--hold-assume-remaining, option --transfer-call-timeout: ");
	assert_memory_equal(err, want, strlen(want));
	/* names of options have dashes only */
	o.option[KVS_SETTING_OF_listen_port_file] = true;
	assert_string_equal(kvs_setting_where(&o,
					      KVS_SETTING_OF_listen_port_file,
					      where, sizeof(where)),
			    "option --listen-port-file");
	assert_string_equal(kvs_setting_where(&o, KVS_SETTING_OF_pool_size,
					      where, sizeof(where)),
			    "");
	assert_string_equal(
		kvs_setting_where(&o, KVS_SETTINGS, where, sizeof(where)), "");
}

static void reload(void **state)
{
	struct kvs_settings s, from;

	(void)state;
	kvs_settings_init(&s);
	kvs_settings_init(&from);
	assert_int_equal(kvs_settings_reload(&s, &from, err, sizeof(err)), 0);
	assert_string_equal(err, "");

	assert_int_equal(load(&from, "[pool]\nsize = 64M\nstrict = no\n"
				     "[hold]\ntimeout = 5s\n"
				     "[log]\nlevel = debug\n"
				     "[listen]\naddress = 127.0.0.1:1\n"),
			 0);
	assert_int_equal(kvs_settings_reload(&s, &from, err, sizeof(err)), 3);
	assert_string_equal(err, "listen.address, pool.size, pool.strict");
	assert_int_equal(s.hold_timeout, 5000000000ULL);
	assert_string_equal(s.log_level, "debug");
	assert_int_equal(s.pool_size, 4ULL << 30);
	assert_true(s.pool_strict);
	assert_string_equal(s.listen_address, "127.0.0.1:7410");
	/* a short buffer cuts the list, not the count */
	assert_int_equal(kvs_settings_reload(&s, &from, err, 5), 3);
	assert_string_equal(err, "list");
	assert_int_equal(kvs_settings_reload(&s, &from, NULL, 0), 3);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(defaults),
		cmocka_unit_test(every_setting),
		cmocka_unit_test(every_refusal),
		cmocka_unit_test(sizes),
		cmocka_unit_test(other_types),
		cmocka_unit_test(closest_name),
		cmocka_unit_test(file_good),
		cmocka_unit_test(file_bad),
		cmocka_unit_test(file_absent),
		cmocka_unit_test(file_random),
		cmocka_unit_test(printed_reads_back),
		cmocka_unit_test(relations),
		cmocka_unit_test(origins),
		cmocka_unit_test(reload),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
