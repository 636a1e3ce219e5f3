/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <netinet/in.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "lib/log.h"
#include "lib/units.h"
#include "rdma/addr.h"
#include "tools/daemon_listen.h"

static int kvs_listen_resolve(const char *setting, const char *address,
			      const char *unless, bool any,
			      struct kvs_addr *ret_addr, char *err,
			      size_t errlen)
{
	char why[256];
	unsigned int i;
	int ret;

	ret = kvs_addr_parse(address, true, ret_addr, why, sizeof(why));
	if (ret) {
		snprintf(err, errlen, "%s = \"%s\": %s", setting, address, why);
		return ret;
	}
	for (i = 0; i < ret_addr->n && !any; i++) {
		const struct sockaddr *sa =
			(const struct sockaddr *)&ret_addr->a[i].ss;

		if (!kvs_addr_is_loopback(sa)) {
			snprintf(err, errlen,
				 "%s = \"%s\": not a loopback address, and "
				 "whoever reached it would not be asked who "
				 "they are; allowed: 127.0.0.1:PORT, "
				 "[::1]:PORT, localhost:PORT%s%s",
				 setting, address,
				 unless ? "; any address with " : "",
				 unless ? unless : "");
			return -EINVAL;
		}
	}
	return 0;
}

int kvs_listen_check(const char *setting, const char *address,
		     const char *unless, bool any, char *err, size_t errlen)
{
	struct kvs_addr addr;

	return kvs_listen_resolve(setting, address, unless, any, &addr, err,
				  errlen);
}

static int kvs_listen_bind(const struct sockaddr *sa, socklen_t len,
			   int *ret_fd)
{
	int fd, one = 1, ret;

	fd = socket(sa->sa_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC,
		    0);
	if (fd < 0)
		return -errno;
	if (setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one)) ||
	    bind(fd, sa, len) || listen(fd, SOMAXCONN)) {
		ret = -errno;
		close(fd);
		return ret;
	}
	*ret_fd = fd;
	return 0;
}

int kvs_listen_tcp(const char *setting, const char *address, int *ret_fd,
		   char *ret_bound, unsigned int *ret_port, char *err,
		   size_t errlen)
{
	union {
		struct sockaddr sa;
		struct sockaddr_in in;
		struct sockaddr_in6 in6;
	} u;
	socklen_t len = sizeof(u);
	struct kvs_addr addr;
	char text[KVS_ADDR_STR];
	unsigned int i;
	int fd = -1, ret;

	memset(&u, 0, sizeof(u));
	ret = kvs_listen_resolve(setting, address, NULL, false, &addr, err,
				 errlen);
	if (ret)
		return ret;
	/* of a name's addresses, one that exists here is enough */
	ret = -EADDRNOTAVAIL;
	for (i = 0; i < addr.n && ret; i++)
		ret = kvs_listen_bind((const struct sockaddr *)&addr.a[i].ss,
				      addr.a[i].len, &fd);
	if (!ret && getsockname(fd, &u.sa, &len)) {
		ret = -errno;
		close(fd);
	}
	if (ret) {
		snprintf(err, errlen, "%s = \"%s\": cannot listen: %s", setting,
			 address, strerror(-ret));
		return ret;
	}
	kvs_addr_format(&u.sa, len, text);
	snprintf(ret_bound, KVS_LISTEN_STR, "%s", text);
	*ret_port = ntohs(u.sa.sa_family == AF_INET6 ? u.in6.sin6_port
						     : u.in.sin_port);
	*ret_fd = fd;
	return 0;
}

/* @path fits: the settings' check has seen to that. */
static int kvs_unix_address(const char *path, struct sockaddr_un *ret_sun)
{
	size_t n = strlen(path);

	memset(ret_sun, 0, sizeof(*ret_sun));
	ret_sun->sun_family = AF_UNIX;
	if (n >= sizeof(ret_sun->sun_path))
		return -ENAMETOOLONG;
	memcpy(ret_sun->sun_path, path, n);
	return 0;
}

