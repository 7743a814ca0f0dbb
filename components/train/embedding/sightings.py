"""How often each slot's key was seen, and when last: 8 bytes a slot, exact under racing workers."""

import tensorflow as tf

from paraserve.components.train.embedding.mutex import Mutex
from paraserve.components.train.embedding.slots import reserved_variable

_ONE = 2**32
"""What one sighting adds to the packed number."""
_LOW = _ONE - 1
_NONE = -1
"""No key: 2^32 - 1 sightings, the last at step 2^32 - 1."""


class Sightings:
    """Frequency, in the high 32 bits of an int64, and the step of the last sighting, in the low ones, of each slot.

    On the device of the scope that it is made in; the methods run there. One number instead of two costs one cache miss, and
    gather, add, scatter of it under a lock costs a third of TensorFlow's exclusive scatter-add. A frequency wraps at 2^32.
    """

    def __init__(self, capacity: int):
        self._packed = reserved_variable([capacity], tf.int64)
        self._mutex = Mutex()

    def add(self, slots: tf.Tensor, counts: tf.Tensor, step: tf.Tensor) -> tf.Operation:
        """Adds `counts` to the frequencies of `slots`, int32 [n], at `step`; loses none, whoever else adds.

        Of slots that stand twice in one call only one count is added.
        """
        news = tf.cast(counts, tf.int64) * _ONE + tf.cast(step, tf.int64)

        def section() -> tf.Tensor:
            with tf.control_dependencies([self._scatter(slots, (self._gather(slots) & ~_LOW) + news)]):
                return tf.zeros([])

        with tf.control_dependencies([slots, news]):
            # What comes from the worker is there before the lock is taken: nobody waits for a slow worker.
            return self._mutex.held(section).op

    def write(self, slots: tf.Tensor, frequency: tf.Tensor, last_seen: tf.Tensor) -> tf.Operation:
        """Sets both of distinct slots, int32 [n], to which nobody adds meanwhile."""
        return self._scatter(slots, tf.cast(frequency, tf.int64) * _ONE + tf.cast(last_seen, tf.int64))

    def read(self, slots: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Frequency and last step of slots, both int64 [n]."""
        packed = self._gather(slots)
        return tf.bitwise.right_shift(packed, tf.constant(32, tf.int64)) & _LOW, packed & _LOW

    def clear(self, slots: tf.Tensor) -> tf.Operation:
        """Marks slots, int32 [n], as those of no key."""
        return self._scatter(slots, tf.fill(tf.shape(slots), tf.constant(_NONE, tf.int64)))

    def exist(self, slots: tf.Tensor) -> tf.Tensor:
        """bool [n]: whether slots, int32 [n], that were once written were not cleared since."""
        return self._gather(slots) != _NONE

    def _gather(self, slots: tf.Tensor) -> tf.Tensor:
        return tf.raw_ops.ResourceGather(resource=self._packed.handle, indices=slots, dtype=tf.int64)

    def _scatter(self, slots: tf.Tensor, packed: tf.Tensor) -> tf.Operation:
        return tf.raw_ops.ResourceScatterUpdate(resource=self._packed.handle, indices=slots, updates=packed)
