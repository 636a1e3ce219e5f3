#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# Claim: an optional part that is not there yet cannot be asked for, an option
# has no other values than auto, on and off, and the message says so.

set -u -o pipefail
build=${1:?usage: options.sh BUILD}
top=$(cd "$(dirname "$0")/../.." && pwd) || exit 1
dir=$(mktemp -d) || exit 1
trap 'rm -rf "$dir"' EXIT
export LC_ALL=C
bad=0

generator=$(sed -n 's/^CMAKE_GENERATOR:INTERNAL=//p' "$build/CMakeCache.txt")

refuse() # OPTION TEXT
{
	if cmake -S "$top" -B "$dir/b" -G "$generator" -DKVS_TESTS=OFF \
		-DKVS_VERBS=off -DKVS_CUDA=auto "$1" >"$dir/log" 2>&1; then
		echo "$1: is taken"
		bad=1
	elif ! grep -qF -- "$2" "$dir/log"; then
		echo "$1: no '$2' in:"
		tail -n 20 "$dir/log"
		bad=1
	fi
}

refuse -DKVS_CUDA=on "the cuda copy backend does not exist yet"
refuse -DKVS_HWLOC=ON "KVS_HWLOC=ON: not auto, on or off"
refuse -DKVS_VERBS=yes "KVS_VERBS=yes: not auto, on or off"
exit $bad
