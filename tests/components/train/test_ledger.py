import threading

import pytest

from paraserve.components.manifest import Shard
from paraserve.components.train.ledger import Ledger, Task, steps_of


def shards(*rows: int) -> list[Shard]:
    return [Shard(file=f"{i}", rows=n, bytes=1, sha256="") for i, n in enumerate(rows)]


def test_each_shard_is_cut_into_batches_by_itself() -> None:
    assert steps_of(shards(100, 101, 1), batch_size=100) == 1 + 2 + 1


def test_an_epoch_has_every_shard_once_and_numbers_its_steps_through() -> None:
    ledger = Ledger.of_epoch(shards(100, 250, 50), epoch=2, seed=0, batch_size=100)

    assert sorted(task.shard.file for task in ledger.tasks) == ["0", "1", "2"]
    step = 2 * 5
    for task in ledger.tasks:
        assert task.first_step == step
        step += steps_of([task.shard], 100)


def test_the_order_depends_on_seed_and_epoch_alone() -> None:
    def order(epoch: int, seed: int) -> list[str]:
        return [t.shard.file for t in Ledger.of_epoch(shards(*[10] * 20), epoch, seed, 10).tasks]

    assert order(0, 1) == order(0, 1)
    assert order(0, 1) != order(1, 1)
    assert order(0, 1) != order(0, 2)


def test_a_running_shard_given_back_is_the_next_and_counts_as_repeated() -> None:
    ledger = Ledger.of_epoch(shards(10, 20), 0, 0, 10)
    first = ledger.take("a")
    assert first is not None
    ledger.start("a")
    ledger.give_back("a")

    again = ledger.take("b")

    assert again is first
    assert ledger.rows_repeated == first.shard.rows
    assert ledger.rows_done == 0


def test_a_lost_worker_gives_back_what_it_ran_and_what_it_held_and_only_the_first_may_be_repeated() -> None:
    ledger = Ledger.of_epoch(shards(10, 20, 40), 0, 0, 10)
    running = ledger.take("a")
    ledger.start("a")
    ahead = ledger.take_ahead("a")

    ledger.give_back("a")

    assert running is not None
    assert ledger.rows_repeated == running.shard.rows
    assert run_all(ledger, "b") == [running, ahead, ledger.tasks[2]]
    assert ledger.complete


def test_what_was_held_ahead_is_what_the_worker_takes_next() -> None:
    ledger = Ledger.of_epoch(shards(10, 20, 40), 0, 0, 10)
    ledger.take("a")
    ledger.start("a")
    ahead = ledger.take_ahead("a")
    assert ledger.take("b") is ledger.tasks[2], "b has no need of what a holds"

    ledger.done("a")

    assert ledger.take("a") is ahead


def test_an_idle_worker_takes_what_a_busy_one_holds_and_the_busy_one_finds_nothing() -> None:
    ledger = Ledger.of_epoch(shards(10, 20), 0, 0, 10)
    ledger.take("a")
    ledger.start("a")
    ahead = ledger.take_ahead("a")

    thread, taken = taking(ledger, "b")
    thread.join(timeout=5)
    assert taken == [ahead]
    ledger.start("b")
    ledger.done("a")
    ledger.done("b")

    assert ledger.take("a") is None
    assert ledger.rows_done == 30


def test_what_an_idle_worker_holds_is_not_taken_from_it() -> None:
    ledger = Ledger.of_epoch(shards(10), 0, 0, 10)
    held = ledger.take("a")
    thread, taken = taking(ledger, "b")
    thread.join(timeout=0.2)
    assert thread.is_alive()

    ledger.start("a")
    ledger.done("a")
    thread.join(timeout=5)

    assert held is not None
    assert taken == [None]


def test_nothing_is_held_ahead_when_all_is_handed_out() -> None:
    ledger = Ledger.of_epoch(shards(10), 0, 0, 10)
    ledger.take("a")
    ledger.start("a")

    assert ledger.take_ahead("a") is None


def test_who_finds_nothing_to_do_waits_for_what_may_come_back() -> None:
    ledger = Ledger.of_epoch(shards(10), 0, 0, 10)
    running = ledger.take("a")
    ledger.start("a")
    thread, taken = taking(ledger, "b")
    thread.join(timeout=0.2)
    assert thread.is_alive()
    assert not ledger.complete

    ledger.give_back("a")
    thread.join(timeout=5)

    assert taken == [running]


@pytest.mark.parametrize("end", ["done", "close"])
def test_all_who_wait_go_home_when_the_last_shard_is_done_or_the_ledger_is_closed(end: str) -> None:
    ledger = Ledger.of_epoch(shards(10), 0, 0, 10)
    ledger.take("a")
    ledger.start("a")
    waiting = [taking(ledger, worker) for worker in "bcd"]

    if end == "done":
        ledger.done("a")
    else:
        ledger.close()
    for thread, _ in waiting:
        thread.join(timeout=5)

    assert [taken for _, taken in waiting] == [[None]] * 3
    assert ledger.complete == (end == "done")


def test_a_pause_waits_for_what_runs_and_lets_nothing_begin() -> None:
    ledger = Ledger.of_epoch(shards(10, 20), 0, 0, 10)
    ledger.take("a")
    ledger.start("a")
    pause = threading.Thread(target=ledger.pause)
    pause.start()
    pause.join(timeout=0.2)
    assert pause.is_alive()
    ledger.take("b")
    began: list[bool] = []
    start = threading.Thread(target=lambda: began.append(ledger.start("b")))
    start.start()

    ledger.done("a")
    pause.join(timeout=5)
    assert not pause.is_alive()
    start.join(timeout=0.2)
    assert began == []

    ledger.resume()
    start.join(timeout=5)
    assert began == [True]


def test_a_closed_ledger_lets_nothing_begin_even_while_paused() -> None:
    ledger = Ledger.of_epoch(shards(10), 0, 0, 10)
    ledger.take("a")
    ledger.pause()
    ledger.close()

    assert not ledger.start("a")
    assert ledger.take("a") is None


def run_all(ledger: Ledger, worker: str) -> list[Task]:
    tasks = []
    while (task := ledger.take(worker)) is not None:
        ledger.start(worker)
        tasks.append(task)
        ledger.done(worker)
    return tasks


def taking(ledger: Ledger, worker: str) -> tuple[threading.Thread, list[Task | None]]:
    taken: list[Task | None] = []
    thread = threading.Thread(target=lambda: taken.append(ledger.take(worker)), daemon=True)
    thread.start()
    return thread, taken
