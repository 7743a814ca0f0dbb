"""Ingest from end to end: read, check, split, pack, write. Nothing appears at the target before all of it is there."""

import hashlib
import json
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from paraserve.components import storage
from paraserve.components.features.spec import FeatureSpec, load_spec
from paraserve.components.ingest import quarantine
from paraserve.components.ingest.checks import Checked, Checker
from paraserve.components.ingest.config import IngestConfig
from paraserve.components.ingest.dataset import DataSetWriter
from paraserve.components.ingest.quarantine import Quarantine
from paraserve.components.ingest.readers import Source, find_sources, read_rows
from paraserve.components.ingest.splits import RandomSplit, TimeSpill
from paraserve.components.manifest import FILE, Manifest

CONTENT_FORMAT = 1
"""Part of the content key: raise it when the same input comes to give other shards."""
KEY_LENGTH = 20


def ingest(config: IngestConfig, report_folder: str) -> str:
    """Packs the data that `config` describes, unless that was done before.

    Args:
        report_folder: where the quarantine file goes when the step fails for too many bad rows; a path or gs:// address.

    Returns:
        The place of the packed data set: a folder below `config.shards`, with its manifest.

    Raises ValueError for input that cannot be used, OSError for a target that cannot be written; neither leaves anything there.
    """
    spec = load_spec(config.feature_spec)
    if config.split == "time" and spec.time is None:
        raise ValueError("`split` is 'time', but the feature spec names no time column; add `time: COLUMN`, or split at random")
    sources = find_sources(config, spec.columns)
    key = content_key(config, spec, sources)
    target = storage.join(config.shards, key)
    storage.check_writable(config.shards)
    if storage.exists(storage.join(target, FILE)):
        print(f"ingest: the packed data set {target} is there already, and is used again", flush=True)
        return target
    start = time.perf_counter()
    # $TMPDIR dies with the pod or the run, even of SIGKILL; a temporary folder next to the target would stay.
    with tempfile.TemporaryDirectory(prefix="paraserve-ingest-") as folder:
        manifest = _pack(config, spec, sources, Path(folder), storage.join(report_folder, "ingest", key))
        with storage.explained(target):
            storage.upload_folder(Path(folder) / "packed", target, last=FILE)
    print(_summary(manifest, time.perf_counter() - start), flush=True)
    return target


def content_key(config: IngestConfig, spec: FeatureSpec, sources: Sequence[Source]) -> str:
    """Names a data set by all that decides its content: the spec, the source files as they are now, and the settings."""
    listing = [[source.place, source.size, source.version] for source in sources]
    said = json.dumps([CONTENT_FORMAT, spec.digest, listing, config.content], sort_keys=True)
    return hashlib.sha256(said.encode()).hexdigest()[:KEY_LENGTH]


def _pack(config: IngestConfig, spec: FeatureSpec, sources: Sequence[Source], folder: Path, report: str) -> Manifest:
    """Makes the data set in `folder`/packed: in one pass over the sources, or in two to split by time."""
    bad = Quarantine(folder / "bad", config.quarantine_values)
    checker = Checker(spec, with_time=config.split == "time")
    writer = DataSetWriter(folder / "packed", config, spec)
    if config.split == "time":
        spill = TimeSpill(folder / "times")
        for rows in _read(sources, checker, bad):
            spill.add(rows.times)
        _check_bad(config, bad, report)
        by_time = spill.split(config.eval_fraction, config.test_fraction)
        for rows in _read(sources, checker, None):
            writer.add(rows, by_time.of(rows))
    else:
        by_seed = RandomSplit(config.split_seed, config.eval_fraction, config.test_fraction)
        for rows in _read(sources, checker, bad):
            writer.add(rows, by_seed.of(rows))
        _check_bad(config, bad, report)
    return writer.close(sources, bad)


def _read(sources: Sequence[Source], checker: Checker, bad: Quarantine | None) -> Iterator[Checked]:
    first = 0
    for source in sources:
        for rows in read_rows(source, checker.spec.columns, first):
            checked = checker.check(rows)
            if bad is not None:
                bad.add(source.place, len(checked), checked.bad)
            yield checked
            end = rows.end
        first = end


def _check_bad(config: IngestConfig, bad: Quarantine, report: str) -> None:
    if bad.rows > config.max_bad_fraction * bad.rows_read:
        storage.upload_folder(bad.path.parent, report, last=quarantine.FILE)
        raise ValueError(
            f"{bad.rows} of {bad.rows_read} rows ({bad.rows / bad.rows_read:.2%}) are bad, more than `max_bad_fraction` "
            f"({config.max_bad_fraction:g}) allows. Most frequent: {bad.summary()}. All are listed in "
            f"{storage.join(report, quarantine.FILE)}. Correct the data or the feature spec, or raise `max_bad_fraction`"
        )
    if bad.rows == bad.rows_read:
        raise ValueError(f"there is no good row in '{config.data}' ({bad.rows_read} rows read); give data with rows")


def _summary(manifest: Manifest, seconds: float) -> str:
    splits = ", ".join(f"{name} {split.rows:,}" for name, split in manifest.splits.items())
    return (
        f"ingest: {manifest.rows_read:,} rows in {seconds:.1f} s ({manifest.rows_read / seconds:,.0f} rows/s), "
        f"{manifest.rows_bad:,} bad; {splits}"
    )
