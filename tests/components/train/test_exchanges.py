"""What workers and servers exchange: the cache, overlap, compression, 16 bits, what is not finite; on real servers."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytestmark = pytest.mark.slow

ALONE = {"workers": 1, "parameter_servers": 2, "batch_size": 50, "overlap": False}


@pytest.mark.parametrize("optimizer", ["adagrad", "lazy_adam", "rowwise_adagrad"])
def test_steps_on_a_worker_are_the_servers_steps_with_fewer_rows_on_the_wire(training: Any, optimizer: str) -> None:
    training.with_trainer(_cached, **ALONE, optimizer=optimizer, learning_rate=0.02, exchange_steps=4)


def _cached(local: Any, cluster: Any, paths: list[str]) -> None:
    from tests.components.train.trainers import train, trainer_of

    by_servers = trainer_of(local.config, exchange_steps=1)
    cached, plain = train(local, paths[:2]), train(by_servers, paths[:2])

    assert cached.cache_hit_rate > 0.3
    assert plain.cache_hit_rate < 0.1  # a batch's rows are counted in the first batch of each shard alone
    assert cached.rows_pulled < 0.7 * plain.rows_pulled
    weights = [trainer.dense.arrays()["weights"] for trainer in (local, by_servers)]
    moved = np.abs(weights[0] - local.network.weights.values().numpy()).max()
    assert moved > 0.01
    np.testing.assert_allclose(*weights, atol=moved / 100)


def test_overlap_makes_a_workers_own_steps_stale_and_nothing_else_does(training: Any) -> None:
    training.with_trainer(_overlapped, **{**ALONE, "overlap": True}, exchange_steps=2)


def _overlapped(overlapped: Any, cluster: Any, paths: list[str]) -> None:
    from tests.components.train.trainers import train, trainer_of

    stale = train(overlapped, paths[:1]).staleness
    fresh = train(trainer_of(overlapped.config, overlap=False), paths[:1]).staleness

    # 500 examples are 5 exchanges of 2 steps; those that are pulled before the one ahead of them is pushed miss its 2 steps.
    assert (stale[0], stale[2]) == (3, 2)
    assert fresh[0] == fresh.sum() == 5


def test_compression_sends_the_largest_changes_and_keeps_the_rest_for_later(training: Any) -> None:
    training.with_trainer(_compressed, **ALONE, dense_optimizer="sgd", hidden_units="64", dense_compression="topk")


def _compressed(trainer: Any, cluster: Any, paths: list[str]) -> None:
    import tensorflow as tf

    from tests.components.train.trainers import train

    dense, yes, step = trainer.dense, tf.constant(True), tf.constant(0, tf.int64)
    gradient = tf.random.stateless_normal([dense.size], [1, 2])
    before = dense.arrays()["weights"]
    rest = dense.push_largest(gradient, tf.constant(0.5), step, yes)
    change = dense.arrays()["weights"] - before

    sent = sum(dense.kept(size) for size in dense.sizes)
    assert np.count_nonzero(change) == sent < dense.size / 20
    assert np.abs(gradient)[change != 0].min() > np.abs(rest).max() * 0.99 or len(dense.sizes) > 1
    dense.push(rest, tf.constant(0.5), step, yes)
    np.testing.assert_allclose(dense.arrays()["weights"], before - 0.5 * gradient.numpy(), atol=1e-6)
    dense.push_largest(gradient, tf.constant(0.5), step, tf.constant(False))
    np.testing.assert_allclose(dense.arrays()["weights"], before - 0.5 * gradient.numpy(), atol=1e-6)

    before = dense.arrays()["weights"]
    compressed = train(trainer, paths[:1])
    assert np.count_nonzero(dense.arrays()["weights"] - before) > dense.size / 2, "a shard's end leaves nothing at home"
    assert compressed.bytes_by_table()["dense"]["pushed"] < compressed.bytes_by_table()["dense"]["pulled"] / 10


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_learns_with_16_bits_on_the_wire(training: Any, dtype: str) -> None:
    result = training.run(pull_dtype=dtype, push_dtype=dtype, exchange_steps=2, epochs=8, patience=0)

    assert result.figures["eval_auc"] > 0.85
    assert result.export_difference <= 1e-5


MODEL_WITH_NANS = """
import tensorflow as tf, tf_keras
class Sometimes(tf_keras.Model):
    def __init__(self):
        super().__init__()
        self.one = tf_keras.layers.Dense(1)
    def call(self, inputs, training=False):
        logits = self.one(tf.concat([inputs["dense"], inputs["user"], inputs["item"]], axis=1))
        return logits * tf.where(inputs["dense"] < -4.5, float("nan"), 1.0) if training else logits
