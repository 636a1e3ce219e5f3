#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# Claim: tests/hold-cost measures an optimised build with KVS_MUTATE, prints
# each pair and then both medians, and says why it does not measure another.

set -u -o pipefail
build=${1:?usage: hold_cost.sh BUILD}
cost=$(cd "$(dirname "$0")/.." && pwd)/hold-cost || exit 1
dir=$(mktemp -d) || exit 1
trap 'rm -rf "$dir"' EXIT
export LC_ALL=C KVS_SECONDS=0.05 KVS_SIZE=64K
bad=0

refuse() # TEXT PAIRS BUILD
{
	if KVS_PAIRS=$2 "$cost" "$3" >"$dir/out" 2>"$dir/err" ||
		[ -s "$dir/out" ] || ! grep -qF -- "$1" "$dir/err"; then
		echo "no '$1' in:"
		cat "$dir/out" "$dir/err"
		bad=1
	fi
}

refuse 'KVS_PAIRS=2' 2 "$build"
refuse 'KVS_PAIRS=x' x "$build"
refuse "$dir/tools/kvstage-bench is not built" 1 "$dir"
if ! grep -q '^CMAKE_BUILD_TYPE:STRING=RelWithDebInfo$' \
	"$build/CMakeCache.txt"; then
	refuse 'is not optimised' 1 "$build"
elif ! grep -q '^KVS_MUTATE:BOOL=ON$' "$build/CMakeCache.txt"; then
	refuse 'is no build with KVS_MUTATE' 1 "$build"
elif ! KVS_PAIRS=3 "$cost" "$build" >"$dir/out" ||
	[ "$(grep -c '^pair [123] of 3: on [0-9.]*, off [0-9.]* GB/s, ratio ' \
		"$dir/out")" -ne 3 ] ||
	! grep -q '^CPU .*: median ratio [0-9.]* over 3 pairs$' "$dir/out" ||
	! tail -n 1 "$dir/out" |
	grep -q '^hold machinery: median ratio [0-9.]* over 3 pairs$'; then
	cat "$dir/out"
	bad=1
fi
exit $bad
