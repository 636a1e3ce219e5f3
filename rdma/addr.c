/* SPDX-License-Identifier: Apache-2.0 */
#include "rdma/addr.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netdb.h>
#include <net/if.h>
#include <netinet/in.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#define HOST_MAX 256 /* bytes with the NUL; a DNS name has at most 253 */

__attribute__((format(printf, 5, 6))) static int
complain(char *err, size_t errlen, int code, const char *s, const char *fmt,
	 ...)
{
	char what[128];
	va_list ap;

	if (!err || !errlen)
		return code;
	va_start(ap, fmt);
	vsnprintf(what, sizeof(what), fmt, ap);
	va_end(ap);
	snprintf(err, errlen, "address \"%.200s\": %s", s, what);
	return code;
}

/* Digits only: strtol would take "+7", " 7" and "0x7". */
static int parse_port(const char *p)
{
	unsigned int v = 0;

	if (!*p || strlen(p) > 5)
		return -EINVAL;
	for (; *p; p++) {
		if (*p < '0' || *p > '9')
			return -EINVAL;
		v = v * 10 + (unsigned int)(*p - '0');
	}
	return v > 65535 ? -EINVAL : (int)v;
}

static void add(struct kvs_addr *a, const void *sa, socklen_t len)
{
	if (a->n == KVS_ADDR_MAX || len > sizeof(a->a[0].ss))
		return;
	memset(&a->a[a->n].ss, 0, sizeof(a->a[0].ss));
	memcpy(&a->a[a->n].ss, sa, len);
	a->a[a->n++].len = len;
}

/*
 * The IPv6 wildcard first: listen() makes it take IPv4 as well, so one socket
 * serves both; the IPv4 one is for hosts without IPv6.
 */
static void every_interface(struct kvs_addr *a, int port)
{
	struct sockaddr_in6 s6 = {
		.sin6_family = AF_INET6,
		.sin6_port = htons((uint16_t)port),
		.sin6_addr = IN6ADDR_ANY_INIT,
	};
	struct sockaddr_in s4 = {
		.sin_family = AF_INET,
		.sin_port = htons((uint16_t)port),
		.sin_addr.s_addr = htonl(INADDR_ANY),
	};

	add(a, &s6, sizeof(s6));
	add(a, &s4, sizeof(s4));
}

/* Split into @host and the start of the port; brackets are taken off. */
static const char *split(const char *s, char host[HOST_MAX], bool *ret_v6,
			 const char **ret_port)
{
	const char *h = s;
	const char *end;

	*ret_v6 = s[0] == '[';
	if (*ret_v6) {
		h = s + 1;
		end = strchr(s, ']');
		if (!end)
			return "no closing ]";
		if (end[1] != ':')
			return "no port after ]";
		*ret_port = end + 2;
	} else {
		end = strrchr(s, ':');
		if (!end)
			return "no port";
		if (strchr(s, ':') != end)
			return "write an IPv6 address in brackets, "
			       "[addr]:port";
		*ret_port = end + 1;
	}
	if (end == h)
		return "no host";
	if ((size_t)(end - h) >= HOST_MAX)
		return "host too long";
	memcpy(host, h, (size_t)(end - h));
	host[end - h] = '\0';
	for (h = host; *h; h++)
		if (*h <= ' ' || *h == 0x7f || *h == '[' || *h == ']')
			return "bad character in host";
	return NULL;
}

static bool is_ip6(const char *host)
{
	char ip[INET6_ADDRSTRLEN];
	size_t n = strcspn(host, "%");
	struct in6_addr a;

	if (n >= sizeof(ip))
		return false;
	memcpy(ip, host, n);
	ip[n] = '\0';
	return inet_pton(AF_INET6, ip, &a) == 1;
}

