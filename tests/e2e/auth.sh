#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# Claim: kvstagectl genkey makes a key that nobody else can read; with it
# kvstaged takes ranks from any address, kvstage-send transfers, and the
# self-test runs; with another key or none both end with a message that names
# the reason, and a rank with a key takes no daemon without one. A key file that
# others can read is refused at the start, as is another address without one.
# Keys are exchanged by SIGHUP while a transfer runs, and every byte of it
# arrives; another file is not, and the log says which is in force.

set -u -o pipefail
build=${1:?usage: auth.sh BUILD}
dir=$(mktemp -d) || exit 1
pids=()
# shellcheck disable=SC2317 # called by the trap
cleanup()
{
	[ ${#pids[@]} -eq 0 ] || kill "${pids[@]}" 2>/dev/null
	wait
	rm -rf "$dir"
}
trap cleanup EXIT
export LC_ALL=C
bad=0

fail()
{
	echo "$*"
	tail -q -n 15 "$dir/out" "$dir/err" "$dir/log" 2>/dev/null |
		sed 's/^/  | /'
	bad=1
}

# run STATUS WORDS TOOL ARGS...: ends so, with these words on stderr
run()
{
	local want=$1 words=$2 tool=$3 got

	shift 3
	timeout 60 "$build/tools/$tool" "$@" >"$dir/out" 2>"$dir/err" \
		</dev/null
	got=$?
	[ $got -eq "$want" ] || fail "$tool $*: $got, not $want"
	[ -z "$words" ] || grep -q -e "$words" "$dir/err" ||
		fail "$tool $*: no '$words'"
}

# The loops are bounded by the test's own time limit.
pause()
{
	read -r -t 0.05 <> <(:)
}

# start ARGS...: a daemon; sets daemon and at
start()
{
	rm -f "$dir/port"
	: >"$dir/log"
	"$build/tools/kvstaged" --listen-port-file "$dir/port" \
		--engine-socket "$dir/sock" --ctl-socket "$dir/ctl" \
		--http-address 127.0.0.1:0 --http-port-file "$dir/http" \
		--pool-size 16M "$@" >"$dir/log" 2>&1 </dev/null &
	daemon=$!
	pids+=("$daemon")
	until grep -q ' ready$' "$dir/log"; do
		kill -0 "$daemon" 2>/dev/null || { cat "$dir/log"; exit 1; }
		pause
	done
	at=127.0.0.1:$(sed 's/.*://' "$dir/port")
}

stop()
{
	kill -TERM "$daemon"
	wait "$daemon" || fail "the daemon ended with $?"
}

# metric NAME: its value
metric()
{
	python3 -c '
import sys, urllib.request
port = open(sys.argv[1]).read().split(":")[-1].strip()
text = urllib.request.urlopen("http://127.0.0.1:" + port + "/metrics").read()
for line in text.decode().splitlines():
    if line.startswith(sys.argv[2] + " "):
        print(line.split()[-1])' "$dir/http" "$1"
}

equal() # WHAT GOT WANT
{
	[ "$2" = "$3" ] || fail "$1: '$2', not '$3'"
}

command -v python3 >/dev/null || { echo "skip: no python3"; exit 77; }

# ---- keys ----

(umask 0 && run 0 "" kvstagectl genkey "$dir/key")
equal mode "$(stat -c %a "$dir/key")" 600
grep -qxE '[0-9a-f]{64}' "$dir/key" || fail "that is no key"
run 1 "never overwritten" kvstagectl genkey "$dir/key"
run 2 "needs FILE" kvstagectl genkey
run 0 "" kvstagectl genkey "$dir/other"
cmp -s "$dir/key" "$dir/other" && fail "twice the same key"
run 2 "are for selftest" kvstagectl --key-file "$dir/key" status
print=$("$build/tools/kvstagectl" fingerprint "$dir/key")
grep -qxE '[0-9a-f]{8}' <<<"$print" || fail "no fingerprint: '$print'"
grep -q "$print" "$dir/key" && fail "the fingerprint is of the key itself"

# ---- a start that must not be ----

check=(kvstaged --check-config --engine-socket "$dir/sock" --ctl-socket
	"$dir/ctl")
run 2 "any address with auth.key_file" "${check[@]}" \
	--listen-address 0.0.0.0:0
run 0 "" "${check[@]}" --listen-address 0.0.0.0:0 --auth-key-file "$dir/key"
run 2 "http.address.*not a loopback address" "${check[@]}" \
	--http-address 0.0.0.0:0 --auth-key-file "$dir/key"
run 2 "option --auth-key-file: .*none: cannot open: No such file" \
	"${check[@]}" --auth-key-file "$dir/none"
chmod 640 "$dir/other"
run 2 "mode is 0640.*must be 0600 or 0400" "${check[@]}" \
	--auth-key-file "$dir/other"
run 2 "option --key-file: .*mode is 0640" kvstage-send \
	--daemon 127.0.0.1:1 --key-file "$dir/other" --requests 1
run 2 "key-file: the name is empty" kvstage-send --daemon 127.0.0.1:1 \
	--key-file '' --requests 1
run 2 "mode is 0640" kvstagectl selftest --key-file "$dir/other"
run 2 "mode is 0640" kvstagectl fingerprint "$dir/other"
chmod 700 "$dir/other"
run 2 "mode is 0700; it must be 0600 or 0400" "${check[@]}" \
	--auth-key-file "$dir/other"
chmod 600 "$dir/other"
(umask 077 && cat "$dir/other" "$dir/other" >"$dir/bad")
run 2 "bad, line 2: the same key" "${check[@]}" --auth-key-file "$dir/bad"
echo "not a key" >"$dir/bad"
chmod 600 "$dir/bad"
run 2 "bad, line 1: not 64" "${check[@]}" --auth-key-file "$dir/bad"

# ---- with a key, on any address ----

start --listen-address 0.0.0.0:0 --auth-key-file "$dir/key" \
	--auth-room-token required
grep -q "with a key of $dir/key; .*neither encrypted" "$dir/log" ||
	fail "the start does not say that there is a key"
grep -q "$dir/key: 1 key is accepted: $print\$" "$dir/log" ||
	fail "the start does not tell the fingerprint"
run 0 "" kvstagectl -s "$dir/ctl" status
grep -q "their fingerprints  *$print\$" "$dir/out" ||
	fail "nor does status"
send=(kvstage-send --daemon "$at" --requests 4 --max-input 400)
run 1 "it asks for a key, and none is given" "${send[@]}"
run 1 "not authenticated: the key is not accepted" "${send[@]}" \
	--key-file "$dir/other"
for io in uring sock; do
	timeout 60 "$build/tools/kvstage-engine" --socket "$dir/sock" \
		--requests 4 --max-input 400 >"$dir/engine" 2>&1 </dev/null &
	pids+=($!)
	engine=$!
	timeout 60 "$build/tools/kvstage-send" "${send[@]:1}" --io $io \
		--key-file "$dir/key" >"$dir/out" 2>"$dir/err" </dev/null
	got=$?
	if [ $got -eq 77 ]; then
		kill "$engine"
	elif [ $got -ne 0 ]; then
		fail "with $io: $got"
	else
		wait "$engine" || fail "the engine: $(cat "$dir/engine")"
		grep -q "byte mismatches: 0" "$dir/engine" ||
			fail "bytes differ"
	fi
done
run 0 "" kvstagectl -s "$dir/ctl" selftest --bytes 1M --rounds 2 \
	--key-file "$dir/key"
run 77 "asks for a key" kvstagectl -s "$dir/ctl" selftest --bytes 1M --rounds 2
equal "wrong keys" "$(metric 'kvstage_auth_failures_total{reason="code"}')" 1
equal lines "$(grep -c 'no handshake' "$dir/log")" 1

# ---- an exchange of keys, while a transfer runs ----

timeout 100 "$build/tools/kvstage-engine" --socket "$dir/sock" \
	--requests 180 --max-input 400 --room-base 1000 >"$dir/engine" 2>&1 \
	</dev/null &
pids+=($!)
engine=$!
cp -p "$dir/key" "$dir/rank"
timeout 100 "$build/tools/kvstage-send" --daemon "$at" --requests 180 \
	--max-input 400 --room-base 1000 --rate 8000 --key-file "$dir/rank" \
	>"$dir/long" 2>&1 </dev/null &
pids+=($!)
sender=$!
until grep -q agreed "$dir/long"; do
	kill -0 "$sender" 2>/dev/null || break
	pause
done
# rekey FILE...: these keys, for the daemon
rekey()
{
	local was

	was=$(grep -c "reload: done" "$dir/log")
	(umask 077 && cat "$@" >"$dir/key.new")
	mv "$dir/key.new" "$dir/key"
	kill -HUP "$daemon"
	until [ "$(grep -c "reload: done" "$dir/log")" -gt "$was" ]; do pause; done
}
cp -p "$dir/key" "$dir/old"
rekey "$dir/old" "$dir/other"
equal keys "$(metric kvstage_auth_keys)" 2
(umask 077 && cp "$dir/other" "$dir/rank.new")
mv "$dir/rank.new" "$dir/rank"
# knock STATUS WORDS FILE: another rank connects, whose room nobody wants
knock()
{
	run "$1" "$2" kvstage-send --daemon "$at" --peer another \
		--requests 1 --open-timeout 100ms --key-file "$3"
}
knock 1 ETIME "$dir/other"
equal "by the new key" \
	"$(metric 'kvstage_auth_handshakes_total{key="second"}')" 1
rekey "$dir/other"
knock 1 "not accepted" "$dir/old"
# a mistake changes nothing
chmod 644 "$dir/key"
kill -HUP "$daemon"
until grep -q "mode is 0644.*nothing is changed" "$dir/log"; do pause; done
chmod 600 "$dir/key"
knock 1 ETIME "$dir/other"
kill -0 "$sender" 2>/dev/null || fail "the transfer was too short"
wait "$sender" || fail "the transfer failed: $(cat "$dir/long")"
wait "$engine" || fail "the engine: $(cat "$dir/engine")"
grep -q "byte mismatches: 0" "$dir/engine" || fail "bytes differ"
stop

# ---- another key file is not taken up by SIGHUP; and a rank is killed ----

printf '[auth]\nkey_file = %s\n' "$dir/key" >"$dir/conf"
start --config "$dir/conf" --listen-address 127.0.0.1:0
"$build/tools/kvstage-send" --daemon "$at" --requests 1 --key-file \
	"$dir/key" >"$dir/long" 2>&1 </dev/null &
victim=$!
until grep -q "rank 0 of 1 attached" "$dir/log"; do
	kill -0 "$victim" 2>/dev/null || break
	pause
done
kill -KILL "$victim"
wait "$victim" 2>/dev/null
until grep -qE "rank 0: (it closed .*, or was killed|connection lost)" \
	"$dir/log"; do
	kill -0 "$daemon" 2>/dev/null || break
	pause
done
grep -q "(OK)" "$dir/log" && fail "the end of a killed rank is OK"
for want in "$dir/old" none; do
	echo '[auth]' >"$dir/conf"
	[ "$want" = none ] || echo "key_file = $want" >>"$dir/conf"
	was=$(grep -c "reload: done" "$dir/log")
	kill -HUP "$daemon"
	until [ "$(grep -c "reload: done" "$dir/log")" -gt "$was" ]; do pause; done
	grep -q "$dir/key stays in force, .*; $want will be" "$dir/log" ||
		fail "the log does not say which file is in force"
done
stop

# ---- a daemon without ----

start --listen-address 127.0.0.1:0
grep -q "on loopback only: without auth.key_file" "$dir/log" ||
	fail "the start does not say that there is no key"
run 1 "does not show that it knows the key" kvstage-send --daemon "$at" \
	--requests 1 --key-file "$dir/other"
stop

[ $bad -eq 0 ] && echo "keys do as they should"
exit $bad
