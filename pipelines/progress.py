"""What kfp.local prints, in fewer words: a line when a step starts and when it ends, and between them the step's own output."""

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
_TENSORFLOW = re.compile(r" *(I0000 \d\d:|WARNING: All log messages before absl::InitializeLog)")


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
    ruled lines), and the informative lines of TensorFlow's import, which no setting turns off."""

    def __init__(self, out: TextIO) -> None:
        super().__init__()
        self._out = out
        self._line = ""
        self._in_json = False

    def write(self, text: str) -> int:
        *lines, self._line = (self._line + text).split("\n")
        for line in lines:
            said = _LOGGED.sub("", line)
            if self._wanted(said, logged=said != line):
                self._out.write(f"{said}\n")
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
        return bool(line.strip()) and not _RULE.match(line) and not _TENSORFLOW.match(line)
