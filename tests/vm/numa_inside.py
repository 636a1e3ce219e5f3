#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Inside a machine with NUMA nodes, for numa.sh: numa_inside.py TOOLS MACHINE

Starts kvstaged in several ways and looks at its pools from outside: the pages
of its mappings by move_pages(2) of another process and by numa_maps, against
what kvstagectl tells. MACHINE is "two" or "four", see numa.sh. Exit 0, or 1
with what was wrong.
"""
import ctypes
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time

PAGE = 4096
MIB = 1 << 20
GIB = 1 << 30
SECONDS = 60
POOL = 48 * MIB
CGROUPS = "/sys/fs/cgroup"
NODES = "/sys/devices/system/node"

tools, machine = sys.argv[1:3]
engine_at = os.path.join(os.path.dirname(tools), "tests/vm/engine_at")
tmp = tempfile.mkdtemp()
numa = ctypes.CDLL("libnuma.so.1", use_errno=True)
bad = 0


def check(good, text):
    global bad
    if not good:
        bad += 1
        print("FAIL:", text)
    return good


def equal(what, got, want):
    return check(got == want, "%s: %r, not %r" % (what, got, want))


def where(pid, start, size, step):
    """Pages per node, by move_pages(2); what is not there counts as -1."""
    n = size // step
    pages = (ctypes.c_void_p * n)(*range(start, start + size, step))
    status = (ctypes.c_int * n)()
    if numa.move_pages(pid, ctypes.c_ulong(n), pages, None, status, 0):
        raise OSError(ctypes.get_errno(), "move_pages")
    nodes = {}
    for s in status:
        nodes[s if s >= 0 else -1] = nodes.get(s if s >= 0 else -1, 0) + 1
    return nodes


def mappings(pid):
    """The pools as the kernel knows them: (pool, node it is bound to, bytes,
    page size, pages per node by move_pages, the same by numa_maps)"""
    out = []
    sizes = {}
    with open("/proc/%d/maps" % pid) as f:
        for line in f:
            a, b = (int(x, 16) for x in line.split()[0].split("-"))
            sizes[a] = b - a
    with open("/proc/%d/numa_maps" % pid) as f:
        for line in f:
            m = re.search(r"memfd:kvstage-(\w+)", line)
            if not m:
                continue
            start = int(line.split()[0], 16)
            policy = line.split()[1]
            node = int(policy.split(":")[1]) if ":" in policy else -1
            step = int(re.search(r"kernelpagesize_kB=(\d+)", line)[1]) * 1024
            seen = {int(a): int(b)
                    for a, b in re.findall(r" N(\d+)=(\d+)", line)}
            out.append((m[1], node, sizes[start], step,
                        where(pid, start, sizes[start], step), seen))
    return sorted(out)


class Daemon:
    """A kvstaged with these settings, below a command or in a cgroup."""

    def __init__(self, *settings, size=POOL, prefix=(), cgroup=None):
        def enter():
            if cgroup:
                with open(cgroup + "/cgroup.procs", "w") as f:
                    f.write("0")

        self.size = size
        self.ctl = tmp + "/ctl"
        self.engine = tmp + "/engine"
        self.log = tmp + "/log"
        with open(self.log, "w") as log:
            self.process = subprocess.Popen(
                [*prefix, tools + "/kvstaged", "--pool-size", str(size),
                 "--ctl-socket", self.ctl, "--engine-socket", self.engine,
                 "--listen-address", "127.0.0.1:0", "--http-address", "off",
                 *settings], stdout=log, stderr=log, preexec_fn=enter)

    def said(self):
        with open(self.log) as f:
            return f.read()

    def wait_for(self, words):
        end = time.monotonic() + SECONDS
        while time.monotonic() < end:
            text = self.said()
            if words in text:
                return True
            if self.process.poll() is not None:
                break
            time.sleep(0.02)
        return check(False, "no %r in:\n%s" % (words, self.said()))

    def ask(self, command):
        out = subprocess.run([tools + "/kvstagectl", "-j", "-s", self.ctl,
                              command], stdout=subprocess.PIPE, check=True)
        return [json.loads(x) for x in out.stdout.splitlines()]

    def refused(self, what, *words):
        try:
            status = self.process.wait(SECONDS)
        except subprocess.TimeoutExpired:
            status = None
            self.process.kill()
            self.process.wait()
        equal(what + ": exit status", status, 1)
        for w in words:
            check(w in self.said(), "%s: no %r in:\n%s" % (what, w,
                                                           self.said()))
        print("refused, %s: %s" % (what, self.said().split(" err: ")[-1]
                                   .splitlines()[0]))

    def stop(self):
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            equal("exit status", self.process.wait(SECONDS), 0)


def pools(what, want, daemon):
    """Where the pools are: want is a list of (pool, node, page size)"""
    if not daemon.wait_for("notice: ready"):
        return
    got = mappings(daemon.process.pid)
    told = sorted((p["pool"], p["node"], p["configured"], p["page_size"])
                  for p in daemon.ask("pools"))
    for pool, node, size, step, pages, seen in got:
        here = pages.get(node, 0)
        rest = {k: v for k, v in pages.items() if k != node}
        print("%-28s %-8s %4d %6d MiB %8d KiB %8d %10d" % (
            what, pool, node, size // MIB, step // 1024, here,
            sum(rest.values())))
        equal(what + ": pages elsewhere", rest, {})
        equal(what + ": bytes on the node", here * step, daemon.size)
        # numa_maps counts a huge page as one
        equal(what + ": numa_maps", seen, pages)
    equal(what + ": pools", [(g[0], g[1], g[3]) for g in got], sorted(want))
    equal(what + ": kvstagectl pools", told,
          [(g[0], g[1], g[2], g[3]) for g in got])
    log = daemon.said()
    for pool, node, _ in want:
        m = re.search("%s pool on node %d: .* in .* pages, (.*)" % (
            pool, node), log)
        equal(what + ": log", m and m[1], "on its node")


def place(what, want, *settings, **how):
    d = Daemon(*settings, **how)
    pools(what, want, d)
    d.stop()


def receive(*nodes, page=PAGE):
    return [("receive", n, page) for n in nodes]


def huge(node, count):
    name = NODES + "/node%d/hugepages/hugepages-2048kB/nr_hugepages" % node
    with open(name, "w") as f:
        f.write(str(count))
    with open(name) as f:
        equal("huge pages of node %d" % node, int(f.read()), count)


def group(name, cpus, mems):
    path = CGROUPS + "/" + name
    os.mkdir(path)
    for key, value in (("cpus", cpus), ("mems", mems)):
        with open("%s/cpuset.%s" % (path, key), "w") as f:
            f.write(value)
    return path


def workers(daemon):
    """CPUs that each node's thread may run on, sorted."""
    out = []
    base = "/proc/%d/task" % daemon.process.pid
    for t in os.listdir(base):
        with open("%s/%s/status" % (base, t)) as f:
            text = f.read()
        if text.startswith("Name:\tkvs-node\n"):
            out.append(re.search(r"Cpus_allowed_list:\t(.*)", text)[1])
    return sorted(out)


