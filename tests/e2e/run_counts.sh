#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# Claim: tests/run counts what ctest ran: a pass, a failure, a crash, a time
# limit and a skip each once, whatever the tests print; a label without tests
# fails if it must have some and says so plainly if not; a build that fails is
# a failure; the last line and the exit status agree.

set -u -o pipefail
top=$(cd "$(dirname "$0")/../.." && pwd) || exit 1
dir=$(mktemp -d) || exit 1
trap 'rm -rf "$dir"' EXIT
bad=0

tree() # CMAKE-LINES...
{
	rm -rf "$dir/tree"
	mkdir -p "$dir/tree/tests" "$dir/tree/tools" || exit 1
	cp "$top/tests/run" "$top/tests/ctest.sh" "$dir/tree/tests" || exit 1
	cp "$top/tools/install-deps" "$top/tools/deps.list" \
		"$dir/tree/tools" || exit 1
	cat >"$dir/tree/CMakeLists.txt" <<'END'
cmake_minimum_required(VERSION 3.25)
project(counts NONE)
enable_testing()
function(t name label script)
  add_test(NAME ${name} COMMAND sh -c "${script}")
  set_tests_properties(${name} PROPERTIES TIMEOUT 2
    LABELS "${label}" SKIP_RETURN_CODE 77)
endfunction()
END
	printf '%s\n' "$@" >>"$dir/tree/CMakeLists.txt"
}

check() # WHAT STATUS LAST-LINE TEXT ARGS...
{
	local what=$1 want=$2 last=$3 text=$4 out status

	shift 4
	out=$("$dir/tree/tests/run" "$@" 2>&1)
	status=$?
	if [ $status -ne "$want" ] || [ "${out##*$'\n'}" != "$last" ] ||
		[[ $out != *"$text"* ]]; then
		echo "$what: wanted status $want, '$text', '$last'; got $status:"
		printf '%s\n' "$out" | sed 's/^/    /'
		bad=1
	fi
}

fake='<testcase name="f" status="fail">'
tree "t(a \"regress;threads\" [[echo '$fake']])" \
	't(b regress [[echo was here >&2; exit 1]])' \
	't(c regress [[kill -SEGV $$]])' \
	't(d regress [[exec sleep 60]])' \
	't(e regress [[echo "skip: no <x> here"; exit 77]])' \
	't(not_this e2e "exit 1")' \
	't(nor_this regress2 "exit 1")'
check "each kind" 1 "1 passed, 3 failed, 1 skipped" "was here" --label regress
check "skip reason" 1 "1 passed, 3 failed, 1 skipped" \
	"skip  e (gcc): skip: no <x> here" --label=regress
check "two labels" 1 "1 passed, 4 failed, 1 skipped" "label e2e" \
	--label regress --label e2e

tree 't(a regress "exit 0")'
check "good" 0 "1 passed, 0 failed, 0 skipped" "label regress" --label regress
check "none yet" 0 "0 passed, 0 failed, 0 skipped" \
	"no tests with this label yet" --label sim
check "none, but must" 1 "0 passed, 1 failed, 0 skipped" \
	"no tests with this label" --label e2e

tree 'message(FATAL_ERROR "broken on purpose")'
check "no build" 1 "0 passed, 1 failed, 0 skipped" "broken on purpose" \
	--label regress

refuse() # TEXT ARGS...
{
	local want=$1 out status

	shift
	out=$("$dir/tree/tests/run" "$@" 2>&1)
	status=$?
	if [ $status -ne 2 ] || [[ $out != *"$want"* ]]; then
		echo "$*: status $status, not 2 with '$want': $out"
		bad=1
	fi
}

refuse "no label 'nonsense'" --label nonsense
refuse "--label takes a label" --label
refuse "unknown option --lable" --lable unit
exit $bad
