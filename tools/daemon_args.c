/* SPDX-License-Identifier: Apache-2.0 */
#include <argp.h>
#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "pipeline/auth_key.h"
#include "tools/daemon_args.h"
#include "tools/daemon_listen.h"

#define KVS_KEY_CONFIG 'c'
#define KVS_KEY_HELP '?'
#define KVS_KEY_VERSION 'V'
#define KVS_KEY_CHECK 0x100
#define KVS_KEY_PRINT 0x101
#define KVS_KEY_USAGE 0x102
#define KVS_KEY_SETTING 0x1000 /* + index of the setting */

#define KVS_OPTION_NAME 64
#define KVS_OPTION_DOC 512
/* columns of --help: where texts begin, and where lines end */
#define KVS_HELP_TEXT 29
#define KVS_HELP_END 79

static const struct argp_option kvs_daemon_fixed[] = {
	{ "config", KVS_KEY_CONFIG, "FILE", 0,
	  "Read settings from FILE, kvstaged.conf(5); read again on SIGHUP",
	  0 },
	{ "check-config", KVS_KEY_CHECK, NULL, 0,
	  "Check the settings and exit: 0 good, 2 not", 0 },
	{ "print-config", KVS_KEY_PRINT, NULL, 0,
	  "Print all settings as a file and exit", 0 },
	{ "help", KVS_KEY_HELP, NULL, 0, "Print this and exit", 0 },
	{ "usage", KVS_KEY_USAGE, NULL, 0, "Print a short form of it and exit",
	  0 },
	{ "version", KVS_KEY_VERSION, NULL, 0, "Print the version and exit",
	  0 },
};

static const char kvs_daemon_doc[] =
	"Receives KV caches from prefill nodes into pinned host memory and "
	"hands complete ones to the decode engines of this node.";
static const char kvs_daemon_end[] =
	"Options win over the file. Exit status: 0 stopped as asked, 1 "
	"failed, 2 wrong option or setting. See kvstaged(8).";

#define KVS_FIXED (sizeof(kvs_daemon_fixed) / sizeof(kvs_daemon_fixed[0]))

/* The generated part of the option table, with the texts it points to. */
struct kvs_daemon_options {
	struct argp_option *table;
	char (*name)[KVS_OPTION_NAME];
	char (*doc)[KVS_OPTION_DOC];
};

static const char *kvs_option_arg(const char *type)
{
	static const struct {
		const char *type, *arg;
	} args[] = {
		{ "size", "SIZE" },   { "duration", "TIME" },
		{ "number", "N" },    { "bool", "yes|no" },
		{ "string", "TEXT" }, { "choice", "CHOICE" },
	};
	size_t i;

	for (i = 0; i < sizeof(args) / sizeof(args[0]); i++)
		if (!strcmp(args[i].type, type))
			return args[i].arg;
	return "VALUE";
}

static void kvs_option_name(const struct kvs_setting_info *info, char *buf)
{
	snprintf(buf, KVS_OPTION_NAME, "%s-%s", info->section, info->key);
	for (; *buf; buf++)
		if (*buf == '_')
			*buf = '-';
}

static void kvs_daemon_options_free(struct kvs_daemon_options *o)
{
	free(o->table);
	free(o->name);
	free(o->doc);
}

static int kvs_daemon_options_make(struct kvs_daemon_options *o)
{
	const struct kvs_setting_info *info;
	unsigned int n = 0, i;

	while (kvs_setting_info(n))
		n++;
	o->table = calloc(n + KVS_FIXED + 1, sizeof(*o->table));
	o->name = calloc(n, sizeof(*o->name));
	o->doc = calloc(n, sizeof(*o->doc));
	if (!o->table || !o->name || !o->doc) {
		kvs_daemon_options_free(o);
		return -ENOMEM;
	}
	memcpy(o->table, kvs_daemon_fixed, sizeof(kvs_daemon_fixed));
	for (i = 0; (info = kvs_setting_info(i)); i++) {
		kvs_option_name(info, o->name[i]);
		snprintf(o->doc[i], sizeof(o->doc[i]), "%s (%s; default %s)",
			 info->text, info->range,
			 *info->def ? info->def : "empty");
		o->table[KVS_FIXED + i] = (struct argp_option){
			.name = o->name[i],
			.key = (int)(KVS_KEY_SETTING + i),
			.arg = kvs_option_arg(info->type),
			.doc = o->doc[i],
			.group = 1,
		};
	}
	return 0;
}

