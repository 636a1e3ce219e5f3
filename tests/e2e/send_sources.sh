#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# Claim: a rank whose pages are device memory delivers every byte, through a
# real daemon to a real engine that compares them, from a device that no CPU
# address leads to and from the double of a GPU, by a ring far smaller than a
# request; which way it took is said in its words and in JSON; a way that is not
# to be had is refused, with the reason. Killed in the middle of it (SIGKILL),
# it leaves nothing behind at the daemon.

set -u -o pipefail
build=${1:?usage: send_sources.sh BUILD}
dir=$(mktemp -d) || exit 1
daemon=
sender=
# shellcheck disable=SC2317 # called by the trap
cleanup()
{
	[ -z "$sender" ] || kill -9 "$sender" 2>/dev/null
	[ -z "$daemon" ] || kill "$daemon" 2>/dev/null
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
	sed 's/^/  | /' "$dir/out" "$dir/err" "$dir/engine"
	bad=1
}

# field FILE KEY: of its last line
field()
{
	python3 -c '
import json, sys
print(json.loads(open(sys.argv[1]).readlines()[-1])[sys.argv[2]])' "$1" "$2"
}

equal() # WHAT GOT WANT
{
	[ "$2" = "$3" ] || fail "$1: '$2', not '$3'"
}

for f in out err engine; do
	: >"$dir/$f"
done
"$build/tools/kvstaged" --listen-address 127.0.0.1:0 \
	--listen-port-file "$dir/port" --engine-socket "$dir/engine.sock" \
	--ctl-socket "$dir/ctl.sock" --http-address off --pool-size 64M \
	--checksum-kind crc32c >"$dir/log" 2>&1 </dev/null &
daemon=$!
# The loop is bounded by the test's own time limit.
until [ -s "$dir/port" ]; do
	kill -0 "$daemon" 2>/dev/null || { cat "$dir/log"; exit 1; }
	read -r -t 0.05 <> <(:)
done
at=127.0.0.1:$(sed 's/.*://' "$dir/port")

load=(--max-input 700 --model tiny-hybrid)
room=1

# deliver ARGS...: four requests to an engine that checks them
deliver()
{
	local engine

	"$build/tools/kvstage-engine" --socket "$dir/engine.sock" \
		--requests 4 --room-base $room "${load[@]}" --json \
		>"$dir/engine" 2>&1 </dev/null &
	engine=$!
	"$build/tools/kvstage-send" --daemon "$at" --requests 4 \
		--room-base $room "${load[@]}" --json "$@" \
		>"$dir/out" 2>"$dir/err" </dev/null ||
		fail "kvstage-send $*: $?"
	wait $engine || fail "the engine, with $*: $?"
	room=$((room + 100))
	equal "$* ok" "$(field "$dir/out" ok)" 4
}

deliver
equal source "$(field "$dir/out" source)" host
grep -q "source host" "$dir/err" || fail "host is not said"
deliver --device soft --bounce-size 64K
equal source "$(field "$dir/out" source)" bounce
equal bounce_bytes "$(field "$dir/out" bounce_bytes)" 65536
grep -q "source bounce: memory of device soft, by a ring of 64.0 KiB" \
	"$dir/err" || fail "the ring is not said"
[ "$(field "$dir/out" copied_bytes)" -gt 65536 ] || fail "nothing was copied"
deliver --device soft --source bounce --io sock
if [ -e "$build/tests/fake_cuda/lib/libcuda.so.1" ]; then
	export LD_LIBRARY_PATH=$build/tests/fake_cuda/lib
	deliver --device cuda --bounce-size 128K
	equal source "$(field "$dir/out" source)" bounce
	deliver --device cuda:0 --bounce-size 1M
	unset LD_LIBRARY_PATH
fi

# refused STATUS WORDS ARGS...
refused()
{
	local want=$1 words=$2 got

	shift 2
	"$build/tools/kvstage-send" --daemon "$at" --requests 1 "$@" \
		>"$dir/out" 2>"$dir/err" </dev/null
	got=$?
	[ $got -eq "$want" ] || fail "kvstage-send $*: $got, not $want"
	grep -q -e "$words" "$dir/err" || fail "kvstage-send $*: no '$words'"
}

refused 2 "needs a --device" --source bounce
refused 2 "not for a --device" --source host --device soft
refused 2 "is not soft, cuda or cuda:N" --device gpu
refused 2 "is not auto, host" --device soft --source fast
refused 2 "from 64K to 64G" --device soft --bounce-size 4K
refused 2 "from 64K to 64G" --device soft --bounce-size 1T
refused 2 '"64X" is not a size' --device soft --bounce-size 64X
refused 2 "bounce-size needs a --device" --bounce-size 64K
refused 77 "peer-mem.*tcp" --device soft --source peer-mem --transport tcp
refused 77 "dma-buf.*tcp" --device soft --source dma-buf --transport tcp

# Killed with rooms under way; the engine side of them is a run of its own.
"$build/tools/kvstage-engine" --socket "$dir/engine.sock" --requests 4 \
	--room-base $room "${load[@]}" --json >"$dir/engine" 2>&1 </dev/null &
engine=$!
"$build/tools/kvstage-send" --daemon "$at" --requests 4 --room-base $room \
	"${load[@]}" --device soft --bounce-size 64K --rate 2000 \
	--chunk-tokens 64 --json >"$dir/out" 2>"$dir/err" </dev/null &
sender=$!
until grep -q "source bounce" "$dir/err"; do
	kill -0 "$sender" 2>/dev/null || break
	read -r -t 0.02 <> <(:)
done
kill -9 "$sender"
wait "$sender" 2>/dev/null
sender=
wait $engine
status()
{
	"$build/tools/kvstagectl" -s "$dir/ctl.sock" --json status |
		python3 -c 'import json, sys; print(json.load(sys.stdin)[sys.argv[1]])' "$1"
}
until [ "$(status sessions)" = 0 ] && [ "$(status rooms_live)" = 0 ]; do
	read -r -t 0.05 <> <(:)
done
room=$((room + 100))
deliver --device soft --bounce-size 64K

[ $bad -eq 0 ] && echo "device memory is sent as it should"
exit $bad
