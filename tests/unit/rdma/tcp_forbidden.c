/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Claims: where io_uring is forbidden (EPERM, as by a container's seccomp
 * profile) or missing (ENOSYS), or only its enter or register call is, "auto"
 * falls back to plain sockets, which work; "uring" fails with a message that
 * names the call, the errno text and both possible causes; nothing crashes
 * (axboe/liburing#1384, #1078, moby/moby#39415). Options out of range are
 * refused by name.
 */
#include "tests/unit/rdma/rig.h"

#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "rdma/verbs.h"
#include "tests/unit/pinned/sandbox.h"

enum {
	CHILD_OK = 0,
	CHILD_NO_SECCOMP = 77,
	CHILD_BAD_RC = 1,
	CHILD_BAD_TEXT = 2,
	CHILD_NO_AUTO = 3,
	CHILD_BAD_ENGINE = 4,
	CHILD_BAD_POLL = 5,
};

static int child(int nr, int err, const char *call)
{
	struct kvs_transport_opts o = { .engine = "uring" };
	struct kvs_transport *t;
	char text[512] = "";
	int rc;

	if (sandbox_try_deny(nr, err))
		return CHILD_NO_SECCOMP;
	rc = kvs_tcp_create(&o, &t, text, sizeof(text));
	printf("%d: %s\n", rc, text);
	fflush(stdout);
	if (rc != -EOPNOTSUPP)
		return CHILD_BAD_RC;
	if (!strstr(text, "this build has none") &&
	    (!strstr(text, call) || !strstr(text, strerror(err)) ||
	     !strstr(text, "seccomp") ||
	     !strstr(text, "kernel.io_uring_disabled") ||
	     !strstr(text, "kernel does not have it")))
		return CHILD_BAD_TEXT;
	o.engine = "auto";
	if (kvs_tcp_create(&o, &t, text, sizeof(text)) || *text)
		return CHILD_NO_AUTO;
	if (strcmp(kvs_transport_name(t), "tcp/sock"))
		return CHILD_BAD_ENGINE;
	kvs_transport_wake(t);
	if (kvs_transport_poll(t, 1000000000) < 0)
		return CHILD_BAD_POLL;
	kvs_transport_destroy(t);
	return CHILD_OK;
}

static void try(int nr, int err, const char *call)
{
	int status;
	pid_t pid;

	fflush(stdout);
	pid = fork();
	assert_true(pid >= 0);
	if (!pid)
		_exit(child(nr, err, call));
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_true(WIFEXITED(status));
	if (WEXITSTATUS(status) == CHILD_NO_SECCOMP) {
		printf("skip: no seccomp filters here\n");
		skip();
	}
	assert_int_equal(WEXITSTATUS(status), CHILD_OK);
}

static void setup_eperm(void **state)
{
	(void)state;
	try(SYS_io_uring_setup, EPERM, "io_uring_setup");
}

static void setup_enosys(void **state)
{
	(void)state;
	try(SYS_io_uring_setup, ENOSYS, "io_uring_setup");
}

static void enter_eperm(void **state)
{
	(void)state;
	try(SYS_io_uring_enter, EPERM, "io_uring_enter");
}

static void register_eperm(void **state)
{
	(void)state;
	try(SYS_io_uring_register, EPERM, "io_uring_register");
}

static void bad_options(void **state)
{
	static const struct {
		struct kvs_transport_opts o;
		const char *text;
	} t[] = {
		{ { .engine = "dpdk" }, "\"dpdk\"" },
		{ { .engine = "" }, "allowed auto, uring, sock" },
		{ { .engine = "sock", .frame_max = 63 }, "frame_max 63" },
		{ { .engine = "sock", .frame_max = 1 << 20 }, "64 to 65536" },
		{ { .engine = "sock", .rcvbuf = -1 }, "buffer" },
	};
	struct kvs_transport *tr;
	char text[128];
	size_t i;

	(void)state;
	for (i = 0; i < sizeof(t) / sizeof(t[0]); i++) {
		text[0] = '\0';
		assert_int_equal(kvs_tcp_create(&t[i].o, &tr, text,
						sizeof(text)),
				 -EINVAL);
		assert_non_null(strstr(text, t[i].text));
	}
	assert_int_equal(kvs_tcp_create(&t[0].o, &tr, NULL, 0), -EINVAL);
}

static void defaults(void **state)
{
	struct kvs_transport *t;
	char text[256] = "";
	int rc;

	(void)state;
	assert_int_equal(kvs_tcp_create(NULL, &t, text, sizeof(text)), 0);
	assert_string_equal(text, "");
	printf("auto: %s\n", kvs_transport_name(t));
	kvs_transport_destroy(t);
	kvs_transport_destroy(NULL);
	/* not built, or nothing to use: either way it says so */
	rc = kvs_verbs_create(NULL, NULL, &t, text, sizeof(text));
	if (!rc) {
		kvs_transport_destroy(t);
		return;
	}
	assert_true(rc == -EOPNOTSUPP || rc == -ENODEV);
	assert_non_null(strstr(text, "verbs"));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(setup_eperm), cmocka_unit_test(setup_enosys),
		cmocka_unit_test(enter_eperm), cmocka_unit_test(register_eperm),
		cmocka_unit_test(bad_options), cmocka_unit_test(defaults),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
