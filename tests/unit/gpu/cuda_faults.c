/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Claims, over the double of the driver: whichever call of the driver fails,
 * the first or a later one, a device that cannot be opened leaves nothing
 * behind and says why; a copy one of whose calls fails ends with an error when
 * what was launched of it is over, and the copies before and after it come out
 * right; no copy ends while a stream still holds part of it. A context that
 * dies fails what goes to the device and refuses new copies, and what is on
 * its way to the host stays under way until the device is closed, as nothing
 * proves that it ended. A registration that fails undoes those before it,
 * backwards, and can be tried again. Where there is no driver, no device, a
 * stub or too old a driver, opening says so.
 */
#include "tests/unit/gpu/cuda_rig.h"

#include <errno.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "lib/assert.h"

#define ILLEGAL_ADDRESS 700
#define OUT_OF_MEMORY 2
#define INVALID_VALUE 1
#define COPIES 6

/* Those that opening makes. */
static const char *const opening[] = {
	"cuDeviceGetCount",
	"cuDeviceGet",
	"cuDevicePrimaryCtxRetain",
	"cuCtxPushCurrent",
	"cuModuleLoadData",
	"cuModuleGetFunction",
	"cuCtxGetStreamPriorityRange",
	"cuStreamCreateWithPriority",
	"cuMemAlloc",
	"cuEventCreate",
	"cuMemHostAlloc",
	"cuDeviceGetAttribute",
	"cuDeviceGetName",
	"cuDeviceGetPCIBusId",
};

static const char *const copying[] = {
	"cuMemcpyBatchAsync", "cuMemcpyAsync",	"cuEventRecord",
	"cuStreamWaitEvent",  "cuLaunchKernel",
};

static void test_opening(void **state)
{
	struct cuda_rig g = { 0 };
	unsigned int opened = 0, refused = 0;

	(void)state;
	rig_seed(&g);
	/* the driver itself is opened once, for good */
	rig_init(&g, KVS_COPY_AUTO);
	rig_open(&g);
	rig_close(&g);
	rig_free(&g);
	for (size_t i = 0; i < KVS_ARRAY_SIZE(opening); i++)
		for (uint64_t nth = 1; nth <= 8; nth++) {
			char err[160] = "";
			int r;

			rig_init(&g, KVS_COPY_AUTO);
			fake_cuda_reset(&g.config);
			fake_cuda_fail(opening[i], nth, OUT_OF_MEMORY);
			r = kvs_device_open(&g.o, &g.d, err, sizeof(err));
			if (r) {
				assert_true(r < 0);
				assert_string_not_equal(err, "");
				refused++;
			} else {
				kvs_device_close(g.d);
				opened++;
			}
			rig_alive(0);
			rig_free(&g);
		}
	print_message("%u opened all the same, %u refused\n", opened, refused);
	assert_true(opened && refused);
}

/* Copies in a row, one call failing: at most one copy pays for it. */
static unsigned int row_with_fault(struct cuda_rig *g, const char *call,
				   uint64_t nth)
{
	struct cuda_copy *c = calloc(COPIES, sizeof(*c));
	unsigned int failed = 0;

	assert_non_null(c);
	fake_cuda_fail(call, nth, OUT_OF_MEMORY);
	for (unsigned int b = 0; b < COPIES; b++) {
		rig_copy(g, &c[b], b % 2 ? KVS_COPY_D2H : KVS_COPY_H2D, b,
			 COPIES + 2);
		assert_int_equal(kvs_device_copy(g->d, &c[b].c), 0);
	}
	for (unsigned int b = 0; b < COPIES; b++) {
		int r = rig_wait(g, &c[b]);

		if (r) {
			assert_int_equal(r, -ENOMEM);
			failed++;
			/* as it should be after all */
			assert_int_equal(kvs_device_copy(g->d, &c[b].c), 0);
			assert_int_equal(rig_wait(g, &c[b]), 0);
		}
		rig_want(g, &c[b]);
	}
	rig_check(g);
	free(c);
	return failed;
}

