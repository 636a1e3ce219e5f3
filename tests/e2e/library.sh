#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# Claim: libkvstage.so exports exactly the functions that the public headers
# declare, each has a manual page, which has the structures of the headers too,
# and an installed copy (headers, library, pkg-config file) is enough, wherever
# it was put, to build and run a program that uses them all and the
# examples: two hand a room over through a real kvstaged, two move requests and
# cached blocks off their device and back; man finds the page by the name of
# each function; and the unit of a full install starts what was
# installed with settings that were installed, while settings that are there
# are left alone.

set -u -o pipefail
build=${1:?usage: library.sh BUILD}
top=$(cd "$(dirname "$0")/../.." && pwd) || exit 1
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

fail()
{
	echo "$*"
	bad=1
}

for tool in nm cc pkg-config python3; do
	command -v $tool >/dev/null || { echo "skip: no $tool"; exit 77; }
done
if grep -q '^KVS_SANITIZE:[A-Z]*=.' "$build/CMakeCache.txt"; then
	echo "skip: a plain program cannot load a library with sanitizers"
	exit 77
fi

nm -D --defined-only "$build/libkvstage.so" | awk '$2 == "T" { print $3 }' |
	sed 's/@.*//' | sort >"$dir/exported"
nm -D --defined-only "$build/libkvstage.so" |
	awk '$2 != "T" && $2 != "A" { print $3 }' >"$dir/data"
[ ! -s "$dir/data" ] || fail "exports data: $(tr '\n' ' ' <"$dir/data")"

headers=()
for h in "$top"/include/kvstage/*.h; do
	headers+=("kvstage/${h##*/}")
done
printf '#include <%s>\n' "${headers[@]}" >"$dir/all.c"
# A function is a name of ours before a parenthesis at file level.
cc -E -P -I "$top/include" "$dir/all.c" | tr '\n' ' ' |
	sed 's/{[^{}]*}//g; s/{[^{}]*}//g; s/;/;\n/g' |
	sed -n 's/^[^(=]*\b\(kvs_[a-z0-9_]*\) *(.*/\1/p' | sort -u >"$dir/declared"
[ "$(wc -l <"$dir/declared")" -ge 20 ] || fail "few declarations were found"
diff "$dir/declared" "$dir/exported" >"$dir/diff" ||
	fail "declared (<) and exported (>) differ: $(cat "$dir/diff")"

while read -r f; do
	for want in "(Fn|Fo) $f( |\$)" "Nm $f( ,)?\$"; do
		grep -qE "^\.$want" "$top"/man/*.3 ||
			fail "no manual page has $f"
	done
done <"$dir/exported"

# Structures stand in the pages as in the headers, comments aside.
python3 - "$top" <<'END' || fail "man 3 and the headers differ"
import glob, re, sys
def plain(text):
    return " ".join(re.sub(r"/\*.*?\*/", "", text, flags=re.S).split())
def read(pattern):
    names = glob.glob(sys.argv[1] + pattern)
    return "\n".join(open(name).read() for name in names)
pages = plain(read("/man/*.3"))
found = re.findall(r"^struct kvs_\w+ \{.*?^\};", read("/include/kvstage/*.h"),
                   re.M | re.S)
missing = [s for s in found if plain(s) not in pages]
print("\n".join(missing))
sys.exit(len(found) < 8 or bool(missing))
END

cmake --install "$build" --component dev --prefix "$dir/inst" >"$dir/log" 2>&1 ||
	fail "install: $(tail -n 5 "$dir/log")"
pc=$(find "$dir/inst" -name kvstage.pc)
lib=$(dirname "$(dirname "$pc")")
[ -f "$lib/libkvstage.so.0" ] || fail "no libkvstage.so.0 was installed"
# The prefix was chosen at the install, not when the file was made.
read -ra flags < <(PKG_CONFIG_PATH=$(dirname "$pc") pkg-config \
	--cflags --libs kvstage)
while read -r f; do
	page=$(sed -n 's/^\.so //p' "$dir/inst/share/man/man3/$f.3")
	[ -f "$dir/inst/share/man/${page:-man3/$f.3}" ] ||
		fail "man finds no page by the name $f"
