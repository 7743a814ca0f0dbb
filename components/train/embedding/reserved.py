"""Reserved keys, which all columns share, as keys of one table."""

from collections.abc import Sequence

import tensorflow as tf

from paraserve.components.features import keys

EMPTY, DELETED = 3, 4
"""The reserved keys that a hash table uses itself; no table holds them."""


def own_key(table: str, reserved: int) -> int:
    """The key that stands for a reserved key, MISSING or OUT_OF_RANGE, in one table.

    It is the key of a text with white space around it, which no value of the table's columns has.
    """
    return keys.key_of(table, f" {reserved} ")


def shared_key(table: str) -> int:
    """The key from which a table's shared row starts; no value has it."""
    return keys.key_of(table, " shared ")


def own_keys(ids: tf.Tensor, tables: Sequence[str]) -> tf.Tensor:
    """`ids`, int64 [n, columns], with reserved keys replaced by those of each column's table.

    PADDING stays: it stands for no value, and is never looked up.
    """
    own = tf.constant([[own_key(table, reserved) for table in tables] for reserved in (keys.MISSING, keys.OUT_OF_RANGE)])
    ids = tf.where(tf.equal(ids, keys.MISSING), own[0], ids)
    return tf.where(tf.equal(ids, keys.OUT_OF_RANGE), own[1], ids)
