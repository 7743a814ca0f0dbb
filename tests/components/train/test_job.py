"""Whole trainings on real server processes."""

import concurrent.futures
import json
import os
import shutil
import signal
import time
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from paraserve.components import storage

pytestmark = pytest.mark.slow


def servers(training: Any, job: str) -> list[int]:
    """Process ids of a training's running servers of a job ("worker" or "ps"), told by where their output goes."""
    found = []
    for process in psutil.process_iter():
        try:
            output = str(Path(f"/proc/{process.pid}/fd/1").readlink())
        except OSError:
            continue
        if output.startswith(str(training.folder)) and f"/job-{job}-" in output and process.status() != psutil.STATUS_ZOMBIE:
            found.append(process.pid)
    return found


def wait_for(condition: Any, seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.02)


def test_learns_the_planted_interaction_and_exports_it(training: Any) -> None:
    import tensorflow as tf

    result = training.run(epochs=6)

    assert result.figures["eval_auc"] > 0.85
    assert result.examples == 3000 * result.epochs
    assert result.examples_repeated == result.workers_lost == 0
    assert result.export_difference <= 1e-6
    signatures = tf.saved_model.load(str(training.model)).signatures
    row = {"price": "12", "user": "4", "tags": "1|2", "history": ""}
    answers = signatures["serving_default"](**{n: tf.constant([v] * 2) for n, v in row.items()}, item=tf.constant(["8", "9"]))[
        "probability"
    ].numpy()
    assert answers[0] > 0.6 > 0.4 > answers[1], "even with even is a click, even with odd is none"
    unseen = {n: tf.constant(["never seen|x"]) for n in ("user", "item", "tags", "history")}
    assert np.isfinite(signatures["serving_default"](price=tf.constant([""]), **unseen)["probability"].numpy()).all()
    assert list(training.logs.glob("events.out.tfevents.*"))
    assert not servers(training, "worker")
    assert not servers(training, "ps")
    assert [p.name for p in training.folder.iterdir() if p.name.startswith(".")] == []


@pytest.mark.parametrize("model", ["wide_deep", "dcn_v2", "dlrm"])
def test_every_model_trains_and_exports(training: Any, model: str) -> None:
    result = training.run(model=model, epochs=6, patience=0, hidden_units="32,16", embedding_init=0.5)

    history = json.loads((training.snapshots / "run" / "epoch-0006" / "manifest.json").read_text())["history"]
    assert history[-1]["loss"] < history[0]["loss"]
    assert history[-1]["auc"] > history[0]["auc"]
    assert result.export_difference <= 1e-6


def test_a_users_own_model_by_import_path(training: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_models.py").write_text(
        "import tensorflow as tf, tf_keras\n"
        "class Dot(tf_keras.Model):\n"
        "    linear_weights = True\n"
        "    def __init__(self):\n"
        "        super().__init__()\n"
        "        self.bias = tf_keras.layers.Dense(1)\n"
        "        self.drop = tf_keras.layers.Dropout(0.1)\n"
        "    def call(self, inputs, training=False):\n"
        "        product = self.drop(inputs['user'] * inputs['item'], training=training)\n"
        "        wide = tf.reduce_sum(inputs['linear'], axis=1, keepdims=True)\n"
        "        return tf.reduce_sum(product, axis=1, keepdims=True) + self.bias(inputs['dense']) + wide\n"
        "def build(spec, config):\n"
        "    return Dot()\n"
    )

    result = training.call(_train_with_path, str(tmp_path), training.settings(model="my_models:build", epochs=6), training)

    assert result.figures["eval_auc"] > 0.85


def _train_with_path(path: str, settings: dict[str, Any], training: Any) -> Any:
    import sys

    sys.path.insert(0, path)
    from paraserve.components.run_folder import RUN_ID_VARIABLE
    from paraserve.components.train.config import TrainConfig
    from paraserve.components.train.job import train

    os.environ[RUN_ID_VARIABLE] = "run"
    return train(TrainConfig(**settings), training.model, training.logs)


