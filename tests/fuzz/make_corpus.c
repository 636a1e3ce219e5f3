/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Writes the inputs that the fuzz targets start from: "make_corpus DIR" fills
 * DIR/wire, DIR/ranges and DIR/segment, which must exist. The encoder makes one of each
 * message; some are then cut, changed in a byte, or made to lie about a
 * count. Same output every time.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "hicache/disk_format.h"
#include "lib/assert.h"
#include "lib/crc32c.h"
#include "lib/rng.h"
#include "pipeline/wire.h"
#include "tests/unit/pipeline/wire_random.h"

struct corpus {
	const char *dir;
	struct kvs_rng rng;
	struct kvs_wire_scratch scratch;
	_Alignas(8) unsigned char buf[KVS_FRAME_MAX];
	int err;
};

static void corpus_write(struct corpus *c, const char *sub, const char *name,
			 const void *bytes, size_t len)
{
	char path[4096];
	FILE *f;

	snprintf(path, sizeof(path), "%s/%s/%s", c->dir, sub, name);
	f = fopen(path, "wb");
	if (!f || fwrite(bytes, 1, len, f) != len || fflush(f)) {
		fprintf(stderr, "%s: %s\n", path, strerror(errno));
		c->err = 1;
	}
	if (f && fclose(f))
		c->err = 1;
}

static void corpus_message(struct corpus *c, unsigned int type)
{
	const char *name = kvs_wire_type_name(type);
	struct kvs_msg m;
	char path[64];
	int len, i;

	/* anew, so that a change in one message leaves the others' files */
	kvs_rng_init(&c->rng, type);
	kvs_wire_random(&c->rng, (enum kvs_wire_type)type, 5, &c->scratch, &m);
	len = kvs_wire_encode(&m, c->buf, sizeof(c->buf));
	KVS_ASSERT(len > 0);
	corpus_write(c, "wire", name, c->buf, (size_t)len);
	snprintf(path, sizeof(path), "%s-cut", name);
	corpus_write(c, "wire", path, c->buf,
		     (size_t)kvs_rng_below(&c->rng, (uint64_t)len));
	for (i = 0; i < 3; i++) {
		size_t at = kvs_rng_below(&c->rng, (uint64_t)len);
		unsigned char was = c->buf[at];

		c->buf[at] ^= (unsigned char)(1 + kvs_rng_below(&c->rng, 255));
		snprintf(path, sizeof(path), "%s-byte-%zu", name, at);
		corpus_write(c, "wire", path, c->buf, (size_t)len);
		c->buf[at] = was;
	}
	/* the count of an array, or whatever the message has there */
	memset(c->buf + (type == KVS_WIRE_GRANT ? 72 : 24), 0xff, 4);
	snprintf(path, sizeof(path), "%s-count", name);
	corpus_write(c, "wire", path, c->buf, (size_t)len);
	/* the length of the frame */
	memset(c->buf + 8, 0xff, 4);
	snprintf(path, sizeof(path), "%s-length", name);
	corpus_write(c, "wire", path, c->buf, (size_t)len);
}

/* A GRANT for two data connections, and what is wrong in one. */
static void corpus_paths(struct corpus *c)
{
	static const struct kvs_grant_key keys[4] = {
		{ 0x1000, 1 }, { 0x2000, 2 }, { 0x3000, 3 }, { 0x4000, 4 }
	};
	static const struct kvs_grant_place places[1] = { { 64, 128 } };
	static const uint16_t paths[2] = { 3, 62 };
	const struct kvs_msg m = {
		.type = KVS_WIRE_GRANT,
		.grant = {
			.room = 1,
			.generation = 2,
			.tokens = 100,
			.page_size = 16,
			.extent_tokens = 64,
			.n_extents = 2,
			.n_layers = 1,
			.n_keys = 4,
			.n_places = 1,
			.n_paths = 2,
			.keys = keys,
			.places = places,
			.paths = paths,
		},
	};
	int len = kvs_wire_encode(&m, c->buf, sizeof(c->buf));
	unsigned char *last = c->buf + len - 4;

	KVS_ASSERT(len == 96 + 4 * 12 + 8 + 2 * 4);
	corpus_write(c, "wire", "GRANT-paths", c->buf, (size_t)len);
	last[0] = 3;
	corpus_write(c, "wire", "GRANT-paths-twice", c->buf, (size_t)len);
	last[0] = KVS_PATHS_MAX;
	corpus_write(c, "wire", "GRANT-paths-over", c->buf, (size_t)len);
	last[0] = 62;
	last[2] = 1;
	corpus_write(c, "wire", "GRANT-paths-reserved", c->buf, (size_t)len);
	last[2] = 0;
	corpus_write(c, "wire", "GRANT-paths-cut", c->buf, (size_t)len - 2);
	c->buf[78] = 0xff;
	corpus_write(c, "wire", "GRANT-paths-count", c->buf, (size_t)len);
}