int kvs_addr_parse(const char *s, bool listen, struct kvs_addr *ret, char *err,
		   size_t errlen)
{
	struct addrinfo hints = { .ai_socktype = SOCK_STREAM };
	struct kvs_addr out = { 0 };
	struct addrinfo *res = NULL;
	struct addrinfo *ai;
	char host[HOST_MAX];
	char service[8];
	const char *why;
	const char *p = NULL;
	bool v6;
	int port;
	int rc;

	why = split(s, host, &v6, &p);
	if (why)
		return complain(err, errlen, -EINVAL, s, "%s", why);
	port = parse_port(p);
	if (port < 0)
		return complain(err, errlen, -EINVAL, s,
				"port must be a number from %d to 65535",
				listen ? 0 : 1);
	if (!port && !listen)
		return complain(err, errlen, -EINVAL, s,
				"port 0 is for listening only");
	if (v6 && !is_ip6(host))
		return complain(err, errlen, -EINVAL, s,
				"not an IPv6 address in the brackets");
	if (!v6 && !strcmp(host, "*")) {
		if (!listen)
			return complain(err, errlen, -EINVAL, s,
					"* is for listening only");
		every_interface(&out, port);
		*ret = out;
		return 0;
	}

	hints.ai_family = v6 ? AF_INET6 : AF_UNSPEC;
	hints.ai_flags = AI_NUMERICSERV | (listen ? AI_PASSIVE : 0) |
			 (v6 ? AI_NUMERICHOST : 0);
	snprintf(service, sizeof(service), "%u", (unsigned int)port & 0xffff);
	rc = getaddrinfo(host, service, &hints, &res);
	if (rc == EAI_NONAME || rc == EAI_NODATA || rc == EAI_ADDRFAMILY)
		return complain(err, errlen, -ENOENT, s,
				v6 ? "unknown address or interface"
				   : "unknown host name");
	if (rc == EAI_MEMORY)
		return complain(err, errlen, -ENOMEM, s, "out of memory");
	if (rc)
		return complain(err, errlen, -EAGAIN, s, "resolver: %s",
				rc == EAI_SYSTEM ? strerror(errno)
						 : gai_strerror(rc));
	for (ai = res; ai; ai = ai->ai_next)
		if (ai->ai_family == AF_INET || ai->ai_family == AF_INET6)
			add(&out, ai->ai_addr, ai->ai_addrlen);
	freeaddrinfo(res);
	if (!out.n)
		return complain(err, errlen, -ENOENT, s, "no IP address");
	*ret = out;
	return 0;
}

const char *kvs_addr_format(const struct sockaddr *sa, socklen_t len, char *buf)
{
	const struct sockaddr_in6 *s6 = (const void *)sa;
	const struct sockaddr_in *s4 = (const void *)sa;
	char ip[INET6_ADDRSTRLEN];
	char scope[IF_NAMESIZE + 1] = "";

	if (len >= sizeof(*s4) && sa->sa_family == AF_INET) {
		inet_ntop(AF_INET, &s4->sin_addr, ip, sizeof(ip));
		snprintf(buf, KVS_ADDR_STR, "%s:%u", ip, ntohs(s4->sin_port));
	} else if (len >= sizeof(*s6) && sa->sa_family == AF_INET6 &&
		   IN6_IS_ADDR_V4MAPPED(&s6->sin6_addr)) {
		/* An IPv4 peer of a dual listener: the name it is known by. */
		inet_ntop(AF_INET, &s6->sin6_addr.s6_addr[12], ip, sizeof(ip));
		snprintf(buf, KVS_ADDR_STR, "%s:%u", ip, ntohs(s6->sin6_port));
	} else if (len >= sizeof(*s6) && sa->sa_family == AF_INET6) {
		inet_ntop(AF_INET6, &s6->sin6_addr, ip, sizeof(ip));
		scope[0] = '%';
		if (!s6->sin6_scope_id)
			scope[0] = '\0';
		else if (!if_indextoname(s6->sin6_scope_id, scope + 1))
			snprintf(scope + 1, sizeof(scope) - 1, "%u",
				 s6->sin6_scope_id);
		snprintf(buf, KVS_ADDR_STR, "[%s%s]:%u", ip, scope,
			 ntohs(s6->sin6_port));
	} else if (len >= sizeof(sa_family_t) && sa->sa_family == AF_UNIX) {
		snprintf(buf, KVS_ADDR_STR, "unix");
	} else {
		snprintf(buf, KVS_ADDR_STR, "?");
	}
	return buf;
}

bool kvs_addr_is_loopback(const struct sockaddr *sa)
{
	const struct sockaddr_in6 *s6 = (const void *)sa;
	const struct sockaddr_in *s4 = (const void *)sa;

	if (sa->sa_family == AF_INET)
		return ntohl(s4->sin_addr.s_addr) >> 24 == 127;
	if (sa->sa_family != AF_INET6)
		return false;
	if (IN6_IS_ADDR_V4MAPPED(&s6->sin6_addr))
		return s6->sin6_addr.s6_addr[12] == 127;
	return IN6_IS_ADDR_LOOPBACK(&s6->sin6_addr);
}

bool kvs_addr_is_wildcard(const struct sockaddr *sa)
{
	const struct sockaddr_in6 *s6 = (const void *)sa;
	const struct sockaddr_in *s4 = (const void *)sa;
	static const unsigned char zero[4];

	if (sa->sa_family == AF_INET)
		return s4->sin_addr.s_addr == htonl(INADDR_ANY);
	if (sa->sa_family != AF_INET6)
		return false;
	if (IN6_IS_ADDR_V4MAPPED(&s6->sin6_addr))
		return !memcmp(&s6->sin6_addr.s6_addr[12], zero, 4);
	return IN6_IS_ADDR_UNSPECIFIED(&s6->sin6_addr);
}
