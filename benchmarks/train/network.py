"""The network that a contender's tasks talk over, in network namespaces of their own, so that its bytes can be counted.

    loopback    all tasks in one namespace
    gigabit     parameter servers in a second one, behind a link of 1 Gbit/s in each direction
    delayed     the same with 0.5 ms more in each direction, added by proxies (delay.py): kernels built small lack tc's netem

Making namespaces needs root, or a kernel that lets users make user namespaces. Where neither is given, contenders share the
machine's loopback; bytes and the other networks are left out.
"""

import contextlib
import ctypes
import functools
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

SHARED, LOOPBACK, GIGABIT, DELAYED = "shared", "loopback", "gigabit", "delayed"
RATE = "1gbit"
DELAY_SECONDS = 0.0005
_HERE = "127.0.0.1"
_NEAR, _FAR = "10.99.0.1", "10.99.0.2"
"""The link's ends: workers and coordinator, parameter servers."""
_NEAR_NAME, _FAR_NAME = "10.99.1.1", "10.99.1.2"
"""Addresses of tasks whose messages are to go through proxies. Both ends of the link have both: at the tasks' own end an
address leads to them, at the other end to a proxy."""
_CLONE_NEWNET = 0x40000000


@dataclass(frozen=True, kw_only=True, slots=True)
class Network:
    """Where a contender's tasks live."""

    hosts: Mapping[str, str]
    """By job name, the address of its tasks."""
    interface: str | None
    """The interface that carries all messages between tasks, or between the two ends, and nothing else."""
    far_end: int | None = None
    """A process in the parameter servers' namespace, where they have their own."""
    proxies: list[int] = field(default_factory=list)
    """Process ids."""

    def enter(self, job: str) -> None:
        """Moves this process, which has one thread, to where the tasks of `job` live."""
        if job != "ps" or self.far_end is None:
            return
        with Path(f"/proc/{self.far_end}/ns/net").open() as namespace:
            if ctypes.CDLL(None, use_errno=True).setns(namespace.fileno(), _CLONE_NEWNET):
                raise OSError(ctypes.get_errno(), "setns")

    def open(self, addresses: Mapping[str, Sequence[str]]) -> None:
        """Starts the proxies for the tasks at `addresses` (host:port, by job name), where there are any."""
        if self.hosts["ps"] != _FAR_NAME:
            return
        assert self.far_end is not None
        near = [address for job in self.hosts if job != "ps" for address in addresses[job]]
        self.proxies.append(_proxy((), addresses["ps"], _FAR))
        self.proxies.append(_proxy(_inside(self.far_end), near, _NEAR))


@functools.cache
def prefix() -> tuple[str, ...]:
    """The words before a command that give it a network namespace of its own; none where that is not allowed."""
    words = ("unshare", "--net") if os.geteuid() == 0 else ("unshare", "--net", "--map-root-user")
    with contextlib.suppress(OSError, subprocess.CalledProcessError):
        subprocess.run([*words, "ip", "link", "set", "lo", "up"], check=True, capture_output=True)
        return words
    return ()


def build(kind: str) -> Network:
    """The network of that kind, made in this process's namespace, which `prefix` made for it unless the kind is SHARED."""
    if kind == SHARED:
        return Network(hosts=_hosts(_HERE, _HERE), interface=None)
    _run("ip link set lo up")
    if kind == LOOPBACK:
        return Network(hosts=_hosts(_HERE, _HERE), interface="lo")
    far_end = _link()
    if kind == GIGABIT:
        return Network(hosts=_hosts(_NEAR, _FAR), interface="near", far_end=far_end)
    for inside in ((), _inside(far_end)):
        for name in (_NEAR_NAME, _FAR_NAME):
            _run(f"ip address add {name}/32 dev lo", inside)
    return Network(hosts=_hosts(_NEAR_NAME, _FAR_NAME), interface="near", far_end=far_end)


def _hosts(near: str, far: str) -> dict[str, str]:
    return {"chief": near, "worker": near, "ps": far}


def _link() -> int:
    """Makes the second namespace and the link to it; returns a process there, which ends with this one."""
    ours = Path("/proc/self/ns/net").readlink()
    # It ends when its input does, and so when this process does, however that ends.
    holder = subprocess.Popen(["unshare", "--net", "cat"], stdin=subprocess.PIPE)
    while Path(f"/proc/{holder.pid}/ns/net").readlink() == ours:
        time.sleep(0.01)
    _run(f"ip link add near type veth peer name far netns {holder.pid}")
    inside = _inside(holder.pid)
    _run("ip link set lo up", inside)
    for end, address, where in (("near", _NEAR, ()), ("far", _FAR, inside)):
        _run(f"ip address add {address}/24 dev {end}", where)
        _run(f"ip link set {end} up", where)
        _run(f"tc qdisc add dev {end} root tbf rate {RATE} burst 128kb latency 50ms", where)
    return holder.pid


def _proxy(inside: Sequence[str], addresses: Sequence[str], target: str) -> int:
    """Starts a proxy that takes connections to `addresses` and hands them on to the same ports of `target`."""
    routes = [f"{address}={target}:{address.rpartition(':')[2]}" for address in addresses]
    command = [*inside, sys.executable, "-m", "benchmarks.train.delay", str(DELAY_SECONDS), *routes]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdout is not None
    if not process.stdout.readline():
        raise RuntimeError(f"the delay proxy did not start: {command}")
    return process.pid


def _inside(pid: int) -> tuple[str, ...]:
    return ("nsenter", "--target", str(pid), "--net")


def _run(command: str, inside: Sequence[str] = ()) -> None:
    subprocess.run([*inside, *command.split()], check=True)
