"""The coordinator's side of a training on real servers."""

import subprocess
import time
from typing import Any

import pytest

pytestmark = pytest.mark.slow


def test_a_worker_that_stands_still_stops_no_other(training: Any) -> None:
    training.with_trainer(_stand_still, hidden_units="4", parameter_servers=1)


def _stand_still(trainer: Any, cluster: Any, paths: list[str]) -> None:
    from tests.components.train.trainers import Call, train, worker_process

    for worker in range(2):
        train(trainer, paths[:1], worker)
    worker_process(cluster, 0).suspend()
    # Not by a thread of this process: it might stand still as well.
    with subprocess.Popen(["sh", "-c", f"sleep 6; kill -CONT {worker_process(cluster, 0).pid}"]):
        start, stopped = time.monotonic(), Call(lambda: train(trainer, paths[:1], 0))
        train(trainer, paths[:1], 1)
        assert time.monotonic() - start < 5
        assert stopped.running
    stopped.result()
