"""Staleness on real servers: what is too old is refused, who would be too old is held, and nobody waits for the dead."""

import contextlib
import functools
import time
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import pytest

pytestmark = pytest.mark.slow


def test_permits_are_given_once_and_outlive_their_holders(training: Any) -> None:
    training.call(_permits)


def _permits() -> None:
    import tensorflow as tf

    from paraserve.components.train.cluster import PARAMETER_SERVER, WORKER, device
    from paraserve.components.train.staleness import NOBODY, Permits
    from tests.components.train.embedding.servers import servers
    from tests.components.train.trainers import Call, wait_for, worker_process

    with servers(workers=4, parameter_servers=1) as cluster:
        permits = Permits(bound=4, exchange_steps=1)
        assert permits.count == 3
        with tf.device(device(PARAMETER_SERVER, 0)):
            gate = tf.queue.FIFOQueue(9, [tf.bool], [[]], shared_name="gate")

        def race(holder: tf.Tensor) -> tf.Tensor:
            """Takes many permits and gives them back."""

            def once(numbers: tf.Tensor) -> tf.Tensor:
                number, _ = permits.take(holder)
                with tf.control_dependencies([number]):
                    permits.give_back(number)
                return tf.concat([numbers, number[None]], axis=0)

            start, shape = tf.zeros([0], tf.int64), tf.TensorShape([None])
            return tf.while_loop(lambda n: tf.size(n) < 100, once, [start], shape_invariants=[shape], parallel_iterations=1)[0]

        def keep(holder: tf.Tensor) -> tf.Tensor:
            """Takes one, and keeps it until the gate opens; whether it had to wait for it."""
            number, waited = permits.take(holder)
            with tf.control_dependencies([number]), tf.device(device(PARAMETER_SERVER, 0)):
                opened = gate.dequeue()
            with tf.control_dependencies([opened]):
                permits.give_back(number)
                return tf.identity(waited)

        traced = {
            function: tf.function(function, autograph=False).get_concrete_function(tf.TensorSpec([], tf.int64))
            for function in (race, keep)
        }

        def on(worker: int, function: Callable[..., Any], holder: int) -> Any:
            with tf.device(device(WORKER, worker)):
                return traced[function](tf.constant(holder, tf.int64)).numpy()

        def racing(workers: Iterable[int]) -> list[Call]:
            return [Call(functools.partial(on, worker, race, worker)) for worker in workers]

        numbers = [call.result() for call in racing(range(4))]
        np.testing.assert_array_equal(np.sort(np.concatenate(numbers)), np.arange(400))

        # While one is kept, two more may be taken, whoever takes them and gives them back.
        keeper = Call(functools.partial(on, 0, keep, 0))
        wait_for(lambda: 0 in permits._holders.numpy())
        others = racing(range(1, 4))
        time.sleep(0.5)
        assert (int(permits._first), int(permits._queue.size())) == (400, 0)
        assert all(call.running for call in (keeper, *others))
        gate.enqueue(True)
        numbers = [call.result() for call in others]
        np.testing.assert_array_equal(np.sort(np.concatenate(numbers)), np.arange(401, 701))

        # What the dead held is given back, and what they waited for others get.
        keepers = [Call(functools.partial(on, worker, keep, worker)) for worker in range(3)]
        wait_for(lambda: set(permits._holders.numpy()) == {0, 1, 2})
        waiter = Call(functools.partial(on, 3, keep, 3))
        time.sleep(0.5)
        for call, worker in ((waiter, 3), (keepers[0], 0)):
            worker_process(cluster, worker).kill()
            with pytest.raises(tf.errors.OpError):
                call.result()
            permits.give_back_of(worker)
        gate.enqueue_many([[True] * 7])
        for keeper in keepers[1:]:
            keeper.join()  # a worker's loss may fail another's call once its work is done
        wait_for(lambda: set(permits._holders.numpy()) == {NOBODY})
        for turn in range(5):
            assert not Call(functools.partial(on, 1 + turn % 2, keep, 9)).result(10), "a permit is lost"
        permits.give_back(tf.constant(0, tf.int64))
        assert int(permits._queue.size()) == 3, "one given back twice is not two"


def test_of_two_that_arrive_at_once_the_second_is_judged_after_the_first(training: Any) -> None:
    training.call(_arrive)


