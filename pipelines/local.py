"""Runs the pipeline on this machine through kfp.local: the process that `paraserve run` starts and watches over.

`python -m paraserve.pipelines.local` reads its arguments as one line of JSON from standard input. Its starter keeps that pipe
open: when it closes, the starter is gone, and this process ends its whole process group, the steps and their servers.
"""

import json
import logging
import os
import signal
import sys
import threading
import warnings
from collections.abc import Mapping
from typing import Any

from paraserve.pipelines.progress import StepLines, StepOutput


def run_pipeline(arguments: Mapping[str, Any], artifacts: str) -> None:
    """Runs the pipeline, its steps as processes of this machine; `artifacts` is where kfp keeps what they pass on.

    Raises RuntimeError when a step fails.
    """
    from kfp import local

    from paraserve.pipelines.train_to_serve import train_to_serve

    # kfp puts sys.executable in the place of every "python3" of a step's command line, also inside the parameters: a place
    # such as /data/python3/log.csv would be changed. With the name itself nothing is (`paraserve run` puts it on the PATH).
    sys.executable = "python3"
    for known in ("You may be attemping to run a task", "Task .*: settings .* have no effect in the current local runner"):
        warnings.filterwarnings("ignore", message=known)
    logging.getLogger().addFilter(StepLines())
    sys.stdout = StepOutput(sys.stdout)
    local.init(runner=local.SubprocessRunner(use_venv=False), pipeline_root=artifacts)
    train_to_serve(**arguments)


def _end_with_starter(pipe: int) -> None:
    while os.read(pipe, 1024):
        pass
    os.killpg(os.getpgrp(), signal.SIGKILL)


def _take_standard_input() -> int:
    """The starter's pipe under another number, so that no step inherits it."""
    pipe = os.dup(0)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    return pipe


def main() -> int:
    if os.getpgrp() != os.getpid():
        raise SystemExit("this is a part of `paraserve run`, which starts it in a process group of its own")
    job = json.loads(sys.stdin.readline())
    threading.Thread(target=_end_with_starter, args=(_take_standard_input(),), daemon=True).start()
    try:
        run_pipeline(**job)
    except (RuntimeError, ValueError, OSError) as error:  # a failed step, or what kfp says about the pipeline or its folder
        print(error, flush=True)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
