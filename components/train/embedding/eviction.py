"""Which keys lose their rows."""

from collections.abc import Sequence

import numpy as np
import tensorflow as tf

from paraserve.components.train.embedding.limits import SlotRanges, TableLimits

FULL, KEPT = 0.95, 0.90
"""A table fuller than FULL is reduced to KEPT. Between two looks at the tables, a shard of a few seconds apart, new keys should
find room, hence FULL < 1; and since a look that evicts passes over every entry of the server, it should not happen each time,
hence the distance."""


def overfull(tables: Sequence[TableLimits], ranges: SlotRanges, sizes: tf.Tensor) -> tf.Tensor:
    """int32 [tables]: how many keys each table is to lose for its fill."""
    by_fill = tf.constant([table.evict in ("lru", "lfu") for table in tables])
    full, kept = (tf.constant((fill * ranges.limits).astype(np.int32)) for fill in (FULL, KEPT))
    return tf.where(by_fill & (sizes > full), sizes - kept, 0)


def victims(
    table: TableLimits, excess: tf.Tensor, frequency: tf.Tensor, last_seen: tf.Tensor, taken: tf.Tensor, step: tf.Tensor
) -> tf.Tensor:
    """bool [n]: which of a table's slots are to be freed at `step`, int64.

    `excess`, int32, says how many for the table's fill; `frequency` and `last_seen` are int64 [n], `taken` bool [n].
    """
    if table.evict == "ttl":
        return taken & (step - last_seen > table.ttl_steps)
    return _lowest(last_seen if table.evict == "lru" else frequency, taken, excess)


def _lowest(values: tf.Tensor, among: tf.Tensor, count: tf.Tensor) -> tf.Tensor:
    """bool [n]: the `count` lowest of `values` [n] where `among` [n], at least one; of equals, the first."""
    bound = tf.raw_ops.NthElement(input=tf.gather(values, tf.where(among)[:, 0]), n=count - 1)
    below, equal = among & (values < bound), among & tf.equal(values, bound)
    rest = count - tf.reduce_sum(tf.cast(below, tf.int32))
    return below | (equal & (tf.cumsum(tf.cast(equal, tf.int32)) <= rest))
