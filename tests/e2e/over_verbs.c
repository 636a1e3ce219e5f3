/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Linked to a test, this machine has verbs devices: KVS_TEST_DEVICES (1) of
 * the double, of the driver that KVS_TEST_DRIVER names (mlx5_core grants by
 * windows, rxe by registrations). What the test claims over TCP holds over RDMA then, with
 * daemon and sender in one process. In the end nothing may be left of it, and
 * nothing was done that no caller may do.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/fake_verbs/fake_verbs.h"

static void world_ends(void)
{
	struct fv_counts n;

	fv_counts(&n);
	printf("over verbs: %llu writes, %llu bytes; %llu windows bound, %llu "
	       "invalidated; refused %llu; messages without a receive %llu, "
	       "objects left behind %llu\n",
	       (unsigned long long)n.writes, (unsigned long long)n.write_bytes,
	       (unsigned long long)n.binds, (unsigned long long)n.invalidates,
	       (unsigned long long)n.refused, (unsigned long long)n.rnr,
	       (unsigned long long)n.left_behind);
	fflush(stdout);
	/* without a write it was TCP, and shows nothing */
	if (fv_end() || n.rnr || n.left_behind || !n.writes)
		_exit(1);
}

__attribute__((constructor)) static void world_begins(void)
{
	const char *driver = getenv("KVS_TEST_DRIVER");
	const char *devices = getenv("KVS_TEST_DEVICES");
	unsigned int n = devices ? (unsigned int)strtoul(devices, NULL, 10) : 1;
	struct fv_spec s = {
		.driver = driver ? driver : "mlx5_core",
		.dma_buf = true,
	};
	char name[16];

	s.name = name;
	if (!strcmp(s.driver, "rxe"))
		s.model = FV_RXE;
	fv_begin();
	for (unsigned int i = 0; i < n; i++) {
		snprintf(name, sizeof(name), "fake%u", i);
		fv_device_add(&s);
	}
	atexit(world_ends);
}
