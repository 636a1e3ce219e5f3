#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# Runs inside the machine that tests/vm/verbs.sh starts.

set -u -o pipefail
build=${1:?usage: verbs_inside.sh BUILD}
rounds=${KVS_TEST_ROUNDS:-100}
unit=$build/tests/unit/rdma
tools=$build/tools
dir=$(mktemp -d) || exit 1
export LC_ALL=C
bad=0

fail()
{
	echo "FAIL: $*"
	bad=1
}

say()
{
	echo "== $*, $(cut -d' ' -f1 /proc/uptime) s"
}

# TEST ARGS...: its own summary, all of it when it fails
run()
{
	local t=$1

	shift
	if "$unit/test_rdma_$t" "$@" >"$dir/out" 2>&1; then
		grep -E '^(revocation|without a close|[0-9]+ of them|known)' "$dir/out"
		echo "$t $*: passed"
	else
		cat "$dir/out"
		fail "$t $*"
	fi
}

say "kernel $(uname -r)"
ibv_devinfo -v -d rxe0 | grep -E 'hca_id|MEM_WINDOW|max_mw:' |
	sed 's/^[[:space:]]*/  /'
run verbs_conn
run verbs_grant
run verbs_window
run verbs_branch

say "revocation, idle"
for kind in mr window qp; do
	KVS_TEST_ROUNDS=$rounds run verbs_revoke_$kind $kind
done

say "revocation, both CPUs loaded"
hogs=()
for _ in 1 2; do
	(while :; do :; done) &
	hogs+=($!)
done
for kind in mr window qp; do
	KVS_TEST_ROUNDS=$rounds run verbs_revoke_$kind $kind
done
kill "${hogs[@]}"
wait "${hogs[@]}" 2>/dev/null

# ---- the tools, with bytes compared on the device ----

daemon() # ARGS...
{
	rm -f "$dir/port"
	"$tools/kvstaged" --listen-address 127.0.0.1:0 \
		--listen-port-file "$dir/port" --http-address 127.0.0.1:0 \
		--http-port-file "$dir/http" \
		--engine-socket "$dir/sock" --ctl-socket "$dir/ctl" \
		--pool-size 128M "$@" >"$dir/daemon" 2>&1 &
	daemon=$!
	for _ in $(seq 300); do
		[ -s "$dir/port" ] && return
		sleep 0.1
	done
	cat "$dir/daemon"
	fail "kvstaged is not up after 30 s"
}

scrape() # /metrics
{
	exec 3<>"/dev/tcp/127.0.0.1/$(cat "$dir/http")" || return
	printf 'GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n' \
		>&3
	tr -d '\r' <&3
	exec 3>&-
}

stop_daemon()
{
	kill "$daemon"
	wait "$daemon" || fail "kvstaged: status $?"
}

transfer() # NAME WANT-MISMATCHES ENGINE-ARGS -- SENDER-ARGS
{
	local name=$1 r engine=() pids=()
	local load=(--requests 4 --max-input 2048 --layers 4 --nranks 2)

	shift
	while [ "$1" != -- ]; do
		engine+=("$1")
		shift
	done
	shift
	for r in 0 1; do
		"$tools/kvstage-send" --daemon "127.0.0.1:$(cat "$dir/port")" \
			--rank $r --pool-size 16M "${load[@]}" "$@" \
			>"$dir/send$r" 2>&1 &
		pids+=($!)
	done
	if ! timeout 100 "$tools/kvstage-engine" --socket "$dir/sock" --json \
		"${load[@]}" "${engine[@]}" >"$dir/engine" 2>"$dir/engine.err"; then
		cat "$dir/engine" "$dir/engine.err" "$dir"/send? "$dir/daemon"
		fail "$name: kvstage-engine"
	fi
	wait "${pids[@]}"
	grep -q '"byte_mismatches":0,' "$dir/engine" || fail "$name: bytes differ"
	grep -o '"completed":[0-9]*\|"aborted":[0-9]*\|"bytes":[0-9]*' \
		"$dir/engine" | tr '\n' ' ' | sed "s/^/$name: /"
	echo
}

