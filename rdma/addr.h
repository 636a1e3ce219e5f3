/* SPDX-License-Identifier: Apache-2.0 */
/*
 * DOC: addr
 *
 * Addresses as people write them: "127.0.0.1:7000", "[::1]:7000",
 * "[fe80::1%eth0]:7000", "localhost:7000", "*:7000" (every interface).
 * A bare IPv6 address ("::1"), a missing or bad port and an empty host are
 * refused. Port 0 asks the kernel for one (listen only).
 */
#ifndef KVS_RDMA_ADDR_H
#define KVS_RDMA_ADDR_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/socket.h>

#define KVS_ADDR_MAX 8 /* resolved addresses kept, in the resolver's order */
#define KVS_ADDR_STR 80

struct kvs_addr {
	unsigned int n;
	struct {
		struct sockaddr_storage ss;
		socklen_t len;
	} a[KVS_ADDR_MAX];
};

/**
 * kvs_addr_parse() - text to socket addresses
 * @s: text
 * @listen: true: for bind (AI_PASSIVE); port 0 allowed
 * @ret: result
 * @err: buffer for a message that names the string and what is wrong
 * @errlen: its size
 *
 * Context: may block in the resolver.
 * Return: 0; -EINVAL form; -ENOENT name unknown; -EAGAIN resolver failed.
 */
int kvs_addr_parse(const char *s, bool listen, struct kvs_addr *ret, char *err,
		   size_t errlen);
/* "127.0.0.1:7000" / "[::1]:7000"; returns buf (KVS_ADDR_STR bytes). */
const char *kvs_addr_format(const struct sockaddr *sa, socklen_t len,
			    char *buf);
/* 127.0.0.0/8, ::1, or a v4-mapped one of these. */
bool kvs_addr_is_loopback(const struct sockaddr *sa);
/* 0.0.0.0 or :: */
bool kvs_addr_is_wildcard(const struct sockaddr *sa);

#endif /* KVS_RDMA_ADDR_H */
