"""How old gradients are, and two ways to bound it.

The servers' steps are counted on server 0. A gradient's *staleness* is how many steps were applied between the pull of its
weights and its own arrival.

Refusing: a gradient that is staler than the bound is not applied. Holding: a worker waits before it pulls, like PERSIA's
permit, which is held from the lookup until the gradient is applied (Lian et al., 2021, https://arxiv.org/abs/2111.05897).
Permits are numbered and come back in order here: with P of them, exchange t begins when exchange t - P is applied, so that at
most 2 (P - 1) others are applied while it lasts, however slow its worker is.
"""

import uuid
from dataclasses import dataclass

import tensorflow as tf

from paraserve.components.train.cluster import PARAMETER_SERVER, device

BINS = 64
"""Of the histogram; the last one holds all that are staler."""
NOBODY = -1


@dataclass(frozen=True, kw_only=True)
class Arrival:
    """What server 0 says when an exchange's gradients arrive."""

    accept: tf.Tensor
    """bool scalar."""
    staleness: tf.Tensor
    """int64 scalar, steps."""


class Clock:
    """Counts the steps that the servers have applied, and judges what arrives. Make it while server 0 is alive."""

    def __init__(self, bound: int):
        """`bound` in steps; 0 accepts any staleness."""
        self._bound = bound
        with tf.device(device(PARAMETER_SERVER, 0)):
            self._steps = tf.Variable(0, trainable=False, dtype=tf.int64)

    def now(self) -> tf.Tensor:
        """int64 scalar, to be taken with a pull."""
        with tf.device(self._steps.device):
            return self._steps.read_value()

    def arrive(self, pulled_at: tf.Tensor, steps: tf.Tensor, sound: tf.Tensor) -> Arrival:
        """Judges gradients of `steps`, int64, batches pulled at `pulled_at`; `sound` says that they are finite, bool."""
        # What depends on no gradient would run before the worker has computed any.
        with tf.device(self._steps.device), tf.control_dependencies([tf.identity(sound)]):
            staleness = self._steps.read_value() - pulled_at
            accept = sound & (staleness <= self._bound) if self._bound else tf.identity(sound)
            with tf.control_dependencies([self._steps.assign_add(tf.where(accept, steps, 0)).op]):
                return Arrival(accept=tf.identity(accept), staleness=tf.identity(staleness))


class Permits:
    """The permits of all workers, on server 0."""

    def __init__(self, bound: int, exchange_steps: int):
        """As many as keep the staleness of exchanges of so many steps within `bound` steps."""
        self.count = bound // (2 * exchange_steps) + 1
        name = uuid.uuid4().hex
        with tf.device(device(PARAMETER_SERVER, 0)):
            # One queue for each permit: those of one queue come back in any order.
            self._queues = [tf.queue.FIFOQueue(1, [tf.bool], [[]], shared_name=f"permit-{name}-{i}") for i in range(self.count)]
            for queue in self._queues:
                queue.enqueue(True)
            self._next = tf.Variable(0, trainable=False, dtype=tf.int64)
            self._holders = tf.Variable(tf.fill([self.count], tf.constant(NOBODY, tf.int64)), trainable=False)

    def take(self, holder: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Waits for the next permit; returns its number, int64, and whether it had to wait, bool."""
        with tf.device(self._next.device):
            # Each number is given once, whoever races: a read after an addition would give one twice, and another never.
            number = tf.raw_ops.ResourceCountUpTo(resource=self._next.handle, limit=2**63 - 1, T=tf.int64)
            place = number % self.count
            queue = self._queue(place)
            waits = tf.equal(tf.raw_ops.QueueSizeV2(handle=queue), 0)
            # The holder is known here before it holds: should it die, its permit is found.
            with tf.control_dependencies([waits, tf.identity(holder)]):
                taken = tf.raw_ops.QueueDequeueV2(handle=queue, component_types=[tf.bool])
            with tf.control_dependencies(taken):
                held = self._holders.scatter_nd_update(place[None, None], holder[None])
            with tf.control_dependencies([held]):
                return tf.identity(number), tf.identity(waits)

    def give_back(self, number: tf.Tensor) -> None:
        with tf.device(self._next.device):
            place = number % self.count
            freed = self._holders.scatter_nd_update(place[None, None], tf.constant([NOBODY], tf.int64))
            with tf.control_dependencies([freed]):
                back = tf.raw_ops.QueueEnqueueV2(handle=self._queue(place), components=[tf.constant(True)])
            with tf.control_dependencies([back]):
                # A function's operations on one variable keep their order: its next `take` comes after this, and not before.
                self._next.assign_add(0)

    def give_back_of(self, holder: int) -> None:
        """Gives back what a call holds that failed; on the coordinator."""
        # Not in the scope of the worker that is gone.
        with tf.device(None):
            for place, by in enumerate(self._holders.numpy()):
                if by == holder:
                    self.give_back(tf.constant(place, tf.int64))

    def _queue(self, place: tf.Tensor) -> tf.Tensor:
        return tf.gather(tf.stack([queue.queue_ref for queue in self._queues]), place)
