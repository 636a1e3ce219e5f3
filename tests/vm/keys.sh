#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# Claim: keys are asked for on an address of the network as on loopback, and
# the same whether TCP or RDMA carries the bytes: over each a rank with the key
# transfers and every byte arrives, one with another key or none is refused,
# and has no session.

set -u -o pipefail
build=${1:?usage: keys.sh BUILD}
here=$(cd "$(dirname "$0")" && pwd) || exit 1
"$here/run" --prepare || exit
for t in kvstaged kvstagectl kvstage-send kvstage-engine; do
	[ -x "$build/tools/$t" ] || { echo "FAIL: no $build/tools/$t"; exit 1; }
done
exec "$here/run" --rxe 1 --time 240 -- "$here/keys_inside.sh" "$build"
