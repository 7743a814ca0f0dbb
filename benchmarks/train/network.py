"""The network that a contender's processes talk over: loopback of a namespace of their own, whose bytes can be counted.

Making a network namespace needs root, or a kernel that lets users make user namespaces. Where neither is given, contenders
share the machine's loopback, and bytes are left out.
"""

import functools
import os
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class Network:
    """Where a contender's tasks live."""

    hosts: Mapping[str, str]
    """By job name, the address of its tasks."""
    interface: str | None
    """The interface that carries all messages between them and no others."""


LOOPBACK = "127.0.0.1"


@functools.cache
def prefix() -> tuple[str, ...] | None:
    """The words before a command that give it a network namespace of its own; None where that is not allowed."""
    words = ("unshare", "--net") if os.geteuid() == 0 else ("unshare", "--net", "--map-root-user")
    try:
        subprocess.run([*words, "ip", "link", "set", "lo", "up"], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return words


def loopback(own_namespace: bool) -> Network:
    """All tasks on this machine's loopback, or on that of the namespace that `prefix` made."""
    if own_namespace:
        subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    hosts = dict.fromkeys(("chief", "worker", "ps"), LOOPBACK)
    return Network(hosts=hosts, interface="lo" if own_namespace else None)
