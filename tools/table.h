/* SPDX-License-Identifier: Apache-2.0 */
/*
 * DOC: table
 *
 * A table for people: columns as wide as their widest cell, two spaces
 * between them, words to the left and numbers to the right. Cells are added
 * row by row, left to right. A table that ran out of memory says so when it
 * is printed, so no call in between needs a check.
 */
#ifndef KVS_TOOLS_TABLE_H
#define KVS_TOOLS_TABLE_H

#include <stdio.h>

#define KVS_TABLE_COLUMNS_MAX 32u
#define KVS_TABLE_CELL_MAX 256u /* bytes; the rest is cut */

struct kvs_table;

/**
 * kvs_table_create() - table with these columns
 * @heads: one word a column, separated by spaces; a column whose word begins
 *         with '<' (not shown) goes to the left. At most
 *         KVS_TABLE_COLUMNS_MAX
 * @ret: the table
 * Return: 0, -EINVAL (no column, too many), -ENOMEM.
 */
int kvs_table_create(const char *heads, struct kvs_table **ret);

/* NULL ok. */
void kvs_table_destroy(struct kvs_table *t);

/* The next cell; after the last column a new row begins. */
void kvs_table_cell(struct kvs_table *t, const char *fmt, ...)
	__attribute__((format(printf, 2, 3)));

/* Bytes in GB (10^9) with two digits behind the point, or where that is little
 * with three that say something; returns @buf. */
#define KVS_GB_BUF 32
const char *kvs_format_gb(double bytes, char buf[KVS_GB_BUF]);

/* Heads and rows, the last as far as it goes. 0; -ENOMEM; why it could not be
 * written. */
int kvs_table_print(const struct kvs_table *t, FILE *out);

#endif /* KVS_TOOLS_TABLE_H */
