/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "tools/table.h"

struct kvs_table {
	size_t cols;
	bool left[KVS_TABLE_COLUMNS_MAX];
	int width[KVS_TABLE_COLUMNS_MAX];
	char **cell; /* heads first */
	size_t n;
	size_t cap;
	bool no_memory;
};

static void kvs_table_add(struct kvs_table *t, const char *text, size_t len)
{
	size_t col = t->n % t->cols;
	char *copy;

	if (t->no_memory)
		return;
	if (t->n == t->cap) {
		size_t cap = t->cap ? t->cap * 2 : 64;
		char **cell = reallocarray(t->cell, cap, sizeof(*cell));

		if (!cell) {
			t->no_memory = true;
			return;
		}
		t->cell = cell;
		t->cap = cap;
	}
	copy = strndup(text, len);
	if (!copy) {
		t->no_memory = true;
		return;
	}
	t->cell[t->n++] = copy;
	if ((int)len > t->width[col])
		t->width[col] = (int)len;
}

int kvs_table_create(const char *heads, struct kvs_table **ret)
{
	struct kvs_table *t = calloc(1, sizeof(*t));
	const char *at;
	size_t len;

	if (!t)
		return -ENOMEM;
	/* how many there are has to be known before the first is added */
	for (at = heads; *(at += strspn(at, " ")); at += strcspn(at, " "))
		t->cols++;
	if (!t->cols || t->cols > KVS_TABLE_COLUMNS_MAX) {
		free(t);
		return -EINVAL;
	}
	for (at = heads; *(at += strspn(at, " ")); at += len) {
		len = strcspn(at, " ");
		if (*at == '<') {
			t->left[t->n % t->cols] = true;
			at++;
			len--;
		}
		kvs_table_add(t, at, len);
		if (t->no_memory) {
			kvs_table_destroy(t);
			return -ENOMEM;
		}
	}
	*ret = t;
	return 0;
}

void kvs_table_destroy(struct kvs_table *t)
{
	size_t i;

	if (!t)
		return;
	for (i = 0; i < t->n; i++)
		free(t->cell[i]);
	free(t->cell);
	free(t);
}

void kvs_table_cell(struct kvs_table *t, const char *fmt, ...)
{
	char text[KVS_TABLE_CELL_MAX];
	va_list ap;

	va_start(ap, fmt);
	(void)vsnprintf(text, sizeof(text), fmt, ap);
	va_end(ap);
	kvs_table_add(t, text, strlen(text));
}

const char *kvs_format_gb(double bytes, char buf[KVS_GB_BUF])
{
	double gb = bytes / 1e9;
	int digits = 2;

	if (!(gb > 0)) {
		snprintf(buf, KVS_GB_BUF, "0");
		return buf;
	}
	/* a byte is 1e-9 */
	for (double at = 1; gb < at && digits < 9; at /= 10)
		digits++;
	snprintf(buf, KVS_GB_BUF, "%.*f", digits, gb);
	return buf;
}

int kvs_table_print(const struct kvs_table *t, FILE *out)
{
	size_t i;

	if (t->no_memory)
		return -ENOMEM;
	for (i = 0; i < t->n; i++) {
		size_t col = i % t->cols;
		bool last = col == t->cols - 1 || i == t->n - 1;
		/* nothing after the last cell, not even spaces */
		int width = t->left[col] && last ? 0 : t->width[col];

		if (fprintf(out, "%*s%s", t->left[col] ? -width : width,
			    t->cell[i], last ? "\n" : "  ") < 0)
			return errno ? -errno : -EIO;
	}
	return 0;
}
