"""Which way to train shards is chosen, by what they took."""

from collections import Counter

import pytest

from paraserve.components.train.compression import AGAIN, TRIALS, FasterWay


def trained(way: FasterWay, seconds: dict[bool, float], shards: int) -> list[bool]:
    """Trains shards of 100 examples, which take so long for each example."""
    chosen = []
    for _ in range(shards):
        chosen.append(way.choose())
        way.took(chosen[-1], 100 * seconds[chosen[-1]], 100)
    return chosen


@pytest.mark.parametrize("faster", [False, True])
def test_each_way_is_tried_and_then_the_faster_is_taken(faster: bool) -> None:
    way = FasterWay([False, True])

    chosen = trained(way, {faster: 0.5, not faster: 0.6}, AGAIN - 1)

    assert Counter(chosen[: 2 * TRIALS]) == {False: TRIALS, True: TRIALS}
    assert set(chosen[2 * TRIALS :]) == {faster}


def test_the_other_way_is_taken_once_it_has_become_faster() -> None:
    way = FasterWay([False, True])
    trained(way, {False: 0.5, True: 0.6}, 2 * TRIALS)

    chosen = trained(way, {False: 0.5, True: 0.1}, 3 * AGAIN)

    assert Counter(chosen[AGAIN:])[False] <= 2


def test_first_calls_of_two_workers_do_not_decide() -> None:
    way = FasterWay([False, True])
    for _ in range(2):
        way.took(True, 100.0, 100)

    assert set(trained(way, {False: 0.5, True: 0.1}, 30)[2 * TRIALS :]) == {True}


def test_a_long_shard_is_no_slow_one() -> None:
    way = FasterWay([False, True])
    for _ in range(TRIALS):
        way.took(True, 2.0, 2000)
        way.took(False, 1.5, 1000)

    assert way.choose()


@pytest.mark.parametrize("only", [False, True])
def test_a_single_way_is_always_taken(only: bool) -> None:
    assert set(trained(FasterWay([only]), {only: 1.0}, 2 * AGAIN)) == {only}
