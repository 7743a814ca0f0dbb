"""Locks within one function."""

import threading
import time

import tensorflow as tf

from paraserve.components.train.embedding.mutex import Mutex


def test_a_lock_is_let_go_of_while_its_function_waits_for_another() -> None:
    """Two functions that take several locks would else wait for each other for ever."""
    first, second = Mutex(), Mutex()
    gate = tf.queue.FIFOQueue(1, [tf.bool], [[]])

    @tf.function(autograph=False)
    def both() -> tuple[tf.Tensor, tf.Tensor]:
        return first.held(gate.dequeue), second.held(lambda: tf.constant(True))

    @tf.function(autograph=False)
    def one() -> tf.Tensor:
        return second.held(lambda: tf.constant(True))

    calls = [threading.Thread(target=function.get_concrete_function(), daemon=True) for function in (both, one)]
    calls[0].start()
    time.sleep(0.2)  # it has the second lock, or had it
    calls[1].start()
    calls[1].join(5)
    assert not calls[1].is_alive(), "the second lock is held until the first is let go of"
    assert calls[0].is_alive()
    gate.enqueue(True)
    calls[0].join(5)
    assert not calls[0].is_alive()
