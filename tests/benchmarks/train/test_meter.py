"""The meter on a training of known speed."""

import os
import time

import pytest

from benchmarks.train.meter import Figures, Meter

METER = Meter(roles={"coordinator": [os.getpid()]}, interface=None)


class Training:
    """A hundred examples every hundredth of a second."""

    def __init__(self, steps: int):
        self.steps, self.examples = steps, 0

    def run(self) -> None:
        for _ in range(self.steps):
            time.sleep(0.01)
            self.examples += 100


def test_measures_after_the_warm_up_from_step_to_step() -> None:
    training = Training(steps=10**6)
    figures = METER.measure(training.run, lambda: training.examples, warm=1000, seconds=0.3)
    assert figures.examples % 100 == 0
    assert 0.3 <= figures.seconds < 3
    assert figures.rate < 100 / 0.01
    assert figures.wire_bytes is figures.bytes_per_example is None
    assert training.examples >= 1000 + figures.examples


def test_a_training_that_ends_or_fails_is_not_measured() -> None:
    training = Training(steps=3)
    with pytest.raises(RuntimeError, match="ended after 300 examples"):
        METER.measure(training.run, lambda: training.examples, warm=1000, seconds=1)
    with pytest.raises(RuntimeError) as raised:
        METER.measure(lambda: 1 / 0, lambda: 0, warm=1000, seconds=1)
    assert isinstance(raised.value.__cause__, ZeroDivisionError)


def test_what_proxies_take_of_the_cores_is_taken_off() -> None:
    figures = Figures(
        examples=1000,
        seconds=10.0,
        cpu_seconds={"worker": 10.0, "proxy": 4.0},
        wire_bytes=5000,
        cores=2,
        memory_bytes={},
        foreign_seconds=0.0,
    )
    assert figures.rate == 1000 / 8
    assert figures.examples_per_cpu_second == 100
    assert figures.bytes_per_example == 5
