#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# Claim: kvstage-engine ends as its manual page says. Wrong usage is 2, a
# daemon that is not there 1. A request larger than the device pool or the host
# pool is refused as class 400, its senders are told why, and the others are
# served; aborted requests are no errors and hold no device memory; layouts with
# fixed-count buffers and aux blocks arrive byte by byte; bytes that differ are
# all named; --json is one object; --check needs no daemon; a signal aborts what
# is under way and still brings the result.

set -u -o pipefail
build=${1:?usage: engine_ends.sh BUILD}
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

command -v python3 >/dev/null || { echo "skip: no python3"; exit 77; }

fail()
{
	echo "$*"
	sed 's/^/  | /' "$dir/out" "$dir/err"
	bad=1
}

engine() # STATUS ARGS...
{
	local want=$1 got

	shift
	timeout 60 "$build/tools/kvstage-engine" --socket "$dir/sock" "$@" \
		>"$dir/out" 2>"$dir/err" </dev/null
	got=$?
	[ $got -eq "$want" ] || fail "$*: status $got, not $want"
}

said() # WORDS
{
	grep -qF -- "$1" "$dir/err" || fail "does not say: $1"
}

# What the JSON object must fulfil; its members are names here.
holds() # EXPRESSION
{
	python3 - "$dir/out" "$1" <<'END' || fail "not so: $1"
import json, sys
lines = open(sys.argv[1]).read().splitlines()
assert len(lines) == 1, "%d lines" % len(lines)
sys.exit(not eval(sys.argv[2], {}, json.loads(lines[0])))
END
}

# Two ranks for a workload; the room base keeps the runs apart.
senders() # ARGS...
{
	local r

	for r in 0 1; do
		"$build/tools/kvstage-send" --daemon "$port" --rank $r \
			--nranks 2 "$@" >"$dir/send$r" 2>&1 </dev/null &
		pids+=($!)
	done
}

engine 2 --abort 1.5
said "--abort: 1.5 is not a share"
engine 2 --concurrency 0
engine 2 --requests none
engine 2 --room-base 0
engine 2 stray
engine 2 --model no-such-model
said "llama-3-70b"
engine 2 --peer ""
said '--peer: "" is not a name of 1 to'
engine 2 --peer "$(printf '%064d' 0)"
engine 2 --peer $'a\nb'
said '--peer: "a?b" is not a name'
engine 2 --trace "$dir/nowhere"
engine 2 --trace "$dir/nowhere" --generate
said "--trace and --generate: only one"
engine 0 --check --requests 3
[ -z "$(cat "$dir/out" "$dir/err")" ] || fail "--check said something"
engine 2 --check --model deepseek-v3 --layers 62
said "layers 62: it has 61"
engine 0 --version
grep -qE '^kvstage-engine [0-9]' "$dir/out" || fail "no version"
engine 1 --requests 1
said "sock: No such file or directory"

"$build/tools/kvstaged" --listen-address 127.0.0.1:0 \
	--listen-port-file "$dir/port" --engine-socket "$dir/sock" \
	--ctl-socket "$dir/ctl" --http-address off --pool-size 16M \
	>"$dir/log" 2>&1 </dev/null &
pids+=($!)
for ((i = 0; i < 600; i++)); do
	[ ! -s "$dir/port" ] || [ ! -S "$dir/sock" ] || break
	kill -0 "${pids[0]}" 2>/dev/null || break
	sleep 0.05
done
port=$(cat "$dir/port")
[[ $port == *:* ]] || port=127.0.0.1:$port

# 4,608 bytes a token: 256 tokens fit the device, 512 do not, 4,096 tokens are
# more than the host pool.
cat >"$dir/trace" <<'END'
{"timestamp": 0, "input_length": 200, "output_length": 1, "hash_ids": [1]}
{"timestamp": 1, "input_length": 512, "output_length": 1, "hash_ids": [2]}
{"timestamp": 2, "input_length": 1, "output_length": 1, "hash_ids": [3]}
END
work=(--trace "$dir/trace" --room-base 100)
senders "${work[@]}"
engine 1 --nranks 2 "${work[@]}" --device-tokens 256 --json
said "room 101 refused (class 400): 512 tokens need 8 device pages"
holds "requests == 3 and completed == 2 and refused_400 == 1"
holds "errors == 1 and byte_mismatches == 0 and bytes == 5 * 64 * 4608"

sed 's/512/4096/' "$dir/trace" >"$dir/trace2"
work=(--trace "$dir/trace2" --room-base 200)
senders "${work[@]}"
engine 1 --nranks 2 "${work[@]}" --json
said "room 201 refused (class 400): "
said "pool.size"
holds "completed == 2 and refused_400 == 1 and byte_mismatches == 0"
# each rank is told the same, whenever it asks
wait "${pids[-2]}" "${pids[-1]}"
for r in 0 1; do
	grep -q "room 201: E2BIG (class 400): .* has ended: .*pool.size" \
		"$dir/send$r" || { cat "$dir/send$r"; fail "no reason"; }
done

work=(--model tiny-hybrid --requests 40 --max-input 4000 --aux-len 777
	--seed 5 --room-base 300)
senders "${work[@]}"
engine 0 --nranks 2 "${work[@]}" --json
holds "completed == 40 and errors == 0 and byte_mismatches == 0"

work=(--requests 40 --max-input 700 --seed 6 --room-base 400)
senders "${work[@]}"
engine 0 --nranks 2 "${work[@]}" --abort 0.5 --copy-rate 1G --json
holds "completed + aborted == 40 and aborted > 5 and completed > 5"
holds "errors == 0 and byte_mismatches == 0 and held_bytes == 0"

# Other bytes than the workload's: 2 pages in 4 buffers, and 2 aux blocks.
work=(--requests 1 --max-input 100 --room-base 500)
senders "${work[@]}" --file "$dir/trace"
engine 1 --nranks 2 "${work[@]}"
n=$(grep -cE '^mismatch: room 500 gen [0-9]+ buffer [0-4] page [01] offset 0$' \
	"$dir/out")
[ "$n" = 10 ] || fail "$n mismatch lines, not 10"
tail -n 1 "$dir/out" | grep -qE '^byte mismatches: [1-9]' || fail "last line"

# A signal ends it with the table; nobody sends, so all rooms are under way.
"$build/tools/kvstage-engine" --socket "$dir/sock" --requests 20 -j \
	--concurrency 2 --max-input 500 --room-base 600 >"$dir/out" \
	2>"$dir/err" </dev/null &
engine=$!
rooms()
{
	"$build/tools/kvstagectl" -s "$dir/ctl" --json rooms | wc -l
}
until [ "$(rooms)" = 2 ]; do
	kill -0 $engine 2>/dev/null || break
done
kill -TERM $engine
wait $engine
[ $? -eq 1 ] || fail "status after TERM"
holds "stopped and aborted == 2 and failed == 18 and completed == 0"
until [ "$(rooms)" = 0 ]; do :; done

# Nobody left a copy behind, so the daemon has said nothing of the kind.
! grep -q 'left copies' "$dir/log" || fail "a word of copies left behind"

exit $bad
