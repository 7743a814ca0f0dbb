"""What an export holds, and what leaving out and rounding rows cost: judged on the eval split, from the export's files."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from paraserve.components import storage
from paraserve.components.exported import DENSE, IDS, MATRIX_SIGNATURE, PROBABILITY
from paraserve.components.records import Block, read_shard
from paraserve.components.train import curves
from paraserve.components.train.export import Exported, Trained

BATCH = 8192
SMALLEST = 1e-7
"""Probabilities closer to 0 or 1 than this count as if they were this far, for logits and log loss to be finite."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ExportReport:
    """How an export compares with what was trained."""

    rows: int
    """Of all tables at the end of training."""
    rows_kept: int
    """Of them in the export."""
    bytes: int
    """Of the rows, their keys, the defaults and the dense weights."""
    coverage: Mapping[str, float]
    """For each dynamic table the share of its keys' sightings in training that were of kept keys."""
    auc: float
    """Of the eval split."""
    log_loss: float
    auc_lost: float
    """The trainer's AUC less the export's; below 0 where leaving out rare rows did good."""


def report(exported: Exported, trained: Trained, eval_auc: float) -> ExportReport:
    """Runs the export over the eval split, one shard in memory at a time.

    Args:
        eval_auc: of the same weights, by the trainer (`curves.auc`).
    """
    loss, examples, counts = 0.0, 0, np.zeros([2, curves.BINS], np.int64)
    loaded = tf.saved_model.load(str(exported.folder))  # kept: the signature alone does not hold its variables
    for block in _eval_shards(trained):
        probabilities = _probabilities(loaded.signatures[MATRIX_SIGNATURE], block, trained)
        logits = np.log(probabilities) - np.log1p(-probabilities)
        counts += curves.bin_counts(tf.constant(logits, tf.float32), tf.constant(block.labels)).numpy()
        loss -= float(np.log(np.where(block.labels > 0.5, probabilities, 1 - probabilities)).sum())
        examples += len(block)
    auc = curves.auc(counts)
    coverage = {name: share for part in exported.rows for name, share in part.coverage().items()}
    return ExportReport(
        rows=sum(part.contents.rows for part in exported.rows),
        rows_kept=sum(part.rows for part in exported.rows),
        bytes=exported.bytes,
        coverage=coverage,
        auc=auc,
        log_loss=loss / examples,
        auc_lost=eval_auc - auc,
    )


def _eval_shards(trained: Trained) -> Iterator[Block]:
    manifest = trained.manifest
    for shard in manifest.splits["eval"].shards:
        with storage.local_file(storage.join(trained.config.shards, shard.file)) as path:
            yield read_shard(path, manifest.layout)


def _probabilities(
    signature: tf.types.experimental.ConcreteFunction, block: Block, trained: Trained
) -> npt.NDArray[np.float64]:
    """float64 [examples], away from 0 and 1."""
    ids = block.id_matrix(trained.manifest.layout)
    parts = [
        signature(**{IDS: tf.constant(ids[i : i + BATCH]), DENSE: tf.constant(block.dense[i : i + BATCH])})[PROBABILITY]
        for i in range(0, len(block), BATCH)
    ]
    probabilities = np.concatenate([part.numpy() for part in parts]).astype(np.float64)
    return np.clip(probabilities, SMALLEST, 1 - SMALLEST)
