/* SPDX-License-Identifier: Apache-2.0 */
/*
 * DOC: errors a caller may branch on
 *
 * Every function returns 0 or a count, or one of these negated. Others are
 * passed through from the system and mean "failed, see the log".
 *
 *   E2BIG            can never fit: larger than the whole pool (class 400)
 *   EAGAIN           does not fit now; try later (class 503)
 *   EPROTOTYPE       layouts of the two sides differ (class 400)
 *   EEXIST           a live room has this id already (class 400)
 *   ENOENT           no such room, peer or handle
 *   ESTALE           generation, nonce or instance of an earlier attempt
 *   ECANCELED        aborted
 *   ETIME            not claimed, or not admitted, within its limit
 *   ETIMEDOUT        transfer deadline passed
 *   ECONNRESET       peer gone (closed, reset, died)
 *   ENODATA          bytes missing: the sender said done, pages did not arrive
 *   EBADMSG          checksum mismatch
 *   ERANGE           address, offset or length outside what was granted
 *   EPROTO           peer broke the wire protocol
 *   EPROTONOSUPPORT  no common protocol version
 *   EACCES           not allowed (authentication, foreign room)
 *   EDQUOT           a limit of this process (memlock, cgroup) is in the way
 *   ENXIO            NUMA node or device not there, or not allowed
 *   ENOSPC           a tier or a reserve is full
 *   EOPNOTSUPP       not built, or not possible on this machine
 *   ESHUTDOWN        the daemon is going down
 */
#ifndef KVSTAGE_ERRORS_H
#define KVSTAGE_ERRORS_H

#include <errno.h>

#endif /* KVSTAGE_ERRORS_H */
