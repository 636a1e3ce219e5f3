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

struct kvs_copy_shape kvs_copy_shape_joined(const struct kvs_copy *c, size_t i)
{
	struct kvs_copy_shape s = kvs_copy_shape_of(c, i);

	if (s.rows == 1 ||
	    (s.host_row == s.row_len && s.dev_row == s.row_len)) {
		s.row_len *= s.rows;
		s.rows = 1;
		s.host_row = 0;
		s.dev_row = 0;
	}
	return s;
}

uint64_t kvs_copy_pieces(const struct kvs_copy *c, size_t i, uint64_t stop)
{
	const struct kvs_copy_run *r = &c->runs[i];
	struct kvs_copy_shape s;
	uint64_t n = 1;
	uint64_t k;

	if (!r->n)
		return 0;
	s = kvs_copy_shape_joined(c, i);
	if (s.rows > 1)
		return r->n * s.rows;
	if (s.host_item != s.row_len || s.dev_item != s.row_len)
		return r->n;
	if (!r->pages)
		return 1;
	for (k = 1; k < r->n && n <= stop; k++)
		n += r->pages[k] != (uint64_t)r->pages[k - 1] + 1;
	return n;
}
