#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# Inside the machine, for rig.sh: lists the RDMA devices and uses each. Exit
# 0, or 1 with what went wrong.

set -u -o pipefail
export LC_ALL=C
port=18515
log=/tmp/rig

die()
{
	echo "FAIL: $*"
	cat $log.*
	exit 1
}

listening() # PORT
{
	grep -q "$(printf ':%04X 0*:0000 0A' "$1")" /proc/net/tcp /proc/net/tcp6
}

# Both ends of a test between a device and itself.
pair() # COMMAND...
{
	local server i

	timeout 60 "$@" >$log.server 2>&1 &
	server=$!
	for ((i = 0; i < 600; i++)); do
		listening $port && break
		kill -0 $server 2>/dev/null || break
		sleep 0.05
	done
	timeout 60 "$@" localhost >$log.client 2>&1 || die "client: $*"
	wait $server || die "server: $*"
}

echo "kernel $(uname -r)"
for path in /sys/class/infiniband/*; do
	d=${path##*/}
	ibv_devinfo -v -d "$d" >$log.info || die "ibv_devinfo -d $d"
	windows=no
	! grep -q MEM_WINDOW_TYPE_2B $log.info || windows="type 2B"
	mtu=$(sed -n 's/.*active_mtu:[ \t]*\([0-9]*\).*/\1/p' $log.info)
	pair ibv_rc_pingpong -d "$d" -g 1 -n 20
	echo "device $d: on $(cat "$path/parent"), mtu $mtu," \
		"memory windows: $windows, ping-pong good"
done
pair ib_write_bw -F -d rxe0 -x 1 -s 1048576 -n 40 -t 8 --report_gbits
awk '$1 == 1048576 { printf "ib_write_bw, 1 MiB: %s Gb/s\n", $4 }' $log.client
