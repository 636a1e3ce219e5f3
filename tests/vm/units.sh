#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# Claim: tests of memory, sockets and rooms that were built for this machine
# pass on others too: with huge pages and two NUMA nodes; with four, of which
# one has no memory and one no CPUs; under another kernel. What skips on a
# plain machine for want of huge pages is not skipped there.

set -u -o pipefail
build=${1:?usage: units.sh BUILD}
here=$(cd "$(dirname "$0")" && pwd) || exit 1
export LC_ALL=C
# shellcheck source=tests/ctest.sh
. "$here/../ctest.sh"
"$here/run" --prepare || exit
command -v ctest >/dev/null || { echo "skip: no ctest"; exit 77; }

dir=$(mktemp -d "$build/vm-units.XXXXXX") || exit 1
trap 'rm -rf "$dir"' EXIT
bad=0

fail()
{
	echo "FAIL: $*"
	bad=1
}

# ctest's own log comes back by a folder; its Testing/ stays in the machine.
machine() # NAME TESTS OPTIONS...
{
	local name=$1 tests=$2 log=$dir/log status

	shift 2
	rm -f "$log" "$dir/junit"
	(cd "$build" && "$here/run" --time 280 --share "$dir" "$@" -- \
		ctest -R "^($tests)$" --no-tests=error --verbose -Q \
		--output-log "$log" --output-junit "$dir/junit") \
		>"$dir/out" 2>&1
	status=$?
	if [ ! -s "$log" ] || [ ! -s "$dir/junit" ]; then
		cat "$dir/out"
		fail "$name: no log, exit status $status"
		return
	fi
	echo "$name:"
	junit_lines "$dir/junit" | sed 's/^/  /;s/$/ s/'
	sed -n 's/^[0-9]*: \[  SKIPPED \] \(test_.*\)/  not run there: \1/p' \
		"$log" | sort -u
	if [ $status -ne 0 ]; then
		junit_lines "$dir/junit" | while read -r verdict test _; do
			[ "$verdict" = pass ] || [ "$verdict" = skip ] ||
				show_output "$log" "$test"
		done
		tail -n 5 "$dir/out"
		fail "$name: exit status $status"
	fi
}

ran() # TEST
{
	grep -q "^[0-9]*: \[       OK \] $1\$" "$dir/log" ||
		fail "$1 did not run"
}

machine "two nodes, huge pages" \
	'test_pinned_.*|test_rdma_(tcp_frames|tcp_life|uring)_.*|e2e_two_nodes' \
	--numa 900:1,900:1 --append hugepages=80
ran test_huge_pages_used
ran test_node0
machine "four nodes, one without memory, one without CPUs" \
	'test_pinned_(topology|limits|prefault|region)|e2e_two_nodes' \
	--numa 500:1,500:1,0:1,500:0 --nic 1 --nic 2
ran test_this_machine
exit $bad