static void corpus_ranges(struct corpus *c)
{
	static const char *const names[] = { "few", "some", "many", "most" };
	unsigned char v[257];
	size_t i, n;

	kvs_rng_init(&c->rng, 1);
	for (n = 0; n < KVS_ARRAY_SIZE(names); n++) {
		v[0] = (unsigned char)(3 + 20 * n);
		for (i = 1; i < sizeof(v); i++)
			v[i] = (unsigned char)kvs_rng_next(&c->rng);
		corpus_write(c, "ranges", names[n], v, 9 + 80 * n);
	}
	/* every byte in turn, then backwards with gaps that close */
	v[0] = 63;
	for (i = 0; i < 128; i++) {
		v[1 + 2 * i] = (unsigned char)(2 * i);
		v[2 + 2 * i] = 2;
	}
	corpus_write(c, "ranges", "forwards", v, sizeof(v));
	for (i = 0; i < 128; i++) {
		v[1 + 2 * i] = (unsigned char)(i < 64 ? 252 - 4 * i
						      : 4 * (i - 64) + 2);
		v[2 + 2 * i] = 2;
	}
	corpus_write(c, "ranges", "backwards", v, sizeof(v));
}

/* A segment of three pages of 512 bytes, whole, and in some ways not. */
static void corpus_segment(struct corpus *c)
{
	static const struct kvs_seg_instance instance = { { 1, 2, 3, 4, 5, 6, 7,
							    8, 9 } };
	static unsigned char v[1 + 6 * KVS_SEG_BLOCK];
	struct kvs_seg_info info = { .id = 1, .instance = instance };
	struct kvs_seg_page page;
	unsigned char *file = v + 1;
	uint32_t i;

	KVS_ASSERT(!kvs_seg_plan(512, 5 * KVS_SEG_BLOCK, &info));
	KVS_ASSERT(info.slots == 3 && info.file_bytes < sizeof(v));
	kvs_seg_head_write(&info, file);
	for (i = 0; i < 3; i++) {
		unsigned char *at = file + kvs_seg_slot_off(&info, i);

		memset(at, (int)i + 1, 512);
		memset(&page.key, (int)i + 7, sizeof(page.key));
		page.crc = kvs_crc32c(at, 512);
		kvs_seg_entry_write(&info, i, &page,
				    file + KVS_SEG_BLOCK +
					    (size_t)i * KVS_SEG_ENTRY);
	}
	corpus_write(c, "segment", "whole", v, 1 + info.file_bytes);
	v[0] = 7;
	corpus_write(c, "segment", "sums-made-right", v, 1 + info.file_bytes);
	corpus_write(c, "segment", "head-and-table", v, 1 + 2 * KVS_SEG_BLOCK);
	corpus_write(c, "segment", "head", v, 1 + 128);
	corpus_write(c, "segment", "short-head", v, 1 + 100);
	corpus_write(c, "segment", "empty", v, 1);
	v[0] = 0;
	corpus_write(c, "segment", "cut", v, 1 + info.file_bytes - 100);
	file[info.data_off + 5] ^= 1;
	corpus_write(c, "segment", "page-byte", v, 1 + info.file_bytes);
	file[KVS_SEG_BLOCK + 20] ^= 1;
	corpus_write(c, "segment", "entry-byte", v, 1 + info.file_bytes);
	file[70] ^= 1;
	corpus_write(c, "segment", "head-byte", v, 1 + info.file_bytes);
	v[0] = 7;
	memset(file + 72, 0xff, 4);
	corpus_write(c, "segment", "slots", v, 1 + info.file_bytes);
}

int main(int argc, char **argv)
{
	static struct corpus c;
	unsigned int type;

	if (argc != 2) {
		fprintf(stderr, "usage: %s DIR\n", argv[0]);
		return 2;
	}
	c.dir = argv[1];
	for (type = KVS_WIRE_HELLO; type < KVS_WIRE_TYPE_MAX; type++)
		corpus_message(&c, type);
	corpus_paths(&c);
	corpus_ranges(&c);
	corpus_segment(&c);
	return c.err;
}
