#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# Claim: a rank that goes on writing by RDMA after it was aborted, by the key it
# had, changes no byte of the next room that has the memory, whichever kind of
# grant it was; each such write is refused, and costs nobody else anything.
# So it is where a room is granted on two devices at once.
# With the hold taken out every one of these races is lost.
#
# Builds tests/claim/race_late_write with KVS_MUTATE in BUILD/mutate, the tree
# of tests/mutate and tests/race.

set -u -o pipefail
build=${1:?usage: race.sh BUILD}
here=$(cd "$(dirname "$0")" && pwd) || exit 1
top=$(cd "$here/../.." && pwd) || exit 1
build=$(cd "$build" && pwd) || exit 1
name=tests/claim/race_late_write
log=$build/mutate/vm-race.log

"$here/run" --prepare || exit
# 77: built without verbs; on a machine without a device likewise
"$build/$name" verbs >/dev/null
[ $? -eq 77 ] || [ -e /sys/class/infiniband ] || {
	echo "FAIL: $name verbs neither skips nor finds a device here"
	exit 1
}
mkdir -p "$build/mutate" || exit 1
if ! cmake -S "$top" -B "$build/mutate" -G Ninja -DKVS_MUTATE=ON \
	-DCMAKE_BUILD_TYPE=Debug >"$log" 2>&1 ||
	! ninja -C "$build/mutate" -j "${KVS_JOBS:-$(nproc)}" race_late_write \
		>>"$log" 2>&1; then
	tail -n 40 "$log"
	echo "FAIL: the build without the rule"
	exit 1
fi
exec "$here/run" --rxe 2 --time 1740 -- "$here/race_inside.sh" \
	"$build/$name" "$build/mutate/$name"