def pci_of(card):
    path = os.path.realpath("/sys/class/net/%s/device" % card)
    return os.path.basename(os.path.dirname(path))


def engine(daemon, what, want, node, *pci):
    """An engine next to a device, and where its room's memory is."""
    e = subprocess.Popen([engine_at, daemon.engine, str(node), *pci],
                         stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                         text=True)
    if check(e.stdout.readline() == "admitted\n", what + ": not admitted"):
        at = [p["node"] for p in daemon.ask("pools")
              if p["free"] < p["configured"]]
        equal(what + ": memory on", at, [want])
        said = [x.split("rooms on ")[1] for x in daemon.said().splitlines()
                if "engine_at (pid" in x][-1]
        print("%s: rooms on %s" % (what, said))
        check(said.startswith("node %d" % want), what + ": log: " + said)
    e.stdin.close()
    e.wait(SECONDS)
    equal(what + ": exit status", e.returncode, 0)


def devices(daemon, want):
    got = {d: n["node"] for n in daemon.ask("topo") for d in n["devices"]}
    equal("devices", got, want)
    print("devices next to nodes:", " ".join(
        "%s:%d" % (k, v) for k, v in sorted(got.items())))


def two():
    d = Daemon("--pool-offload-size", str(POOL))
    pools("auto", receive(0, 1) + [("offload", 0, PAGE), ("offload", 1, PAGE)],
          d)
    equal("threads", workers(d), ["0", "1"])
    devices(d, {"nic0": 0, "nic1": 1, "rxe_nic0": 0, "rxe_nic1": 1})
    engine(d, "engine next to nic1's slot", 1, -1, pci_of("nic1"))
    engine(d, "engine next to nic0's slot", 0, -1, pci_of("nic0"))
    engine(d, "engine next to nic0, asks for 1", 1, 1, pci_of("nic0"))
    d.stop()

    d = Daemon("--transport-data", "verbs", "--rdma-device", "rxe_nic1")
    if d.wait_for("notice: ready"):
        for r in d.ask("rdma"):
            if r["used"]:
                print("pool on node %d: %s, on node %d" % (
                    r["pool_node"], r["device"], r["node"]))
                equal("device", (r["device"], r["node"]), ("rxe_nic1", 1))
        engine(d, "NIC on node 1, engine in a slot of node 0", 0, -1,
               pci_of("nic0"))
    d.stop()

    place("pool.nodes=1", receive(1), "--pool-nodes", "1")
    place("taskset -c 0", receive(0), prefix=("taskset", "-c", "0"))
    place("not strict", receive(0, 1), "--pool-strict", "no")
    small = group("small", "1", "1")
    place("cpuset: CPU 1, memory 1", receive(1), cgroup=small)
    far = group("far", "0", "1")
    place("cpuset: CPU 0, memory 1", receive(1), cgroup=far)
    Daemon("--pool-nodes", "0", cgroup=small).refused(
        "pool on node 0, cpuset has 1", "mems_allowed is 1")
    Daemon("--pool-nodes", "0", size=900 * MIB).refused(
        "900 MiB on a node of 800", "NUMA node 0")
    place("1 GiB of node 1", receive(1, page=GIB), "--pool-nodes", "1",
          size=GIB)

    count = POOL // (2 * MIB)
    huge(0, count + 4)
    d = Daemon()
    pools("huge pages on node 0", receive(0, page=2 * MIB) + receive(1), d)
    check("huge pages of 2M are needed and 0 available on NUMA node 1"
          in d.said(), "does not say why:\n" + d.said())
    d.stop()
    huge(1, count)
    place("huge pages on both", receive(0, 1, page=2 * MIB))