/* @text in lines, all but the first indented; @col: where we are. */
static void kvs_help_wrap(const char *text, size_t indent, size_t col)
{
	bool first = true;
	size_t n;

	while (*text) {
		n = strcspn(text, " ");
		if (!first && col + 1 + n > KVS_HELP_END) {
			printf("\n%*s", (int)indent, "");
			col = indent;
			first = true;
		}
		printf("%s%.*s", first ? "" : " ", (int)n, text);
		col += n + !first;
		first = false;
		text += n + (text[n] == ' ');
	}
	putchar('\n');
}

/*
 * argp's own breaks a line in the wrong column now and then: with this many
 * options its buffer is written in the middle of one.
 */
static void kvs_help(const struct argp_option *o)
{
	int group = -1;
	size_t col;

	printf("Usage: kvstaged [OPTION...]\n");
	kvs_help_wrap(kvs_daemon_doc, 0, 0);
	for (; o->name; o++) {
		if (o->group != group)
			putchar('\n');
		group = o->group;
		if (o->key < 0x80)
			printf("  -%c, ", o->key);
		else
			printf("      ");
		col = 6 + strlen(o->name) + strlen("--");
		col += o->arg ? 1 + strlen(o->arg) : 0;
		printf("--%s%s%s", o->name, o->arg ? "=" : "",
		       o->arg ? o->arg : "");
		if (col > KVS_HELP_TEXT - 2) {
			putchar('\n');
			col = 0;
		}
		printf("%*s", (int)(KVS_HELP_TEXT - col), "");
		kvs_help_wrap(o->doc, KVS_HELP_TEXT, KVS_HELP_TEXT);
	}
	putchar('\n');
	kvs_help_wrap(kvs_daemon_end, 0, 0);
}

static int kvs_daemon_args_add(struct kvs_daemon_args *a, unsigned int setting,
			       const char *value)
{
	struct kvs_daemon_option *v;

	v = realloc(a->options, (a->n_options + 1) * sizeof(*v));
	if (!v)
		return -ENOMEM;
	v[a->n_options++] = (struct kvs_daemon_option){
		.setting = setting,
		.value = value,
	};
	a->options = v;
	return 0;
}

static error_t kvs_daemon_arg(int key, char *arg, struct argp_state *state)
{
	struct kvs_daemon_args *a = state->input;

	switch (key) {
	case KVS_KEY_CONFIG:
		if (a->config)
			argp_error(state, "--config is given twice");
		a->config = arg;
		return 0;
	case KVS_KEY_CHECK:
		a->check = true;
		return 0;
	case KVS_KEY_PRINT:
		a->print = true;
		return 0;
	case KVS_KEY_HELP:
		kvs_help(state->root_argp->options);
		exit(0);
	case KVS_KEY_USAGE:
		argp_state_help(state, stdout,
				ARGP_HELP_USAGE | ARGP_HELP_EXIT_OK);
		return 0;
	case KVS_KEY_VERSION:
		printf("kvstaged " KVS_VERSION "\n");
		exit(0);
	case ARGP_KEY_ARG:
		argp_error(state, "unexpected argument \"%s\"", arg);
		return EINVAL;
	default:
		break;
	}
	/* argp's own keys lie outside our range, above and below */
	if (key < KVS_KEY_SETTING || key >= 0x1000000 ||
	    !kvs_setting_info((unsigned int)key - KVS_KEY_SETTING))
		return ARGP_ERR_UNKNOWN;
	return -kvs_daemon_args_add(a, (unsigned int)key - KVS_KEY_SETTING,
				    arg);
}

