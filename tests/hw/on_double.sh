#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# Claim: tests/hw/gpu runs to its end and passes on the double of the driver, in
# a build folder and from a bundle that tools/hw-bundle made of it, which is not
# larger than it may be; without a driver it ends with 77 and says why. What
# hw-bundle does not take makes no bundle and ends it with 2.

set -u -o pipefail
build=${1:?usage: on_double.sh BUILD DOUBLE}
double=${2:?usage: on_double.sh BUILD DOUBLE}
top=$(cd "$(dirname "$0")/../.." && pwd) || exit 1
dir=$(mktemp -d) || exit 1
trap 'rm -rf "$dir"' EXIT
bad=0

out=$("$top/tests/hw/gpu" "$build" 2>"$dir/err")
rc=$?
if [ $rc -ne 77 ] && ! [ -e /dev/nvidiactl ]; then
	echo "without a driver: exit $rc"
	bad=1
fi
case $out in
*"gpu: skipped: "*) ;;
*) [ -e /dev/nvidiactl ] || { echo "no reason: $out"; bad=1; } ;;
esac

for how in --nosuch "$build $dir/never.tar.gz more" "$build --help"; do
	# shellcheck disable=SC2086
	"$top/tools/hw-bundle" $how >"$dir/out" 2>"$dir/err"
	rc=$?
	if [ $rc -ne 2 ] || ! grep -q "^usage: " "$dir/err" ||
		[ -s "$dir/out" ] || [ -e "$dir/never.tar.gz" ]; then
		echo "hw-bundle $how: exit $rc"
		cat "$dir/err"
		bad=1
	fi
done
"$top/tools/hw-bundle" --help | grep -q "^usage: " || { echo "--help"; bad=1; }
"$top/tools/hw-bundle" "$build" "$dir/bundle.tar.gz" || exit 1
size=$(stat -c %s "$dir/bundle.tar.gz")
[ "$size" -le $((64 << 20)) ] || { echo "bundle: $size bytes"; bad=1; }
mkdir "$dir/un" && tar -C "$dir/un" -xzf "$dir/bundle.tar.gz" || exit 1

export LD_LIBRARY_PATH=$double
for how in "$top/tests/hw/gpu --quick $build" \
	"$dir/un/kvstage-hw/gpu --quick"; do
	# shellcheck disable=SC2086
	$how >"$dir/out" 2>"$dir/err"
	rc=$?
	last=$(tail -n 1 "$dir/out")
	if [ $rc -ne 0 ] || ! [[ $last =~ ^[4-9]\ passed,\ 0\ failed ]]; then
		echo "$how: exit $rc, $last"
		tail -n 20 "$dir/err"
		bad=1
	fi
done
cat "$dir/out"
exit $bad
