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
# ---- two devices ----

packets() # DEVICE
{
	cat "/sys/class/infiniband/$1/ports/1/hw_counters/sent_pkts"
}

two_devices() # RANKS DAEMON-ARGS...
{
	local i r pids=() before=() sent=() ranks=$1
	local load=(--requests 4 --max-input 2048 --layers 4 --nranks "$1")
	local tools=$build/tools

	shift
	rm -f "$dir/port"

	for i in 0 1; do
		before[i]=$(packets rxe$i)
	done
	"$tools/kvstaged" --listen-address 127.0.0.1:0 \
		--listen-port-file "$dir/port" --http-address off \
		--engine-socket "$dir/sock" --ctl-socket "$dir/ctl" \
		--pool-size 64M --rdma-device rxe0,rxe1 "$@" \
		>"$dir/daemon" 2>&1 &
	pids+=($!)
	for ((i = 0; i < 300; i++)); do
		[ -s "$dir/port" ] && break
		sleep 0.1
	done
	for ((r = 0; r < ranks; r++)); do
		"$tools/kvstage-send" --daemon "127.0.0.1:$(cat "$dir/port")" \
			--rank "$r" --pool-size 16M --transport verbs \
			--stripe-min 1 \
			"${load[@]}" >"$dir/send$r" 2>&1 &
		pids+=($!)
	done
	if ! timeout 100 "$tools/kvstage-engine" --socket "$dir/sock" --json \
		"${load[@]}" >"$dir/engine" 2>"$dir/engine.err"; then
		cat "$dir/engine" "$dir/engine.err" "$dir"/send? "$dir/daemon"
		fail "two devices: kvstage-engine"
	fi
	wait "${pids[@]:1}"
	kill "${pids[0]}"
	wait "${pids[0]}" || fail "two devices: kvstaged: status $?"
	grep -q '"completed":4,.*"byte_mismatches":0,\|"byte_mismatches":0,.*"completed":4,' \
		"$dir/engine" || fail "two devices: $(cat "$dir/engine")"
	for i in 0 1; do
		sent[i]=$(($(packets rxe$i) - before[i]))
	done
	echo "packets of $ranks rank(s), $*: ${sent[0]} by rxe0, ${sent[1]}" \
		"by rxe1"
	# How much by each is the scheduler's affair.
	if [ "${sent[0]}" -le $((sent[1] / 20)) ] ||
		[ "${sent[1]}" -le $((sent[0] / 20)) ]; then
		fail "two devices: one of them carries nothing"
	fi
}
two_devices 2
# Each room over both.
two_devices 1 --rdma-stripe-min 1
if dmesg | grep -E 'WARNING:|BUG:|Call Trace'; then
	fail "the kernel complained"
fi
[ $bad -eq 0 ] && echo "all of it passed"
exit $bad
