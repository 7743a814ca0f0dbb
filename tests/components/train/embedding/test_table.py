"""Groups of tables on real servers."""

from typing import Any

import numpy as np
import pytest

pytestmark = pytest.mark.slow


def test_keys_that_share_a_row_teach_one_row_however_long_a_worker_holds_it(training: Any) -> None:
    """Each with a copy of its own would make as many optimizer steps of one: lazy Adam's and FTRL's rows would explode."""
    training.make_dynamic(user={"admit_after": 100_000}, tags={"max_keys": 4})
    settings = {"workers": 1, "parameter_servers": 2, "batch_size": 50, "overlap": False, "hidden_units": "4"}
    training.with_trainer(_share, **settings, learning_rate=0.05)


def _share(first: Any, cluster: Any, paths: list[str]) -> None:
    from paraserve.components.train.embedding import state
    from tests.components.train.trainers import rows_by_key, train, trainer_of

    for optimizer in ("lazy_adam", "ftrl"):
        stepwise, held = (trainer_of(first.config, optimizer=optimizer, exchange_steps=steps) for steps in (1, 4))
        for trainer in (stepwise, held):
            train(trainer, paths[:2])
        (a, b), tables = (trainer.groups[0] for trainer in (stepwise, held)), [0, 1, 2]
        names = ["weights", *(slot.name for slot in a.optimizer.slots)]

        assert len(rows_by_key(a)["weights"]) == 30 + 4, "users share a row, and so do four of the tags"
        for name in names:
            one, other = rows_by_key(a)[name], rows_by_key(b)[name]
            assert one.keys() == other.keys()
            for key, row in one.items():
                np.testing.assert_allclose(other[key], row, rtol=1e-3, atol=1e-6)
        for one, other in zip(state.pieces(a), state.pieces(b), strict=True):
            if one["tables"].tolist() == tables and (one["keys"] == -1).all():
                for name in names:
                    np.testing.assert_allclose(other[name], one[name], rtol=1e-3, atol=1e-6)
                assert np.abs(one["weights"][0]).max() > 0.01
