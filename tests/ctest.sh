# shellcheck shell=bash
# SPDX-License-Identifier: Apache-2.0
#
# The part of tests/run that builds a tree and runs ctest in it, read by it
# with ".": uses its $top, $logs, $jobs and its pass, fail and skip.

# shellcheck disable=SC2154 # those are set by tests/run

# Configures and builds build-ci-NAME; what goes wrong is printed. Sanitizers
# make gcc warn about correct code, so those builds do not stop at a warning.
build() # NAME
{
	local dir=$top/build-ci-$1 log=$logs/build-$1.log
	local cc=gcc args targets=()

	case $1 in
	gcc) args=(-DKVS_WERROR=ON) ;;
	clang)
		cc=clang
		args=(-DKVS_WERROR=ON)
		;;
	release) args=(-DKVS_WERROR=ON -DCMAKE_BUILD_TYPE=Release) ;;
	bare)
		args=(-DKVS_WERROR=ON -DKVS_IO_URING=off -DKVS_HWLOC=off
			-DKVS_VERBS=off -DKVS_CUDA=off)
		;;
	asan)
		args=("-DKVS_SANITIZE=address,undefined")
		targets=(kvs_tests_unit)
		;;
	tsan)
		args=(-DKVS_SANITIZE=thread)
		targets=(kvs_tests_threads)
		;;
	fuzz)
		cc=clang
		args=(-DKVS_FUZZ=ON -DKVS_FUZZ_SECONDS="$fuzz_seconds"
			"-DKVS_SANITIZE=address,undefined"
			-DCMAKE_C_FLAGS=-fsanitize=fuzzer-no-link)
		targets=(kvs_tests_fuzz)
		;;
	*)
		echo "no such build: $1"
		return 1
		;;
	esac
	echo "building $1"
	if ! CC=$cc cmake -S "$top" -B "$dir" -G Ninja "${args[@]}" \
		>"$log" 2>&1; then
		echo "cmake failed:"
		tail -n 30 "$log"
		return 1
	fi
	if ! ninja -C "$dir" -j "$jobs" -k 20 \
		${targets[@]+"${targets[@]}"} >>"$log" 2>&1; then
		grep -E -A 12 -e '^FAILED' -e '(error|warning): ' "$log" |
			grep -v -E '^(--|ninja:|/usr/bin/(cc|gcc|clang) )' |
			tail -n 80
		return 1
	fi
}

# True when a program built with the sanitizer runs here; else prints why not.
# Thread sanitizer may need address randomisation off (vm.mmap_rnd_bits).
sanitizer_works() # SANITIZER
{
	local dir=$logs/probe-${1%%,*} out

	mkdir -p "$dir"
	cat >"$dir/probe.c" <<-END
	#include <stdlib.h>
	int main(void)
	{
		void *p = malloc(1);

		free(p);
		return !p;
	}
	END
	if ! out=$(gcc -fsanitize="$1" -o "$dir/probe" "$dir/probe.c" 2>&1); then
		echo "gcc -fsanitize=$1: $(head -n 1 <<<"$out")"
		return 1
	fi
	rm -f "$dir/prefix"
	if out=$("$dir/probe" 2>&1); then
		return 0
	fi
	if setarch -R "$dir/probe" >/dev/null 2>&1; then
		echo "setarch -R" >"$dir/prefix"
		return 0
	fi
	echo "a program under the $1 sanitizer does not run here:" \
		"$(head -n 1 <<<"$out")"
	return 1
}

