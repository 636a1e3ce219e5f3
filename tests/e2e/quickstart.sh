#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# Claim: quickstart moves real bytes through the built tools. It counts them
# right for a trace whose sizes are known here, finds no mismatch of its own,
# finds exactly the bits it flips, and says where; --json is one object.

set -u -o pipefail
top=$(cd "$(dirname "$0")/../.." && pwd) || exit 1
export KVS_BUILD=${1:?usage: quickstart.sh BUILD}
export KVS_POOL_SIZE=64M
dir=$(mktemp -d) || exit 1
trap 'rm -rf "$dir"' EXIT
bad=0

# 64 tokens a page and 4,608 bytes a token: 1, 2, 1 and 16 pages.
cat >"$dir/trace.jsonl" <<'END'
{"timestamp": 0, "input_length": 64, "output_length": 1, "hash_ids": [1]}
{"timestamp": 1, "input_length": 65, "output_length": 1, "hash_ids": [2]}
{"timestamp": 2, "input_length": 1, "output_length": 1, "hash_ids": [3]}
{"timestamp": 3, "input_length": 1000, "output_length": 1, "hash_ids": [4, 5]}
END
bytes=$((20 * 64 * 4608))

run() # STATUS ARGS...
{
	local want=$1 status

	shift
	"$top/tools/quickstart" "$@" >"$dir/out" 2>"$dir/err" </dev/null
	status=$?
	[ $status -eq "$want" ] || complain "$*: status $status, not $want"
}

complain()
{
	echo "$*"
	sed 's/^/    stdout: /' "$dir/out"
	sed 's/^/    stderr: /' "$dir/err"
	bad=1
}

trace=(--trace "$dir/trace.jsonl" --requests 4)

run 0 "${trace[@]}"
[ "$(tail -n 1 "$dir/out")" = "byte mismatches: 0" ] || complain "last line"
awk -v bytes=$bytes '
	$1 == "requests" && $2 == "bytes" { getline; found = $1 == 4 && $2 == bytes }
	END { exit !found }' "$dir/out" || complain "not 4 requests, $bytes bytes"

run 0 "${trace[@]}" --json
python3 - "$dir/out" $bytes <<'END' || complain "the JSON object"
import json, sys
lines = open(sys.argv[1]).read().splitlines()
assert len(lines) == 1
o = json.loads(lines[0])
assert o["requests"] == 4 and o["bytes"] == int(sys.argv[2])
assert o["byte_mismatches"] == 0 and o["errors"] == 0
assert 0 < o["ttft_median_ms"] <= o["ttft_p90_ms"] <= o["ttft_p99_ms"]
END

run 1 "${trace[@]}" --inject flip=3
[ "$(tail -n 1 "$dir/out")" = "byte mismatches: 3" ] || complain "flip=3"
where='^mismatch: room [0-9]+ gen [0-9]+ buffer [0-9]+ page [0-9]+ offset [0-9]+$'
[ "$(grep -c -E "$where" "$dir/out")" -eq 3 ] || complain "3 places"

# Stopped at whatever it is at: no word of a daemon that is stopped as well.
"$top/tools/quickstart" --requests 100000 >"$dir/out" 2>"$dir/err" </dev/null &
pid=$!
until grep -q "device pool" "$dir/err"; do
	kill -0 $pid 2>/dev/null || break
	read -r -t 0.05 <> <(:) || true
done
kill -TERM $pid
wait $pid
status=$?
[ $status -eq 143 ] || complain "TERM: status $status"
! grep -q "no metrics" "$dir/err" || complain "TERM: no metrics"

run 2 "${trace[@]}" --model no-such-model
run 2 "${trace[@]}" --model llama-3-70b --prefill-tp 3
grep -q -- "--prefill-tp: model llama-3-70b: tp 3" "$dir/err" ||
	complain "not the option that is wrong"
run 2 "${trace[@]}" --layers 1000
grep -q "layers 1000: it has 61" "$dir/err" || complain "no number of layers"
! grep -q "starting kvstaged" "$dir/err" || complain "started a daemon first"
exit $bad
