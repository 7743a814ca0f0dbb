"""The pipeline: click logs in, a served model out. Read this first.

    ingest -> train -> evaluate -> If promote -> register -> deploy        and finish, however it ends

`paraserve run` executes it on one machine, `paraserve compile` writes it as YAML for Kubeflow.

Every task gets the run's id from its pod's label, because the steps name their work by it and so recognise it when a pod is
replaced. Every task has a time limit, because a pod that cannot start (an image that is not there) would keep its run going
for ever. No task is cached: Kubeflow's cache looks at parameters only, and here each step reads or writes a place outside
the pipeline root (logs that grow, shards, the registry with its champion) whose content the parameters do not tell.
"""

from kfp import dsl, kubernetes

from paraserve.components.deploy.component import deploy
from paraserve.components.evaluate.component import evaluate
from paraserve.components.finish.component import finish
from paraserve.components.ingest.component import ingest
from paraserve.components.register.component import register
from paraserve.components.run_folder import RUN_ID_VARIABLE
from paraserve.components.train.component import train

NAME = "train-to-serve"
HOUR = 3600


def _step(task: dsl.PipelineTask, title: str, seconds: int) -> dsl.PipelineTask:
    """What every task has: a title for the UI, the run's id, a time limit, and no caching (see the module's docstring)."""
    task.set_display_name(title)
    task.set_caching_options(False)
    kubernetes.use_field_path_as_env(task, RUN_ID_VARIABLE, "metadata.labels['pipeline/runid']")
    return kubernetes.set_timeout(task, seconds)