def _arrive() -> None:
    import tensorflow as tf

    from paraserve.components.train.cluster import WORKER, device
    from paraserve.components.train.staleness import Clock
    from tests.components.train.embedding.servers import servers
    from tests.components.train.trainers import Call

    with servers(workers=4, parameter_servers=1):
        clock, one = Clock(bound=2), tf.constant(1, tf.int64)

        @tf.function(autograph=False)
        def race() -> tf.Tensor:
            """For many arrivals whether each was accepted and where the clock stood, int64 [n, 2]."""

            def once(seen: tf.Tensor) -> tf.Tensor:
                at = clock.now()
                arrival = clock.arrive(at, one, tf.constant(True))
                row = tf.stack([tf.cast(arrival.accept, tf.int64), at + arrival.staleness])
                return tf.concat([seen, row[None]], axis=0)

            start, shape = tf.zeros([0, 2], tf.int64), tf.TensorShape([None, 2])
            seen = tf.while_loop(lambda s: tf.shape(s)[0] < 100, once, [start], shape_invariants=[shape], parallel_iterations=1)
            return seen[0]

        traced = race.get_concrete_function()

        def on(worker: int) -> np.ndarray:
            with tf.device(device(WORKER, worker)):
                return traced().numpy()

        calls = [Call(functools.partial(on, worker)) for worker in range(4)]
        accepted, stood = np.concatenate([call.result() for call in calls]).T
        np.testing.assert_array_equal(np.sort(stood[accepted == 1]), np.arange(accepted.sum()))
        assert clock.now().numpy() == accepted.sum()


STEPWISE = {"exchange_steps": 1, "overlap": False, "parameter_servers": 1, "hidden_units": "4"}
"""An exchange for each batch, and no two at once."""


def test_what_is_too_old_is_refused_and_leaves_no_trace(training: Any) -> None:
    training.make_dynamic()
    training.with_trainer(_refuse, training.folder, **STEPWISE, batch_size=50, staleness_bound=2)


def _refuse(bounded: Any, cluster: Any, paths: list[str], folder: Any) -> None:
    import tensorflow as tf

    from tests.components.train.trainers import apart, beside_a_slow_worker, rows_by_key, trainer_of

    own = folder / "apart.records"
    batches = apart(bounded, paths[0], own)
    for trainer in (bounded, trainer_of(bounded.config, staleness_bound=0)):
        slow, fast = beside_a_slow_worker(trainer, cluster, paths[0], str(own))

        too_old = [int(exchanged.staleness[3:].sum()) for exchanged in (slow, fast)]
        assert too_old[0] > 0
        refused = [slow.refused_steps, fast.refused_steps]
        assert refused == (too_old if trainer is bounded else [0, 0])
        assert trainer.functions.clock.now().numpy() == 2 * 10 + 10 + fast.staleness.sum() - sum(refused)
        (group,) = trainer.groups
        rows = rows_by_key(group)
        untouched = [
            np.array_equal([rows["weights"][key] for key in keys.tolist()], group.row_format.initial(tf.constant(keys)))
            and np.array_equal(*np.broadcast_arrays([rows["accumulator"][key] for key in keys.tolist()], np.float32(0.1)))
            for keys in batches
        ]
        assert sum(untouched) == refused[0]


def test_who_would_be_too_old_is_held(training: Any) -> None:
    training.with_trainer(_hold, **STEPWISE, batch_size=50, staleness_bound=2, staleness_action="hold")


def _hold(holding: Any, cluster: Any, paths: list[str]) -> None:
    from tests.components.train.trainers import beside_a_slow_worker, train, trainer_of

    free = trainer_of(holding.config, staleness_bound=0, staleness_action="refuse")
    for trainer in (holding, free):
        slow, fast = beside_a_slow_worker(trainer, cluster, paths[0], paths[1])

        too_old = slow.staleness[3:].sum() + fast.staleness[3:].sum()
        assert (too_old > 0, fast.held > 0) == (trainer is free, trainer is holding)
        assert slow.refused_steps == fast.refused_steps == 0
        assert trainer.functions.clock.now().numpy() == 2 * 10 + 10 + fast.staleness.sum()
    alone = train(holding, paths[:1])
    assert alone.held == alone.staleness[1:].sum() == 0, "nobody waits for a permit of its own"


@pytest.mark.parametrize("bound", [1, 2])
def test_nobody_waits_for_a_killed_worker(training: Any, bound: int) -> None:
    training.with_trainer(_kill, **STEPWISE, batch_size=10, staleness_bound=bound, staleness_action="hold")


def _kill(trainer: Any, cluster: Any, paths: list[str]) -> None:
    import tensorflow as tf

    from tests.components.train.trainers import Call, slowed, train, wait_for, worker_process

    def live() -> Any:
        # A worker's loss may also fail a call to another, once.
        with contextlib.suppress(tf.errors.UnavailableError):
            return train(trainer, paths[1:4], 1)
        return train(trainer, paths[1:4], 1)

    for worker in range(2):
        train(trainer, paths[:1], worker)
    permits, call = trainer.functions.permits, next(trainer._calls) + 1
    with slowed(cluster, 0):
        dying = Call(lambda: train(trainer, paths[:1], 0))
        wait_for(lambda: call in permits._holders.numpy())
        living = Call(live)
        wait_for(lambda: call + 1 in permits._holders.numpy())
        wait_for(lambda: call in permits._holders.numpy())
        worker_process(cluster, 0).kill()
    with pytest.raises(tf.errors.OpError):
        dying.result()
    assert living.result().staleness.sum() == 150
