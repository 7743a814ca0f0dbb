"""Which server holds a key: keys fall into virtual buckets, whose number never changes, and buckets are dealt to servers."""

import functools

import numpy as np
import numpy.typing as npt
import tensorflow as tf

BUCKETS = 4096
SHARDINGS = ("hash", "range")
_BITS = 12
_ODD = 0x9E3779B97F4A7C15
"""2^64 / golden ratio: spreads keys that differ in few bits (Knuth, The Art of Computer Programming 3, 6.4)."""


def bucket_of(keys: tf.Tensor, sharding: str) -> tf.Tensor:
    """int32 [n]: the bucket of each key, int64 [n].

    `hash` mixes a key's bits; `range` cuts the keys, as signed numbers, into ranges of equal length.
    """
    if sharding == "range":
        return tf.cast(tf.bitwise.right_shift(keys, tf.constant(64 - _BITS, tf.int64)), tf.int32) + BUCKETS // 2
    mixed = tf.bitcast(keys, tf.uint64)
    mixed = tf.bitwise.bitwise_xor(mixed, tf.bitwise.right_shift(mixed, tf.constant(32, tf.uint64)))
    return tf.cast(tf.bitwise.right_shift(mixed * tf.constant(_ODD, tf.uint64), tf.constant(64 - _BITS, tf.uint64)), tf.int32)


def bucket_of_numpy(keys: npt.NDArray[np.int64], sharding: str) -> npt.NDArray[np.int32]:
    """The same, without TensorFlow's runtime."""
    if sharding == "range":
        return (keys >> (64 - _BITS)).astype(np.int32) + BUCKETS // 2
    mixed = keys.view(np.uint64)
    mixed = mixed ^ (mixed >> np.uint64(32))
    return ((mixed * np.uint64(_ODD)) >> np.uint64(64 - _BITS)).astype(np.int32)


@functools.cache
def assignment(servers: int) -> npt.NDArray[np.int32]:
    """The server of each bucket, for `hash`: int32 [BUCKETS].

    The n+1st server takes 1/(n+1) of the buckets, one by one from the fullest, and no other bucket moves. Servers differ by
    at most one bucket. Raises ValueError when there is not a bucket for each.
    """
    if not 1 <= servers <= BUCKETS:
        raise ValueError(f"{servers} parameter servers; use 1 to {BUCKETS}")
    dealt = np.zeros(BUCKETS, np.int32)
    for newest in range(1, servers):
        counts = np.bincount(dealt, minlength=newest)
        for _ in range(BUCKETS // (newest + 1)):
            fullest = int(np.argmax(counts))
            counts[fullest] -= 1
            dealt[np.argmax(dealt == fullest)] = newest
    dealt.flags.writeable = False  # the cache hands the same array to everyone
    return dealt


def servers_of_buckets(servers: int, sharding: str) -> npt.NDArray[np.int32]:
    """The server of each bucket: int32 [BUCKETS]. With `range`, neighbours stay together."""
    if sharding == "range":
        return (np.arange(BUCKETS) * servers // BUCKETS).astype(np.int32)
    return assignment(servers)


def server_of(keys: tf.Tensor, servers: int, sharding: str) -> tf.Tensor:
    """int32 [n]: the parameter server of each key, int64 [n]."""
    return tf.gather(tf.constant(servers_of_buckets(servers, sharding)), bucket_of(keys, sharding))


def buckets_held(server: int, servers: int, sharding: str) -> int:
    """How many of the BUCKETS a server holds."""
    return int(np.sum(servers_of_buckets(servers, sharding) == server))
