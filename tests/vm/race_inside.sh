#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# Inside the machine, for race.sh: race_inside.sh PROGRAM PROGRAM-TO-BREAK

set -u -o pipefail
bad=0

fail()
{
	echo "FAIL: $*"
	bad=1
}

# Of all "RACE name: hold HOW, N races, N overlaps, N with wrong bytes ..."
sums() # OUTPUT
{
	sed -n 's/^RACE .*: hold \([a-z]*\), \([0-9]*\) races, \([0-9]*\) overlaps, \([0-9]*\) with wrong bytes.*/\1 \2 \3 \4/p' \
		<<<"$1" |
		awk '{ h = $1; n += $2; o += $3; w += $4 }
		     END { print h, n + 0, o + 0, w + 0 }'
}

# NAME OFF PROGRAM ARGS...: sets out, how, races, overlaps, wrong
race()
{
	local status

	echo "== $1, $(cut -d' ' -f1 /proc/uptime) s"
	out=$(KVS_MUTATE_OFF=$2 "$3" verbs "${@:4}" 2>&1)
	status=$?
	grep -E '^(RACE|late-write|#) ' <<<"$out"
	if [ $status -ne 0 ]; then
		printf '%s\n' "$out" | tail -n 60
		fail "$1: exit status $status"
	fi
	read -r how races overlaps wrong <<<"$(sums "$out")"
}

echo "kernel $(uname -r)"
race "with the hold" '' "$1"
if [ "$how" != on ] || [ "$races" -eq 0 ] || [ "$overlaps" -ne 0 ] ||
	[ "$wrong" -ne 0 ]; then
	fail "with the hold: $how $races $overlaps $wrong"
fi
won=$races
race "with the hold, on two devices" '' "$1" paths
if [ "$how" != on ] || [ "$races" -eq 0 ] || [ "$overlaps" -ne 0 ] ||
	[ "$wrong" -ne 0 ] || ! grep -q '^# 2 connections' <<<"$out"; then
	fail "on two devices: $how $races $overlaps $wrong"
fi
won=$((won + races))
race "without the hold" R1_HOLD "$2"
if [ "$how" != off ] || [ "$races" -eq 0 ] || [ "$wrong" -ne "$races" ]; then
	fail "without the hold: $how $races $overlaps $wrong"
fi
echo "races by RDMA: with the hold $won, none lost; without it $wrong of" \
	"$races lost"
if dmesg | grep -E 'WARNING:|BUG:|Call Trace'; then
	fail "the kernel complained"
fi
exit $bad
