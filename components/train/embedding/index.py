"""From a key to its slot: a hash table on a server, of TensorFlow's own kind."""

import math

import tensorflow as tf

from paraserve.components.train.embedding.reserved import DELETED, EMPTY

UNKNOWN = -1
"""The value of a key that the index does not hold."""
_START_BUCKETS = 2**16
"""Buckets at first: 0.8 MB. They double when full, each time in one call that takes about 20 ms per million keys."""
_LOAD = 0.8
"""Buckets are doubled beyond this fill: 0.9 would save a tenth of the memory, and make a missing key cost ten probes."""
_CHUNK = 2**16
"""Keys inserted by one call: a call makes room for all its keys, whether they are new or not."""


class KeyIndex:
    """Key, int64, to value, int32, on the device of the scope that it is made in; the methods run there.

    A value of 0 or more is the key's slot; one of UNKNOWN - n says that a key without a slot was seen n times.
    """

    def __init__(self) -> None:
        self._table = tf.raw_ops.AnonymousMutableDenseHashTable(
            empty_key=tf.constant(EMPTY, tf.int64),
            deleted_key=tf.constant(DELETED, tf.int64),
            value_dtype=tf.int32,
            value_shape=[],
            initial_num_buckets=_START_BUCKETS,
            max_load_factor=_LOAD,
        )

    def find(self, keys: tf.Tensor) -> tf.Tensor:
        """int32 [n]: the value of each key, int64 [n], UNKNOWN where there is none."""
        values = tf.raw_ops.LookupTableFindV2(table_handle=self._table, keys=keys, default_value=tf.constant(UNKNOWN))
        values.set_shape(keys.shape)
        return values

    def insert(self, keys: tf.Tensor, values: tf.Tensor) -> tf.Operation:
        """Sets the values of distinct keys."""
        return tf.raw_ops.LookupTableInsertV2(table_handle=self._table, keys=keys, values=values)

    def entries(self, start: tf.Tensor | int = 0, end: tf.Tensor | int | None = None) -> tuple[tf.Tensor, tf.Tensor]:
        """The keys, int64 [n], and values, int32 [n], of the buckets from `start` to `end`; while nobody inserts."""
        # The export is the table's own memory, copied nowhere: every bucket, the empty ones included.
        exported = tf.raw_ops.LookupTableExportV2(table_handle=self._table, Tkeys=tf.int64, Tvalues=tf.int32)
        keys, values = (tf.reshape(part, [-1])[start:end] for part in exported)
        used = tf.where((keys != EMPTY) & (keys != DELETED))[:, 0]
        return tf.gather(keys, used), tf.gather(values, used)

    def buckets(self) -> tf.Tensor:
        """int64 scalar."""
        keys, _ = tf.raw_ops.LookupTableExportV2(table_handle=self._table, Tkeys=tf.int64, Tvalues=tf.int32)
        return tf.shape(keys, tf.int64)[0]

    def replace(self, keys: tf.Tensor, values: tf.Tensor) -> tf.Operation:
        """Makes these the only entries, with as many buckets as they need; for a time when nobody finds or inserts.

        Taking single keys out would leave marks that searches must pass, and that an insert may take for the key's place
        though the key stands further on.
        """
        count = tf.size(keys)
        needed = tf.math.log(tf.cast(count + _CHUNK, tf.float64) / _LOAD) / math.log(2.0)
        buckets = tf.maximum(tf.bitwise.left_shift(1, tf.cast(tf.math.ceil(needed), tf.int32)), _START_BUCKETS)
        with tf.control_dependencies([keys, values]):
            cleared = tf.raw_ops.LookupTableImportV2(
                table_handle=self._table,
                keys=_of_unknown_shape(tf.fill([buckets, 1], tf.constant(EMPTY, tf.int64))),
                values=_of_unknown_shape(tf.zeros([buckets, 1], tf.int32)),
            )

        def insert(start: tf.Tensor) -> tf.Tensor:
            with tf.control_dependencies([self.insert(keys[start : start + _CHUNK], values[start : start + _CHUNK])]):
                return start + _CHUNK

        with tf.control_dependencies([cleared]):
            return tf.while_loop(lambda start: start < count, insert, [tf.constant(0)], parallel_iterations=1)[0].op


def _of_unknown_shape(tensor: tf.Tensor) -> tf.Tensor:
    """The import's kernel wants [buckets, 1], the shape check that runs before it [buckets]."""
    return tf.compat.v1.placeholder_with_default(tensor, None)
