"""A lock on a server, for workers that race for what it guards."""

import uuid
from collections.abc import Callable

import tensorflow as tf


class Mutex:
    """One lock, on the device of the scope that it is made in."""

    def __init__(self) -> None:
        # A server keeps what has a name when a coordinator comes back; another run must not meet this one's lock.
        self._handle = tf.raw_ops.MutexV2(shared_name=f"mutex-{uuid.uuid4().hex}")

    def held(self, section: Callable[[], tf.Tensor]) -> tf.Tensor:
        """Runs a section while holding the lock, on the lock's device; returns its tensor.

        The tensor must depend on all that the section writes. Call this under control dependencies on what the section takes
        from a worker: else the lock is held while that is on its way. A worker that dies inside gives the lock back.
        """
        lock = tf.raw_ops.MutexLock(mutex=self._handle)
        with tf.control_dependencies([lock]):
            result = section()
        with tf.control_dependencies([result]):
            _let_go(tf.raw_ops.ConsumeMutexLock(mutex_lock=lock))
        return result


def _let_go(lock: tf.Operation | None) -> None:
    """Keeps a function from letting go of its locks in the order of its program, whatever they lock: it would hold one while
    it waits for another, and two workers would wait for each other for ever."""
    if lock is not None:
        lock.graph.experimental_acd_manager.run_independently(lock)
