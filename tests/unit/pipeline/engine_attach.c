/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Claim: an attach succeeds only with a daemon that says who it is and hands
 * over memory that cannot shrink and has the size announced; every other
 * answer ends it with a text, and without a descriptor or mapping left. What
 * was mapped does not reach a child process.
 */
#include "tests/unit/pipeline/engine_rig.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#define FDS_MAX 1024

/* @inherited, if given, says which were here before: theirs are others' flags.
 */
static unsigned int open_fds(bool *ret_which, const bool *inherited)
{
	DIR *d = opendir("/proc/self/fd");
	struct dirent *e;
	unsigned int n = 0;

	assert_non_null(d);
	while ((e = readdir(d))) {
		int fd = (int)strtol(e->d_name, NULL, 10);

		if (*e->d_name == '.' || fd >= FDS_MAX)
			continue;
		n++;
		if (ret_which)
			ret_which[fd] = true;
		if (inherited && !inherited[fd])
			assert_true(fcntl(fd, F_GETFD) & FD_CLOEXEC);
	}
	closedir(d);
	return n;
}

static unsigned int count_maps(void)
{
	FILE *f = fopen("/proc/self/maps", "re");
	char line[512];
	unsigned int n = 0;

	assert_non_null(f);
	while (fgets(line, sizeof(line), f))
		n += strstr(line, "memfd:") != NULL;
	fclose(f);
	return n;
}

static void test_attach_passes_own_pidfd(void **state)
{
	bool inherited[FDS_MAX] = { false };
	struct rig g = { 0 };

	(void)state;
	(void)open_fds(inherited, NULL);
	rig_start(&g);
	assert_int_equal(g.attached, getpid());
	assert_true(kvs_engine_fd(g.engine) >= 0);
	assert_false(inherited[kvs_engine_fd(g.engine)]);
	(void)open_fds(NULL, inherited);
	rig_stop(&g);
}

static void test_refusal_keeps_errno_and_text(void **state)
{
	struct rig g = {
		.script = { .refuse = EPROTOTYPE,
			    .text = "pool.size holds 12 tokens" },
	};

	(void)state;
	rig_listen(&g);
	assert_int_equal(rig_attach(&g), -EPROTOTYPE);
	rig_answered(&g);
	assert_string_equal(g.err, "pool.size holds 12 tokens");
	assert_null(g.engine);
	rig_stop(&g);
}

static void test_refusal_out_of_range_is_a_protocol_error(void **state)
{
	struct rig g = { .script = { .refuse = -3, .text = "x" } };

	(void)state;
	rig_listen(&g);
	assert_int_equal(rig_attach(&g), -EPROTO);
	rig_answered(&g);
	rig_stop(&g);
}

static void test_bad_answers_are_refused_without_a_trace(void **state)
{
	static const struct {
		struct rig_script script;
		int ret;
		const char *text;
	} cases[] = {
		{ { .unsealed_status = true }, -EPROTO, "status page" },
		{ { .unsealed_pool = true }, -EPROTO, "sealed" },
		{ { .no_memfd = true }, -EPROTO, "pool 0" },
		{ { .say_size = RIG_POOL + 4096 }, -EPROTO, "pool 0" },
		{ { .say_size = RIG_POOL - 4096 }, -EPROTO, "pool 0" },
		{ { .say_size = UINT64_MAX }, -EPROTO, "pool 0" },
		{ { .say_slots = RIG_SLOTS + 512 }, -EPROTO, "status page" },
		{ { .say_slots = UINT32_MAX }, -EPROTO, "status page" },
		{ { .say_pools = 1 }, -EPROTO, "pools" },
		{ { .say_pools = 33 }, -EPROTO, "pools" },
		{ { .say_pools = UINT32_MAX }, -EPROTO, "pools" },
		{ { .cut = true }, -EPROTO, "malformed" },
		{ { .bad_magic = true }, -EPROTO, "malformed" },
		{ { .hang_up = true }, -ECONNRESET, "closed" },
	};

	(void)state;
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		struct rig g = { .script = cases[i].script };
		unsigned int fds, maps;

		rig_listen(&g);
		fds = open_fds(NULL, NULL);
		maps = count_maps();
		print_message("case %zu\n", i);
		assert_int_equal(rig_attach(&g), cases[i].ret);
		rig_answered(&g);
		assert_non_null(strstr(g.err, cases[i].text));
		assert_null(g.engine);
		/* The daemon's own end is one more. */
		assert_int_equal(open_fds(NULL, NULL), fds + (g.fd >= 0));
		assert_int_equal(count_maps(), maps);
		rig_stop(&g);
	}
}