# Turns ctest's JUnit file into lines "STATUS NAME SECONDS": pass, fail, skip.
# Output of tests stands in it escaped, so "<testcase" is an element.
junit_lines() # FILE
{
	awk '
	function attr(name,	v)
	{
		if (!match($0, " " name "=\"[^\"]*\""))
			return ""
		v = substr($0, RSTART + length(name) + 3)
		sub(/".*/, "", v)
		return v
	}
	/<testcase / {
		name = attr("name")
		status = attr("status")
		seconds = attr("time")
		skipped = 0
		open = $0 !~ /\/>[ \t]*$/
		if (!open)
			emit()
	}
	open && /<skipped message="SKIP_RETURN_CODE/ { skipped = 1 }
	open && /<\/testcase>/ { emit() }
	function emit()
	{
		if (status == "run")
			verdict = "pass"
		else if (status == "notrun" && skipped)
			verdict = "skip"
		else
			verdict = "fail"
		printf "%s %s %.1f\n", verdict, name, seconds
		open = 0
	}' "$1"
}

# The last line but empty ones that the test printed: where it skips, why.
junit_reason() # FILE NAME
{
	awk -v want="name=\"$2\"" '
	/<testcase / { on = index($0, want) > 0 }
	on && /<system-out>/ { text = 1; sub(/.*<system-out>/, "") }
	on && text && /[^ \t]/ && !/^<\/system-out>/ {
		line = $0
		sub(/<\/system-out>.*/, "", line)
		if (tolower(line) ~ /skip/ || reason == "")
			reason = line
	}
	/<\/system-out>/ { text = 0 }
	END {
		gsub(/&quot;/, "\"", reason)
		gsub(/&lt;/, "<", reason)
		gsub(/&gt;/, ">", reason)
		gsub(/&apos;/, "\047", reason)
		gsub(/&amp;/, "\\&", reason)
		print reason
	}' "$1"
}

# Runs the tests of a label in build-ci-NAME and counts each; none is no
# failure here, the caller decides.
run_ctest() # NAME LABEL JOBS
{
	local name=$1 label=$2 dir=$top/build-ci-$1
	local log=$logs/ctest-$1-$2.log junit=$logs/ctest-$1-$2.xml
	local total seen=0 verdict test seconds prefix=() probe show=()

	total=$(cd "$dir" && ctest -N -L "^$label\$" |
		sed -n 's/^Total Tests: //p')
	if [ "${total:-0}" -eq 0 ]; then
		return 0
	fi
	probe=$logs/probe-thread/prefix
	if [ "$name" = tsan ] && [ -f "$probe" ]; then
		read -ra prefix <"$probe"
	fi
	# What these print is the result: a table, states searched.
	case $label in
	model | mutate | vm) show=(--verbose) ;;
	esac
	rm -f "$junit"
	echo "running $total tests: $label, build $name"
	# Its own limit is for a test without one, which lint refuses.
	(cd "$dir" && ${prefix[@]+"${prefix[@]}"} ctest -L "^$label\$" \
		-j "$3" --timeout 300 --output-on-failure --no-tests=error \
		--test-output-size-passed 65536 ${show[@]+"${show[@]}"} \
		--output-junit "$junit") \
		>"$log" 2>&1 </dev/null
	if [ ! -f "$junit" ]; then
		tail -n 30 "$log"
		fail "$label ($name)" "ctest left no report"
		return 0
	fi
	if [ ${#show[@]} -gt 0 ]; then
		sed -n 's/^[0-9]*: //p' "$log"
	fi
	while read -r verdict test seconds; do
		seen=$((seen + 1))
		case $verdict in
		pass) pass "$test ($name, $seconds s)" ;;
		skip) skip "$test ($name)" "$(junit_reason "$junit" "$test")" ;;
		*)
			[ ${#show[@]} -gt 0 ] || show_output "$log" "$test"
			fail "$test ($name, $seconds s)"
			;;
		esac
	done < <(junit_lines "$junit")
	if [ "$seen" -ne "$total" ]; then
		tail -n 30 "$log"
		fail "$label ($name)" "ctest reported $seen of $total tests"
	fi
}

# What a failed test printed, from ctest's --output-on-failure.
show_output() # LOG TEST
{
	awk -v name="$2" '
	/^ *[0-9]+\/[0-9]+ Test +#[0-9]+: / {
		on = 0
		for (i = 1; i <= NF; i++)
			if ($i == name)
				on = 1
	}
	/^[0-9]+% tests passed/ { on = 0 }
	on && !/^ *Start +[0-9]+: / { print "    " $0 }' "$1" | tail -n 80
}
