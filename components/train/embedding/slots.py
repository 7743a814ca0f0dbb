"""Which slots of a server are taken: a count for each table's range, and a stack of those that were given back."""

import tensorflow as tf

from paraserve.components.train.embedding.limits import SlotRanges


def reserved_variable(shape: list[int], dtype: tf.DType) -> tf.Variable:
    """A variable on the device of the current scope whose memory is reserved, not touched: a page costs nothing until it is
    written. What it holds before that is undefined.

    Raises ValueError where the machine does not have as much memory in all.
    """
    empty = tf.raw_ops.Empty
    try:
        return tf.Variable(lambda: empty(shape=shape, dtype=dtype, init=False), trainable=False, shape=shape, dtype=dtype)
    except tf.errors.ResourceExhaustedError as error:
        raise ValueError(
            f"a server cannot reserve {shape} {dtype.name} rows; lower `max_keys` or add parameter servers"
        ) from error


def ranks(tables: tf.Tensor, wants: tf.Tensor, count: int) -> tuple[tf.Tensor, tf.Tensor]:
    """Numbers those that want something within their table, in their order.

    `tables` int32 [n], below `count`; `wants` bool [n]. Returns the numbers, int32 [n], from 0, without meaning where nothing
    is wanted, and how many each table wants, int32 [count].
    """
    if count == 1:
        wanted = tf.cast(wants, tf.int32)
        return tf.cumsum(wanted, exclusive=True), tf.reduce_sum(wanted)[None]
    order = tf.argsort(tf.where(wants, tables, count), stable=True)
    wanted = tf.math.unsorted_segment_sum(tf.cast(wants, tf.int32), tables, count)
    first = tf.gather(tf.cumsum(wanted, exclusive=True), tables)
    return tf.math.invert_permutation(order) - first, wanted


class SlotPool:
    """The taken and free slots of one server, on the device of the scope that it is made in.

    Its methods run on that device, those that change it under a lock or while nobody else does.
    """

    def __init__(self, ranges: SlotRanges):
        self._ranges = ranges
        # How far into its range a table has come, and how many slots before that are free again.
        self._reached, self._free = (tf.Variable(tf.zeros(ranges.tables, tf.int32), trainable=False) for _ in range(2))
        # The free slots of a table stand at the start of its own range.
        self._stack = reserved_variable([ranges.capacity], tf.int32)

    def tables_of(self, slots: tf.Tensor) -> tf.Tensor:
        """int32 [n]: the table of each slot, int32 [n], the shared ones excepted."""
        return tf.searchsorted(tf.constant(self._ranges.offsets), slots, side="right") - 1

    def sizes(self) -> tf.Tensor:
        """int32 [tables]: slots in use."""
        return self._reached.read_value() - self._free.read_value()

    def room(self) -> tf.Tensor:
        """int32 [tables]: slots that can still be taken."""
        return tf.constant(self._ranges.limits) - self.sizes()

    def take(self, tables: tf.Tensor, wants: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """A slot for each of those that want one, as far as their tables have room, int32 [n] and bool [n].

        Returns their slots, int32 [n], the shared slot of the table for those without one, and who has one, bool [n].
        """
        limits, offsets = (tf.gather(tf.constant(values), tables) for values in (self._ranges.limits, self._ranges.offsets))
        reached, free = self._reached.read_value(), self._free.read_value()
        rank, wanted = ranks(tables, wants, self._ranges.tables)
        given_back, never_used = tf.gather(free, tables) - 1 - rank, rank - tf.gather(free - reached, tables)
        reused = wants & (given_back >= 0)
        has = reused | (wants & (never_used < limits))
        stacked = tf.raw_ops.ResourceGather(
            resource=self._stack.handle, indices=tf.where(reused, offsets + given_back, 0), dtype=tf.int32
        )
        slots = tf.where(reused, stacked, tf.where(has, offsets + never_used, tables))
        from_stack = tf.minimum(wanted, free)
        fresh = tf.minimum(wanted - from_stack, tf.constant(self._ranges.limits) - reached)
        with tf.control_dependencies([stacked]):
            counted = [self._reached.assign_add(fresh).op, self._free.assign_sub(from_stack).op]
        with tf.control_dependencies(counted):
            return tf.identity(slots), has

    def reached(self, table: int) -> tf.Tensor:
        """int32 [n]: the slots of a table that are or were taken."""
        first = int(self._ranges.offsets[table])
        return tf.range(first, first + self._reached.read_value()[table])

    def give_back(self, table: int, slots: tf.Tensor) -> tf.Operation:
        """Frees slots of a table, int32 [n], distinct and in use."""
        first = int(self._ranges.offsets[table]) + self._free.read_value()[table]
        places = tf.range(first, first + tf.size(slots))
        stacked = tf.raw_ops.ResourceScatterUpdate(resource=self._stack.handle, indices=places, updates=slots)
        with tf.control_dependencies([stacked]):
            return self._free.assign_add(tf.one_hot(table, self._ranges.tables, tf.size(slots), dtype=tf.int32)).op

    def reset(self) -> tf.Operation:
        """Frees all slots."""
        return tf.group(*(part.assign(tf.zeros_like(part)).op for part in (self._reached, self._free)))
