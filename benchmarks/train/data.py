"""A synthetic click log with planted weights, written straight into packed shards; the best AUC that is possible is known.

Each categorical value is drawn from a Zipf distribution over its column's values, each label from the sigmoid of a sum:
a planted weight for each value, a few planted products between two columns, and a linear function of the dense values.
Equal settings give equal bytes.
"""

import dataclasses
import hashlib
import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import numpy as np
import numpy.typing as npt
from sklearn.metrics import roc_auc_score

from paraserve.components import storage
from paraserve.components.features.spec import FeatureSpec, parse_spec
from paraserve.components.manifest import FILE, SPLITS, Manifest, Shard, Split, read_manifest
from paraserve.components.records import Block, Layout, write_shard

PRESENT = "present-*.records"
"""Shards of a log with `present_keys`, beside those of the manifest."""
Scalar = TypeVar("Scalar", bound=np.generic)

WEIGHT_SCALE, PAIR_SCALE, DENSE_SCALE, BIAS = 0.5, 0.3, 0.3, -1.2
"""Standard deviations of the planted effects, and a bias for about a quarter of positives."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Log:
    """What to draw."""

    rows: int = 2**21
    """Of the train split."""
    held_out_rows: int = 2**17
    """Of the eval split and of the test split, each."""
    columns: int = 26
    """Categorical columns."""
    values: int = 100_000
    """Distinct values of each."""
    exponent: float = 1.2
    """Of the Zipf distribution, above 1."""
    planted_values: int = 50
    """Only a column's so many most frequent values carry an effect: rare ones cannot be learnt from so few examples."""
    dense: int = 13
    """Dense columns, standard normal."""
    pairs: int = 3
    """Planted products, each between two columns of their own."""
    shard_rows: int = 2**16
    """Ingest's default."""
    seed: int = 0
    present_keys: int = 0
    """Distinct keys, at least those of all values, that the shards PRESENT hold, once each: they grow a dynamic table to that
    size. 0 for no such shards."""

    def spec(self, dimension: int, dynamic: bool) -> FeatureSpec:
        """The feature spec, with a table for each column, large enough for its keys."""
        size = {"max_keys": max(self.values, self.present_rows)} if dynamic else {"rows": self.values}
        return parse_spec(
            {
                "label": {"column": "click", "positive_at_least": 1},
                "dense": {f"d{i:02}": {} for i in range(self.dense)},
                "categorical": {f"c{i:02}": {"dimension": dimension, **size} for i in range(self.columns)},
            }
        )

    @property
    def present_rows(self) -> int:
        return self.present_keys // self.columns

    def rows_of(self, split: str) -> int:
        return self.rows if split == "train" else self.held_out_rows

    @property
    def name(self) -> str:
        """Tells logs of different settings apart."""
        return hashlib.sha256(json.dumps(dataclasses.asdict(self)).encode()).hexdigest()[:12]


