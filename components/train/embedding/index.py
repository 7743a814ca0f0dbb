"""From a key to its slot: a hash table on a server, of TensorFlow's own kind."""

import tensorflow as tf

from paraserve.components.train.embedding.reserved import DELETED, EMPTY

UNKNOWN = -1
"""The value of a key that the index does not hold."""
_START_BUCKETS = 2**16
"""Buckets at first: 0.8 MB. They double when full, each time in one call that takes about 20 ms per million keys."""
_LOAD = 0.8
"""Buckets are doubled beyond this fill: 0.9 would save a tenth of the memory, and make a missing key cost ten probes."""


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

    def entries(self) -> tuple[tf.Tensor, tf.Tensor]:
        """All keys, int64 [n], and their values, int32 [n]; for a time when nobody inserts."""
        keys, values = tf.raw_ops.LookupTableExportV2(table_handle=self._table, Tkeys=tf.int64, Tvalues=tf.int32)
        # The export is the table's own memory: every bucket, the empty ones included.
        used = tf.where((keys[:, 0] != EMPTY) & (keys[:, 0] != DELETED))[:, 0]
        return tf.gather(keys[:, 0], used), tf.gather(values[:, 0], used)