@dsl.pipeline(
    name=NAME,
    display_name="Train to serve",
    description="From a click log to a served model: ingest, parameter-server training, a gate, a registry, a judged canary.",
)
def train_to_serve(  # type: ignore[no-untyped-def]
    data: str,
    feature_spec: str,
    model_name: str = "ranker",
    # places
    shards: str = "/mnt/paraserve/shards",
    snapshots: str = "/mnt/paraserve/snapshots",
    registry: str = "/mnt/paraserve/registry",
    serving: str = "/mnt/paraserve/serving",
    run_folder: str = "/mnt/paraserve/runs",
    # ingest
    delimiter: str = "auto",
    column_names: str = "",
    split: str = "random",
    eval_fraction: float = 0.1,
    test_fraction: float = 0.1,
    split_seed: int = 0,
    shard_rows: int = 65536,
    max_bad_fraction: float = 0.01,
    quarantine_values: bool = False,
    raw_sample_rows: int = 2000,
    # train
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
    # evaluate
    min_auc: float = 0.55,
    max_logloss: float = 1.0,
    max_calibration_error: float = 0.1,
    max_auc_drop: float = 0.002,
    max_logloss_increase: float = 0.005,
    slice_columns: str = "",
    # deploy
    target: str = "local",
    canary_steps: str = "10,50,100",
    step_requests: int = 400,
    max_latency_increase: float = 0.5,
    serving_port: int = 8501,
    drill_canary_errors: float = 0.0,
    kserve_namespace: str = "",
    service_account: str = "",
):
    """From a click log to a served model.

    Args:
        data: The log: a file, a folder or a glob of CSV or TSV files, as a path or gs:// address.
        feature_spec: The YAML file that describes the columns (a path or gs:// address), or the YAML itself.
        model_name: The model's name in the registry and in requests.
        shards: Folder for the packed data sets; each data set has a folder of its own below it.
        snapshots: Folder for the training's checkpoints.
        registry: The model registry: versions, aliases and the audit log.
        serving: Folder of the endpoint's state on one machine (target local).
        run_folder: Folder where each run keeps its steps' records and its result.
        delimiter: Between two fields: comma, tab, one character, or auto (by the file's name, else its first line).
        column_names: Comma-separated names of the columns, for files without a header line; empty when there is one.
        split: How examples are divided into train, eval and test: random, or time (the newest are the test part).
        eval_fraction: Share of the examples that stops training early and picks the best epoch, from 0 to 1.
        test_fraction: Share of the examples that the gate and the report judge the model on, from 0 to 1.
        split_seed: Seed of the random split; the same seed gives the same split.
        shard_rows: Examples in a shard, the unit of work that a training worker takes.
        max_bad_fraction: Ingest fails when a larger share of the rows does not fit the spec, from 0 to 1.
        quarantine_values: Also writes the bad rows' values to the quarantine file, which may hold personal data.
        raw_sample_rows: Eval examples kept as raw text, for the replay through the canary.
        model: wide_deep, deepfm, dcn_v2, dlrm, or your own as package.module:function.
        epochs: Passes over the train split, at most.
        batch_size: Examples in one step of a worker.
        optimizer: How weights are updated: adagrad, rowwise_adagrad, sgd, lazy_adam or ftrl.
        dense_optimizer: The same for the dense layers' weights; empty for the embeddings' optimizer.
        learning_rate: Step size of the optimizer, before the schedule.
        schedule: How the learning rate moves: constant, exponential or cosine.
        warmup_steps: Steps over which the learning rate rises from 0.
        decay_steps: Steps per factor decay_rate (exponential) or until 0 (cosine); 0: the planned steps of the run.
        decay_rate: Factor of the exponential schedule, above 0 and below 1.
        hidden_units: Comma-separated widths of the dense layers.
        dropout: Share of the dense layers' outputs dropped in training, from 0 to 1.
        l2: Penalty on the squared norm of the embedding rows that a batch touches.
        embedding_init: Standard deviation of a new embedding row.
        patience: Epochs without a lower eval log loss before training stops; 0 never stops.
        workers: Training worker processes.
        parameter_servers: Processes that hold the embedding tables and weights.
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
        seed: Seed of the model's initial weights and of the order of the shards.
        resume_from: Checkpoint to start from, as a path or gs:// address; empty to start anew.
        min_auc: The gate's lowest AUC on the test split.
        max_logloss: The gate's highest log loss on the test split.
        max_calibration_error: The gate's highest expected calibration error.
        max_auc_drop: How much lower than the champion's the AUC may be, on the same examples.
        max_logloss_increase: How much higher than the champion's the log loss may be, on the same examples.
        slice_columns: Comma-separated categorical columns whose values are reported one by one.
        target: Where to deploy: local (this machine, Envoy and two servers) or kserve.
        canary_steps: Comma-separated shares of the traffic, in percent, that the canary gets one after the other; ends at 100.
        step_requests: Requests replayed in each canary step.
        max_latency_increase: How much slower than stable the canary may answer: 0.5 is by half; at least 0.25.
        serving_port: Port of the endpoint on one machine (target local).
        drill_canary_errors: Share of the canary's answers that are made to fail, to practise a rollback, from 0 to 1.
        kserve_namespace: Namespace of the InferenceService (target kserve).
        service_account: Service account of the InferenceService (target kserve), with access to the registry; may be empty.
    """
    end = _step(finish(run_folder=run_folder), "Report and clean up", HOUR)
    with dsl.ExitHandler(end, name="Steps"):
        ingested = ingest(
            data=data,
            feature_spec=feature_spec,
            shards=shards,
            run_folder=run_folder,
            delimiter=delimiter,
            column_names=column_names,
            split=split,
            eval_fraction=eval_fraction,
            test_fraction=test_fraction,
            split_seed=split_seed,
            shard_rows=shard_rows,
            max_bad_fraction=max_bad_fraction,
            quarantine_values=quarantine_values,
            raw_sample_rows=raw_sample_rows,
        )
        _step(ingested, "Ingest: check, split and pack the log", 24 * HOUR)
        trained = train(
            shards=ingested.outputs["shards"],
            snapshots=snapshots,
            run_folder=run_folder,
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
        _step(trained, "Train on a parameter-server cluster", 7 * 24 * HOUR)
        evaluated = evaluate(
            model=trained.outputs["savedmodel"],
            shards=ingested.outputs["shards"],
            registry=registry,
            model_name=model_name,
            run_folder=run_folder,
            min_auc=min_auc,
            max_logloss=max_logloss,
            max_calibration_error=max_calibration_error,
            max_auc_drop=max_auc_drop,
            max_logloss_increase=max_logloss_increase,
            slice_columns=slice_columns,
        )
        _step(evaluated, "Evaluate against the champion", 24 * HOUR)
        with dsl.If(evaluated.outputs["Output"] == "promote", name="Promote"):
            registered = register(
                model=trained.outputs["savedmodel"],
                evaluation=evaluated.outputs["evaluation"],
                shards=ingested.outputs["shards"],
                registry=registry,
                model_name=model_name,
                run_folder=run_folder,
            )
            _step(registered, "Register a version", HOUR)
            deployed = deploy(
                version=registered.outputs["version"],
                model_uri=registered.outputs["model_uri"],
                shards=ingested.outputs["shards"],
                registry=registry,
                model_name=model_name,
                serving=serving,
                run_folder=run_folder,
                target=target,
                canary_steps=canary_steps,
                step_requests=step_requests,
                max_latency_increase=max_latency_increase,
                serving_port=serving_port,
                drill_canary_errors=drill_canary_errors,
                kserve_namespace=kserve_namespace,
                service_account=service_account,
            )
            _step(deployed, "Deploy behind a canary", 24 * HOUR)
