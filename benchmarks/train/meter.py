"""Measures a contender in its steady state: examples, time, CPU time of each role, bytes on the wire."""

import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

POLL_SECONDS = 0.01
WARM_SECONDS = 120.0
"""A contender that is not warm by then has failed."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Figures:
    """What was measured."""

    examples: int
    seconds: float
    cpu_seconds: Mapping[str, float]
    """By role: coordinator, worker, ps, and proxy where messages are delayed by one."""
    wire_bytes: int | None
    """What `meter.wire_bytes` counted; None where the contender had no network of its own."""
    cores: int
    """How many the contender had."""
    memory_bytes: Mapping[str, int]
    """Resident at the end, by role."""
    foreign_seconds: float
    """CPU seconds that other processes of the machine took meanwhile."""
    extras: Mapping[str, Any] = field(default_factory=dict)
    """What only some contenders tell."""

    @property
    def rate(self) -> float:
        """Examples per second; what proxies took of the cores is taken off the time."""
        return self.examples / (self.seconds - self.proxy_seconds / self.cores)

    @property
    def proxy_seconds(self) -> float:
        """CPU seconds that only a machine which cannot delay messages by itself spends."""
        return self.cpu_seconds.get("proxy", 0.0)

    @property
    def examples_per_cpu_second(self) -> float:
        """Examples per second of CPU time: suffers less than `rate` where other processes take a part of the cores."""
        return self.examples / (sum(self.cpu_seconds.values()) - self.proxy_seconds)

    @property
    def bytes_per_example(self) -> float | None:
        return None if self.wire_bytes is None else self.wire_bytes / self.examples


@dataclass(frozen=True, kw_only=True, slots=True)
class Meter:
    """Reads the counters of a contender's processes."""

    roles: Mapping[str, Sequence[int]]
    """Process ids of each role."""
    interface: str | None
    """The network interface that carries all messages of this contender and nothing else."""

    def measure(self, work: Callable[[], None], progress: Callable[[], int], warm: int, seconds: float) -> Figures:
        """Runs `work`, which may go on for ever, in a thread, and measures it for a while once it is warm.

        Args:
            work: trains.
            progress: how many examples are trained; may rise in steps: the measured time starts and ends at one.
            warm: so many examples are trained before.
            seconds: at least so long is measured.

        Raises RuntimeError when `work` ends before.
        """
        worker = _Work(work, progress)
        worker.wait(lambda done, _: done >= warm)
        before = self._read(worker.wait_for_step())
        worker.wait(lambda _, now: now - before.time >= seconds)
        return before.until(self._read(worker.wait_for_step()))

    def _read(self, examples: int) -> "_Reading":
        machine = psutil.cpu_times()
        return _Reading(
            time=time.perf_counter(),
            examples=examples,
            cpu={role: sum(_cpu_seconds(pid) for pid in pids) for role, pids in self.roles.items()},
            memory={role: sum(psutil.Process(pid).memory_info().rss for pid in pids) for role, pids in self.roles.items()},
            busy=sum(machine) - machine.idle - machine.iowait - machine.guest - machine.guest_nice,
            wire=None if self.interface is None else wire_bytes(self.interface),
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class _Reading:
    time: float
    examples: int
    cpu: dict[str, float]
    memory: dict[str, int]
    busy: float
    wire: int | None

    def until(self, end: "_Reading") -> Figures:
        cpu = {role: end.cpu[role] - seconds for role, seconds in self.cpu.items()}
        return Figures(
            examples=end.examples - self.examples,
            seconds=end.time - self.time,
            cpu_seconds=cpu,
            cores=len(os.sched_getaffinity(0)),
            memory_bytes=end.memory,
            wire_bytes=None if self.wire is None or end.wire is None else end.wire - self.wire,
            foreign_seconds=max(end.busy - self.busy - sum(cpu.values()), 0.0),
        )


class _Work:
    """A contender's training in a thread."""

    def __init__(self, work: Callable[[], None], progress: Callable[[], int]):
        self._progress = progress
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, args=(work,), daemon=True)
        self._thread.start()

    def _run(self, work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as error:
            self._error = error

    def wait(self, until: Callable[[int, float], bool]) -> int:
        """Waits until `until(examples trained, now)`; returns the examples trained by then."""
        deadline = time.perf_counter() + WARM_SECONDS
        while not until(done := self._progress(), now := time.perf_counter()):
            if not self._thread.is_alive():
                raise RuntimeError(f"the training ended after {done} examples, before it was measured") from self._error
            if now > deadline:
                raise TimeoutError(f"only {done} examples were trained in {WARM_SECONDS:.0f} s")
            time.sleep(POLL_SECONDS)
        return done

    def wait_for_step(self) -> int:
        """Waits until the progress moves; returns it."""
        before = self._progress()
        return self.wait(lambda done, _: done > before)


def wire_bytes(interface: str) -> int:
    """Bytes that crossed a network interface of this process's network namespace, each once, headers included."""
    for line in Path("/proc/self/net/dev").read_text().splitlines():
        name, _, counters = line.partition(":")
        if name.strip() == interface:
            received, sent = (int(counters.split()[i]) for i in (0, 8))
            return sent if interface == "lo" else received + sent  # lo receives what it sent
    raise ValueError(f"there is no network interface {interface}")


def _cpu_seconds(pid: int) -> float:
    times = psutil.Process(pid).cpu_times()
    return float(times.user + times.system)
