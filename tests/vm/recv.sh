#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# Claim: kvstage-bench recv --transport verbs measures the receive path over a
# kernel's device beside ib_write_bw, in turns; rooms are written by one run
# for each buffer and extent, and not by one for each page, with nothing copied
# before it is sent; with a checksum the bytes are the right ones. Without
# ib_write_bw it says so, with 77. The ratio is printed, and not asserted.
# With two devices the rooms of two ranks are spread over both, and so are the
# pieces of large ones of a single rank, byte by byte.

set -u -o pipefail
build=${1:?usage: recv.sh BUILD}
here=$(cd "$(dirname "$0")" && pwd) || exit 1
export LC_ALL=C
"$here/run" --prepare || exit
[ -x "$build/tests/unit/rdma/test_rdma_verbs_conn" ] || {
	echo "skip: built without verbs"
	exit 77
}
exec "$here/run" --rxe 2 --time 280 -- "$here/recv_inside.sh" \
	"$(cd "$build" && pwd)"
