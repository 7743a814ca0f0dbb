"""The pipeline step ingest."""

from typing import NamedTuple

from kfp import dsl
from kfp.dsl import Artifact, Dataset, Output

from paraserve.components import images


@dsl.component(base_image=images.LIGHT, install_kfp_package=False)
def ingest(
    data: str,
    feature_spec: str,
    shards: str,
    run_folder: str,
    manifest: Output[Dataset],
    statistics: Output[Artifact],
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
) -> NamedTuple("Outputs", [("shards", str)]):  # type: ignore[valid-type]
    """Checks raw click logs against the feature spec, splits them and packs them into record shards.

    Args:
        data: Path, folder, glob or gs:// address of CSV or TSV files, plain or gzipped.
        feature_spec: Path or gs:// address of the feature spec, or its YAML.
        shards: Folder (path or gs://) below which the packed data set is written.
        run_folder: Folder (path or gs://) of all runs, where this step records what it did.
        delimiter: auto (by file name, else by the first line), comma, tab, or one character.
        column_names: Comma-separated, for files without a header; empty means the first line is the header.
        split: random (by split_seed), or time (the oldest rows train, the newest test).
        eval_fraction: Share of the rows for the eval split.
        test_fraction: Share of the rows for the test split.
        split_seed: Decides the random split and the order of the train rows.
        shard_rows: Rows of a full shard.
        max_bad_fraction: The step fails when more than this share of the rows is bad.
        quarantine_values: Whether the quarantine file holds bad rows' values too.
        raw_sample_rows: Rows of the eval split that are kept as text for replaying requests.
        manifest: What the packed data set holds: counts, digests, spec, fitted moments.
        statistics: Statistics of every column.

    Returns:
        shards: The packed data set's folder.
    """
    from pathlib import Path

    from paraserve.components import run_folder as runs
    from paraserve.components import storage
    from paraserve.components.ingest import job
    from paraserve.components.ingest.config import IngestConfig
    from paraserve.components.ingest.statistics import FILE as STATISTICS
    from paraserve.components.manifest import FILE, read_manifest

    with runs.step(run_folder, "ingest") as outputs:
        config = IngestConfig(
            data=data,
            feature_spec=feature_spec,
            shards=shards,
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
        place = job.ingest(config, storage.join(run_folder, runs.run_id()))
        Path(manifest.path).write_bytes(storage.read_bytes(storage.join(place, FILE)))
        Path(statistics.path).write_bytes(storage.read_bytes(storage.join(place, STATISTICS)))
        packed = read_manifest(place)
        outputs["rows"] = {name: part.rows for name, part in packed.splits.items()} | {"bad": packed.rows_bad}
        outputs["shards"] = place
    return (place,)
