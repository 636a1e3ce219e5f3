#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# Runs inside the machine that tests/vm/recv.sh starts.

set -u -o pipefail
build=${1:?usage: recv_inside.sh BUILD}
here=$(cd "$(dirname "$0")" && pwd) || exit 1
bench=$build/tools/kvstage-bench
dir=$(mktemp -d) || exit 1
export LC_ALL=C
bad=0

fail()
{
	echo "FAIL: $*"
	bad=1
}

# ARGS...: its objects go to $dir/out
recv()
{
	if ! "$bench" recv --json --transport verbs "$@" >"$dir/out" \
		2>"$dir/err"; then
		cat "$dir/out"
		fail "recv $*: status $?"
	fi
	cat "$dir/err"
	python3 "$here/recv_check.py" "$dir/out" || fail "recv $*"
}

if PATH=/nowhere "$bench" recv --transport verbs >"$dir/out" 2>"$dir/err"; then
	fail "it ran without ib_write_bw"
elif [ $? -ne 77 ] || ! grep -q 'no ib_write_bw in PATH.*perftest' "$dir/err"
then
	cat "$dir/err"
	fail "it does not say that there is no ib_write_bw"
fi
# Small rooms and short runs: this machine is emulated, and may be loaded.
recv --size 1M --connections 1 --seconds 1 --repeats 5 --pool 32M
sed -n 's/.*"ratio": \([0-9.]*\).*/ratio to ib_write_bw: \1/p' "$dir/out"
recv --size 256K --connections 2 --seconds 0.3 --repeats 1 --pool 8M \
	--item-len 4K --checksum crc32c
if dmesg | grep -E 'WARNING:|BUG:|Call Trace'; then
	fail "the kernel complained"
fi
[ $bad -eq 0 ] && echo "all of it passed"
exit $bad
