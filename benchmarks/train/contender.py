"""Runs one contender in this process and writes its figures; `contenders.measure` starts it.

python -m benchmarks.train.contender NAME WORKLOAD NETWORK SETTINGS OUTPUT
"""

import dataclasses
import importlib
import json
import os
import sys
from pathlib import Path

from benchmarks.train import network
from benchmarks.train.workload import Workload, pin


def main() -> None:
    name, workload, kind, settings, output = sys.argv[1:]
    wanted = Workload.from_json(workload)
    pin(wanted.cores)
    arguments = (json.loads(settings),) if name == "ours" else ()
    figures = importlib.import_module(f"benchmarks.train.{name}").run(wanted, network.build(kind), *arguments)
    Path(output).write_text(json.dumps(dataclasses.asdict(figures)))
    # At once: a training that goes on for ever is still running in a thread.
    os._exit(0)


if __name__ == "__main__":
    main()
