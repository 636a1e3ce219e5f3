#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# Claim: tools/quickstart ends as its children do. Stand-ins for the three
# tools die early, late, by signal, or not at all; each time the exit status,
# stdout and the name of the culprit on stderr are right, no child is left
# running and the temporary folder is gone.

set -u -o pipefail
top=$(cd "$(dirname "$0")/../.." && pwd) || exit 1
dir=$(mktemp -d) || exit 1
trap 'rm -rf "$dir"' EXIT
export LC_ALL=C
bad=0

command -v python3 >/dev/null || { echo "skip: no python3"; exit 77; }

mkdir -p "$dir/tools" "$dir/fake" "$dir/tmp" || exit 1
cp "$top/tools/quickstart" "$top/tools/install-deps" "$top/tools/deps.list" \
	"$dir/tools" || exit 1
cat >"$dir/CMakeLists.txt" <<'END'
cmake_minimum_required(VERSION 3.25)
project(stand_ins NONE)
file(COPY ${CMAKE_SOURCE_DIR}/fake/ DESTINATION ${CMAKE_BINARY_DIR}/tools)
END

# Ready on the second question; drains on TERM. With the case "middle" it
# aborts as soon as a sender has come by.
cat >"$dir/fake/kvstaged" <<'END'
#!/usr/bin/env python3
import os, signal, socket, sys, threading
case = os.environ["CASE"]
a = dict(zip(sys.argv[1::2], sys.argv[2::2]))
if case == "early":
    sys.exit("the pool is too large")
if case == "cannot":
    print("no memfd here", flush=True)
    sys.exit(77)
data = socket.create_server(("127.0.0.1", 0))
http = socket.create_server(("127.0.0.1", 0))
def stop(*_):
    if case != "stuck":
        os._exit(3 if case == "stop" else 0)
signal.signal(signal.SIGTERM, stop)
for option, s in ("--listen-port-file", data), ("--http-port-file", http):
    with open(a[option] + ".new", "w") as f:
        f.write("%d\n" % s.getsockname()[1])
    os.rename(a[option] + ".new", a[option])
def serve():
    data.accept()
    if case == "middle":
        os.abort()
threading.Thread(target=serve, daemon=True).start()
asked = 0
while True:
    c, _ = http.accept()
    c.recv(4096)
    asked += 1
    c.sendall(b"HTTP/1.1 %s\r\n\r\n" % (b"200 OK" if asked > 1 else b"503 no"))
    c.close()
END
cat >"$dir/fake/kvstage-send" <<'END'
#!/bin/bash
exec 3<>"/dev/tcp/127.0.0.1/${2##*:}"
case $CASE in
send) echo "connection refused"; exit 1 ;;
middle | hang | linger) exec -a "$0" sleep 1000 ;;
esac
END
cat >"$dir/fake/kvstage-engine" <<'END'
#!/bin/bash
case " $* " in
*" --check "*)
	[ "$CASE" != check ] || { echo "no such model" >&2; exit 2; }
	exit 0
	;;
esac
case $CASE in
middle | send | hang) exec -a "$0" sleep 1000 ;;
segv) kill -SEGV $$ ;;
esac
case " $* " in
*" --json "*) echo '{"byte_mismatches":0}' ;;
*) echo "requests"; echo "byte mismatches: 0" ;;
esac
[ "$CASE" != mismatch ]
END
chmod +x "$dir"/fake/*
# Nobody wants to wait half a minute for senders that linger.
sed -i 's/^leave_seconds=.*/leave_seconds=1/; s/^stop_ticks=.*/stop_ticks=10/; s,/tmp/kvstage\.,'"$dir/tmp/kvstage.," \
	"$dir/tools/quickstart"

complain()
{
	echo "$*"
	sed 's/^/    stdout: /' "$dir/out"
	sed 's/^/    stderr: /' "$dir/err"
	bad=1
}

check() # CASE STATUS STDOUT STDERR-TEXT ARGS...
{
	local name=$1 want=$2 out=$3 err=$4 status

	shift 4
	CASE=$name "$dir/tools/quickstart" "$@" >"$dir/out" 2>"$dir/err" \
		</dev/null
	status=$?
	[ $status -eq "$want" ] || complain "$name: status $status, not $want"
	[ "$(cat "$dir/out")" = "$out" ] || complain "$name: stdout"
	grep -q -F -- "$err" "$dir/err" || complain "$name: no '$err'"
	[ -z "$(ls -A "$dir/tmp")" ] || complain "$name: left its folder"
	if pgrep -f "$dir/build/tools" >/dev/null; then
		complain "$name: left a child"
	fi
}

table=$'requests\nbyte mismatches: 0'
check good 0 "$table" "starting 2 sender ranks"
check good 0 '{"byte_mismatches":0}' "" --json --inject=flip=1 --tp 8
check mismatch 1 "$table" ""
check early 1 "" "the pool is too large"
check cannot 77 "" "no memfd here"
check middle 1 "" "kvstaged was killed by signal 6"
check stop 1 "$table" "kvstaged ended with status 3"
check stuck 1 "$table" "kvstaged did not stop"
check send 1 "" "connection refused"
check segv 1 "" "kvstage-engine was killed by signal 11"
check linger 1 "$table" "senders did not end"
check usage 2 "" "--requests takes a number" --requests -1
check check 2 "" "no such model"
! grep -q starting "$dir/err" || complain "check: started a daemon"
check good 0 "$table" "" --seed 0
check usage 2 "" "--seed takes a number from 0" --seed -1
check usage 2 "" "--json takes no value" --json=yes
check usage 2 "" "--inject knows flip=N" --inject drop=1
check usage 1 "" "cannot read the trace" --trace "$dir/none"

# Interrupted while all are at work: the sign that they are is the last line.
CASE=hang timeout -s TERM 60 "$dir/tools/quickstart" >"$dir/out" \
	2>"$dir/err" </dev/null &
pid=$!
until pgrep -f "$dir/build/tools/kvstage-engine" >/dev/null; do
	kill -0 $pid 2>/dev/null || break
	read -r -t 0.05 <> <(:) || true
done
kill -TERM $pid
wait $pid
[ -z "$(ls -A "$dir/tmp")" ] || complain "TERM: left its folder"
! pgrep -f "$dir/build/tools" >/dev/null || complain "TERM: left a child"
exit $bad