done <"$dir/exported"

for p in kvstaged kvstagectl kvstage-send kvstage-engine kvstage-bench; do
	[ -x "$build/tools/$p" ] || fail "not built: $p"
done
for ((i = 0; i < 2; i++)); do
	cmake --install "$build" --prefix "$dir/full" >"$dir/log" 2>&1 ||
		fail "full install: $(tail -n 5 "$dir/log")"
	start=$(sed -n 's/^ExecStart=//p' \
		"$dir/full/lib/systemd/system/kvstaged.service")
	read -r program option conf <<<"$start"
	if [ "$program $option" != "$dir/full/bin/kvstaged --config" ] ||
		! "$program" "$option" "$conf" --check-config >/dev/null; then
		fail "the unit cannot start: $start"
	fi
	if [ $i -eq 0 ]; then
		printf '[pool]\nsize = 65M\n' >"$conf"
	else
		grep -q '^size = 65M$' "$conf" || fail "replaced: $conf"
	fi
done

{
	cat "$dir/all.c"
	echo '#include <stdio.h>'
	echo 'static void (*const all[])(void) = {'
	sed 's/.*/(void (*)(void))&,/' "$dir/exported"
	echo '};'
	cat <<'END'
int main(void)
{
	unsigned int n = 0;

	for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++)
		n += all[i] != NULL;
	printf("%u\n", n);
	return kvs_should_stage(0.5, 0.0) ? 0 : 1;
}
END
} >"$dir/every.c"
export LD_LIBRARY_PATH=$lib
if cc -Wall -Werror -o "$dir/every" "$dir/every.c" "${flags[@]}"; then
	n=$("$dir/every") || fail "the program that uses all functions failed"
	[ "$n" = "$(wc -l <"$dir/exported")" ] || fail "it found $n functions"
else
	fail "the program that uses all functions does not link"
fi

for example in engine sender offload retract; do
	cc -Wall -Werror -o "$dir/$example" "$top/tools/examples/$example.c" \
		-pthread "${flags[@]}" || fail "example $example: does not build"
done
[ $bad -eq 0 ] || exit 1

"$build/tools/kvstaged" --listen-address 127.0.0.1:0 \
	--listen-port-file "$dir/port" --engine-socket "$dir/sock" \
	--ctl-socket "$dir/ctl" --http-address off --pool-size 8M \
	--pool-offload-size 8M --reserve-retraction 2M \
	>"$dir/log" 2>&1 &
daemon=$!
for ((i = 0; i < 600; i++)); do
	[ ! -s "$dir/port" ] || [ ! -S "$dir/sock" ] || break
	kill -0 $daemon 2>/dev/null || break
	sleep 0.05
done
port=$(cat "$dir/port")
[[ $port == *:* ]] || port=127.0.0.1:$port
timeout 20 "$dir/sender" "$port" 7 >"$dir/sent" 2>&1 &
sender=$!
timeout 20 "$dir/engine" "$dir/sock" 7 >"$dir/got" 2>&1 ||
	fail "example engine: $(cat "$dir/got" "$dir/log")"
wait $sender || fail "example sender: $(cat "$dir/sent")"
grep -q 'layer 0 is there' "$dir/got" ||
	fail "example engine saw no layer: $(cat "$dir/got")"
grep -q 'room 7: 7 pages, first byte 42' "$dir/got" ||
	fail "example engine said: $(cat "$dir/got")"
timeout 20 "$dir/offload" "$dir/sock" >"$dir/got" 2>&1 ||
	fail "example offload: $(cat "$dir/got" "$dir/log")"
grep -q 'recalled: 20 pages, last byte 26' "$dir/got" ||
	fail "example offload said: $(cat "$dir/got")"
timeout 20 "$dir/retract" "$dir/sock" >"$dir/got" 2>&1 ||
	fail "example retract: $(cat "$dir/got" "$dir/log")"
grep -q 'back on 20 other pages, first byte 7' "$dir/got" ||
	fail "example retract said: $(cat "$dir/got")"

exit $bad
