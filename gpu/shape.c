/* SPDX-License-Identifier: Apache-2.0 */
#include "gpu/shape.h"

struct kvs_copy_shape kvs_copy_shape_of(const struct kvs_copy *c, size_t i)
{
	uint64_t len = c->runs[i].item_len;

	if (c->shapes && c->shapes[i].rows)
		return c->shapes[i];
	return (struct kvs_copy_shape){
		.rows = 1,
		.row_len = len,
		.host_item = len,
		.dev_item = len,
	};
}

bool kvs_copy_reach(uint64_t item, uint64_t items, uint64_t row,
		    const struct kvs_copy_shape *s, uint64_t *ret)
{
	uint64_t a, b;

	return !__builtin_mul_overflow(items - 1, item, &a) &&
	       !__builtin_mul_overflow(s->rows - 1, row, &b) &&
	       !__builtin_add_overflow(a, b, &a) &&
	       !__builtin_add_overflow(a, s->row_len, ret);
}

uint64_t kvs_copy_locate(const struct kvs_copy_run *r,
			 const struct kvs_copy_shape *s, uint64_t off,
			 char **ret_host, char **ret_dev)
{
	uint64_t item = off / r->item_len;
	uint64_t row = off % r->item_len / s->row_len;
	uint64_t in = off % r->item_len % s->row_len;
	uint64_t page = r->pages ? r->pages[item] : item;

	*ret_host =
		(char *)r->host + item * s->host_item + row * s->host_row + in;
	*ret_dev = (char *)r->dev + page * s->dev_item + row * s->dev_row + in;
	return s->row_len - in;
}
