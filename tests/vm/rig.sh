#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# Claim: tests/vm/run brings a command's output and exit status out of the
# machine as they are, shares a folder, ends at the limit with 124 and on a
# panic with 125 and the kernel's last words, and changes nothing else on the
# host. In it soft RDMA devices work: ping-pongs and ib_write_bw.
#
# Prints the kernel, the devices, whether they have type 2 memory windows, and
# what ib_write_bw reaches.

set -u -o pipefail
build=${1:?usage: rig.sh BUILD}
here=$(cd "$(dirname "$0")" && pwd) || exit 1
export LC_ALL=C
"$here/run" --prepare || exit

dir=$(mktemp -d "$build/vm-rig.XXXXXX") || exit 1
trap 'rm -rf "$dir"' EXIT
bad=0

fail()
{
	echo "FAIL: $*"
	tail -n 40 "$dir/out" | sed 's/^/  | /'
	bad=1
}

vm() # STATUS ARGS...: its output goes to $dir/out
{
	local want=$1 got

	shift
	"$here/run" "$@" >"$dir/out" 2>&1
	got=$?
	[ $got -eq "$want" ] || fail "exit status $got, not $want"
}

# Odd arguments, a megabyte, a file for the host, one that is lost, and a
# stray process that keeps the output open.
words=('a  b' "it's" "\$x;" $'two\nlines' '')
# shellcheck disable=SC2016 # for the shell inside
vm 37 --share "$dir" --time 60 -- sh -c '
	printf "%s|" "$@"
	echo
	seq 150000
	seq 1000 >"$0/file"
	touch /etc/made-inside
	sleep 1000 &
	exit 37' "$dir" "${words[@]}"
{
	printf '%s|' "${words[@]}"
	echo
	seq 150000
} | cmp - "$dir/out" || fail "output is not what was printed"
seq 1000 | cmp - "$dir/file" || fail "the shared file is not what was written"
[ ! -e /etc/made-inside ] || fail "the host's root was written to"

vm 124 --time 5 -- sleep 1000
grep -q 'not done after 5 s' "$dir/out" || fail "does not tell the time limit"

vm 125 --time 60 -- sh -c 'echo c >/proc/sysrq-trigger'
grep -q 'sysrq triggered crash' "$dir/out" ||
	fail "does not show the panic"

vm 2 --numa 512:0,512:1 -- true
vm 2 --rxe 1

vm 0 --rxe 2 --nic 0 --time 120 -- "$here/rig_inside.sh"
cat "$dir/out"
for d in rxe0 rxe1 rxe_nic0; do
	grep -q "^device $d: .*windows" "$dir/out" || fail "no device $d"
done
exit $bad
