/* SPDX-License-Identifier: Apache-2.0 */
/* fio(1), beside which kvstage-bench disk measures. */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <jansson.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tools/bench_disk.h"

#define FIO_TEXT (1u << 20) /* bytes of its answer */
#define FIO_FILE "fio.bin"

/* Of its standard output; 0 or -errno, -ENOEXEC: it does not run here. */
static int run(char *const argv[], char *text, size_t len)
{
	int fd[2], status;
	size_t n = 0;
	ssize_t got;
	pid_t pid;

	if (pipe2(fd, O_CLOEXEC))
		return -errno;
	pid = fork();
	if (pid < 0) {
		close(fd[0]);
		close(fd[1]);
		return -errno;
	}
	if (!pid) {
		dup2(fd[1], STDOUT_FILENO);
		/* the same kind of memory as ours: huge pages if any */
		setenv("GLIBC_TUNABLES", "glibc.malloc.hugetlb=1", 1);
		execvp(argv[0], argv);
		_exit(127);
	}
	close(fd[1]);
	while (n + 1 < len) {
		got = read(fd[0], text + n, len - 1 - n);
		if (got < 0 && errno == EINTR)
			continue;
		if (got <= 0)
			break;
		n += (size_t)got;
	}
	text[n] = '\0';
	close(fd[0]);
	while (waitpid(pid, &status, 0) < 0 && errno == EINTR)
		continue;
	return WIFEXITED(status) && !WEXITSTATUS(status) ? 0 : -ENOEXEC;
}

/* Its notes may come before the object. */
static int parse(const char *text, bool read, double *ret_gbps)
{
	const char *start = strchr(text, '{');
	json_t *v = start ? json_loads(start, JSON_DISABLE_EOF_CHECK, NULL)
			  : NULL;
	json_t *job = json_array_get(json_object_get(v, "jobs"), 0);
	json_t *bw = json_object_get(
		json_object_get(job, read ? "read" : "write"), "bw_bytes");
	double rate = json_number_value(bw);

	json_decref(v);
	if (rate <= 0)
		return -EPROTO;
	*ret_gbps = rate / 1e9;
	return 0;
}

int bench_disk_fio(const struct bench_disk_args *a, const char *path, bool read,
		   double *ret_gbps)
{
	char file[4096], size[64], bs[64], depth[64];
	char *argv[] = {
		(char[]){ "fio" },
		(char[]){ "--name=kvstage" },
		(char[]){ "--ioengine=io_uring" },
		(char[]){ "--fixedbufs=1" },
		(char[]){ "--registerfiles=1" },
		(char[]){ "--direct=1" },
		(char[]){ "--thread=1" },
		(char[]){ "--output-format=json" },
		read ? (char[]){ "--rw=read" } : (char[]){ "--rw=write" },
		file,
		size,
		bs,
		depth,
		NULL,
	};
	char *text;
	int rc;

	snprintf(file, sizeof(file), "--filename=%s/" FIO_FILE, path);
	snprintf(size, sizeof(size), "--size=%" PRIu64, a->size);
	snprintf(bs, sizeof(bs), "--bs=%" PRIu64, a->bs);
	snprintf(depth, sizeof(depth), "--iodepth=%" PRIu64, a->depth);
	if (!read)
		unlink(strchr(file, '=') + 1);
	text = malloc(FIO_TEXT);
	if (!text)
		return -ENOMEM;
	rc = run(argv, text, FIO_TEXT);
	if (!rc)
		rc = parse(text, read, ret_gbps);
	if (rc)
		fprintf(stderr, "fio: %s: %.500s\n", strerror(-rc), text);
	free(text);
	return rc;
}