say "kvstaged, kvstage-send, kvstage-engine"
daemon
grep -q 'verbs: rxe0 port 1, RoCE v2, GID index 1' "$dir/daemon" || {
	cat "$dir/daemon"
	fail "kvstaged does not say that it uses rxe0"
}
"$tools/kvstagectl" --socket "$dir/ctl" rdma
"$tools/kvstagectl" --socket "$dir/ctl" --json rdma >"$dir/rdma"
grep -q '"device":"rxe0","used":true,"driver":"rxe".*"grant":"mr","proof":"ibv_dereg_mr' \
	"$dir/rdma" || fail "kvstagectl rdma: $(cat "$dir/rdma")"
"$tools/kvstagectl" --socket "$dir/ctl" topo | sed -n '/device.*grants/,$p' |
	tee "$dir/topo"
grep -q ' rxe0  *yes  *mr  *not tried  *passed  *not tried  *auto: as is known of rxe ' \
	"$dir/topo" || fail "kvstagectl topo"
transfer "over verbs" --
grep -q '"completed":4,' "$dir/engine" || fail "not all rooms completed"
scrape >"$dir/metrics"
for m in queue_pairs grants messages_received; do
	grep -q "^kvstage_verbs_${m}_total [1-9]" "$dir/metrics" ||
		fail "kvstage_verbs_${m}_total: $(grep "_verbs_${m}_" \
			"$dir/metrics")"
done
grep -q '^kvstage_verbs_queue_pairs_broken_total 0$' "$dir/metrics" ||
	fail "a queue pair broke"
transfer "aborted ones between" --room-base 100 --abort 0.5 -- --room-base 100
transfer "a sender without verbs" --room-base 200 -- --room-base 200 \
	--transport tcp
grep -q '"completed":4,' "$dir/engine" || fail "not all rooms completed"
# The link goes in the middle of rooms, and comes back when they are over.
link_down()
{
	local r i pids=()
	local load=(--requests 12 --max-input 4096 --layers 8 --nranks 2
		--room-base 400)

	for r in 0 1; do
		"$tools/kvstage-send" --daemon "127.0.0.1:$(cat "$dir/port")" \
			--rank $r --pool-size 16M --rate 4000 "${load[@]}" \
			>"$dir/send$r" 2>&1 &
		pids+=($!)
	done
	"$tools/kvstage-engine" --socket "$dir/sock" --json "${load[@]}" \
		>"$dir/engine" 2>"$dir/engine.err" &
	pids+=($!)
	for ((i = 0; i < 300; i++)); do
		"$tools/kvstagectl" --socket "$dir/ctl" --json rooms |
			grep -q '"received":[1-9]' && break
		sleep 0.1
	done
	ip link set dummy0 down
	wait "${pids[@]}"
	ip link set dummy0 up
	grep -q '"byte_mismatches":0,' "$dir/engine" || fail "link: bytes differ"
	grep -q '"failed":[1-9]' "$dir/engine" || fail "link: no room failed"
	for ((i = 0; i < 300; i++)); do
		"$tools/kvstagectl" --socket "$dir/ctl" holds |
			grep -q 'no holds' && break
		sleep 0.1
	done
	[ $i -lt 300 ] || fail "link: memory is held 30 s later"
	grep -q 'rxe0 port 1 is down' "$dir/daemon" || fail "link: not noticed"
	grep -o '"completed":[0-9]*\|"failed":[0-9]*' "$dir/engine" |
		tr '\n' ' ' | sed 's/^/link down: /'
	echo
}
link_down
transfer "link up again" --room-base 500 -- --room-base 500
grep -q '"completed":4,' "$dir/engine" || fail "not all rooms completed"

