#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# Claim: on machines with two and with four NUMA nodes, one of them without
# memory and one without CPUs, kvstaged's pools lie where they should, page by
# page, as another process sees them: huge pages of each node, cpusets and CPU
# masks smaller than the machine, nodes that cannot have a pool. kvstagectl and
# the log say the same. Rooms of an engine lie on the pool next to its device.
#
# Prints the NUMA placement table.

set -u -o pipefail
build=${1:?usage: numa.sh BUILD}
here=$(cd "$(dirname "$0")" && pwd) || exit 1
bad=0

machine() # NAME OPTIONS...
{
	local name=$1

	shift
	"$here/run" --time 200 --rxe 1 "$@" -- \
		"$here/numa_inside.py" "$build/tools" "$name"
	case $? in
	0) ;;
	77) exit 77 ;;
	*) bad=1 ;;
	esac
}

# A page of 1 GiB can only be reserved at boot.
machine two --numa 800:1,1900:1 --nic 0 --nic 1 \
	--append 'hugepagesz=1G hugepages=1:1 hugepagesz=2M'
# 0 and 1 have both; 2 has no memory, 3 no CPUs; 1 is the next to both.
machine four --numa 700:1,700:1,0:1,700:0 --nic 1 --nic 2 --nic 3 \
	--distance 0:1:21 --distance 2:0:30 --distance 2:1:15 \
	--distance 2:3:25 --distance 3:0:31 --distance 3:1:17
exit $bad