static void test_a_call_of_a_copy(void **state)
{
	static const enum kvs_copy_way ways[] = { KVS_COPY_SLOTS,
						  KVS_COPY_MAPPED,
						  KVS_COPY_DIRECT };
	struct cuda_rig g = { 0 };
	unsigned int failed = 0;

	(void)state;
	rig_seed(&g);
	for (size_t w = 0; w < KVS_ARRAY_SIZE(ways); w++) {
		rig_init(&g, ways[w]);
		rig_open(&g);
		for (size_t i = 0; i < KVS_ARRAY_SIZE(copying); i++)
			for (uint64_t nth = 1; nth <= 12; nth += 1 + nth / 4) {
				unsigned int n;

				n = row_with_fault(&g, copying[i], nth);
				assert_in_range(n, 0, 1);
				failed += n;
				fake_cuda_reset_faults();
			}
		rig_close(&g);
		rig_free(&g);
	}
	print_message("%u copies failed\n", failed);
	assert_true(failed > 40);
}

/* The call that fails is not the first of its step: what was launched before
 * is still to come, and both ends stay the device's until then. */
static void test_no_end_before_the_end(void **state)
{
	struct cuda_rig g = { 0 };
	struct cuda_copy c;

	(void)state;
	rig_seed(&g);
	rig_init(&g, KVS_COPY_SLOTS);
	rig_open(&g);
	fake_cuda_hold(true);
	fake_cuda_fail("cuLaunchKernel", 1, OUT_OF_MEMORY);
	rig_copy(&g, &c, KVS_COPY_H2D, 0, 1);
	assert_int_equal(kvs_device_copy(g.d, &c.c), 0);
	for (unsigned int i = 0; i < 2000; i++) {
		assert_int_equal(kvs_device_query(g.d, &c.c), -EINPROGRESS);
		(void)sched_yield();
	}
	fake_cuda_hold(false);
	assert_int_equal(rig_wait(&g, &c), -ENOMEM);
	rig_close(&g);
	rig_free(&g);
}

/* The context is gone, the double's memory of it is not. */
static void free_dead(struct cuda_rig *g)
{
	struct kvs_device *d = NULL;
	char err[160];

	fake_cuda_reset_faults();
	assert_int_equal(kvs_device_open(&g->o, &d, err, sizeof(err)), 0);
	kvs_device_free(d, g->dev);
	kvs_device_close(d);
	rig_alive(0);
}

static void copies_into_death(struct cuda_rig *g, struct cuda_copy *c)
{
	for (unsigned int b = 0; b < COPIES; b++) {
		int r;

		rig_copy(g, &c[b], b % 3 ? KVS_COPY_H2D : KVS_COPY_D2H, b,
			 COPIES + 2);
		r = kvs_device_copy(g->d, &c[b].c);
		/* it may have died by now */
		assert_true(!r || r == -EIO);
		if (r)
			atomic_store(&c[b].c.status, -EIO);
	}
	for (unsigned int b = 0; b < COPIES; b++) {
		int r = kvs_device_query(g->d, &c[b].c);

		/* these end; those to the host may stay */
		if (b % 3)
			r = rig_wait(g, &c[b]);
		assert_true(!r || r == -EIO || r == -EINPROGRESS);
	}
}

