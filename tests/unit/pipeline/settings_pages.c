/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Claims: the documents that list settings and metrics list them all, as they
 * are:
 * kvstaged.conf(5) has each with its text, range and default under its
 * section, and nothing else; kvstaged.conf.example is what the defaults print;
 * kvstage(7) has every errno of the public list; kvstage-metrics(7) has every
 * metric with its kind and what to do about it, and nothing else; what
 * kvstage-operate(7) names of both exists.
 *
 * usage: settings_pages SOURCE-TREE
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <ctype.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "pipeline/settings.h"

static const char *tree;

static char *read_file(const char *name)
{
	char path[4096], *text;
	size_t n;
	FILE *f;

	snprintf(path, sizeof(path), "%s/%s", tree, name);
	f = fopen(path, "re");
	if (!f)
		fail_msg("cannot open %s", path);
	text = calloc(1, 1 << 20);
	assert_non_null(text);
	n = fread(text, 1, (1 << 20) - 1, f);
	assert_true(n > 0 && n < (1 << 20) - 1);
	fclose(f);
	return text;
}

/* Runs of white space become one blank: how lines are broken is free. */
static void squeeze(char *text)
{
	char *to = text;

	for (; *text; text++) {
		if (!isspace((unsigned char)*text))
			*to++ = *text;
		else if (to[-1] != ' ')
			*to++ = ' ';
	}
	*to = '\0';
}

/* From "heading" to the next of its kind, as a copy. */
static char *section_of(const char *page, const char *heading, const char *next)
{
	const char *from = strstr(page, heading), *to;
	char *copy;

	if (!from)
		fail_msg("no \"%s\"", heading);
	to = strstr(from + 1, next);
	copy = to ? strndup(from, (size_t)(to - from)) : strdup(from);
	assert_non_null(copy);
	return copy;
}

static unsigned int count(const char *text, const char *part)
{
	unsigned int n = 0;

	for (; (text = strstr(text, part)); text++)
		n++;
	return n;
}

static void conf_page(void **state)
{
	char *page = read_file("man/kvstaged.conf.5"), *settings;
	const struct kvs_setting_info *info;
	unsigned int i;

	(void)state;
	squeeze(page);
	settings = section_of(page, ".Sh SETTINGS", ".Sh ");
	for (i = 0; (info = kvs_setting_info(i)); i++) {
		char heading[64], item[1024], *section;

		snprintf(heading, sizeof(heading), ".Ss [%s] ", info->section);
		section = section_of(settings, heading, ".Ss ");
		snprintf(item, sizeof(item),
			 ".It Cm %s %s %c%s: %s; default %s.%s", info->key,
			 info->text, toupper((unsigned char)info->type[0]),
			 info->type + 1, info->range,
			 *info->def ? info->def : "empty",
			 info->reload ? "" : " A change needs a restart.");
		if (!strstr(section, item))
			fail_msg("kvstaged.conf(5) lacks, below %s:\n%s",
				 heading, item);
		free(section);
	}
	assert_int_equal(count(settings, ".It Cm "), i);
	free(settings);
	free(page);
}

static void example(void **state)
{
	char *file = read_file("tools/kvstaged.conf.example"), *text = NULL;
	char err[512], path[4096];
	struct kvs_settings s, defaults;
	size_t n;
	FILE *f = open_memstream(&text, &n);

	(void)state;
	assert_non_null(f);
	kvs_settings_init(&defaults);
	assert_int_equal(kvs_settings_print(&defaults, f), 0);
	fclose(f);
	/* only comments before it, nothing after */
	assert_non_null(strstr(file, "\n\n[listen]\n"));
	assert_string_equal(strstr(file, "[listen]\n"), text);
	free(text);
	free(file);

	snprintf(path, sizeof(path), "%s/tools/kvstaged.conf.example", tree);
	kvs_settings_init(&s);
	if (kvs_settings_load(&s, path, err, sizeof(err)))
		fail_msg("%s", err);
	assert_memory_equal(&s, &defaults, sizeof(s));
}

