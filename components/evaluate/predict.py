"""Predictions of an exported model for the test split: from its files, as a server loads it, never the trainer's memory."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from paraserve.components import storage
from paraserve.components.evaluate.matrices import matrices
from paraserve.components.exported import DENSE, IDS, MATRIX_SIGNATURE, PROBABILITY
from paraserve.components.features.spec import FeatureSpec
from paraserve.components.manifest import Manifest
from paraserve.components.records import read_shard

BATCH = 8192


@dataclass(frozen=True, kw_only=True, slots=True)
class Predictions:
    """The test split as a model sees it; example i is example i of the split's shards in order."""

    labels: npt.NDArray[np.float32]
    """float32 [n], 0 or 1."""
    probabilities: npt.NDArray[np.float64]
    """float64 [n], as the model gave them: perhaps not finite."""
    keys: dict[str, npt.NDArray[np.int64]] = field(default_factory=dict)
    """int64 [n] for each categorical column that was asked for."""


class ExportedModel:
    """A SavedModel with the signature `prehashed`. Raises ValueError when it has none."""

    def __init__(self, folder: Path):
        self.loaded = tf.saved_model.load(str(folder))  # kept: the signature alone does not hold its variables
        if MATRIX_SIGNATURE not in self.loaded.signatures:
            raise ValueError(
                f"{folder} has no signature '{MATRIX_SIGNATURE}' (it has {', '.join(self.loaded.signatures) or 'none'}); "
                "export the model with paraserve's train step"
            )
        self.signature = self.loaded.signatures[MATRIX_SIGNATURE]

    def predict(self, ids: npt.NDArray[np.int64], dense: npt.NDArray[np.float32]) -> npt.NDArray[np.float64]:
        """float64 [n] for ids, int64 [n, id_width], and dense, float32 [n, dense columns]."""
        parts = [
            self.signature(**{IDS: tf.constant(ids[i : i + BATCH]), DENSE: tf.constant(dense[i : i + BATCH])})[PROBABILITY]
            for i in range(0, len(ids), BATCH)
        ]
        return np.concatenate([part.numpy() for part in parts]).astype(np.float64).reshape(len(ids))


def predict_test_split(
    model: Path, spec: FeatureSpec, shards: str, manifest: Manifest, slice_columns: Sequence[str] = ()
) -> Predictions:
    """Predicts every example of the test split, one shard in memory at a time.

    Args:
        spec: the model's own, which says how its inputs are put together.
        slice_columns: categorical columns of the data whose keys are wanted too.
    """
    exported, layout = ExportedModel(model), manifest.layout
    labels, probabilities, keys = [], [], []
    for shard in manifest.splits["test"].shards:
        with storage.local_file(storage.join(shards, shard.file)) as path:
            block = read_shard(path, layout)
        labels.append(block.labels)
        probabilities.append(exported.predict(*matrices(block, layout, spec)))
        keys.append(block.ids[:, [layout.categorical.index(name) for name in slice_columns]])
    all_keys = np.concatenate(keys)
    return Predictions(
        labels=np.concatenate(labels),
        probabilities=np.concatenate(probabilities),
        keys={name: all_keys[:, i] for i, name in enumerate(slice_columns)},
    )
