"""Keys to buckets to servers."""

import numpy as np
import pytest
import tensorflow as tf

from paraserve.components.features.keys import keys_of
from paraserve.components.train.embedding.buckets import (
    BUCKETS,
    SHARDINGS,
    assignment,
    bucket_of,
    bucket_of_numpy,
    buckets_held,
    server_of,
    servers_of_buckets,
)

EDGES = np.array([-(2**63), -(2**63) + 1, -1, 0, 1, 2**52 - 1, 2**52, 2**63 - 1])
KEYS = np.concatenate([EDGES, keys_of("user", map(str, range(50_000)))])


@pytest.mark.parametrize("sharding", SHARDINGS)
def test_tensorflow_and_numpy_agree(sharding: str) -> None:
    buckets = bucket_of_numpy(KEYS, sharding)

    np.testing.assert_array_equal(bucket_of(tf.constant(KEYS), sharding), buckets)
    np.testing.assert_array_equal(server_of(tf.constant(KEYS), 3, sharding), servers_of_buckets(3, sharding)[buckets])


@pytest.mark.parametrize("sharding", SHARDINGS)
def test_every_bucket_gets_about_as_many_keys(sharding: str) -> None:
    counts = np.bincount(bucket_of_numpy(KEYS[len(EDGES) :], sharding), minlength=BUCKETS)

    assert len(counts) == BUCKETS
    mean = 50_000 / BUCKETS
    assert np.var(counts) == pytest.approx(mean, rel=0.15), "as Poisson's distribution has it"


def test_hash_spreads_keys_that_differ_in_low_or_high_bits_only() -> None:
    for keys in (np.arange(16, 16 + BUCKETS), np.arange(BUCKETS) << 52):
        assert len(np.unique(bucket_of_numpy(keys, "hash"))) > BUCKETS * 0.6


def test_range_keeps_the_order_of_keys() -> None:
    servers = servers_of_buckets(5, "range")[bucket_of_numpy(np.sort(KEYS), "range")]

    assert (np.diff(servers) >= 0).all()
    assert set(servers) == set(range(5))


@pytest.mark.parametrize("sharding", SHARDINGS)
@pytest.mark.parametrize("servers", [1, 2, 3, 7, 64])
def test_servers_hold_the_same_number_of_buckets_but_for_one(servers: int, sharding: str) -> None:
    held = [buckets_held(server, servers, sharding) for server in range(servers)]

    assert sum(held) == BUCKETS
    assert max(held) - min(held) <= 1


@pytest.mark.parametrize("servers", [1, 2, 3, 4, 10, 40])
def test_one_more_server_takes_its_share_and_moves_nothing_else(servers: int) -> None:
    before, after = assignment(servers), assignment(servers + 1)
    moved = before != after

    assert set(after[moved]) == {servers}
    assert moved.sum() == BUCKETS // (servers + 1)
    keys_moved = moved[bucket_of_numpy(KEYS, "hash")].mean()
    assert keys_moved == pytest.approx(1 / (servers + 1), rel=0.2)


@pytest.mark.parametrize("servers", [0, BUCKETS + 1])
def test_refuses_servers_without_a_bucket(servers: int) -> None:
    with pytest.raises(ValueError, match="use 1 to 4096"):
        assignment(servers)