def test_a_killed_worker_costs_no_example(training: Any) -> None:
    future = training.start(epochs=5, patience=0, batch_size=20)
    wait_for(lambda: (training.snapshots / "run" / "epoch-0002").exists())
    os.kill(servers(training, "worker")[0], signal.SIGKILL)

    result = future.result(timeout=120)

    assert result.workers_lost == 1
    assert result.examples == 3000 * 5
    assert result.export_difference <= 1e-6
    assert not servers(training, "worker")
    assert not servers(training, "ps")


def test_a_worker_killed_before_the_first_shard_costs_no_example(training: Any) -> None:
    future = training.start(epochs=3, patience=0, batch_size=10)
    wait_for(lambda: len(servers(training, "worker")) == 2)
    time.sleep(1.0)  # connected, tracing or training
    os.kill(servers(training, "worker")[1], signal.SIGKILL)

    result = future.result(timeout=120)

    assert result.workers_lost == 1
    assert result.examples == 3000 * 3


def test_a_worker_killed_after_the_last_epoch_does_not_fail_the_run(training: Any) -> None:
    future = training.start(epochs=1)
    wait_for(lambda: (training.snapshots / "run" / "epoch-0001").exists())
    os.kill(servers(training, "worker")[0], signal.SIGKILL)

    result = future.result(timeout=120)

    assert result.workers_lost == 1
    assert result.export_rows == 200
    assert (training.model / "saved_model.pb").exists()


def test_a_lost_parameter_server_fails_with_its_cause_and_the_next_attempt_resumes(training: Any) -> None:
    future = training.start(epochs=5, patience=0, batch_size=20)
    wait_for(lambda: (training.snapshots / "run" / "epoch-0002").exists())
    os.kill(servers(training, "ps")[0], signal.SIGKILL)
    with pytest.raises(RuntimeError, match=r"parameter server .* is lost \(killed by SIGKILL.*run again"):
        future.result(timeout=120)
    assert not servers(training, "worker")
    assert not servers(training, "ps")
    assert not training.model.exists()

    result = training.run(epochs=5, patience=0, batch_size=20, parameter_servers=3)

    assert result.epochs == 5
    assert 3000 <= result.examples <= 3 * 3000, "the epochs before the loss were not trained again"


def test_the_coordinator_killed_takes_its_servers_with_it(training: Any) -> None:
    future = training.start(epochs=50, patience=0)
    wait_for(lambda: (training.snapshots / "run" / "epoch-0001").exists())
    coordinator = psutil.Process(servers(training, "ps")[0]).parent()
    assert coordinator is not None
    coordinator.kill()

    with pytest.raises(concurrent.futures.process.BrokenProcessPool):
        future.result(timeout=60)
    wait_for(lambda: not servers(training, "worker") and not servers(training, "ps"), seconds=10)


def test_a_run_that_is_run_again_has_nothing_left_to_train(training: Any) -> None:
    first = training.run(epochs=2)
    shutil.rmtree(training.model)

    second = training.run(epochs=2)

    assert second.examples == 0
    assert second.figures == first.figures
    assert (training.model / "saved_model.pb").exists()


def test_resumes_from_a_named_snapshot_of_another_run(training: Any) -> None:
    first = training.run(run_id="first", epochs=2)

    second = training.run(run_id="second", epochs=4, resume_from=first.snapshot)

    assert second.epochs == 4
    assert second.examples == 3000 * (4 - first.best_epoch)


def test_a_resumed_run_that_does_not_improve_exports_the_epoch_it_came_from(training: Any) -> None:
    first = training.run(run_id="first", epochs=1)

    second = training.run(run_id="second", epochs=2, learning_rate=0.0, resume_from=first.snapshot)

    assert (second.epochs, second.best_epoch, second.snapshot) == (2, 1, first.snapshot)
    assert second.figures == first.figures


def test_snapshots_that_cannot_be_written_are_named_with_the_remedy(training: Any) -> None:
    training.snapshots.write_text("a file where a folder should be")

    with pytest.raises(OSError, match=r"cannot write to .*/snapshots/run/epoch-0001: Not a directory; a part of it is a file"):
        training.run(epochs=1)
    assert not servers(training, "worker")
    assert not training.model.exists()


def test_refuses_a_snapshot_of_another_model(training: Any) -> None:
    first = training.run(run_id="first", epochs=1)

    with pytest.raises(ValueError, match="has model 'deepfm', this run 'dlrm'"):
        training.run(run_id="second", model="dlrm", resume_from=first.snapshot)


