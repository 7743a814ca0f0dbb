"""A packed data set in the making: shards, raw sample, moments, statistics and, last, the manifest."""

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from paraserve.components.features.spec import FeatureSpec
from paraserve.components.features.transforms import Moments, before_standardise
from paraserve.components.ingest import quarantine, sample, statistics
from paraserve.components.ingest.checks import Checked
from paraserve.components.ingest.config import IngestConfig
from paraserve.components.ingest.packing import Packer
from paraserve.components.ingest.quarantine import Quarantine
from paraserve.components.ingest.readers import Source
from paraserve.components.ingest.sample import RawSample
from paraserve.components.ingest.shards import ShardWriter
from paraserve.components.ingest.splits import EVAL, TRAIN
from paraserve.components.ingest.statistics import Statistics
from paraserve.components.manifest import FILE, SPLITS, Manifest, Split
from paraserve.components.records import Block, Layout


class DataSetWriter:
    """Writes checked rows, each into its split, to a local folder."""

    def __init__(self, folder: Path, config: IngestConfig, spec: FeatureSpec):
        self.folder, self.config, self.spec = folder, config, spec
        folder.mkdir()
        self.packer, self.statistics = Packer(spec), Statistics(spec)
        self.sample = RawSample(folder / sample.FILE, spec, config.raw_sample_rows)
        self.moments: dict[str, Moments] = {}
        self.writers = [
            ShardWriter(folder, name, Layout.of(spec), config.shard_rows, config.split_seed if i == TRAIN else None)
            for i, name in enumerate(SPLITS)
        ]

    def add(self, rows: Checked, split: npt.NDArray[np.int8]) -> None:
        """Adds rows and their splits, int8 [n]: positions in SPLITS."""
        packed = self.packer.pack(rows)
        self.statistics.add(packed, split, rows.index)
        for i, writer in enumerate(self.writers):
            where = np.flatnonzero(split == i)
            if not len(where):
                continue
            block = packed.block.take(where)
            writer.add(block)
            if i == TRAIN:
                self._fit(block)
            if i == EVAL:
                self.sample.add(rows.texts, where)

    def close(self, sources: Sequence[Source], bad: Quarantine) -> Manifest:
        """Writes what is left, the manifest last.

        Raises ValueError when the labels are all alike or a split is empty.
        """
        splits = {name: writer.close() for name, writer in zip(SPLITS, self.writers, strict=True)}
        _check_labels(splits, self.spec)
        _check_splits(splits, self.config)
        bad.path.rename(self.folder / quarantine.FILE)
        (self.folder / statistics.FILE).write_bytes(self.statistics.to_json())
        manifest = Manifest(
            spec=self.spec,
            moments=self.moments,
            splits=splits,
            data_digest=_digest(self.spec, splits),
            source=_listing(self.config.data, sources),
            rows_read=bad.rows_read,
            rows_bad=bad.rows,
            bad_by_reason=dict(bad.by_reason.most_common()),
            settings=self.config.content,
            raw_sample={"file": sample.FILE, "rows": self.sample.rows},
        )
        (self.folder / FILE).write_bytes(manifest.to_json())
        return manifest

    def _fit(self, block: Block) -> None:
        for i, column in enumerate(self.spec.dense):
            values = before_standardise(block.dense[:, i], column.transforms)
            if values is not None:
                moments = Moments.of(values)
                before = self.moments.get(column.name)
                self.moments[column.name] = before.merged(moments) if before else moments


def _check_labels(splits: Mapping[str, Split], spec: FeatureSpec) -> None:
    rows, positives = (sum(getattr(split, what) for split in splits.values()) for what in ("rows", "positives"))
    if 0 < positives < rows:
        return
    label = spec.label
    rule = f"positive_at_least: {label.positive_at_least:g}" if label.positive_values is None else "positive_values"
    raise ValueError(
        f"the label is {'always' if positives else 'never'} positive in all {rows} rows: a model learns nothing from that. "
        f"Correct `{rule}` of the column '{label.column}' in the feature spec, or the data"
    )


def _check_splits(splits: Mapping[str, Split], config: IngestConfig) -> None:
    empty = [name for name, split in splits.items() if not split.rows]
    if empty:
        sizes = ", ".join(f"{name} {split.rows}" for name, split in splits.items())
        ties = " (rows of one time stay together)" if config.split == "time" else ""
        raise ValueError(
            f"the {empty[0]} split came out empty{ties}; rows are {sizes}. Give more data, or change `eval_fraction` "
            f"({config.eval_fraction}) and `test_fraction` ({config.test_fraction})"
        )


def _digest(spec: FeatureSpec, splits: Mapping[str, Split]) -> str:
    digests = [spec.digest, *(shard.sha256 for name in SPLITS for shard in splits[name].shards)]
    return hashlib.sha256("\n".join(digests).encode()).hexdigest()


def _listing(pattern: str, sources: Sequence[Source]) -> dict[str, Any]:
    return {"pattern": pattern, "files": [{"place": source.place, "size": source.size} for source in sources]}
