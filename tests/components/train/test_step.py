"""What a worker does of a shard, on real servers."""

from typing import Any

import numpy as np
import pytest

pytestmark = pytest.mark.slow


def test_an_exchange_without_a_batch_is_no_step(training: Any) -> None:
    """A shard of 5 batches is 5 exchanges and, since the graph has two in a round, one without a batch."""
    settings = {"workers": 1, "parameter_servers": 1, "hidden_units": "4", "overlap": False}
    training.with_trainer(_odd, **settings, optimizer="lazy_adam", learning_rate=0.05, exchange_steps=1)


def _odd(stepwise: Any, cluster: Any, paths: list[str]) -> None:
    from tests.components.train.trainers import train, trainer_of

    held = trainer_of(stepwise.config, exchange_steps=5)
    exchanged = [train(trainer, paths[:2]) for trainer in (stepwise, held)]

    assert [int(e.staleness.sum()) for e in exchanged] == [10, 2]
    assert [int(trainer.functions.clock.now()) for trainer in (stepwise, held)] == [10, 10]
    (momentum, expected) = (trainer.dense.arrays()["momentum"] for trainer in (stepwise, held))
    np.testing.assert_allclose(momentum, expected, rtol=1e-3, atol=1e-6)
    assert np.abs(momentum).max() > 1e-3