# SIGKILL to a rank in the middle of its writes; another peer's rooms go on.
killed()
{
	local i victim pids=() engines=()
	local load=(--requests 6 --max-input 4096 --layers 8)
	local at
	at=127.0.0.1:$(cat "$dir/port")

	"$tools/kvstage-send" --daemon "$at" --peer victim --pool-size 16M \
		--rate 4000 --room-base 600 "${load[@]}" >"$dir/send0" 2>&1 &
	victim=$!
	"$tools/kvstage-engine" --socket "$dir/sock" --json --peer victim \
		--room-base 600 "${load[@]}" >"$dir/engine" 2>&1 &
	engines+=($!)
	"$tools/kvstage-send" --daemon "$at" --peer other --pool-size 16M \
		--room-base 700 "${load[@]}" >"$dir/send1" 2>&1 &
	pids+=($!)
	"$tools/kvstage-engine" --socket "$dir/sock" --json --peer other \
		--room-base 700 "${load[@]}" >"$dir/other" 2>&1 &
	engines+=($!)
	for ((i = 0; i < 300; i++)); do
		"$tools/kvstagectl" --socket "$dir/ctl" --json rooms |
			grep '"peer":"victim"' | grep -q '"received":[1-9]' &&
			break
		sleep 0.1
	done
	kill -KILL $victim
	wait $victim "${pids[@]}" "${engines[@]}" 2>/dev/null
	grep -q '"byte_mismatches":0,' "$dir/engine" || fail "killed: bytes differ"
	grep -q '"failed":[1-9]' "$dir/engine" || fail "killed: no room failed"
	grep -q '"byte_mismatches":0,' "$dir/other" || fail "other: bytes differ"
	grep -q '"completed":6,' "$dir/other" || {
		cat "$dir/other" "$dir/send1"
		fail "killed: the other peer's rooms did not all complete"
	}
	for ((i = 0; i < 300; i++)); do
		"$tools/kvstagectl" --socket "$dir/ctl" holds |
			grep -q 'no holds' && break
		sleep 0.1
	done
	[ $i -lt 300 ] || fail "killed: memory is held 30 s later"
	grep -o '"completed":[0-9]*\|"failed":[0-9]*' "$dir/engine" |
		tr '\n' ' ' | sed 's/^/a rank killed: /'
	grep -o '"completed":[0-9]*' "$dir/other" |
		sed 's/^/and of the other peer /'
}
killed
transfer "after that" --room-base 800 -- --room-base 800
grep -q '"completed":4,' "$dir/engine" || fail "not all rooms completed"
stop_daemon
# Each room of a rank on a queue pair of its own, and that it says so.
daemon --rdma-grant qp
grep -q 'grants by qp, which confine nobody' "$dir/daemon" || {
	cat "$dir/daemon"
	fail "kvstaged does not say what grants by qp are"
}
"$tools/kvstagectl" --socket "$dir/ctl" rdma | sed -n '2s/  */ /gp'
transfer "grants by qp" --room-base 900 -- --room-base 900
grep -q '"completed":4,' "$dir/engine" || fail "not all rooms completed"
transfer "and aborted ones" --room-base 950 --abort 0.5 -- --room-base 950
stop_daemon
daemon --transport-data tcp
grep -q 'TCP only, as set' "$dir/daemon" || fail "kvstaged does not say TCP"
transfer "a daemon without verbs" --room-base 300 -- --room-base 300
grep -q '"completed":4,' "$dir/engine" || fail "not all rooms completed"
stop_daemon
if grep -E 'kvstaged (err|warning)' "$dir/daemon"; then
	fail "kvstaged complained"
fi

say "the kernel"
if dmesg | grep -E 'WARNING:|BUG:|Call Trace'; then
	fail "the kernel complained"
fi
[ $bad -eq 0 ] && echo "all of it passed"
exit $bad