static void test_nobody_there(void **state)
{
	struct rig g = { 0 };

	(void)state;
	rig_start(&g);
	kvs_engine_detach(g.engine);
	g.engine = NULL;
	close(g.listen_fd);
	assert_int_equal(rig_attach(&g), -ECONNREFUSED);
	assert_non_null(strstr(g.err, g.path));
	assert_int_equal(unlink(g.path), 0);
	assert_int_equal(rig_attach(&g), -ENOENT);
	g.listen_fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
	rig_stop(&g);
}

static void test_silent_daemon_times_out(void **state)
{
	struct rig g = { 0 };
	struct kvs_engine_opts o = {
		.size = sizeof(o),
		.layout = &g.layout,
		.node = -1,
		.timeout = 20000000,
	};
	struct kvs_engine *e = NULL;

	(void)state;
	rig_start(&g);
	/* The backlog takes the connection; nobody answers it. */
	o.socket = g.path;
	assert_int_equal(kvs_engine_attach(&o, &e, g.err, sizeof(g.err)),
			 -ETIMEDOUT);
	assert_null(e);
	rig_stop(&g);
}

static void test_bad_options_are_refused(void **state)
{
	struct rig g = { 0 };
	struct kvs_layer_buffer b = { KVS_BUFFER_K, 0, 0, 0 };
	struct kvs_layout bad = { .size = sizeof(bad),
				  .page_size = 16,
				  .dtype = KVS_DTYPE_BF16,
				  .n_buffers = 1,
				  .buffers = &b };
	struct kvs_engine_opts o = { .size = sizeof(o), .layout = &bad };
	char name[KVS_ENGINE_NAME + 1];
	struct kvs_engine *e = NULL;
	char err[128];

	(void)state;
	memset(name, 'x', sizeof(name) - 1);
	name[sizeof(name) - 1] = 0;
	assert_int_equal(kvs_engine_attach(&o, &e, err, sizeof(err)), -EINVAL);
	assert_non_null(strstr(err, "item_len"));
	b.item_len = 64;
	o.name = name;
	assert_int_equal(kvs_engine_attach(&o, &e, err, sizeof(err)), -EINVAL);
	o.name = NULL;
	o.pci = "0000:00:00.0-and-more";
	assert_int_equal(kvs_engine_attach(&o, &e, err, sizeof(err)), -EINVAL);
	o.pci = NULL;
	o.layout = NULL;
	assert_int_equal(kvs_engine_attach(&o, &e, err, sizeof(err)), -EINVAL);
	assert_non_null(strstr(err, "layout is missing"));
	o.size = 4;
	assert_int_equal(kvs_engine_attach(&o, &e, err, sizeof(err)), -EINVAL);
	assert_non_null(strstr(err, "size is 4, not"));
	assert_int_equal(kvs_engine_attach(NULL, &e, err, sizeof(err)),
			 -EINVAL);
	assert_null(e);
	kvs_engine_detach(NULL);
	(void)g;
}

static void test_a_child_inherits_no_mapping(void **state)
{
	struct rig g = { 0 };
	struct rig_room m;
	const void *aux;
	uint32_t len;
	unsigned char vec;
	int status;
	pid_t pid;

	(void)state;
	rig_start(&g);
	rig_admit(&g, &m, 100);
	rig_ready(&g, &m);
	assert_int_equal(kvs_engine_aux(g.engine, &m.h, 0, &aux, &len), 0);
	aux = (const void *)((uintptr_t)aux & ~4095ULL);
	assert_int_equal(mincore((void *)aux, 1, &vec), 0);
	pid = fork();
	assert_true(pid >= 0);
	if (!pid)
		_exit(mincore((void *)aux, 1, &vec) == -1 && errno == ENOMEM
			      ? 42
			      : 1);
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_true(WIFEXITED(status));
	assert_int_equal(WEXITSTATUS(status), 42);
	kvs_geometry_fini(&m.geo);
	rig_stop(&g);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_attach_passes_own_pidfd),
		cmocka_unit_test(test_refusal_keeps_errno_and_text),
		cmocka_unit_test(test_refusal_out_of_range_is_a_protocol_error),
		cmocka_unit_test(test_bad_answers_are_refused_without_a_trace),
		cmocka_unit_test(test_nobody_there),
		cmocka_unit_test(test_silent_daemon_times_out),
		cmocka_unit_test(test_bad_options_are_refused),
		cmocka_unit_test(test_a_child_inherits_no_mapping),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
