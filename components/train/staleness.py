"""How old gradients are, and two ways to bound it.

The servers' steps are counted on server 0. A gradient's *staleness* is how many steps were applied between the pull of its
weights and its own arrival.

Refusing: a gradient that is staler than the bound is not applied. Holding: a worker waits before it pulls, like PERSIA's
permit, which is held from the lookup until the gradient is applied (Lian et al., 2021, https://arxiv.org/abs/2111.05897).
Permits are numbered and come back in order here: with P of them, exchange t begins when all up to exchange t - P are applied,
so that at most 2 (P - 1) others are applied while it lasts, however slow its worker is and however many others there are.
"""

import uuid
from dataclasses import dataclass

import numpy as np
import tensorflow as tf

from paraserve.components.train.cluster import PARAMETER_SERVER, device
from paraserve.components.train.embedding.mutex import Mutex

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
            self._steps, self._mutex = tf.Variable(0, trainable=False, dtype=tf.int64), Mutex()

    def now(self) -> tf.Tensor:
        """int64 scalar, to be taken with a pull."""
        with tf.device(self._steps.device):
            return self._steps.read_value()

    def arrive(self, pulled_at: tf.Tensor, steps: tf.Tensor, sound: tf.Tensor) -> Arrival:
        """Judges gradients of `steps`, int64, batches pulled at `pulled_at`; `sound` says that they are finite, bool."""
        with tf.device(self._steps.device):
            # What depends on no gradient would run before the worker has computed any.
            with tf.control_dependencies([tf.identity(part) for part in (pulled_at, steps, sound)]):
                accept, staleness = tf.unstack(self._mutex.held(lambda: self._judged(pulled_at, steps, sound)))
            return Arrival(accept=accept > 0, staleness=staleness)

    def _judged(self, pulled_at: tf.Tensor, steps: tf.Tensor, sound: tf.Tensor) -> tf.Tensor:
        """int64 [accept, staleness]; of two that arrive at once the second is judged after the first was counted."""
        staleness = self._steps.read_value() - pulled_at
        accept = sound & (staleness <= self._bound) if self._bound else sound
        with tf.control_dependencies([self._steps.assign_add(tf.where(accept, steps, 0)).op]):
            return tf.stack([tf.cast(accept, tf.int64), staleness])


class Permits:
    """The permits of all workers, on server 0."""

    def __init__(self, bound: int, exchange_steps: int):
        """As many as keep the staleness of exchanges of so many steps within `bound` steps."""
        self.count = bound // (2 * exchange_steps) + 1
        self._device = device(PARAMETER_SERVER, 0)
        with tf.device(self._device):
            # The numbers that may be taken, from the lowest on.
            self._queue = tf.queue.FIFOQueue(self.count, [tf.int64], [[]], shared_name=f"permits-{uuid.uuid4().hex}")
            self._queue.enqueue_many([tf.range(self.count, dtype=tf.int64)])
            # The lowest number that is out; of each number from it on, at its place, who holds it and whether it came back.
            self._first = tf.Variable(0, trainable=False, dtype=tf.int64)
            self._holders = tf.Variable(tf.fill([self.count], tf.constant(NOBODY, tf.int64)), trainable=False)
            self._back = tf.Variable(tf.zeros([self.count], tf.bool), trainable=False)
            self._mutex = Mutex()

    def take(self, holder: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Waits for the next permit; returns its number, int64, and whether it had to wait, bool."""
        with tf.device(self._device):
            waits = tf.equal(self._queue.size(), 0)
            # The holder is known here before it holds: should it die, its permit is found.
            with tf.control_dependencies([waits, tf.identity(holder)]):
                number = self._queue.dequeue()
            place = number % self.count
            with tf.control_dependencies([self._holders.scatter_nd_update(place[None, None], holder[None])]):
                return tf.identity(number), tf.identity(waits)

    def give_back(self, number: tf.Tensor) -> None:
        """Lets exchange `number + count` begin, once those before `number` are back as well. A second time does nothing."""
        with tf.device(self._device), tf.control_dependencies([tf.identity(number)]):
            self._mutex.held(lambda: self._given_back(number))

    def give_back_of(self, holder: int) -> None:
        """Gives back what a call holds that failed; on the coordinator."""
        # Not in the scope of the worker that is gone.
        with tf.device(None):
            first = int(self._first)
            for place in np.flatnonzero(self._holders.numpy() == holder):
                self.give_back(tf.constant(first + (place - first) % self.count, tf.int64))

    def _given_back(self, number: tf.Tensor) -> tf.Tensor:
        first = self._first.read_value()
        place, numbers = number % self.count, first + tf.range(self.count, dtype=tf.int64)
        back = self._back.scatter_nd_update([[place]], [number >= first])
        run = tf.reduce_sum(tf.math.cumprod(tf.cast(tf.gather(back, numbers % self.count), tf.int64)))
        places = (numbers[:run] % self.count)[:, None]
        cleared = [
            self._back.scatter_nd_update(places, tf.zeros([run], tf.bool)),
            self._holders.scatter_nd_update(places, tf.fill([run], tf.constant(NOBODY, tf.int64))),
            self._first.assign_add(run),
        ]
        with tf.control_dependencies(cleared):
            freed = self._queue.enqueue_many([numbers[:run] + self.count])
        with tf.control_dependencies([freed]):
            return tf.identity(run)
