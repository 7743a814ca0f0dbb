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
    dense_optimizer: str = "",
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
    sharding: str = "hash",
    partitioner: str = "fixed",
    exchange_steps: int = 4,
    overlap: bool = True,
    compute_dtype: str = "float32",
    pull_dtype: str = "float32",
    push_dtype: str = "float32",
    dense_compression: str = "none",
    staleness_bound: int = 0,
    staleness_action: str = "refuse",
    nonfinite: str = "stop",
    snapshot_shards: int = 0,
    snapshot_seconds: float = 0.0,
    serving_max_bytes: int = 0,
    serving_dtype: str = "float32",
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
        dense_optimizer: The same for the dense layers' weights; empty for the embeddings' optimizer.
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
        sharding: How keys of dynamic tables are dealt to parameter servers: hash or range.
        partitioner: How static tables are cut over the servers: fixed (over all) or min_size (no part below 256 KiB).
        exchange_steps: Batches of a worker from one exchange with the servers to the next; 1 exchanges at each batch.
        overlap: Whether pulls and pushes run while a worker computes.
        compute_dtype: In which the layers compute: float32 or bfloat16.
        pull_dtype: Of weights on their way to workers: float32, bfloat16 or float16.
        push_dtype: Of gradients and changes on their way to servers: float32, bfloat16 or float16.
        dense_compression: Of pushes of the dense layers: none, topk (the largest 1/32), or auto (the faster, measured).
        staleness_bound: Steps that other workers may have added between a pull and its push; 0 for no bound.
        staleness_action: At the bound: refuse what is too old, or hold workers back.
        nonfinite: Gradients with NaN or infinite numbers: stop the run, or drop them and count.
        snapshot_shards: Shards from one snapshot within an epoch to the next; 0 for none by this count.
        snapshot_seconds: Seconds from one snapshot within an epoch to the next; 0 for none by this clock.
        serving_max_bytes: Of the served model: the most frequent keys' rows that fit beside its weights; 0 for all.
        serving_dtype: Of the served rows: float32, bfloat16 or int8.
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
            dense_optimizer=dense_optimizer,
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
            sharding=sharding,
            partitioner=partitioner,
            exchange_steps=exchange_steps,
            overlap=overlap,
            compute_dtype=compute_dtype,
            pull_dtype=pull_dtype,
            push_dtype=push_dtype,
            dense_compression=dense_compression,
            staleness_bound=staleness_bound,
            staleness_action=staleness_action,
            nonfinite=nonfinite,
            snapshot_shards=snapshot_shards,
            snapshot_seconds=snapshot_seconds,
            serving_max_bytes=serving_max_bytes,
            serving_dtype=serving_dtype,
            seed=seed,
            resume_from=resume_from,
        )
        result = run(config, Path(savedmodel.path), Path(logs.path))
        outputs.update(dataclasses.asdict(result))
        exported = {name: getattr(result.export, name) for name in ("auc", "auc_lost", "log_loss", "bytes", "rows_kept")}
        coverage = {f"coverage_{table}": share for table, share in result.export.coverage.items()}
        figures = {**result.figures, **result.exchanged, **{f"export_{n}": v for n, v in {**exported, **coverage}.items()}}
        for name, value in figures.items():
            metrics.log_metric(name, value)
        return (result.snapshot,)
