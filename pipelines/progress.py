"""What kfp.local prints, in fewer words: a line when a step starts and when it ends, and between them the step's own output."""

import builtins
import io
import logging
import re
import time
from typing import TextIO

_COLOUR = re.compile(r"\x1b\[\d+m")
_STARTED = re.compile(r"Executing task '(.+)'")
_ENDED = re.compile(r"Task '(.+)' finished with status (\w+)")
_DROPPED = re.compile(r"Streamed logs:|Running pipeline:|Pipeline .* finished|Task '.+' (outputs:|has no outputs)")
_LOGGED = re.compile(r"\[KFP Executor \S+ \S+ INFO\]: ")
_EXECUTOR = re.compile(
    r" *(Looking for component|Loading KFP component|Got executor_input|Wrote executor|Did not write output)"
)
_RULE = re.compile(r"-{20,}$")
_TENSORFLOW = re.compile(
    r"^ *I0000 \d\d:|WARNING: All log messages before absl::InitializeLog|E0000 .*(cuInit|remotely due to)|ClusterSpec\("
    r"|default session config|unsupported characters|Stopping cluster, starting with failure handler"
    r"|ParameterServerStrategy \(CentralStorage|Number of GPUs on workers|ClusterCoordinator destructor"
    r"|^ *(Stopping workers|Stopping queue|Start cancelling remote resource-building functions)$"
    r"|^ *(Additional GRPC error information|:UNKNOWN:Error received from peer|This could happen if the remote target has been)"
)
_CONFIG = re.compile(r" *(\w+ \{|\w+: \S+|\})$")
"""A line of the session config, which TensorFlow writes over a page."""
_TRACEBACK = "Traceback (most recent call last):"
_MESSAGE_LINES = 20
"""How many lines a message may have for another error to be recognised as its consequence."""
_CHAINED = re.compile(r"(The above exception was the direct cause of|During handling of the above exception,) ")


class StepLines(logging.Filter):
    """A filter for the root logger, which kfp.local logs to."""

    def __init__(self) -> None:
        super().__init__()
        self._start = time.monotonic()
        self._started: dict[str, float] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Prints what it understands in its own words, and lets through what it does not."""
        message = _COLOUR.sub("", record.getMessage())
        now = time.monotonic()
        if started := _STARTED.match(message):
            self._started[started[1]] = now
            self._say(now, f"{started[1]}: started")
        elif ended := _ENDED.match(message):
            seconds = now - self._started.get(ended[1], now)
            how = "succeeded" if ended[2] == "SUCCESS" else "FAILED"
            self._say(now, f"{ended[1]}: {how} after {seconds:.1f} s")
        else:
            return not _DROPPED.match(message)
        return False

    def _say(self, now: float, text: str) -> None:
        print(f"[{now - self._start:6.1f} s] {text}", flush=True)


class StepOutput(io.TextIOBase):
    """Standard output without what only fills pages: what kfp's executor logs around each step (prefixes, its input as JSON,
    ruled lines), lines of TensorFlow's that say nothing about the run, and where in the code a step gave up that says the
    cause and the remedy itself. On Kubeflow all of it stays in the pod's log."""

    def __init__(self, out: TextIO) -> None:
        super().__init__()
        self._out = out
        self._line = ""
        self._in_json = self._in_config = False
        self._tracebacks = _Tracebacks()

    def write(self, text: str) -> int:
        *lines, self._line = (self._line + text).split("\n")
        for line in lines:
            said = _LOGGED.sub("", line)
            if self._wanted(said, logged=said != line):
                self._out.writelines(f"{shown}\n" for shown in self._tracebacks.pass_on(said))
        return len(text)

    def flush(self) -> None:
        self._out.flush()

    def _wanted(self, line: str, logged: bool) -> bool:
        if self._in_json:
            self._in_json = line.rstrip() != "    }"  # kfp indents a step's output by four
            return False
        if logged and _EXECUTOR.match(line):
            self._in_json = "Got executor_input" in line
            return False
        self._in_config = "default session config" in line or (self._in_config and bool(_CONFIG.match(line)))
        return bool(line.strip()) and not (self._in_config or _RULE.match(line) or _TENSORFLOW.search(line))


class _Tracebacks:
    """Holds a traceback back until its end tells whether anybody needs it."""

    def __init__(self) -> None:
        self._held: list[str] = []
        self._raised = -1
        """Where in `_held` the last line of the traceback stands, the one with the error; -1 while it has not come."""

    def pass_on(self, line: str) -> list[str]:
        """What to print after the next line, which is not blank."""
        if line.strip() == _TRACEBACK or (self._held and _CHAINED.match(line.strip())):
            self._raised = -1
        elif not self._held:
            return [line]
        elif self._raised >= 0 and self._is_over(line):
            return [*self._release(), line]
        elif self._raised < 0 and _indent(line) <= _indent(self._held[0]):
            self._raised = len(self._held)
        self._held.append(line)
        return []

    def _is_over(self, line: str) -> bool:
        """Whether a line that comes after the error is not of the traceback; of a bug all of the message is waited for."""
        step_ended = _indent(line) < _indent(self._held[0])
        return step_ended or _explains_itself(self._held[self._raised]) or len(self._held) > self._raised + _MESSAGE_LINES

    def _release(self) -> list[str]:
        held, raised, self._held, self._raised = self._held, self._raised, [], -1
        return held[raised:] if _explains_itself(held[raised]) else held


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())


def _explains_itself(raised: str) -> bool:
    """Whether a traceback's last line is of an error that our code raises for people, and no bug."""
    name, _, message = raised.strip().partition(": ")
    kind = getattr(builtins, name, None)
    known = isinstance(kind, type) and (kind in (ValueError, RuntimeError) or issubclass(kind, OSError))
    return bool(message) and (known or name.startswith("paraserve."))
