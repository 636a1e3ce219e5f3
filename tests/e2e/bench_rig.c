/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/e2e/bench_rig.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

const char *program;
char out[TEXT_MAX];
char err[TEXT_MAX];

void slurp(int fd, char *buf)
{
	size_t n = 0;
	ssize_t r;

	assert_int_equal(lseek(fd, 0, SEEK_SET), 0);
	while ((r = read(fd, buf + n, TEXT_MAX - 1 - n)) > 0)
		n += (size_t)r;
	assert_int_equal(r, 0);
	buf[n] = '\0';
	close(fd);
}

int run(const char *args)
{
	int o = memfd_create("out", MFD_CLOEXEC);
	int e = memfd_create("err", MFD_CLOEXEC);
	char words[1024], *save = NULL;
	char *argv[ARGS_MAX + 2] = { strdup(program) };
	int n = 1, status;
	pid_t pid;

	assert_true(o >= 0 && e >= 0 && argv[0]);
	snprintf(words, sizeof(words), "%s", args);
	for (char *w = strtok_r(words, " ", &save); w;
	     w = strtok_r(NULL, " ", &save)) {
		assert_true(n <= ARGS_MAX);
		argv[n++] = w;
	}
	pid = fork();
	assert_true(pid >= 0);
	if (!pid) {
		dup2(o, STDOUT_FILENO);
		dup2(e, STDERR_FILENO);
		execv(argv[0], argv);
		_exit(127);
	}
	while (waitpid(pid, &status, 0) < 0)
		assert_int_equal(errno, EINTR);
	free(argv[0]);
	slurp(o, out);
	slurp(e, err);
	if (!WIFEXITED(status) || getenv("BENCH_TEST_SHOW"))
		print_message("%s\n%s\n", out, err);
	assert_true(WIFEXITED(status));
	return WEXITSTATUS(status);
}

size_t parse(json_t *v[LINES_MAX])
{
	char *save = NULL;
	json_error_t why;
	size_t n = 0;

	for (char *l = strtok_r(out, "\n", &save); l;
	     l = strtok_r(NULL, "\n", &save)) {
		assert_true(n < LINES_MAX);
		v[n] = json_loads(l, JSON_REJECT_DUPLICATES, &why);
		if (!v[n])
			print_message("%s: %s\n", l, why.text);
		assert_non_null(v[n]);
		assert_true(json_is_object(v[n]));
		n++;
	}
	return n;
}

double number(const json_t *v, const char *key)
{
	const json_t *x = json_object_get(v, key);

	if (!json_is_number(x))
		print_message("no number %s\n", key);
	assert_true(json_is_number(x));
	return json_number_value(x);
}

const char *text(const json_t *v, const char *key)
{
	const char *s = json_string_value(json_object_get(v, key));

	assert_non_null(s);
	return s;
}
