/* SPDX-License-Identifier: Apache-2.0 */
#include "lib/random.h"

#include <errno.h>
#include <sys/random.h>

static int (*source)(void *arg, void *buf, size_t len);
static void *source_arg;

static int from_kernel(unsigned char *p, size_t len)
{
	ssize_t n;

	while (len) {
		n = getrandom(p, len, 0);
		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			return -errno;
		p += n;
		len -= (size_t)n;
	}
	return 0;
}

int kvs_random_fill(void *buf, size_t len)
{
	return source ? source(source_arg, buf, len) : from_kernel(buf, len);
}

int kvs_random_id(uint64_t *ret)
{
	int r;

	do {
		r = kvs_random_fill(ret, sizeof(*ret));
	} while (!r && !*ret);
	return r;
}

void kvs_random_use(int (*fill)(void *arg, void *buf, size_t len), void *arg)
{
	source = fill;
	source_arg = arg;
}