static void test_a_context_that_dies(void **state)
{
	struct cuda_rig g = { 0 };
	struct cuda_copy *c = calloc(COPIES + 1, sizeof(*c));
	unsigned int out = 0, deaths = 0;

	(void)state;
	assert_non_null(c);
	rig_seed(&g);
	for (uint64_t nth = 1; nth <= 24; nth += 1 + nth / 6) {
		struct kvs_device_info info;

		rig_init(&g, nth % 2 ? KVS_COPY_SLOTS : KVS_COPY_MAPPED);
		rig_open(&g);
		fake_cuda_break(nth, ILLEGAL_ADDRESS);
		copies_into_death(&g, c);
		/* to the device: all of its events are looked at */
		rig_copy(&g, &c[COPIES], KVS_COPY_H2D, COPIES, COPIES + 2);
		if (!kvs_device_copy(g.d, &c[COPIES].c))
			(void)rig_wait(&g, &c[COPIES]);
		kvs_device_info(g.d, &info);
		if (info.sticky) {
			deaths++;
			assert_int_equal(kvs_device_copy(g.d, &c[COPIES].c),
					 -EIO);
		}
		kvs_device_close(g.d);
		for (unsigned int b = 0; b < COPIES; b++) {
			int r = atomic_load(&c[b].c.status);

			assert_true(!r || r == -EIO);
			out += r != 0;
		}
		free_dead(&g);
		rig_free(&g);
	}
	print_message("%u deaths, %u copies did not come out\n", deaths, out);
	assert_true(deaths > 5 && out > 10);
	free(c);
}

/* To the host and launched: it is not over until the device is closed. */
static void test_to_the_host_there_is_no_proof(void **state)
{
	struct cuda_rig g = { 0 };
	struct kvs_device_info info;
	struct cuda_copy c, up;

	(void)state;
	rig_seed(&g);
	rig_init(&g, KVS_COPY_SLOTS);
	rig_open(&g);
	fake_cuda_hold(true);
	rig_copy(&g, &up, KVS_COPY_H2D, 0, 2);
	rig_copy(&g, &c, KVS_COPY_D2H, 1, 2);
	assert_int_equal(kvs_device_copy(g.d, &c.c), 0);
	assert_int_equal(kvs_device_copy(g.d, &up.c), 0);
	do
		kvs_device_info(g.d, &info);
	while (!info.steps);
	fake_cuda_break(1, ILLEGAL_ADDRESS);
	fake_cuda_hold(false);
	assert_int_equal(rig_wait(&g, &up), -EIO);
	for (unsigned int i = 0; i < 2000; i++) {
		assert_int_equal(kvs_device_query(g.d, &c.c), -EINPROGRESS);
		(void)sched_yield();
	}
	kvs_device_close(g.d);
	assert_int_equal(atomic_load(&c.c.status), -EIO);
	free_dead(&g);
	rig_free(&g);
}

/* Whichever of the calls it is, nothing is left of it. */
static void each_of_six_fails(struct cuda_rig *g, uint8_t *p, uint64_t len)
{
	struct kvs_device_info info;

	for (uint64_t nth = 1; nth <= 6; nth++) {
		fake_cuda_fail("cuMemHostRegister", nth, INVALID_VALUE);
		assert_int_equal(kvs_device_register_host(g->d, p, len, 0),
				 -EINVAL);
		kvs_device_info(g->d, &info);
		assert_int_equal(info.registered_bytes, g->registered);
		assert_int_equal(info.sticky, 0);
	}
}

/* ROCm/ATOM#690: some registrations fail and start-up continues. */
static void test_half_a_registration(void **state)
{
	const uint64_t len = 5 * 65536 + 4096;
	struct cuda_rig g = { 0 };
	struct kvs_device_info info;
	uintptr_t undone[64];
	uint8_t *p;

	(void)state;
	rig_seed(&g);
	rig_init(&g, KVS_COPY_AUTO);
	g.o.register_chunk = 65536;
	rig_open(&g);
	p = aligned_alloc(4096, len);
	assert_non_null(p);
	/* six calls, the fourth fails */
	fake_cuda_fail("cuMemHostRegister", 4, OUT_OF_MEMORY);
	assert_int_equal(kvs_device_register_host(g.d, p, len, 0), -ENOMEM);
	assert_int_equal(fake_cuda_unregistered(undone, 64), 3);
	for (unsigned int i = 0; i < 3; i++)
		assert_int_equal(undone[i], (uintptr_t)p + (2 - i) * 65536u);
	kvs_device_info(g.d, &info);
	assert_int_equal(info.registered_bytes, g.registered);
	assert_int_equal(info.pinned_bytes, g.registered);

	assert_int_equal(kvs_device_register_host(g.d, p, len, 0), 0);
	kvs_device_info(g.d, &info);
	assert_int_equal(info.registered_bytes, g.registered + len);
	/* twice, and part of it */
	assert_int_equal(kvs_device_register_host(g.d, p, len, 0), -EEXIST);
	assert_int_equal(kvs_device_register_host(g.d, p + 4096, 4096, 0),
			 -EEXIST);
	assert_int_equal(kvs_device_unregister_host(g.d, p, len - 4096),
			 -ENOENT);
	assert_int_equal(kvs_device_unregister_host(g.d, p + 65536, len),
			 -ENOENT);
	assert_int_equal(kvs_device_unregister_host(g.d, p, len), 0);
	kvs_device_info(g.d, &info);
	assert_int_equal(info.registered_bytes, g.registered);
	each_of_six_fails(&g, p, len);
	free(p);
	rig_close(&g);
	rig_free(&g);
}

