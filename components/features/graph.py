"""Hashing and transforms in a TensorFlow graph: what training applies to packed records, and the served model to raw values."""

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import tensorflow as tf

from paraserve.components.features import keys
from paraserve.components.features.spec import CategoricalColumn, FeatureSpec, ListColumn
from paraserve.components.features.transforms import NUMBER, SMALLEST, Moments, apply_transforms

TENSORFLOW = SimpleNamespace(
    log1p=tf.math.log1p,
    maximum=tf.maximum,
    minimum=tf.minimum,
    where=tf.where,
    isfinite=tf.math.is_finite,
    zeros_like=tf.zeros_like,
)


@tf.autograph.experimental.do_not_convert
def transform_dense(spec: FeatureSpec, moments: Mapping[str, Moments], dense: tf.Tensor) -> tf.Tensor:
    """Applies every dense column's transforms; float32 [examples, dense columns] in (NaN is missing) and out."""
    if not spec.dense:
        return dense
    columns = [
        apply_transforms(dense[:, i], column.transforms, moments.get(column.name), TENSORFLOW)
        for i, column in enumerate(spec.dense)
    ]
    return tf.stack(columns, axis=1)


def raw_to_matrices(spec: FeatureSpec, raw: Mapping[str, tf.Tensor]) -> tuple[tf.Tensor, tf.Tensor]:
    """Turns raw values into what packed records hold.

    Args:
        raw: for each feature its values as they would stand in the log: string [examples]; a list as its items joined by
            the column's separator; a missing value as one of the spec's `missing_values`.

    Returns:
        ids: int64 [examples, spec.id_width]; dense: float32 [examples, dense columns], not transformed, NaN where missing.

    A dense text that is no number raises InvalidArgumentError when the graph runs.
    """
    ids = [
        _list_keys(spec, c, raw[c.name]) if isinstance(c, ListColumn) else _keys(spec, c, raw[c.name])[:, None]
        for c in spec.embedded
    ]
    dense = [_number(spec, column.name, raw[column.name]) for column in spec.dense]
    examples = tf.shape(next(iter(raw.values())))[0]
    return (
        tf.concat(ids, axis=1) if ids else tf.zeros([examples, 0], tf.int64),
        tf.stack(dense, axis=1) if dense else tf.zeros([examples, 0], tf.float32),
    )


def _is_missing(spec: FeatureSpec, text: tf.Tensor) -> tf.Tensor:
    return tf.reduce_any(text[..., None] == tf.constant(spec.missing_values), axis=-1)


def _number(spec: FeatureSpec, name: str, text: tf.Tensor) -> tf.Tensor:
    text = tf.strings.strip(text)
    missing = _is_missing(spec, text)
    wrong = ~(missing | tf.strings.regex_full_match(text, NUMBER))
    said = f"the dense feature '{name}' takes numbers as text, and the empty text where it is missing; it got"
    with tf.control_dependencies([tf.debugging.Assert(~tf.reduce_any(wrong), [said, tf.boolean_mask(text, wrong)])]):
        present = tf.where(missing, "nan", text)
    # Through float64, as ingest reads it: a direct conversion may round the last bit otherwise.
    number = tf.strings.to_number(present, tf.float64)
    return tf.cast(tf.where(tf.abs(number) < SMALLEST, tf.zeros_like(number), number), tf.float32)


def _fingerprints(column: CategoricalColumn | ListColumn, text: tf.Tensor) -> tf.Tensor:
    salted = tf.strings.join([column.table + keys.SEPARATOR, text])
    fingerprint = tf.bitcast(tf.raw_ops.Fingerprint(data=salted, method="farmhash64"), tf.int64)
    reserved = (fingerprint >= 0) & (fingerprint < keys.RESERVED)
    key = tf.where(reserved, fingerprint + keys.RESERVED, fingerprint)
    if column.values is None:
        return key
    known = tf.constant(keys.keys_of(column.table, column.values))
    return tf.where(tf.reduce_any(key[:, None] == known, axis=-1), key, tf.constant(keys.OUT_OF_RANGE, tf.int64))


def _keys(spec: FeatureSpec, column: CategoricalColumn, text: tf.Tensor) -> tf.Tensor:
    text = tf.strings.strip(text)
    return tf.where(_is_missing(spec, text), tf.constant(keys.MISSING, tf.int64), _fingerprints(column, text))


def _list_keys(spec: FeatureSpec, column: ListColumn, text: tf.Tensor) -> tf.Tensor:
    text = tf.strings.strip(text)
    text = tf.where(_is_missing(spec, text), "", text)
    items = tf.strings.split(text, column.separator)
    items = items.with_flat_values(tf.strings.strip(items.flat_values))
    items = tf.ragged.boolean_mask(items, items.with_flat_values(~_is_missing(spec, items.flat_values)))
    items = items[:, -column.max_length :]
    padded: Any = items.with_flat_values(_fingerprints(column, items.flat_values))
    return padded.to_tensor(tf.constant(keys.PADDING, tf.int64), shape=[None, column.max_length])
