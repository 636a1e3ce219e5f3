#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# Claim: kvstage-send ends as its manual page says. Wrong usage is 2; a daemon
# that is not there, a room that gets no memory and a signal are 1, with the
# errno's name, and the daemon is left without rooms and sessions; with --json
# stdout holds JSON lines only.

set -u -o pipefail
build=${1:?usage: send_ends.sh BUILD}
dir=$(mktemp -d) || exit 1
daemon=
# shellcheck disable=SC2317 # called by the trap
cleanup()
{
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
	sed 's/^/  | /' "$dir/out" "$dir/err"
	bad=1
}

# run STATUS WORDS ARGS...: ends so, with these words on stderr
run()
{
	local want=$1 words=$2 got

	shift 2
	"$build/tools/kvstage-send" "$@" >"$dir/out" 2>"$dir/err"
	got=$?
	[ $got -eq "$want" ] || fail "kvstage-send $*: $got, not $want"
	grep -q -e "$words" "$dir/err" || fail "kvstage-send $*: no '$words'"
}

nothing_out()
{
	[ ! -s "$dir/out" ] || fail "it wrote on stdout"
}

# last KEY: its value in the last JSON line; every line must be JSON
last()
{
	python3 -c '
import json, sys
lines = [json.loads(l) for l in open(sys.argv[1])]
print(lines[-1][sys.argv[2]])' "$dir/out" "$1"
}

equal() # WHAT GOT WANT
{
	[ "$2" = "$3" ] || fail "$1: '$2', not '$3'"
}

for wrong in "" "--rank 1" "--nranks 0" "--rate fast" "--chunk-tokens 0" \
	"--pool-size 0" "--open-timeout 5" "--io carrier" "--concurrency 0" \
	"--data-connections 65" "--max-batch-bytes 0" "--call-timeout 5" \
	"--model no-such-model" \
	"--daemon localhost" "--daemon 127.0.0.1:0" "--daemon :7" \
	"--pool-size 64K" "--trace $dir/trace --generate"; do
	if [ -n "$wrong" ]; then
		# shellcheck disable=SC2086 # several words
		run 2 "" --daemon 127.0.0.1:1 $wrong
	else
		run 2 "daemon is needed"
	fi
	nothing_out
done

run 2 "a page of this rank has 294912 bytes .* at least 589824" \
	--daemon 127.0.0.1:1 --pool-size 64K
run 1 ECONNREFUSED --daemon 127.0.0.1:1 --connect-timeout 100ms --requests 1
nothing_out
: >"$dir/empty"
run 1 "not a file with bytes" --daemon 127.0.0.1:1 --file "$dir/empty"

"$build/tools/kvstaged" --listen-address 127.0.0.1:0 \
	--listen-port-file "$dir/port" --engine-socket "$dir/engine.sock" \
	--ctl-socket "$dir/ctl.sock" --http-address off --pool-size 16M \
	>"$dir/log" 2>&1 </dev/null &
daemon=$!
# The loop is bounded by the test's own time limit.
until [ -s "$dir/port" ]; do
	kill -0 "$daemon" 2>/dev/null || { cat "$dir/log"; exit 1; }
	read -r -t 0.05 <> <(:)
done
at=127.0.0.1:$(sed 's/.*://' "$dir/port")

# Nobody admits the rooms.
run 1 ETIME --daemon "$at" --requests 3 --open-timeout 200ms --json
equal failed "$(last failed)" 3
equal ok "$(last ok)" 0
equal lines "$(wc -l <"$dir/out")" 4
run 1 ETIME --daemon "$at" --requests 2 --open-timeout 200ms
equal lines "$(wc -l <"$dir/out")" 1

# A signal ends the rooms; the daemon sees the session go.
: >"$dir/err"
"$build/tools/kvstage-send" --daemon "$at" --requests 5 --concurrency 2 \
	--json >"$dir/out" 2>"$dir/err" &
sender=$!
sessions()
{
	"$build/tools/kvstagectl" -s "$dir/ctl.sock" --json status |
		python3 -c 'import json, sys; print(json.load(sys.stdin)["sessions"])'
}
until grep -q agreed "$dir/err"; do
	kill -0 "$sender" 2>/dev/null || break
done
equal sessions "$(sessions)" 1
kill -TERM "$sender"
wait "$sender"
equal "status after TERM" $? 1
equal stopped "$(last stopped)" True
equal failed "$(last failed)" 5
until [ "$(sessions)" = 0 ]; do :; done

[ $bad -eq 0 ] && echo "kvstage-send ends as it should"
exit $bad
