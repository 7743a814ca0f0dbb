import threading

from paraserve.components.manifest import Shard
from paraserve.components.train.ledger import Ledger, steps_of


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


def test_a_shard_given_back_is_the_next_and_counts_as_repeated() -> None:
    ledger = Ledger.of_epoch(shards(10, 20), 0, 0, 10)
    first = ledger.take()
    assert first is not None
    ledger.give_back(first)

    again = ledger.take()

    assert again is first
    assert ledger.rows_repeated == first.shard.rows
    assert ledger.rows_done == 0


def test_who_finds_nothing_to_do_waits_for_what_may_come_back() -> None:
    ledger = Ledger.of_epoch(shards(10), 0, 0, 10)
    running = ledger.take()
    assert running is not None
    taken = []
    thread = threading.Thread(target=lambda: taken.append(ledger.take()))
    thread.start()
    thread.join(timeout=0.2)
    assert thread.is_alive()
    assert not ledger.complete

    ledger.give_back(running)
    thread.join(timeout=5)

    assert taken == [running]


def test_all_who_wait_go_home_when_the_last_shard_is_done_or_the_ledger_is_closed() -> None:
    for end in ("done", "close"):
        ledger = Ledger.of_epoch(shards(10), 0, 0, 10)
        running = ledger.take()
        assert running is not None
        taken: list[object] = []
        threads = [threading.Thread(target=lambda t=taken, g=ledger: t.append(g.take())) for _ in range(3)]
        for thread in threads:
            thread.start()

        if end == "done":
            ledger.done(running)
        else:
            ledger.close()
        for thread in threads:
            thread.join(timeout=5)

        assert taken == [None, None, None]
        assert ledger.complete == (end == "done")
