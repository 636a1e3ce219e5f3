#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# Claim: what kvstage-engine and kvstage-send declare of their KV pools and
# their longest request is compared, as capacity.check says, and each message
# has the numbers of a published incident: a pool of 681,280 tokens under a
# context of 1,048,576, be it the decode engine's, the prefill's or the daemon's
# own. With capacity.check = warn the same is logged, and served. Whoever
# declares nothing is served as well. A room that would fit, but not now, is
# refused as class 503 with when to ask again.

set -u -o pipefail
build=${1:?usage: capacities.sh BUILD}
dir=$(mktemp -d) || exit 1
pids=()
# shellcheck disable=SC2317 # called by the trap
cleanup()
{
	[ ${#pids[@]} -eq 0 ] || kill "${pids[@]}" 2>/dev/null
	wait
	rm -rf "$dir"
}
trap cleanup EXIT
export LC_ALL=C
bad=0

fail()
{
	echo "$*"
	tail -q -n 15 "$dir/log" "$dir/out" "$dir/err" "$dir/sent" \
		2>/dev/null | sed 's/^/  | /'
	bad=1
}

# The loops are bounded by the test's own time limit.
pause()
{
	read -r -t 0.05 <> <(:)
}

until_said() # FILE WORDS PID
{
	until grep -qF -- "$2" "$1"; do
		kill -0 "$3" 2>/dev/null || { fail "no '$2' in $1"; return; }
		pause
	done
}

start() # ARGS...
{
	: >"$dir/log"
	rm -f "$dir/port"
	"$build/tools/kvstaged" --listen-address 127.0.0.1:0 \
		--listen-port-file "$dir/port" --engine-socket "$dir/sock" \
		--ctl-socket "$dir/ctl" --http-address 127.0.0.1:0 \
		--http-port-file "$dir/http" --pool-size 16M "$@" \
		>"$dir/log" 2>&1 </dev/null &
	daemon=$!
	pids+=("$daemon")
	until_said "$dir/log" " ready" "$daemon"
	port=127.0.0.1:$(sed 's/.*://' "$dir/port")
}

stop()
{
	kill -TERM "$daemon"
	wait "$daemon" || fail "the daemon ended with $?"
}

load=(--model deepseek-v3 --layers 1 --requests 5 --max-input 4000)

engine() # ARGS...
{
	"$build/tools/kvstage-engine" --socket "$dir/sock" "${load[@]}" "$@" \
		>"$dir/out" 2>"$dir/err" </dev/null
}

engine_behind() # ARGS...
{
	: >"$dir/err"
	# itself, not a shell around it
	"$build/tools/kvstage-engine" --socket "$dir/sock" "${load[@]}" "$@" \
		>"$dir/out" 2>"$dir/err" </dev/null &
	waiting=$!
	pids+=("$waiting")
	until_said "$dir/err" "5 requests" "$waiting"
}

send() # ARGS...
{
	"$build/tools/kvstage-send" --daemon "$port" "${load[@]}" "$@" \
		>"$dir/sent" 2>&1 </dev/null
}

request="one maximum-length request has 1048576 tokens"
context=(--max-context 1048576)
start

# the decode engine's own, and the host pool
engine "${context[@]}" --device-tokens 681280 && fail "the engine is taken"
grep -qF "$request, the decode engine's KV pool holds 681280" "$dir/err" ||
	fail "the decode engine's pool is not named"
engine "${context[@]}" && fail "the host pool is enough"
grep -qE "$request, the host pool of node [0-9]+ \(pool.size, 16777216 bytes\) holds [0-9]+$" \
	"$dir/err" || fail "the host pool is not named"

# the prefill's, under the context of the engine
engine_behind --max-context 4000 --device-tokens 100000
send --kv-capacity 3999 && fail "less than the engine's context is taken"
grep -qF "one maximum-length request has 4000 tokens, the KV pool of prefill prefill rank 0 holds 3999" \
	"$dir/sent" || fail "the engine's context is not named"
send --kv-capacity 4000 || fail "what is enough is refused"
wait "$waiting" || fail "the engine ended with $?"

# and under its own; the engine says nothing
engine_behind
send "${context[@]}" --kv-capacity 681280 && fail "the prefill is taken"
grep -qF "$request, the KV pool of prefill prefill rank 0 holds 681280" \
	"$dir/sent" || fail "the prefill's pool is not named"
send || fail "a rank that says nothing is refused"
wait "$waiting" || fail "the engine ended with $?"
stop

start --capacity-check warn
engine_behind "${context[@]}" --device-tokens 681280
send "${context[@]}" --kv-capacity 681280 || fail "warn refuses the rank"
wait "$waiting" || fail "warn refuses the engine: $?"
for who in "the decode engine's KV pool" "the KV pool of prefill prefill rank 0"
do
	grep -F "$request, $who holds 681280" "$dir/log" |
		grep -qF ", continuing" || fail "warn does not log $who"
done
stop

"$build/tools/kvstage-send" --daemon "$port" --kv-capacity 64 "${load[@]}" \
	>"$dir/sent" 2>&1
[ $? -eq 2 ] || fail "a pool of one page is taken"
grep -qF -- "--kv-capacity 64: two pages" "$dir/sent" ||
	fail "a pool of one page is not named"

# five of the same length: three fit, one waits, and one is too many
rm -f "$dir/trace"
for i in 1 2 3 4 5; do
	echo "{\"timestamp\": $i, \"input_length\": 4000, \"output_length\": 1, \"hash_ids\": [$i]}"
done >"$dir/trace"
start --admission-queue 1
load=(--model deepseek-v3 --layers 1 --trace "$dir/trace")
engine_behind
until_said "$dir/err" "no memory now and admission.queue (1) is full" "$waiting"
kill -TERM "$waiting"
wait "$waiting"
grep -qE "^room 5 refused \(class 503, again in [1-9][0-9]* ms\): no memory now" \
	"$dir/err" || fail "not when to ask again"
stop
exit $bad
