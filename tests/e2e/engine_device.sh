#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# Claim: kvstage-engine and quickstart commit to the device they are told to,
# and compare what they copy back. Without a driver --device cuda says so and
# ends with 77, before anything is started, and auto takes soft and says why;
# with one (the double, found by the same dlopen() as the real one) both take
# cuda:0, the pools are made known to it in the background with lines that say
# how far, every byte is right, and one that is not is found.

set -u -o pipefail
top=$(cd "$(dirname "$0")/../.." && pwd) || exit 1
export KVS_BUILD=${1:?usage: engine_device.sh BUILD}
export KVS_POOL_SIZE=64M LC_ALL=C
dir=$(mktemp -d) || exit 1
trap 'rm -rf "$dir"' EXIT
bad=0

run() # STATUS COMMAND...
{
	local want=$1 status

	shift
	timeout 100 "$@" >"$dir/out" 2>"$dir/err" </dev/null
	status=$?
	[ $status -eq "$want" ] || complain "$*: status $status, not $want"
}

complain()
{
	echo "$*"
	sed 's/^/    stdout: /' "$dir/out"
	sed 's/^/    stderr: /' "$dir/err"
	bad=1
}

said() # WORDS
{
	grep -qF -- "$1" "$dir/err" || complain "does not say: $1"
}

engine=$KVS_BUILD/tools/kvstage-engine
quick=("$top/tools/quickstart" --requests 4 --max-input 500)

run 2 "$engine" --device gpu
run 2 "$engine" --device cuda: --check
run 2 "$engine" --device cuda --copy-rate 1G --check

if ldconfig -p 2>/dev/null | grep -q 'libcuda\.so\.1'; then
	echo "there is a driver here: what is said without one is not looked at"
else
	run 77 "$engine" --device cuda --socket "$dir/none"
	said "--device cuda:0: no CUDA driver: libcuda.so.1"
	run 77 "$engine" --device cuda:3 --check
	said "kvstage-engine: --device cuda:3: no CUDA driver"
	run 77 "$KVS_BUILD/tools/kvstage-send" --device cuda:3 \
		--daemon 127.0.0.1:1
	said "kvstage-send: --device cuda:3: no CUDA driver"
	run 77 "${quick[@]}" --device cuda:3
	said "--device cuda:3: no CUDA driver"
	! grep -q "starting kvstaged" "$dir/err" || complain "started kvstaged"
	run 0 "${quick[@]}" --device auto --json
	said "device: soft, as there is no GPU (no CUDA driver"
	grep -q '"device":"soft"' "$dir/out" || complain "not soft"
fi

double=$KVS_BUILD/tests/fake_cuda/lib
if [ ! -e "$double/libcuda.so.1" ]; then
	echo "the rest is skipped: no double of the driver is built"
	exit $bad
fi
export LD_LIBRARY_PATH=$double
run 0 "$engine" --device cuda --check
run 77 "$engine" --device cuda:7 --socket "$dir/none"
said "cuda:7: there are 1 devices"
run 1 "$engine" --device cuda --socket "$dir/none"

export KVS_FAKE_CUDA=register_ns=50000000
run 0 "${quick[@]}" --device cuda
said "cuda:0: "
grep -qE "^(registering: [0-9]+ %|registered: .*) of " "$dir/err" ||
	complain "does not say how far it is"
[ "$(tail -n 1 "$dir/out")" = "byte mismatches: 0" ] || complain "last line"
run 0 "${quick[@]}" --device auto --tp 2 --json
said "cuda:0: "
grep -q '"device":"cuda:0"' "$dir/out" || complain "not cuda:0"
grep -q '"pinned_bytes":[1-9]' "$dir/out" || complain "nothing pinned"
# other addresses on the device; nothing that can be pinned; a wrong bit
export KVS_FAKE_CUDA=alias=1
run 0 "${quick[@]}" --device cuda --json
export KVS_FAKE_CUDA=register_max=4096
run 0 "${quick[@]}" --device cuda --json
said "what failed stays pageable: Cannot allocate memory"
export KVS_FAKE_CUDA=read_only=0
run 1 "${quick[@]}" --device cuda --inject flip=2
[ "$(tail -n 1 "$dir/out")" = "byte mismatches: 2" ] || complain "flip=2"
exit $bad