/* Does somebody accept there? */
static bool kvs_unix_is_live(const char *path)
{
	struct sockaddr_un sun;
	bool live;
	int fd;

	if (kvs_unix_address(path, &sun))
		return false;
	/* a listener with a full backlog is alive: EAGAIN */
	fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (fd < 0)
		return true;
	live = !connect(fd, (struct sockaddr *)&sun, sizeof(sun)) ||
	       (errno != ECONNREFUSED && errno != ENOENT &&
		errno != EPROTOTYPE);
	if (!live && errno == EPROTOTYPE) {
		close(fd);
		fd = socket(AF_UNIX,
			    SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
		live = fd < 0 ||
		       !connect(fd, (struct sockaddr *)&sun, sizeof(sun)) ||
		       (errno != ECONNREFUSED && errno != ENOENT);
	}
	if (fd >= 0)
		close(fd);
	return live;
}

static int kvs_lock_name(const char *path, char *buf, size_t len)
{
	int n = snprintf(buf, len, "%s.lock", path);

	return n < 0 || (size_t)n >= len ? -ENAMETOOLONG : 0;
}

/* Lock the file that is at @name now: its last owner may just remove it. */
static int kvs_lock_take(const char *name, int *ret_fd)
{
	for (;;) {
		struct stat mine = { 0 }, there;
		int ret = 0, fd;

		fd = open(name, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW,
			  0600);
		if (fd < 0)
			return -errno;
		if (flock(fd, LOCK_EX | LOCK_NB) || fstat(fd, &mine))
			ret = -errno;
		if (!ret && !stat(name, &there) &&
		    mine.st_dev == there.st_dev &&
		    mine.st_ino == there.st_ino) {
			*ret_fd = fd;
			return 0;
		}
		close(fd);
		if (ret)
			return ret;
	}
}

/*
 * The folder of a socket, when only its last component is missing: /run is
 * empty after every boot, and nothing else may have filled it.
 */
static int kvs_unix_folder(const char *setting, const char *path, char *err,
			   size_t errlen)
{
	const char *slash = strrchr(path, '/');
	char folder[PATH_MAX];
	mode_t mask;
	int ret = 0;

	if (!slash || slash == path || (size_t)(slash - path) >= sizeof(folder))
		return 0;
	snprintf(folder, sizeof(folder), "%.*s", (int)(slash - path), path);
	mask = umask(0022);
	if (mkdir(folder, 0755))
		ret = -errno;
	umask(mask);
	if (!ret) {
		kvs_log_notice("%s: made the folder %s", setting, folder);
		return 0;
	}
	/* there, or further up something is missing: the lock file tells */
	if (ret == -EEXIST || ret == -ENOENT || ret == -ENOTDIR ||
	    !access(folder, F_OK))
		return 0;
	snprintf(err, errlen,
		 "%s = \"%s\": cannot make the folder %s: %s; make it, or "
		 "choose another path",
		 setting, path, folder, strerror(-ret));
	return ret;
}

int kvs_unix_claim(const char *setting, const char *path, int *ret_lock,
		   char *err, size_t errlen)
{
	char name[PATH_MAX];
	struct stat st;
	int fd = -1, ret;

	ret = kvs_unix_folder(setting, path, err, errlen);
	if (ret)
		return ret;
	ret = kvs_lock_name(path, name, sizeof(name));
	if (!ret)
		ret = kvs_lock_take(name, &fd);
	if (ret == -EWOULDBLOCK) {
		snprintf(err, errlen,
			 "%s = \"%s\": another kvstaged has it (%s is locked); "
			 "stop that one or choose another path",
			 setting, path, name);
		return -EADDRINUSE;
	}
	if (ret) {
		snprintf(err, errlen,
			 "%s = \"%s\": cannot make %s: %s; the folder must "
			 "exist and be ours to write",
			 setting, path, name, strerror(-ret));
		return ret;
	}
	if (lstat(path, &st)) {
		ret = errno == ENOENT ? 0 : -errno;
		if (ret)
			snprintf(err, errlen, "%s = \"%s\": %s", setting, path,
				 strerror(-ret));
	} else if (!S_ISSOCK(st.st_mode)) {
		ret = -EEXIST;
		snprintf(err, errlen,
			 "%s = \"%s\": there is something that is not a "
			 "socket; remove it or choose another path",
			 setting, path);
	} else if (kvs_unix_is_live(path)) {
		ret = -EADDRINUSE;
		snprintf(err, errlen,
			 "%s = \"%s\": another process listens there; stop it "
			 "or choose another path",
			 setting, path);
	} else if (unlink(path) && errno != ENOENT) {
		ret = -errno;
		snprintf(err, errlen,
			 "%s = \"%s\": cannot remove a stale socket: %s",
			 setting, path, strerror(-ret));
	}
	if (ret) {
		/* the file goes while we have it, or it would stay behind */
		unlink(name);
		close(fd);
		return ret;
	}
	*ret_lock = fd;
	return 0;
}

int kvs_unix_listen(const char *setting, const char *path, int *ret_fd,
		    char *err, size_t errlen)
{
	struct sockaddr_un sun;
	mode_t mask;
	int fd = -1, ret;

	ret = kvs_unix_address(path, &sun);
	if (!ret) {
		mask = umask(0177);
		ret = kvs_listen_bind((struct sockaddr *)&sun, sizeof(sun),
				      &fd);
		umask(mask);
	}
	if (ret) {
		snprintf(err, errlen, "%s = \"%s\": cannot listen: %s", setting,
			 path, strerror(-ret));
		return ret;
	}
	*ret_fd = fd;
	return 0;
}

void kvs_unix_release(const char *path, int lock)
{
	char name[PATH_MAX];

	if (lock < 0)
		return;
	unlink(path);
	if (!kvs_lock_name(path, name, sizeof(name)))
		unlink(name);
	close(lock);
}

/* Port in the file at @path, 0 when it is empty; -EEXIST: it is not ours. */
static int kvs_port_file_read(const char *path)
{
	char text[8];
	struct stat st;
	unsigned int port = 0;
	ssize_t n, i;
	int fd, ret;

	/* lstat first: to open a device may do something */
	if (lstat(path, &st))
		return -errno;
	if (!S_ISREG(st.st_mode))
		return -EEXIST;
	fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
	if (fd < 0)
		return errno == ELOOP ? -EEXIST : -errno;
	n = read(fd, text, sizeof(text));
	ret = n < 0 ? -errno : 0;
	close(fd);
	if (ret || !n)
		return ret;
	for (i = 0; i < n && text[i] >= '0' && text[i] <= '9'; i++)
		port = port * 10 + (unsigned int)(text[i] - '0');
	/* five digits at most, then the newline, then nothing */
	if (!i || i > 5 || n != i + 1 || text[i] != '\n' || port > 65535)
		return -EEXIST;
	return (int)port;
}

int kvs_port_file_check(const char *setting, const char *path, char *err,
			size_t errlen)
{
	int ret = kvs_port_file_read(path);

	if (ret >= 0 || ret == -ENOENT)
		return 0;
	if (ret == -EEXIST)
		snprintf(err, errlen,
			 "%s = \"%s\": there is something that is not a port "
			 "file of ours; remove it or choose another path",
			 setting, path);
	else
		snprintf(err, errlen, "%s = \"%s\": cannot look at it: %s",
			 setting, path, strerror(-ret));
	return ret;
}

int kvs_port_file_write(const char *setting, const char *path,
			unsigned int port, char *err, size_t errlen)
{
	char name[PATH_MAX];
	int fd = -1, n, ret = 0;

	ret = kvs_port_file_check(setting, path, err, errlen);
	if (ret)
		return ret;
	n = snprintf(name, sizeof(name), "%s.new", path);
	if (n < 0 || (size_t)n >= sizeof(name))
		ret = -ENAMETOOLONG;
	if (!ret) {
		/* half a one of a crash may go, nothing else */
		if (kvs_port_file_read(name) >= 0)
			unlink(name);
		fd = open(name,
			  O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW,
			  0644);
		if (fd < 0 || dprintf(fd, "%u\n", port) < 0)
			ret = -errno;
		if (fd >= 0)
			close(fd);
	}
	/* who waits for the file never sees half of it */
	if (!ret && rename(name, path))
		ret = -errno;
	if (ret)
		snprintf(err, errlen, "%s = \"%s\": cannot write it: %s",
			 setting, path, strerror(-ret));
	return ret;
}

void kvs_port_file_remove(const char *path, const char *bound)
{
	const char *colon = strrchr(bound, ':');
	int port = kvs_port_file_read(path);
	uint64_t ours;

	if (colon && !kvs_parse_u64(colon + 1, &ours) && port > 0 &&
	    (uint64_t)port == ours)
		unlink(path);
}
