/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Claims, over the doubles of a GPU and of libibverbs, of how a rank chooses
 * the way to its source pages: the first of peer memory and dma-buf that the
 * device says it has, that passes a trial with each device of the network, and
 * that registers every buffer; what was tried before is said with its reason;
 * a buffer that cannot be registered undoes the others; a way that is asked for
 * and cannot be had is refused. A trial notices other bytes than lie there, and
 * a dma-buf is exported at any address: tensors begin where they begin.
 */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>
#include <errno.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "pipeline/sender_internal.h"
#include "rdma/verbs.h"
#include "tests/fake_cuda/fake_cuda.h"
#include "tests/fake_verbs/fake_verbs.h"

#define BUFFERS 3u
#define BYTES 70000u

static struct kvs_device *device;
static struct kvs_sender_place place;
static struct kvs_sender_opts opts;
static void *buffers[BUFFERS];
static uint64_t lengths[BUFFERS];
static struct kvs_layout layout = { .n_buffers = BUFFERS };
static unsigned char *memory;
static char err[512];

static unsigned int mrs(void)
{
	struct fv_live n;

	fv_live(&n);
	return n.mrs;
}

static void begin(bool peer_mem, bool dma_buf, bool verbs_dma_buf)
{
	const struct kvs_verbs_opts vo = { .node = -1,
					   .gid_index = -1,
					   .no_grants = true };
	const struct fv_spec a = { .name = "a",
				   .driver = "mlx5_core",
				   .dma_buf = true };
	const struct fv_spec b = { .name = "b",
				   .driver = "mlx5_core",
				   .dma_buf = verbs_dma_buf };
	/* nothing here is measured */
	struct kvs_device_opts d = { .size = sizeof(d),
				     .backend = "cuda",
				     .copy = { .batch_min = 28672 } };
	struct fake_cuda_config c;
	void *p;

	fake_cuda_config_init(&c);
	c.peer_mem = peer_mem;
	c.dma_buf = dma_buf;
	fake_cuda_reset(&c);
	fv_begin();
	fv_device_add(&a);
	fv_device_add(&b);
	assert_int_equal(kvs_device_open(&d, &device, err, sizeof(err)), 0);
	assert_int_equal(kvs_device_alloc(device, BUFFERS * BYTES, &p), 0);
	memory = p;
	/* as a framework's allocator gives them */
	for (uint32_t i = 0; i < BUFFERS; i++) {
		buffers[i] = memory + i * BYTES;
		lengths[i] = BYTES;
	}
	memset(&place, 0, sizeof(place));
	if (kvs_verbs_create(NULL, &vo, &place.t, err, sizeof(err)))
		fail_msg("%s", err);
	opts = (struct kvs_sender_opts){
		.size = sizeof(opts),
		.layout = &layout,
		.buffers = buffers,
		.buffer_len = lengths,
		.device = device,
	};
	err[0] = '\0';
}

static void end(void)
{
	kvs_transport_destroy(place.t);
	kvs_device_free(device, memory);
	kvs_device_close(device);
	assert_int_equal(fv_end(), 0);
}

static void probe(int rc, enum kvs_source direct, unsigned int registered)
{
	unsigned int before = mrs();

	assert_int_equal(
		kvs_sender_source_probe(&opts, &place, err, sizeof(err)), rc);
	assert_int_equal(place.direct, direct);
	assert_int_equal(mrs() - before, registered);
}

static void says(const char *where, const char *text)
{
	if (!strstr(where, text))
		fail_msg("\"%s\" is not in: %s", text, where);
}

static void the_first_that_works(void **state)
{
	(void)state;
	begin(true, true, true);
	probe(0, KVS_SOURCE_PEER_MEM, 2 * BUFFERS);
	assert_string_equal(place.note, "");
	end();
	begin(false, true, true);
	probe(0, KVS_SOURCE_DMA_BUF, 2 * BUFFERS);
	says(place.note, "no peer-mem: the device does not have it");
	end();
	/* one device of the network cannot */
	begin(false, true, false);
	probe(0, KVS_SOURCE_AUTO, 0);
	says(place.note, "no peer-mem: the device does not have it");
	says(place.note, "no dma-buf: b: cannot be registered");
	end();
	begin(false, false, true);
	probe(0, KVS_SOURCE_AUTO, 0);
	says(place.note, "no dma-buf: the device does not have it");
	end();
}