static void errors_page(void **state)
{
	char *header = read_file("include/kvstage/errors.h");
	char *page = read_file("man/kvstage.7"), *line, *save = NULL;
	unsigned int n = 0;

	(void)state;
	squeeze(page);
	for (line = strtok_r(header, "\n", &save); line;
	     line = strtok_r(NULL, "\n", &save)) {
		char name[32], item[64];

		if (sscanf(line, " *   %31[A-Z0-9]", name) != 1 ||
		    name[0] != 'E' || strlen(name) < 4)
			continue;
		snprintf(item, sizeof(item), ".It Er %s ", name);
		if (!strstr(page, item))
			fail_msg("kvstage(7) lacks %s", name);
		n++;
	}
	assert_int_equal(count(page, ".It Er "), n);
	assert_true(n > 15);
	free(header);
	free(page);
}

static const struct {
	const char *name, *kind, *help;
} rows[] = {
#define KVS_METRIC_ONE(n, t, m, h) { #n, #t, h },
#define KVS_METRIC_SUM(n, t, m, h) { #n, #t, h },
#define KVS_METRIC_CALL(n, t, f, h) { #n, #t, h },
#define KVS_METRIC_ENUM(n, l, nm, o, m, h) { #n, "counter by " #l, h },
#define KVS_METRIC_OWN(n, l, nm, m, h) { #n, "counter by " #l, h },
#define KVS_METRIC_MOST(n, m, h) { #n, "gauge", h },
#define KVS_METRIC_HIST(n, m, h) { #n, "histogram", h },
#include "pipeline/metrics.def"
};

static void metrics_page(void **state)
{
	char *page = read_file("man/kvstage-metrics.7");
	const size_t n = sizeof(rows) / sizeof(rows[0]);

	(void)state;
	squeeze(page);
	for (size_t i = 0; i < n; i++) {
		char item[2048];

		snprintf(item, sizeof(item), ".It Li kvstage_%s Pq %s %s",
			 rows[i].name, rows[i].kind, rows[i].help);
		if (!strstr(page, item))
			fail_msg("kvstage-metrics(7) lacks:\n%s", item);
	}
	assert_int_equal(count(page, ".It Li "), n);
	free(page);
}

static bool is_metric(const char *name, size_t len)
{
	const size_t n = sizeof(rows) / sizeof(rows[0]);

	for (size_t i = 0; i < n; i++) {
		size_t own = strlen(rows[i].name);

		if (strncmp(rows[i].name, name, own))
			continue;
		if (len == own || (!strcmp(rows[i].kind, "histogram") &&
				   !strncmp(name + own, "_bucket", len - own)))
			return true;
	}
	return false;
}

static bool is_setting(const char *name, size_t len)
{
	const struct kvs_setting_info *info;
	char full[128];

	for (unsigned int i = 0; (info = kvs_setting_info(i)); i++) {
		snprintf(full, sizeof(full), "%s.%s", info->section, info->key);
		if (strlen(full) == len && !strncmp(full, name, len))
			return true;
	}
	return false;
}

static void operate_page(void **state)
{
	static const char letters[] = "abcdefghijklmnopqrstuvwxyz_";
	char *page = read_file("man/kvstage-operate.7"), *p;
	unsigned int metrics = 0, settings = 0;
	size_t n;

	(void)state;
	for (p = page; (p = strstr(p, "kvstage_")); p += n) {
		p += strlen("kvstage_");
		n = strspn(p, letters);
		if (!is_metric(p, n))
			fail_msg("kvstage-operate(7): no metric %.*s", (int)n,
				 p);
		metrics++;
	}
	for (p = page; (p = strstr(p, ".Cm ")); p += n) {
		p += strlen(".Cm ");
		n = strspn(p, letters);
		if (p[n] != '.')
			continue; /* a word of a command */
		n += 1 + strspn(p + n + 1, letters);
		if (!is_setting(p, n))
			fail_msg("kvstage-operate(7): no setting %.*s", (int)n,
				 p);
		settings++;
	}
	assert_true(metrics > 10);
	assert_true(settings > 10);
	free(page);
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(conf_page),	cmocka_unit_test(example),
		cmocka_unit_test(errors_page),	cmocka_unit_test(metrics_page),
		cmocka_unit_test(operate_page),
	};

	if (argc != 2) {
		fprintf(stderr, "usage: settings_pages SOURCE-TREE\n");
		return 2;
	}
	tree = argv[1];
	return cmocka_run_group_tests(tests, NULL, NULL);
}