def build(spec, config):
    return Sometimes()
"""


@pytest.mark.parametrize("exchange_steps", [1, 3])
def test_gradients_that_are_not_finite_stop_the_run_or_are_dropped_and_counted(
    training: Any, tmp_path: Path, exchange_steps: int
) -> None:
    from tests.components.train.test_job import _train_with_path

    (tmp_path / "sometimes.py").write_text(MODEL_WITH_NANS)
    settings = training.settings(model="sometimes:build", epochs=1, exchange_steps=exchange_steps)
    with pytest.raises(FloatingPointError, match=r"gradients became NaN or infinite .* set `nonfinite` to drop"):
        training.call(_train_with_path, str(tmp_path), settings, training)

    result = training.call(_train_with_path, str(tmp_path), {**settings, "nonfinite": "drop"}, training)

    assert 0 < result.exchanged["dropped_steps"] < 30
    assert np.isfinite(result.figures["eval_loss"])


def test_every_key_has_its_row_and_every_sighting_is_counted(training: Any) -> None:
    training.make_dynamic()
    training.with_trainer(_exact, workers=4, parameter_servers=2, exchange_steps=2, batch_size=50)


def _exact(trainer: Any, cluster: Any, paths: list[str]) -> None:
    from paraserve.components.features.keys import PADDING
    from paraserve.components.records import read_shard
    from tests.components.train.trainers import Call, rows_by_key, train

    calls = [Call(lambda worker=worker: train(trainer, paths[worker::4], worker)) for worker in range(4)]
    for call in calls:
        call.result(90)

    ids = np.concatenate([read_shard(Path(p), trainer.manifest.layout).id_matrix(trainer.manifest.layout) for p in paths])
    keys, counts = np.unique(ids[ids != PADDING], return_counts=True)
    (group,) = trainer.groups
    assert rows_by_key(group)["frequency"] == dict(zip(keys.tolist(), counts.tolist(), strict=True))
    for shard in group.shards:
        _, slots, _ = shard.export_keys()
        assert len(np.unique(slots)) == len(slots)


def test_a_table_gives_up_keys_within_a_training_and_admits_at_the_nth_sighting(training: Any) -> None:
    training.make_dynamic(item={"max_keys": 24, "evict": "lfu"}, user={"admit_after": 100_000})

    result = training.run(epochs=4, patience=0, workers=1)

    assert result.evicted["item"] > 0
    assert result.evicted["user"] == result.evicted["tags"] == 0
    assert result.export.rows <= 24 + 8, "no user was ever admitted, and items stay within their budget"
    assert result.export_difference <= 1e-5


def test_a_snapshot_restores_onto_other_servers_bit_for_bit(training: Any) -> None:
    training.make_dynamic()
    training.with_trainer(_restored, training.folder, workers=1, parameter_servers=3, exchange_steps=2)


def _restored(first: Any, cluster: Any, paths: list[str], folder: Path) -> None:
    from paraserve.components.train import snapshot
    from tests.components.train.trainers import rows_by_key, train, trainer_of

    for optimizer in ("rowwise_adagrad", "lazy_adam"):
        trained = trainer_of(first.config, optimizer=optimizer)
        train(trained, paths[:1])
        taken = snapshot.Snapshot(
            place=str(folder / optimizer),
            epoch=1,
            settings=trained.config.settings(),
            spec_digest="",
            data_digest="",
            history=(),
            finished=True,
            done=(),
            files={},
        )
        other = trainer_of(first.config, optimizer=optimizer, parameter_servers=2, seed=9)
        snapshot.restore(snapshot.write(taken, trained), other)
        np.testing.assert_equal(other.dense.arrays(), trained.dense.arrays())
        np.testing.assert_equal(rows_by_key(other.groups[0]), rows_by_key(trained.groups[0]))


def test_a_run_that_ends_within_an_epoch_goes_on_there(training: Any) -> None:
    import psutil

    from tests.components.train.test_job import servers, wait_for

    future = training.start(epochs=1, snapshot_shards=2, workers=1, batch_size=2)
    wait_for(lambda: list(training.snapshots.glob("run/epoch-0000-shards-*/manifest.json")))
    coordinator = psutil.Process(servers(training, "ps")[0]).parent()
    assert coordinator is not None
    coordinator.kill()
    with pytest.raises(Exception, match="terminated"):
        future.result(timeout=60)

    result = training.run(epochs=1, snapshot_shards=2, workers=1, batch_size=2)

    assert 0 < result.examples < 3000, "shards that a snapshot has are not trained again"
    assert result.examples % 500 == 0
    assert [p.name for p in (training.snapshots / "run").iterdir()] == ["epoch-0001"]
