#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# Claim: the verbs transport does over a kernel's device what it does over the
# double: connections, grants of both kinds, refused writes. After a grant's
# end was proven no byte of a write in flight changes, in at least 100 rounds
# of 8 MiB for each kind of grant, idle and with both CPUs busy. kvstaged,
# kvstage-send and kvstage-engine move rooms over it byte by byte, with and
# without aborts, with a partner that has TCP only, and after a link that went
# down under them, whose rooms fail cleanly.

set -u -o pipefail
build=${1:?usage: verbs.sh BUILD}
here=$(cd "$(dirname "$0")" && pwd) || exit 1
export LC_ALL=C
"$here/run" --prepare || exit
[ -x "$build/tests/unit/rdma/test_rdma_verbs_revoke_mr" ] || {
	echo "skip: built without verbs"
	exit 77
}
exec "$here/run" --rxe 1 --time 1740 -- "$here/verbs_inside.sh" \
	"$(cd "$build" && pwd)"