static void what_was_asked_for(void **state)
{
	(void)state;
	begin(true, true, true);
	opts.source = KVS_SOURCE_DMA_BUF;
	probe(0, KVS_SOURCE_DMA_BUF, 2 * BUFFERS);
	end();
	begin(true, true, true);
	opts.source = KVS_SOURCE_BOUNCE;
	probe(0, KVS_SOURCE_AUTO, 0);
	end();
	begin(false, true, true);
	opts.source = KVS_SOURCE_PEER_MEM;
	probe(-EOPNOTSUPP, KVS_SOURCE_AUTO, 0);
	says(err, "source peer-mem: the device does not have it");
	end();
	begin(true, true, true);
	opts.source = KVS_SOURCE_PEER_MEM;
	opts.buffer_len = NULL;
	probe(-EOPNOTSUPP, KVS_SOURCE_AUTO, 0);
	says(err, "the length of buffer 0 is not given");
	end();
}

/* As without the kernel's driver for it; and when the memory is too much. */
static void a_registration_fails(void **state)
{
	(void)state;
	begin(true, true, true);
	/* that of the host side of the trial comes first */
	fv_fail(FV_REG_MR, 2, 1, EFAULT);
	probe(0, KVS_SOURCE_DMA_BUF, 2 * BUFFERS);
	says(place.note, "no peer-mem: a: cannot be registered: Bad address");
	end();
	begin(true, false, true);
	/* two for each trial, then each buffer with both */
	fv_fail(FV_REG_MR, 4 + 4, 1, ENOSPC);
	probe(0, KVS_SOURCE_AUTO, 0);
	says(place.note, "cannot register");
	end();
	begin(true, false, true);
	fake_cuda_fail("cuMemAlloc", 1, 2);
	probe(0, KVS_SOURCE_AUTO, 0);
	says(place.note, "the device has no memory for a trial");
	end();
}

static void an_export_fails(void **state)
{
	(void)state;
	begin(false, true, true);
	fake_cuda_fail("cuMemGetHandleForAddressRange", 1, 801);
	probe(0, KVS_SOURCE_AUTO, 0);
	says(place.note, "no dma-buf: the device gives no descriptor");
	end();
	/* of the last buffer */
	begin(false, true, true);
	fake_cuda_fail("cuMemGetHandleForAddressRange", 1 + BUFFERS, 801);
	probe(0, KVS_SOURCE_AUTO, 0);
	end();
}

static void put_bytes(unsigned char *at, unsigned char *bytes, uint64_t len)
{
	struct kvs_copy_run run = {
		.host = bytes, .dev = at, .item_len = len, .n = 1
	};
	struct kvs_copy c = { .runs = &run, .n_runs = 1, .dir = KVS_COPY_H2D };

	assert_int_equal(kvs_device_copy(device, &c), 0);
	while (kvs_device_query(device, &c) == -EINPROGRESS)
		sched_yield();
	assert_int_equal(kvs_device_query(device, &c), 0);
}

static void at_any_address(void **state)
{
	static const uint64_t offset[] = { 0, 1, 4095, 4096, 70001, 200000 };
	unsigned char bytes[1000];
	size_t i, k;

	(void)state;
	begin(true, true, true);
	for (i = 0; i < KVS_ARRAY_SIZE(offset); i++) {
		struct kvs_mem_at at = { .addr = memory + offset[i],
					 .len = sizeof(bytes),
					 .fd = -1 };

		for (k = 0; k < sizeof(bytes); k++)
			bytes[k] = (unsigned char)(k * 7 + i + 1);
		put_bytes(at.addr, bytes, sizeof(bytes));
		assert_int_equal(kvs_transport_try_at(place.t, &at, bytes, err,
						      sizeof(err)),
				 0);
		assert_int_equal(kvs_device_export(device, at.addr, at.len,
						   &at.fd, &at.offset),
				 0);
		assert_int_equal(at.offset, offset[i] % 4096);
		assert_int_equal(kvs_transport_try_at(place.t, &at, bytes, err,
						      sizeof(err)),
				 0);
		bytes[sizeof(bytes) - 1]++;
		assert_int_equal(kvs_transport_try_at(place.t, &at, bytes, err,
						      sizeof(err)),
				 -EIO);
		says(err, "a: it reads other bytes than lie there");
		assert_int_equal(close(at.fd), 0);
	}
	end();
}

static void not_over_tcp(void **state)
{
	struct kvs_transport *verbs;

	(void)state;
	begin(true, true, true);
	verbs = place.t;
	assert_int_equal(kvs_tcp_create(NULL, &place.t, err, sizeof(err)), 0);
	probe(0, KVS_SOURCE_AUTO, 0);
	says(place.note, "no peer-mem: the data goes over tcp");
	kvs_transport_destroy(place.t);
	place.t = verbs;
	end();
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(the_first_that_works),
		cmocka_unit_test(what_was_asked_for),
		cmocka_unit_test(a_registration_fails),
		cmocka_unit_test(an_export_fails),
		cmocka_unit_test(at_any_address),
		cmocka_unit_test(not_over_tcp),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
