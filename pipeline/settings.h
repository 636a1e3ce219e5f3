/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVS_PIPELINE_SETTINGS_H
#define KVS_PIPELINE_SETTINGS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

/* bytes, with the NUL; a line "port_file = ..." must fit libinih's buffer */
#define KVS_STRING_MAX 184

#define KVS_TYPE_SIZE(f) uint64_t f;
#define KVS_TYPE_DURATION(f) uint64_t f;
#define KVS_TYPE_U32(f) uint32_t f;
#define KVS_TYPE_BOOL(f) bool f;
#define KVS_TYPE_STRING(f) char f[KVS_STRING_MAX];
#define KVS_TYPE_CHOICE(f) char f[32];

/* Sizes in bytes, durations in ns; see settings.def. */
struct kvs_settings {
#define KVS_SETTING(s, k, f, T, d, lo, hi, r, t) KVS_TYPE_##T(f)
#include "pipeline/settings.def"
#undef KVS_SETTING
};

#define KVS_SETTING(s, k, f, T, d, lo, hi, r, t) KVS_SETTING_OF_##f,
enum kvs_setting_index {
#include "pipeline/settings.def"
	KVS_SETTINGS
};
#undef KVS_SETTING

/**
 * struct kvs_settings_origin - where values came from, for messages
 * @file: the file they were read from; the caller's text
 * @line: by setting, the line that has it; 0: not in the file
 * @option: by setting, an option of the command line set it
 *
 * All zero: every value is a default.
 */
struct kvs_settings_origin {
	const char *file;
	unsigned int line[KVS_SETTINGS];
	bool option[KVS_SETTINGS];
};

struct kvs_setting_info {
	const char *section;
	const char *key;
	const char *type; /* "size", "duration", ... */
	const char *def;
	const char *range; /* "64 KiB to 1 PiB", "auto|1G|2M|4K" */
	const char *text;
	bool reload;
};

/* Every setting at its default. */
void kvs_settings_init(struct kvs_settings *s);

/**
 * kvs_settings_set() - one value by name
 * @name: "pool.size" or "pool-size"
 * @value: text
 * @err: names setting, value and allowed range
 * Return: 0; -ENOENT no such setting (the closest name is offered);
 * -EINVAL; -ERANGE. @s is unchanged on failure.
 */
int kvs_settings_set(struct kvs_settings *s, const char *name,
		     const char *value, char *err, size_t errlen);

/**
 * kvs_settings_load() - read an ini file over @s
 * @err: names file, line, setting, value and allowed range
 * Return: 0; -ENOENT and other open errors; -EINVAL; -ERANGE. @s is unchanged
 * on failure.
 */
int kvs_settings_load(struct kvs_settings *s, const char *path, char *err,
		      size_t errlen);
/* The same, and on success @o gets the file and the line of each setting. */
int kvs_settings_load_origin(struct kvs_settings *s, const char *path,
			     struct kvs_settings_origin *o, char *err,
			     size_t errlen);

/* Relations between settings (a message names both); 0 or -EINVAL. */
int kvs_settings_check(const struct kvs_settings *s, char *err, size_t errlen);
/* The same; the message begins with where the values came from. */
int kvs_settings_check_origin(const struct kvs_settings *s,
			      const struct kvs_settings_origin *o, char *err,
			      size_t errlen);
/* "FILE:LINE", "option --pool-size", or "" for a default; returns buf. */
const char *kvs_setting_where(const struct kvs_settings_origin *o,
			      unsigned int i, char *buf, size_t len);

/* Does hold.timeout exceed what it has to outlast? @text: the sum, term by
 * term, whatever the answer. */
bool kvs_settings_hold_suffices(const struct kvs_settings *s, char *text,
				size_t len);

/* i-th setting, or NULL past the end. */
const struct kvs_setting_info *kvs_setting_info(unsigned int i);
/* Present value as text; returns buf. */
const char *kvs_setting_value(const struct kvs_settings *s, unsigned int i,
			      char *buf, size_t len);
/* The whole configuration as a commented file that kvs_settings_load() takes.
 * Return: 0 or -EIO. */
int kvs_settings_print(const struct kvs_settings *s, FILE *f);
/* Take from @from what may change while running. Returns the number of
 * settings that differ but need a restart; their names go to @err. */
int kvs_settings_reload(struct kvs_settings *s, const struct kvs_settings *from,
			char *err, size_t errlen);

#endif /* KVS_PIPELINE_SETTINGS_H */
