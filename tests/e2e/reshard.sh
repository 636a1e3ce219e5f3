#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# Claim: through a real daemon, over real sockets, every committed byte is right
# whichever way heads, stages and pages are divided on the two sides; eight ranks
# of an engine that have the same KV receive it once (wire and pool bytes 1.00x
# of one rank); what cannot be resharded is said before anything is started. By
# tools/quickstart, as its user would.

set -u -o pipefail

export KVS_BUILD=${1:?usage: reshard.sh BUILD}
export KVS_POOL_SIZE=128M
top=$(cd "$(dirname "$0")/../.." && pwd) || exit 1
dir=$(mktemp -d) || exit 1
trap 'rm -rf "$dir"' EXIT
bad=0

complain()
{
	echo "$*"
	sed 's/^/    stdout: /' "$dir/out"
	sed 's/^/    stderr: /' "$dir/err"
	bad=1
}

run() # STATUS ARGS...
{
	local want=$1 status

	shift
	"$top/tools/quickstart" "$@" >"$dir/out" 2>"$dir/err" </dev/null
	status=$?
	[ $status -eq "$want" ] || complain "$*: status $status, not $want"
	[ "$want" -ne 0 ] ||
		[ "$(tail -n 1 "$dir/out")" = "byte mismatches: 0" ] ||
		complain "$*: last line"
}

short=(--requests 6 --max-input 700)

run 0 "${short[@]}" --model deepseek-v3 --layers 4 --tp 8 --max-input 4096
grep -E '^8 ranks, .*\(1\.00x of one rank\), .*\(1\.0[0-9]x\)$' "$dir/out" ||
	complain "not received once"

# wider, narrower, more ranks than heads, windows, states, pages either way
run 0 "${short[@]}" --model llama-3-70b --layers 2 --tp 4
run 0 "${short[@]}" --model llama-3-70b --layers 2 --prefill-tp 4
run 0 "${short[@]}" --model qwen3-235b-a22b --layers 2 --tp 2 --prefill-tp 8
run 0 "${short[@]}" --model gpt-oss-20b --layers 4 --tp 8 --prefill-tp 2
run 0 "${short[@]}" --model tiny-hybrid --tp 2 --prefill-page-size 64
run 0 "${short[@]}" --model glm-4.5 --layers 2 --tp 2 --prefill-page-size 1

run 2 "${short[@]}" --model gpt-oss-20b --layers 4 --prefill-page-size 128
grep -q "prefill 128, decode 64" "$dir/err" || complain "no page sizes"
run 2 "${short[@]}" --model llama-3-70b --layers 2 --prefill-tp 3
grep -q "tp 3: does not divide its 8 KV heads" "$dir/err" || complain "heads"
! grep -q "starting kvstaged" "$dir/err" || complain "started a daemon first"
exit $bad
