"""Budgets of tables, and the slots of a server that they lead to."""

from typing import Any

import pytest

from paraserve.components.train.embedding.buckets import BUCKETS, buckets_held
from paraserve.components.train.embedding.limits import SlotRanges, TableLimits


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"max_keys": 0}, "table 'user': `max_keys` is 0; set it to at least 1"),
        ({"admit_after": 0}, "`admit_after` is 0; set it to at least 1"),
        ({"evict": "oldest"}, "`evict` is 'oldest'; choose one of none, lru, lfu, ttl"),
        ({"evict": "ttl"}, "`evict` ttl needs `ttl_steps`, at least 1; got 0"),
        ({"evict": "lru", "ttl_steps": 5}, "`ttl_steps` has no effect with `evict` lru; set `evict` to ttl"),
    ],
)
def test_says_what_is_wrong_with_limits(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        TableLimits(**{"name": "user", "max_keys": 10, **settings})


@pytest.mark.parametrize("servers", [1, 2, 3, 5])
def test_all_servers_together_keep_the_budget_and_waste_little(servers: int) -> None:
    tables = [TableLimits(name="a", max_keys=100), TableLimits(name="b", max_keys=999)]
    ranges = [SlotRanges.of(tables, buckets_held(server, servers, "hash"), BUCKETS) for server in range(servers)]

    for number, table in enumerate(tables):
        assert table.max_keys - servers <= sum(r.limits[number] for r in ranges) <= table.max_keys


def test_ranges_follow_the_shared_slots_and_each_other() -> None:
    ranges = SlotRanges.of([TableLimits(name="a", max_keys=10), TableLimits(name="b", max_keys=20)], 1, 2)

    assert ranges.offsets.tolist() == [2, 7]
    assert ranges.limits.tolist() == [5, 10]
    assert ranges.capacity == 17


def test_refuses_two_tables_of_one_name() -> None:
    with pytest.raises(ValueError, match="two tables are named 'a'; give each its own name"):
        SlotRanges.of([TableLimits(name="a", max_keys=9), TableLimits(name="a", max_keys=8)], 1, 1)


def test_refuses_a_budget_that_leaves_a_server_without_a_row() -> None:
    with pytest.raises(ValueError, match=r"table 'a': of `max_keys` 2 no row is left .*; set it to at least 4 or use fewer"):
        SlotRanges.of([TableLimits(name="a", max_keys=2)], 1024, 4096)


def test_refuses_more_rows_than_int32_numbers() -> None:
    tables = [TableLimits(name=name, max_keys=2**30) for name in "ab"]
    with pytest.raises(ValueError, match=r"2,147,483,650 rows on one server, over 2\^31; lower `max_keys` or add servers"):
        SlotRanges.of(tables, 1, 1)
