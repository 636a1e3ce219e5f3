/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#include "lib/clock.h"
#include "lib/units.h"
#include "tools/notify.h"

#define KVS_NOTIFY_SEND_SECONDS 5

/* 1 when there is a socket to send to, 0 when not. */
static int kvs_notify_address(struct sockaddr_un *sun, socklen_t *ret_len)
{
	const char *path = getenv("NOTIFY_SOCKET");
	size_t n;

	if (!path || !*path)
		return 0;
	n = strlen(path);
	if ((path[0] != '/' && path[0] != '@') || n < 2 ||
	    n >= sizeof(sun->sun_path))
		return -EINVAL;
	memset(sun, 0, sizeof(*sun));
	sun->sun_family = AF_UNIX;
	memcpy(sun->sun_path, path, n);
	/* '@' stands for the abstract namespace, whose names have no NUL */
	if (path[0] == '@')
		sun->sun_path[0] = '\0';
	*ret_len = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + n +
			       (path[0] == '/'));
	return 1;
}

int kvs_notify(const char *fmt, ...)
{
	struct timeval tv = { .tv_sec = KVS_NOTIFY_SEND_SECONDS };
	struct sockaddr_un sun;
	socklen_t len = 0;
	char text[1024];
	va_list ap;
	int fd, n, ret;

	ret = kvs_notify_address(&sun, &len);
	if (ret <= 0)
		return ret;
	va_start(ap, fmt);
	n = vsnprintf(text, sizeof(text), fmt, ap);
	va_end(ap);
	if (n < 0 || n >= (int)sizeof(text))
		return -EMSGSIZE;
	fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	if (fd < 0)
		return -errno;
	ret = 0;
	/* a manager that hangs must not hang us for good */
	if (setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &tv, sizeof(tv)) ||
	    sendto(fd, text, (size_t)n, MSG_NOSIGNAL, (struct sockaddr *)&sun,
		   len) < 0)
		ret = -errno;
	close(fd);
	return ret;
}

uint64_t kvs_notify_watchdog(void)
{
	const char *usec = getenv("WATCHDOG_USEC");
	const char *pid = getenv("WATCHDOG_PID");
	uint64_t v;

	if (!usec || kvs_parse_u64(usec, &v) || !v ||
	    v > UINT64_MAX / KVS_NSEC_PER_USEC)
		return 0;
	if (pid) {
		uint64_t p;

		if (kvs_parse_u64(pid, &p) || p != (uint64_t)getpid())
			return 0;
	}
	return v * KVS_NSEC_PER_USEC;
}
