#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# Claim: a tool whose standard output cannot be written says why and exits with
# 1, whatever it was asked for, and keeps its own status where it prints
# nothing. What a benchmark writes elsewhere is there all the same.

set -u -o pipefail
build=${1:?usage: full_disk.sh BUILD}
dir=$(mktemp -d) || exit 1
trap 'rm -rf "$dir"' EXIT
export LC_ALL=C
bad=0

[ -c /dev/full ] || { echo "skip: no /dev/full"; exit 77; }

# full STATUS WORDS TOOL ARGS...
full()
{
	local want=$1 words=$2 tool=$3 got

	shift 3
	timeout 60 "$build/tools/$tool" "$@" >/dev/full 2>"$dir/err"
	got=$?
	if [ $got -ne "$want" ] || ! grep -qF -- "$words" "$dir/err"; then
		echo "$tool $*: status $got, not $want, or not '$words' in:"
		sed 's/^/  | /' "$dir/err"
		bad=1
	fi
}

none="standard output: No space left on device"

printf '{"timestamp": %d, "input_length": 1000, "output_length": 3, "hash_ids": [1, 2]}\n' \
	0 500 900 >"$dir/trace"
for t in kvstage-bench kvstage-engine kvstage-plan kvstage-send kvstage-sim \
	kvstagectl kvstaged; do
	full 1 "$t: $none" "$t" --help
	full 1 "$t: $none" "$t" --version
	full 2 "--nonsense" "$t" --nonsense
done
for c in abort cache commit disk h2d pool recv report rooms ttft; do
	full 1 "kvstage-bench: $none" kvstage-bench $c --help
done
full 1 "kvstaged: $none" kvstaged --check-config
full 1 "kvstaged: $none" kvstaged --print-config
for json in "" --json; do
	# shellcheck disable=SC2086 # none or one word
	{
		full 1 "kvstage-plan: $none" kvstage-plan $json
		full 1 "kvstage-sim: $none" kvstage-sim --seeds 1..2 $json
		full 1 "kvstage-bench: $none" kvstage-bench cache \
			--trace "$dir/trace" --capacity unlimited $json
		full 1 "kvstage-bench: $none" kvstage-bench rooms --live 10 \
			$json
		full 1 "kvstage-bench: $none" kvstage-bench ttft \
			--trace "$dir/trace" --out "$dir/out" $json
	}
	if [ ! -s "$dir/out/results.jsonl" ]; then
		echo "ttft --out: nothing there"
		bad=1
	fi
	rm -rf "$dir/out"
done
exit $bad
