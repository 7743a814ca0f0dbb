"""Calls a function in a process of its own: TensorFlow connects to a cluster once in a process's life."""

import importlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.train.workload import ROOT

TIMEOUT_SECONDS = 1800


def call(function: str, *arguments: Any, prefix: Sequence[str] = (), python_path: str = "") -> Any:
    """The result of `module:function`, called with arguments that JSON can say; so can the result.

    Args:
        prefix: words before the command, such as those of network.prefix.
        python_path: where it finds packages that this process has not.

    Raises RuntimeError with its last lines when it fails.
    """
    with tempfile.TemporaryDirectory(prefix="paraserve-bench-") as folder:
        output = Path(folder) / "result.json"
        ended = subprocess.run(
            [*prefix, sys.executable, "-m", "benchmarks.train.child", function, json.dumps(arguments), str(output)],
            cwd=ROOT,
            # Whatever the child leaves when it fails goes with the folder.
            env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "PYTHONPATH": python_path, "TMPDIR": folder},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=TIMEOUT_SECONDS,
        )
        if not output.exists():
            raise RuntimeError(f"{function} failed with exit code {ended.returncode}:\n{ended.stdout[-4000:].rstrip()}")
        return json.loads(output.read_text())


def _main() -> None:
    function, arguments, output = sys.argv[1:]
    module, _, name = function.partition(":")
    result = getattr(importlib.import_module(module), name)(*json.loads(arguments))
    Path(output).write_text(json.dumps(result))
    sys.stdout.flush()
    # At once: a contender's training goes on for ever in a thread.
    os._exit(0)


if __name__ == "__main__":
    _main()
