"""Whether an exported model answers as the trainer does, whatever rows were left out of it or rounded.

Three comparisons, each of things that must be equal but for the rounding of float32 sums. Together they lead from raw text to
the trainer's answers, so that hashing, transforms, tables and weights cannot differ unseen:

- the export's answers to raw rows, and to the same rows as ingest packed them;
- the trainer's answers, and those of a served model with all rows in float32: the export itself, or, where it holds less, one
  that is made here for the keys of the sample. Examples with a key that has no row are left out: parameter servers each have
  their own row for such keys, and a served model has one. A trainer that computes in 16 bits is off by that: only what is
  beyond ROUNDING counts;
- where the export holds less, its answers and those of a served model that is made here with what it should hold.
"""

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from paraserve.components.exported import DENSE, IDS, MATRIX_SIGNATURE, PROBABILITY, RAW_SIGNATURE
from paraserve.components.features import keys
from paraserve.components.features.spec import FeatureSpec
from paraserve.components.records import Block
from paraserve.components.train.config import TrainConfig
from paraserve.components.train.embedding.contents import StaticContents, TableContents
from paraserve.components.train.embedding.reserved import own_keys
from paraserve.components.train.export import Exported, ServedModel, Trained
from paraserve.components.train.serving_budget import ServedRows

ROUNDING = 0.02
"""How far 16 bits may move a trainer's probability: some twenty times what was seen (0.001 in bfloat16)."""
Floats = npt.NDArray[np.float32]


def largest_difference(
    exported: Exported, trained: Trained, rows: Sequence[Mapping[str, str]], packed: Block, predicted: Floats
) -> float:
    """How far the export's answers are from the trainer's, at most, in the comparisons above.

    Args:
        rows: raw rows, as clients send them; at least one.
        packed: the same rows as ingest packed them.
        predicted: what the trainer says of them, float32 [rows].
    """
    ids = packed.id_matrix(trained.manifest.layout)
    loaded = tf.saved_model.load(str(exported.folder))
    answers = _answers(loaded.signatures[MATRIX_SIGNATURE], ids, packed.dense)
    raw = loaded.signatures[RAW_SIGNATURE](**{name: tf.constant([row[name] for row in rows]) for name in rows[0]})
    differences, exact = [raw[PROBABILITY].numpy() - answers], answers
    if not exported.whole:
        wanted, model = _own_keys(trained, ids), trained.local_model()
        stored = ServedModel(trained, model, [_sample(part, wanted) for part in exported.rows])
        in_full = ServedModel(trained, model, [_in_full(part, wanted) for part in exported.rows])
        exact = _answers(in_full.prehashed, ids, packed.dense)
        differences.append(_answers(stored.prehashed, ids, packed.dense) - answers)
    from_trainer = np.abs(exact - predicted)[_known(exported, trained, ids)]
    differences.append(np.maximum(from_trainer - _rounding(trained.config), 0.0))
    return float(np.abs(np.concatenate(differences)).max())


def _rounding(config: TrainConfig) -> float:
    """What is no difference between an export and its trainer."""
    return 0.0 if config.compute_dtype == "float32" else ROUNDING


def _answers(signature: tf.types.experimental.GenericFunction, ids: npt.NDArray[np.int64], dense: Floats) -> Floats:
    answers: Floats = signature(**{IDS: tf.constant(ids), DENSE: tf.constant(dense)})[PROBABILITY].numpy()
    return answers


def _sample(rows: ServedRows, wanted: npt.NDArray[np.int64]) -> ServedRows:
    """The same with no other keys than the wanted."""
    if isinstance(rows.contents, StaticContents):
        return rows
    return dataclasses.replace(rows, kept=rows.kept[np.isin(rows.contents.keys[rows.kept], wanted)])


def _in_full(rows: ServedRows, wanted: npt.NDArray[np.int64]) -> ServedRows:
    """All rows of the wanted keys, in float32."""
    everything = np.argsort(rows.contents.keys) if isinstance(rows.contents, TableContents) else rows.kept
    storage = dataclasses.replace(rows.storage, dtype="float32")
    return _sample(dataclasses.replace(rows, storage=storage, kept=everything), wanted)


def _known(exported: Exported, trained: Trained, ids: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
    """Which examples have no key that a dynamic table has no row for: bool [examples]."""
    held = [part.contents.keys for part in exported.rows if isinstance(part.contents, TableContents)]
    if not held:
        return np.ones(len(ids), np.bool_)
    spec = trained.manifest.spec
    static = np.array([not spec.tables[name].dynamic for name in _tables_of_places(spec)])
    wanted = _own_keys(trained, ids)
    # The other way round, each of all keys would be sorted for a few that are asked for.
    found = np.concatenate([part[np.isin(part, wanted)] for part in held])
    known: npt.NDArray[np.bool_] = (static | (ids == keys.PADDING) | np.isin(wanted, found)).all(axis=1)
    return known


def _own_keys(trained: Trained, ids: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """The keys of an id matrix as dynamic tables hold them, int64 [examples, id_width]."""
    tables = _tables_of_places(trained.manifest.spec)
    own: npt.NDArray[np.int64] = own_keys(tf.constant(ids), tables).numpy() if tables else ids
    return own


def _tables_of_places(spec: FeatureSpec) -> list[str]:
    """The table of each column of an id matrix."""
    places = [(column.table, spec.id_slices[column.name]) for column in spec.embedded]
    return [table for table, part in places for _ in range(part.stop - part.start)]
