#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# Claim: an optional part that cannot be had cannot be asked for, an option has
# no other values than auto, on and off, and the message says so. Without any
# compiler for the kernels the cuda backend is built, and says what it skips.

set -u -o pipefail
build=${1:?usage: options.sh BUILD}
top=$(cd "$(dirname "$0")/../.." && pwd) || exit 1
dir=$(mktemp -d) || exit 1
trap 'rm -rf "$dir"' EXIT
export LC_ALL=C
bad=0

generator=$(sed -n 's/^CMAKE_GENERATOR:INTERNAL=//p' "$build/CMakeCache.txt")

configure() # OPTION...
{
	rm -rf "$dir/b"
	cmake -S "$top" -B "$dir/b" -G "$generator" -DKVS_TESTS=OFF \
		-DKVS_VERBS=off -DKVS_CUDA=auto "$@" >"$dir/log" 2>&1
}

refuse() # OPTION TEXT [OPTION...]
{
	if configure "$1" "${@:3}"; then
		echo "$1: is taken"
		bad=1
	elif ! grep -qF -- "$2" "$dir/log"; then
		echo "$1: no '$2' in:"
		tail -n 20 "$dir/log"
		bad=1
	fi
}

none=(-DKVS_NVCC=/bin/false -DKVS_CLANG_CUDA=/bin/false)
refuse -DKVS_CUDA=on "KVS_CUDA=on: neither nvcc of 13.0 or later nor a clang" \
	"${none[@]}"
if ! configure "${none[@]}" || ! grep -qF "CUDA: skipped the toolkit" \
	"$dir/log" || ! grep -qF "CUDA: no kernels" "$dir/log"; then
	echo "no compiler for kernels:"
	tail -n 20 "$dir/log"
	bad=1
fi
refuse -DKVS_CUDA=yes "KVS_CUDA=yes: not auto, on or off"
refuse -DKVS_HWLOC=ON "KVS_HWLOC=ON: not auto, on or off"
refuse -DKVS_VERBS=yes "KVS_VERBS=yes: not auto, on or off"
exit $bad
