"""train as a pipeline step."""

from typing import NamedTuple

from kfp import dsl
from kfp.dsl import Artifact, Metrics, Model, Output

from paraserve.components import images


@dsl.component(base_image=images.TENSORFLOW, install_kfp_package=False)
def train(
    shards: str,
    snapshots: str,
    run_folder: str,
    savedmodel: Output[Model],
    logs: Output[Artifact],
    metrics: Output[Metrics],
    model: str = "deepfm",
    epochs: int = 5,
    batch_size: int = 1024,
    optimizer: str = "adagrad",
    learning_rate: float = 0.05,
    schedule: str = "constant",
    warmup_steps: int = 0,
    decay_steps: int = 0,
    decay_rate: float = 0.1,
    hidden_units: str = "256,128",
    dropout: float = 0.0,
    l2: float = 0.0,
    embedding_init: float = 0.01,
    patience: int = 2,
    workers: int = 2,
    parameter_servers: int = 2,
    seed: int = 0,
    resume_from: str = "",
) -> NamedTuple("Outputs", [("snapshot", str)]):  # type: ignore[valid-type]
    """Trains a model on workers and parameter servers, and exports the best epoch as a SavedModel.

    Args:
        shards: Place of the packed data set (an output of ingest).
        snapshots: Place below which each run keeps its snapshots.
        run_folder: Place of all runs' folders.
        model: wide_deep, deepfm, dcn_v2, dlrm, or your own as package.module:function.
        epochs: Passes over the train split, at most.
        batch_size: Examples per step of a worker.
        optimizer: adagrad, rowwise_adagrad, sgd, lazy_adam or ftrl.
        learning_rate: Of the optimizer, before the schedule.
        schedule: constant, exponential or cosine.
        warmup_steps: Steps in which the learning rate rises from 0.
        decay_steps: Steps per factor decay_rate, or until a cosine's 0; 0 means the planned steps of the run.
        decay_rate: Factor of the exponential schedule.
        hidden_units: Widths of the deep part's layers.
        dropout: Share of the deep part's activations dropped in training.
        l2: Penalty on the squared norm of the embedding rows that a batch touches.
        embedding_init: Standard deviation of the initial embedding rows.
        patience: Epochs without a lower eval log loss before training stops; 0 never stops.
        workers: Worker processes.
        parameter_servers: Parameter-server processes.
        seed: Of the initial weights and the order of shards.
        resume_from: Place of a snapshot to start from; empty starts anew.
    """
    import dataclasses
    import os
    from pathlib import Path

    from paraserve.components import run_folder as folder

    # What fails in the runtime is raised here too; its log lines about servers that have ended would bury that.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

    with folder.step(run_folder, "train") as outputs:
        from paraserve.components.train.config import TrainConfig
        from paraserve.components.train.job import train as run

        config = TrainConfig(
            shards=shards,
            snapshots=snapshots,
            model=model,
            epochs=epochs,
            batch_size=batch_size,
            optimizer=optimizer,
            learning_rate=learning_rate,
            schedule=schedule,
            warmup_steps=warmup_steps,
            decay_steps=decay_steps,
            decay_rate=decay_rate,
            hidden_units=hidden_units,
            dropout=dropout,
            l2=l2,
            embedding_init=embedding_init,
            patience=patience,
            workers=workers,
            parameter_servers=parameter_servers,
            seed=seed,
            resume_from=resume_from,
        )
        result = run(config, Path(savedmodel.path), Path(logs.path))
        outputs.update(dataclasses.asdict(result))
        for name, value in result.figures.items():
            metrics.log_metric(name, value)
        return (result.snapshot,)
