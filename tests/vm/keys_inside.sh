#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# Inside the machine, for keys.sh: one daemon with a key on all addresses, and
# ranks that come by rxe0's. Exit 0, or 1 with what went wrong.

set -u -o pipefail
tools=${1:?usage: keys_inside.sh BUILD}/tools
export LC_ALL=C
dir=$(mktemp -d) && cd "$dir" || exit 1
bad=0

fail()
{
	echo "FAIL: $*"
	tail -q -n 20 out log | sed 's/^/  | /'
	bad=1
}

# send STATUS WORDS TRANSPORT ARGS...: ends so, and says so
send()
{
	local want=$1 words=$2 by=$3 got

	shift 3
	timeout 100 "$tools/kvstage-send" --daemon "$at" --transport "$by" \
		--requests 3 --max-input 300 "$@" >out 2>&1 </dev/null
	got=$?
	[ $got -eq "$want" ] || fail "by $by, $*: $got, not $want"
	grep -q -e "$words" out || fail "by $by, $*: no '$words'"
}

sessions()
{
	"$tools/kvstagectl" -s ctl status | sed -n 's/^prefill ranks  *\([0-9]\)/\1/p'
}

"$tools/kvstagectl" genkey key && "$tools/kvstagectl" genkey other || exit 1
: >log
"$tools/kvstaged" --listen-address 0.0.0.0:0 --listen-port-file port \
	--engine-socket "$dir/sock" --ctl-socket "$dir/ctl" --http-address off \
	--pool-size 16M --pool-strict no --auth-key-file key >log 2>&1 \
	</dev/null &
daemon=$!
until grep -q ' ready$' log; do
	kill -0 $daemon || { cat log; exit 1; }
	sleep 0.1
done
at=10.90.0.1:$(sed 's/.*://' port)

for by in tcp verbs; do
	send 1 "not accepted here" $by --key-file other
	send 1 "it asks for a key" $by
	[ "$(sessions)" = 0 ] || fail "by $by: a session is left"
	timeout 100 "$tools/kvstage-engine" --socket sock --requests 3 \
		--max-input 300 >engine 2>&1 </dev/null &
	engine=$!
	send 0 "3 of 3 rooms ok" $by --key-file key --verbose
	if [ $by = verbs ]; then
		grep -q "verbs: rxe0" out || fail "it was not by RDMA"
	fi
	wait $engine || fail "by $by: the engine: $(cat engine)"
	grep -q "byte mismatches: 0" engine || fail "by $by: bytes differ"
	echo "by $by, from $(sed -n 's/.*attached from //p' log | tail -n 1):" \
		"a key of another cluster and none refused, every byte arrived" \
		"with ours"
done
kill -TERM $daemon
wait $daemon || fail "the daemon ended with $?"
exit $bad
