/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <stddef.h>

#include "lib/assert.h"
#include "lib/err.h"

/*
 * Every errno value of Linux. Aliases (EWOULDBLOCK, EDEADLOCK, ENOTSUP) share
 * a number with an entry below and so print as that entry.
 */
#define KVS_ERRNO_LIST(X)  \
	X(EPERM)           \
	X(ENOENT)          \
	X(ESRCH)           \
	X(EINTR)           \
	X(EIO)             \
	X(ENXIO)           \
	X(E2BIG)           \
	X(ENOEXEC)         \
	X(EBADF)           \
	X(ECHILD)          \
	X(EAGAIN)          \
	X(ENOMEM)          \
	X(EACCES)          \
	X(EFAULT)          \
	X(ENOTBLK)         \
	X(EBUSY)           \
	X(EEXIST)          \
	X(EXDEV)           \
	X(ENODEV)          \
	X(ENOTDIR)         \
	X(EISDIR)          \
	X(EINVAL)          \
	X(ENFILE)          \
	X(EMFILE)          \
	X(ENOTTY)          \
	X(ETXTBSY)         \
	X(EFBIG)           \
	X(ENOSPC)          \
	X(ESPIPE)          \
	X(EROFS)           \
	X(EMLINK)          \
	X(EPIPE)           \
	X(EDOM)            \
	X(ERANGE)          \
	X(EDEADLK)         \
	X(ENAMETOOLONG)    \
	X(ENOLCK)          \
	X(ENOSYS)          \
	X(ENOTEMPTY)       \
	X(ELOOP)           \
	X(ENOMSG)          \
	X(EIDRM)           \
	X(ECHRNG)          \
	X(EL2NSYNC)        \
	X(EL3HLT)          \
	X(EL3RST)          \
	X(ELNRNG)          \
	X(EUNATCH)         \
	X(ENOCSI)          \
	X(EL2HLT)          \
	X(EBADE)           \
	X(EBADR)           \
	X(EXFULL)          \
	X(ENOANO)          \
	X(EBADRQC)         \
	X(EBADSLT)         \
	X(EBFONT)          \
	X(ENOSTR)          \
	X(ENODATA)         \
	X(ETIME)           \
	X(ENOSR)           \
	X(ENONET)          \
	X(ENOPKG)          \
	X(EREMOTE)         \
	X(ENOLINK)         \
	X(EADV)            \
	X(ESRMNT)          \
	X(ECOMM)           \
	X(EPROTO)          \
	X(EMULTIHOP)       \
	X(EDOTDOT)         \
	X(EBADMSG)         \
	X(EOVERFLOW)       \
	X(ENOTUNIQ)        \
	X(EBADFD)          \
	X(EREMCHG)         \
	X(ELIBACC)         \
	X(ELIBBAD)         \
	X(ELIBSCN)         \
	X(ELIBMAX)         \
	X(ELIBEXEC)        \
	X(EILSEQ)          \
	X(ERESTART)        \
	X(ESTRPIPE)        \
	X(EUSERS)          \
	X(ENOTSOCK)        \
	X(EDESTADDRREQ)    \
	X(EMSGSIZE)        \
	X(EPROTOTYPE)      \
	X(ENOPROTOOPT)     \
	X(EPROTONOSUPPORT) \
	X(ESOCKTNOSUPPORT) \
	X(EOPNOTSUPP)      \
	X(EPFNOSUPPORT)    \
	X(EAFNOSUPPORT)    \
	X(EADDRINUSE)      \
	X(EADDRNOTAVAIL)   \
	X(ENETDOWN)        \
	X(ENETUNREACH)     \
	X(ENETRESET)       \
	X(ECONNABORTED)    \
	X(ECONNRESET)      \
	X(ENOBUFS)         \
	X(EISCONN)         \
	X(ENOTCONN)        \
	X(ESHUTDOWN)       \
	X(ETOOMANYREFS)    \
	X(ETIMEDOUT)       \
	X(ECONNREFUSED)    \
	X(EHOSTDOWN)       \
	X(EHOSTUNREACH)    \
	X(EALREADY)        \
	X(EINPROGRESS)     \
	X(ESTALE)          \
	X(EUCLEAN)         \
	X(ENOTNAM)         \
	X(ENAVAIL)         \
	X(EISNAM)          \
	X(EREMOTEIO)       \
	X(EDQUOT)          \
	X(ENOMEDIUM)       \
	X(EMEDIUMTYPE)     \
	X(ECANCELED)       \
	X(ENOKEY)          \
	X(EKEYEXPIRED)     \
	X(EKEYREVOKED)     \
	X(EKEYREJECTED)    \
	X(EOWNERDEAD)      \
	X(ENOTRECOVERABLE) \
	X(ERFKILL)         \
	X(EHWPOISON)

#define KVS_ERRNO_ENTRY(e) [e] = #e,

static const char *const kvs_err_names[] = { [0] = "OK",
					     KVS_ERRNO_LIST(KVS_ERRNO_ENTRY) };

_Static_assert(KVS_ARRAY_SIZE(kvs_err_names) > EHWPOISON,
	       "the table reaches the last errno value");

const char *kvs_err_name(int err)
{
	/* unsigned, because -INT_MIN is not an int */
	unsigned int e = err < 0 ? 0u - (unsigned int)err : (unsigned int)err;

	if (e >= KVS_ARRAY_SIZE(kvs_err_names) || !kvs_err_names[e])
		return "E?";
	return kvs_err_names[e];
}