def four():
    d = Daemon()
    pools("auto", receive(0, 1), d)
    topo = {n["node"]: n for n in d.ask("topo")}
    equal("nodes with memory", sorted(topo), [0, 1, 3])
    equal("node 3 has CPUs", topo[3]["has_cpus"], False)
    equal("node that works for node 3", topo[3]["cpu_node"], 1)
    # node 2 has no memory; node 1 is the next to it
    devices(d, {"nic0": 1, "nic1": 1, "nic2": 3, "rxe_nic0": 1,
                "rxe_nic1": 1, "rxe_nic2": 3})
    engine(d, "engine in a slot of node 1", 1, -1, pci_of("nic0"))
    engine(d, "engine in a slot of node 2, no memory", 1, -1, pci_of("nic1"))
    engine(d, "engine in a slot of node 3, no CPUs", 1, -1, pci_of("nic2"))
    d.stop()

    Daemon("--pool-nodes", "0,2").refused("pool on node 2", "node 2 has no "
                                          "memory")
    d = Daemon("--pool-nodes", "0,3")
    pools("pool.nodes=0,3", receive(0, 3), d)
    check("NUMA node 3 (populated from node 1)" in d.said(), "log:\n" +
          d.said())
    equal("threads", workers(d), ["0", "1"])
    engine(d, "engine in a slot of node 2, no memory", 3, -1, pci_of("nic1"))
    d.stop()
    place("taskset -c 2", receive(1), prefix=("taskset", "-c", "2"))
    for n in (0, 1, 3):
        huge(n, POOL // (2 * MIB))
    place("huge pages, nodes 0,1,3", receive(0, 1, 3, page=2 * MIB),
          "--pool-nodes", "0,1,3")


with open(CGROUPS + "/cgroup.subtree_control", "w") as control:
    control.write("+cpuset")
print("the NUMA placement table, machine with %s nodes:" % machine)
print("%-28s %-8s %4s %10s %12s %8s %10s" % (
    "start", "pool", "node", "bytes", "page size", "on node", "elsewhere"))
{"two": two, "four": four}[machine]()
sys.exit(bad > 0)
