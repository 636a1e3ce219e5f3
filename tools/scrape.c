/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/scrape.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include "rdma/addr.h"

#define SCRAPE_MAX (1u << 20) /* bytes of an answer */
#define SCRAPE_SECONDS 5

static int scrape_connect(const char *address)
{
	const struct timeval tv = { .tv_sec = SCRAPE_SECONDS };
	struct kvs_addr a;
	char err[128];
	int fd, ret;

	if (kvs_addr_parse(address, false, &a, err, sizeof(err)) || !a.n)
		return -EINVAL;
	fd = socket(a.a[0].ss.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
	if (fd < 0)
		return -errno;
	(void)setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &tv, sizeof(tv));
	(void)setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &tv, sizeof(tv));
	if (!connect(fd, (const struct sockaddr *)&a.a[0].ss, a.a[0].len))
		return fd;
	ret = -errno;
	close(fd);
	return ret;
}

/* The number behind a name at the beginning of a line; -1: not there. */
static double number_of(const char *text, const char *name)
{
	size_t len = strlen(name);

	for (const char *p = text; p; p = strchr(p, '\n')) {
		p += *p == '\n';
		if (!strncmp(p, name, len) && p[len] == ' ')
			return strtod(p + len, NULL);
	}
	return -1;
}

int kvs_scrape(const char *address, struct kvs_scraped *ret)
{
	static const char ask[] = "GET /metrics HTTP/1.0\r\n"
				  "Host: localhost\r\n\r\n";
	char *buf = calloc(1, SCRAPE_MAX + 1);
	size_t len = 0;
	ssize_t n = 1;
	int fd;

	if (!buf)
		return -ENOMEM;
	fd = scrape_connect(address);
	if (fd < 0) {
		free(buf);
		return fd;
	}
	if (send(fd, ask, sizeof(ask) - 1, MSG_NOSIGNAL) !=
	    (ssize_t)sizeof(ask) - 1)
		n = -1;
	while (n > 0 && len < SCRAPE_MAX) {
		n = recv(fd, buf + len, SCRAPE_MAX - len, 0);
		if (n > 0)
			len += (size_t)n;
	}
	close(fd);
	buf[len] = '\0';
	ret->received = number_of(buf, "kvstage_received_bytes_total");
	ret->pool = number_of(buf, "kvstage_rooms_done_bytes_total");
	ret->asked = ret->received >= 0 && ret->pool >= 0;
	free(buf);
	return ret->asked ? 0 : -ENODATA;
}