int kvs_daemon_args_parse(int argc, char **argv,
			  struct kvs_daemon_args *ret_args)
{
	struct kvs_daemon_options o;
	struct kvs_daemon_args args = { 0 };
	struct argp argp = {
		.parser = kvs_daemon_arg,
		.doc = kvs_daemon_doc,
	};
	int ret;

	ret = kvs_daemon_options_make(&o);
	if (ret)
		return ret;
	argp.options = o.table;
	argp_err_exit_status = 2;
	ret = -argp_parse(&argp, argc, argv, ARGP_NO_HELP, NULL, &args);
	kvs_daemon_options_free(&o);
	if (ret) {
		kvs_daemon_args_fini(&args);
		return ret;
	}
	*ret_args = args;
	return 0;
}

void kvs_daemon_args_fini(struct kvs_daemon_args *args)
{
	free(args->options);
	args->options = NULL;
	args->n_options = 0;
}

/* The message begins with where the value came from. */
static int kvs_daemon_wrong(const struct kvs_settings_origin *o,
			    unsigned int setting, int ret, const char *text,
			    char *err, size_t errlen)
{
	char where[512];

	if (!ret)
		return 0;
	kvs_setting_where(o, setting, where, sizeof(where));
	snprintf(err, errlen, "%s%s%s", where, *where ? ": " : "", text);
	return ret;
}

static int kvs_daemon_addresses(const struct kvs_settings_origin *o,
				const struct kvs_settings *s, char *err,
				size_t errlen)
{
	char text[1024] = "";
	int ret;

	ret = kvs_listen_check("listen.address", s->listen_address,
			       "auth.key_file", *s->auth_key_file, text,
			       sizeof(text));
	if (ret)
		return kvs_daemon_wrong(o, KVS_SETTING_OF_listen_address, ret,
					text, err, errlen);
	/* who reads metrics is not asked for a key */
	if (strcmp(s->http_address, "off"))
		ret = kvs_listen_check("http.address", s->http_address, NULL,
				       false, text, sizeof(text));
	return kvs_daemon_wrong(o, KVS_SETTING_OF_http_address, ret, text, err,
				errlen);
}

/* Only whether it can be used; the service reads it for itself. */
static int kvs_daemon_key(const struct kvs_settings_origin *o,
			  const struct kvs_settings *s, char *err,
			  size_t errlen)
{
	struct kvs_auth_keys keys = { 0 };
	char text[512] = "";
	int ret;

	if (!*s->auth_key_file)
		return 0;
	ret = kvs_auth_keys_load(s->auth_key_file, &keys, text, sizeof(text));
	kvs_auth_keys_clear(&keys);
	return kvs_daemon_wrong(o, KVS_SETTING_OF_auth_key_file, ret, text, err,
				errlen);
}

int kvs_daemon_args_settings(const struct kvs_daemon_args *args,
			     struct kvs_settings *ret_s, char *err,
			     size_t errlen)
{
	struct kvs_settings_origin from = { 0 };
	struct kvs_settings s;
	unsigned int i;
	int ret;

	kvs_settings_init(&s);
	if (args->config) {
		ret = kvs_settings_load_origin(&s, args->config, &from, err,
					       errlen);
		if (ret)
			return ret;
	}
	for (i = 0; i < args->n_options; i++) {
		const struct kvs_daemon_option *o = &args->options[i];
		char name[KVS_OPTION_NAME], text[512];

		kvs_option_name(kvs_setting_info(o->setting), name);
		ret = kvs_settings_set(&s, name, o->value, text, sizeof(text));
		if (ret) {
			snprintf(err, errlen, "option --%s: %s", name, text);
			return ret;
		}
		from.option[o->setting] = true;
	}
	ret = kvs_settings_check_origin(&s, &from, err, errlen);
	if (!ret)
		ret = kvs_daemon_addresses(&from, &s, err, errlen);
	if (!ret)
		ret = kvs_daemon_key(&from, &s, err, errlen);
	if (!ret)
		*ret_s = s;
	return ret;
}