/* LMCache/LMCache#5177: a driver that takes no more than so much in a call. */
static void test_no_registration_is_too_large(void **state)
{
	struct cuda_rig g = { 0 };
	struct fake_cuda_counts n;

	(void)state;
	rig_seed(&g);
	rig_init(&g, KVS_COPY_AUTO);
	g.config.register_max = 65536;
	g.o.register_chunk = 65536;
	rig_open(&g);
	fake_cuda_counts(&n);
	assert_int_equal(n.registered_max, 65536);
	assert_int_equal(n.registered_bytes, g.registered);
	rig_close(&g);
	fake_cuda_counts(&n);
	assert_int_equal(n.unregistered, g.registered / 65536);
	rig_free(&g);
}

/* In a process of its own: the driver is opened once. */
static void alone(const char *what, const char *text,
		  void (*set)(struct fake_cuda_config *c))
{
	const struct kvs_device_opts o = { .size = sizeof(o),
					   .backend = "cuda" };
	int status;
	pid_t pid;

	(void)fflush(stdout);
	pid = fork();
	assert_true(pid >= 0);
	if (!pid) {
		struct fake_cuda_config c;
		struct kvs_device *d = NULL;
		char err[160] = "";
		bool ok;

		fake_cuda_config_init(&c);
		set(&c);
		fake_cuda_reset(&c);
		ok = kvs_device_open(&o, &d, err, sizeof(err)) == -EOPNOTSUPP &&
		     strstr(err, text) && !d;
		/* and again, the same answer */
		ok = ok &&
		     kvs_device_open(&o, &d, err, sizeof(err)) == -EOPNOTSUPP;
		if (!ok)
			(void)fprintf(stderr, "%s: '%s'\n", what, err);
		_exit(!ok);
	}
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_int_equal(status, 0);
}

static void no_devices(struct fake_cuda_config *c)
{
	c->devices = 0;
}

static void a_stub(struct fake_cuda_config *c)
{
	c->stub = true;
}

static void too_old(struct fake_cuda_config *c)
{
	c->driver = 11080;
}

static void test_no_device_to_open(void **state)
{
	(void)state;
	alone("no device", "CUDA_ERROR_NO_DEVICE", no_devices);
	alone("stub", "CUDA_ERROR_STUB_LIBRARY", a_stub);
	alone("old", "11.8 is too old", too_old);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		/* first: no device may be open before */
		cmocka_unit_test(test_no_device_to_open),
		cmocka_unit_test(test_opening),
		cmocka_unit_test(test_a_call_of_a_copy),
		cmocka_unit_test(test_no_end_before_the_end),
		cmocka_unit_test(test_a_context_that_dies),
		cmocka_unit_test(test_to_the_host_there_is_no_proof),
		cmocka_unit_test(test_half_a_registration),
		cmocka_unit_test(test_no_registration_is_too_large),
	};

	return cmocka_run_group_tests_name("cuda_faults", tests, NULL, NULL);
}