@dataclass(frozen=True, kw_only=True)
class Planted:
    """The truth behind a log. A value goes by its rank in its column: 0 is the most frequent."""

    log: Log
    keys: npt.NDArray[np.int64]
    """[columns, values], all different. A key modulo `values` is the value's row in a static table, without collisions, so that
    every contender has the same rows; which row is random, so that the frequent ones spread over servers."""
    weights: npt.NDArray[np.float32]
    """[columns, values]."""
    factors: npt.NDArray[np.float32]
    """[2 * pairs, values]: a pair's product is that of its two columns' factors."""
    dense_weights: npt.NDArray[np.float32]
    """[dense]."""

    @classmethod
    def of(cls, log: Log) -> "Planted":
        rng = np.random.default_rng(log.seed)
        rows = np.stack([rng.permutation(log.values) for _ in range(log.columns)])
        blocks = rng.integers(1, 2**62 // log.values, rows.shape)
        effects = np.arange(log.values) < log.planted_values
        return cls(
            log=log,
            keys=blocks * log.values + rows,
            weights=(WEIGHT_SCALE * rng.standard_normal(rows.shape) * effects).astype(np.float32),
            factors=(rng.standard_normal((2 * log.pairs, log.values)) * effects).astype(np.float32),
            dense_weights=(DENSE_SCALE * rng.standard_normal(log.dense)).astype(np.float32),
        )

    def draw(self, rows: int, seed: tuple[int, ...]) -> tuple[Block, npt.NDArray[np.float32]]:
        """Examples, and the true probability of each, float32 [rows]."""
        rng = np.random.default_rng([self.log.seed, *seed])
        ranks = self._ranks(rng, rows)
        dense = rng.standard_normal((rows, self.log.dense), np.float32)
        truth = self._probabilities(ranks, dense)
        labels = (rng.random(rows, np.float32) < truth).astype(np.float32)
        return Block(labels=labels, dense=dense, ids=_of_ranks(self.keys, ranks)), truth

    def present(self, start: int, stop: int) -> Block:
        """Examples that hold the keys `start` to `stop` of every column: its values, and beyond them some that no split has."""
        rng = np.random.default_rng([self.log.seed, start])
        keys = rng.integers(2**62, 2**63 - 1, (stop - start, self.log.columns))
        known = self.keys[:, start:stop].T
        keys[: len(known)] = known
        dense = rng.standard_normal((stop - start, self.log.dense), np.float32)
        return Block(labels=np.zeros(stop - start, np.float32), dense=dense, ids=keys)

    def _ranks(self, rng: np.random.Generator, rows: int) -> npt.NDArray[np.int64]:
        """Zipf ranks, int64 [rows, columns]; those beyond the values are drawn again."""
        ranks = rng.zipf(self.log.exponent, (rows, self.log.columns))
        while (beyond := ranks > self.log.values).any():
            ranks[beyond] = rng.zipf(self.log.exponent, int(beyond.sum()))
        return ranks - 1

    def _probabilities(self, ranks: npt.NDArray[np.int64], dense: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        factors = _of_ranks(self.factors, ranks[:, : 2 * self.log.pairs])
        products = (factors[:, ::2] * factors[:, 1::2]).sum(axis=1)
        logits = BIAS + _of_ranks(self.weights, ranks).sum(axis=1) + PAIR_SCALE * products + dense @ self.dense_weights
        probabilities: npt.NDArray[np.float32] = 1 / (1 + np.exp(-logits))
        return probabilities


def packed_log(cache: Path, log: Log, dimension: int, dynamic: bool) -> Path:
    """The folder of the packed data set, drawn unless `cache` has it. Data sets with other tables share its shards."""
    drawn = cache / "logs" / log.name
    if not (drawn / FILE).exists():
        shutil.rmtree(drawn, ignore_errors=True)
        drawn.mkdir(parents=True)
        (drawn / FILE).write_bytes(_draw(drawn, log).to_json())
    folder = drawn / f"{'dynamic' if dynamic else 'static'}-{dimension}"
    if not (folder / FILE).exists():
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        _link(drawn, folder, log.spec(dimension, dynamic))
    return folder


def bayes_auc(manifest: Manifest, split: str) -> float:
    """The AUC that the true probabilities reach on a split: no model can expect more."""
    auc: float = manifest.settings["bayes_auc"][split]
    return auc


def _draw(folder: Path, log: Log) -> Manifest:
    """Draws and writes the shards."""
    planted, spec = Planted.of(log), log.spec(dimension=1, dynamic=False)
    splits, aucs = {}, {}
    for number, split in enumerate(SPLITS):
        splits[split], aucs[split] = _draw_split(folder, planted, split, number)
    for start in range(0, log.present_rows, log.shard_rows):
        block = planted.present(start, min(start + log.shard_rows, log.present_rows))
        write_shard(folder / PRESENT.replace("*", f"{start:09}"), block, Layout.of(spec))
    return Manifest(
        spec=spec,
        moments={},
        splits=splits,
        data_digest=log.name,
        source={},
        rows_read=sum(split.rows for split in splits.values()),
        rows_bad=0,
        bad_by_reason={},
        settings={**dataclasses.asdict(log), "bayes_auc": aucs},
        raw_sample={"file": "", "rows": 0},
    )


def _draw_split(folder: Path, planted: Planted, split: str, seed: int) -> tuple[Split, float]:
    """Draws and writes a split; returns it with its Bayes AUC."""
    log, layout = planted.log, Layout.of(planted.log.spec(dimension=1, dynamic=False))
    shards, labels, truths = [], [], []
    for start in range(0, total := log.rows_of(split), log.shard_rows):
        block, truth = planted.draw(min(log.shard_rows, total - start), (seed, start))
        path = folder / f"{split}-{start // log.shard_rows:05}.records"
        write_shard(path, block, layout)
        shards.append(Shard(file=path.name, rows=len(block), bytes=path.stat().st_size, sha256=storage.sha256_of(path)))
        labels.append(block.labels)
        truths.append(truth)
    clicks = np.concatenate(labels)
    auc = float(roc_auc_score(clicks, np.concatenate(truths)))
    return Split(rows=total, positives=int(clicks.sum()), shards=tuple(shards)), auc


def _link(drawn: Path, folder: Path, spec: FeatureSpec) -> None:
    """The same data set under another spec; no shard is copied."""
    for shard in drawn.glob("*.records"):
        (folder / shard.name).hardlink_to(shard)
    manifest = read_manifest(str(drawn))
    (folder / FILE).write_bytes(dataclasses.replace(manifest, spec=spec).to_json())


def _of_ranks(table: npt.NDArray[Scalar], ranks: npt.NDArray[np.int64]) -> npt.NDArray[Scalar]:
    """[rows, columns]: for each example its values' entries in `table`, [columns, values]."""
    values = table.shape[1]
    return table.ravel()[ranks + np.arange(ranks.shape[1]) * values]
