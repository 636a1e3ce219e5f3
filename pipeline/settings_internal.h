/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVS_PIPELINE_SETTINGS_INTERNAL_H
#define KVS_PIPELINE_SETTINGS_INTERNAL_H

#include <stddef.h>
#include <stdint.h>

#include "pipeline/settings.h"

enum kvs_setting_type {
	KVS_SETTING_SIZE,
	KVS_SETTING_DURATION,
	KVS_SETTING_U32,
	KVS_SETTING_BOOL,
	KVS_SETTING_STRING,
	KVS_SETTING_CHOICE,
	KVS_SETTING_TYPE_MAX,
};

/**
 * struct kvs_setting_desc - one row of settings.def
 * @section: section of the file
 * @key: name within it
 * @def: default, as in the file
 * @choices: "a|b|c" of a CHOICE, else NULL
 * @text: for the operator
 * @type: what @def and every value must look like
 * @reload: SIGHUP applies it
 * @off: of the field in struct kvs_settings, bytes
 * @len: of the field, bytes
 * @min: least value of a number
 * @max: greatest value of a number
 */
struct kvs_setting_desc {
	const char *section;
	const char *key;
	const char *def;
	const char *choices;
	const char *text;
	enum kvs_setting_type type;
	bool reload;
	size_t off;
	size_t len;
	uint64_t min;
	uint64_t max;
};

extern const struct kvs_setting_desc kvs_setting_descs[];
extern const unsigned int kvs_setting_count;

/* At least KVS_SETTING_RANGE bytes; returns buf. "64K to 1024T", "yes|no" */
#define KVS_SETTING_RANGE 96
const char *kvs_setting_range(const struct kvs_setting_desc *d, char *buf);

/**
 * kvs_setting_parse() - text to one field
 * @d: setting
 * @value: text
 * @s: the field is written only on success
 * @err: names setting, value and allowed range; may be NULL
 * @errlen: bytes of @err
 *
 * Return: 0; -EINVAL; -ERANGE.
 */
int kvs_setting_parse(const struct kvs_setting_desc *d, const char *value,
		      struct kvs_settings *s, char *err, size_t errlen);

#endif /* KVS_PIPELINE_SETTINGS_INTERNAL_H */