def test_stops_early_and_exports_the_best_epoch(training: Any) -> None:
    result = training.run(epochs=40, patience=2, learning_rate=3.0)

    assert result.epochs < 40
    assert result.epochs - result.best_epoch == 2
    history = json.loads((training.snapshots / "run" / f"epoch-{result.epochs:04d}" / "manifest.json").read_text())["history"]
    assert min(h["eval_loss"] for h in history) == result.figures["eval_loss"]
    assert sorted(p.name for p in (training.snapshots / "run").iterdir()) == [
        f"epoch-{result.best_epoch:04d}",
        f"epoch-{result.epochs:04d}",
    ]


def test_a_learning_rate_of_zero_trains_nothing(training: Any) -> None:
    result = training.run(epochs=2, learning_rate=0.0, patience=0)

    assert result.figures["eval_auc"] == pytest.approx(0.5, abs=0.1)


def test_a_loss_that_is_not_finite_fails_with_the_remedy(training: Any) -> None:
    with pytest.raises(FloatingPointError, match="lower `learning_rate`"):
        training.run(optimizer="sgd", learning_rate=1e30)
    assert not servers(training, "worker")
    assert not servers(training, "ps")


def test_a_damaged_shard_fails_by_name(training: Any, packed: Path, tmp_path: Path) -> None:
    copy = tmp_path / "damaged"
    shutil.copytree(packed, copy)
    content = bytearray((copy / "train-00002.records").read_bytes())
    content[200] ^= 0xFF
    (copy / "train-00002.records").write_bytes(content)

    with pytest.raises(Exception, match="corrupted record"):
        training.run(shards=str(copy))
    assert not servers(training, "worker")
    assert not servers(training, "ps")


def test_trains_from_an_object_store(training: Any, bucket: str) -> None:
    storage.upload_folder(training.packed, f"{bucket}/packed", "manifest.json")
    settings = training.settings(shards=f"{bucket}/packed", snapshots=f"{bucket}/snapshots", epochs=6)

    result = training.call(_train_with_emulator, os.environ["STORAGE_EMULATOR_HOST"], settings, training)

    assert result.figures["eval_auc"] > 0.85
    assert result.examples == 3000 * result.epochs
    assert result.examples_repeated == result.workers_lost == 0
    assert list(training.folder.glob("paraserve*")) == []


def test_a_shard_that_an_object_store_has_lost_fails_by_name(training: Any, bucket: str) -> None:
    (copy := training.folder / "copy").mkdir()
    for path in training.packed.iterdir():
        if path.name != "train-00002.records":
            shutil.copyfile(path, copy / path.name)
    storage.upload_folder(copy, f"{bucket}/packed", "manifest.json")

    with pytest.raises(FileNotFoundError, match=f"cannot fetch .*: there is no object {bucket}/packed/train-00002.records"):
        training.call(
            _train_with_emulator, os.environ["STORAGE_EMULATOR_HOST"], training.settings(shards=f"{bucket}/packed"), training
        )
    assert not servers(training, "worker")
    assert not servers(training, "ps")


def _train_with_emulator(address: str, settings: dict[str, Any], training: Any) -> Any:
    import tempfile

    from paraserve.components.run_folder import RUN_ID_VARIABLE
    from paraserve.components.train.config import TrainConfig
    from paraserve.components.train.job import train

    os.environ[RUN_ID_VARIABLE], os.environ["STORAGE_EMULATOR_HOST"] = "run", address
    tempfile.tempdir = str(training.folder)
    return train(TrainConfig(**settings), training.model, training.logs)


def test_an_export_that_hashes_otherwise_is_caught(training: Any, packed: Path, tmp_path: Path) -> None:
    import gzip

    copy = tmp_path / "skewed"
    shutil.copytree(packed, copy)
    rows = gzip.decompress((copy / "raw_eval.jsonl.gz").read_bytes()).replace(b'"user": "1', b'"user": "2')
    (copy / "raw_eval.jsonl.gz").write_bytes(gzip.compress(rows))

    with pytest.raises(RuntimeError, match="answers raw values differently"):
        training.run(shards=str(copy))
