"""Tables on real servers, for functions that run in a process of their own."""

import dataclasses
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.python.eager import context, executor

from paraserve.components.train.cluster import WORKER, device
from paraserve.components.train.cluster.local import LocalCluster
from paraserve.components.train.embedding.buckets import bucket_of_numpy, server_of, servers_of_buckets
from paraserve.components.train.embedding.dynamic import DynamicShard
from paraserve.components.train.embedding.limits import TableLimits
from paraserve.components.train.embedding.store import RowFormat
from paraserve.components.train.optimizers import optimizer

WIDTH = 5


@contextmanager
def servers(workers: int, parameter_servers: int) -> Iterator[LocalCluster]:
    """Servers that the process is connected to."""
    cluster = LocalCluster(workers=workers, parameter_servers=parameter_servers)
    try:
        spec = cluster.cluster_spec()
        resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(spec, rpc_layer="grpc")
        tf.distribute.ParameterServerStrategy(resolver)
        yield cluster
    finally:
        cluster.stop()


@dataclass
class Tables:
    """Some tables over the servers, and a worker's function that looks batches of keys up, one after the other."""

    shards: list[DynamicShard]
    sharding: str

    @classmethod
    def make(cls, limits: Sequence[TableLimits], count: int, sharding: str = "hash", seed: int = 7) -> "Tables":
        row = RowFormat(width=WIDTH, linear=True, deviation=0.1, seed=seed)
        shards = [
            DynamicShard(
                server=server, servers=count, sharding=sharding, tables=limits, rows=row, optimizer=optimizer("adagrad")
            )
            for server in range(count)
        ]
        tables = cls(shards, sharding)
        matrix = tf.TensorSpec([None, None], tf.int64)
        tables._train = tf.function(tables._steps).get_concrete_function(matrix, matrix, matrix, tf.TensorSpec([], tf.int64))
        return tables

    def train(self, worker: int, keys: Any, tables: Any, counts: Any = None, step: int = 0) -> np.ndarray:
        """Looks up rows of distinct keys, int [steps, n], on a worker; the slots, int32 [steps, n]."""
        keys, tables = np.atleast_2d(keys).astype(np.int64), np.atleast_2d(tables).astype(np.int64)
        counts = np.ones_like(keys) if counts is None else np.atleast_2d(counts).astype(np.int64)
        arguments = (keys, np.broadcast_to(tables, keys.shape), np.broadcast_to(counts, keys.shape))
        own = executor.new_executor(enable_async=False)
        with tf.device(device(WORKER, worker)), context.executor_scope(own):
            return self._train(*map(tf.constant, arguments), tf.constant(step, tf.int64)).numpy()

    def owners(self, keys: Any) -> np.ndarray:
        return servers_of_buckets(len(self.shards), self.sharding)[bucket_of_numpy(np.asarray(keys), self.sharding)]

    def find(self, keys: Any, tables: Any) -> np.ndarray:
        """The slot of each key, int32 [n], on its own server."""
        slots = np.empty(len(keys), np.int32)
        for server, shard in enumerate(self.shards):
            mine = self.owners(keys) == server
            find = tf.function(shard.find, autograph=False)
            slots[mine] = find(tf.constant(keys[mine]), tf.constant(np.broadcast_to(tables, keys.shape)[mine])).numpy()
        return slots

    def rows(self, keys: Any, tables: Any) -> tuple[np.ndarray, ...]:
        """Values, Adagrad's slots, frequency and last step of keys, in their order."""
        parts = []
        slots, owners = self.find(keys, tables), self.owners(keys)
        for server, shard in enumerate(self.shards):
            rows = shard.read(slots[owners == server])
            parts.append((rows.values, rows.optimizer["accumulator"], rows.frequency, rows.last_seen))
        order = np.argsort(np.argsort(owners, kind="stable"))
        return tuple(np.concatenate(column)[order] for column in zip(*parts, strict=True))

    def frequency(self, keys: Any, tables: Any) -> np.ndarray:
        """int64 [n]."""
        return self.rows(keys, tables)[2]

    def overwrite(self, change: Callable[[np.ndarray, np.ndarray], np.ndarray]) -> None:
        """Sets the values of every row to `change(values, keys)`."""
        for shard in self.shards:
            keys, slots, _ = shard.export_keys()
            rows = shard.read(slots)
            shard.write(slots, dataclasses.replace(rows, values=change(rows.values, keys)))

    def restore(self, other: "Tables") -> int:
        """Takes over what other servers hold; how many keys."""
        restored = 0
        for shard in other.shards:
            keys, slots, tables = shard.export_keys()
            for server, target in enumerate(self.shards):
                mine = self.owners(keys) == server
                restored += target.restore(keys[mine], tables[mine], shard.read(slots[mine]))
        return restored

    def _steps(self, keys: tf.Tensor, tables: tf.Tensor, counts: tf.Tensor, step: tf.Tensor) -> tf.Tensor:
        found = tf.TensorArray(tf.int32, size=tf.shape(keys)[0])
        for i in tf.range(tf.shape(keys)[0]):
            owner = server_of(keys[i], len(self.shards), self.sharding)
            order = tf.dynamic_partition(tf.range(tf.size(owner)), owner, len(self.shards))
            slots = [
                shard.lookup(tf.gather(keys[i], places), tf.gather(tables[i], places), tf.gather(counts[i], places), step)
                for shard, places in zip(self.shards, order, strict=True)
            ]
            found = found.write(i, tf.dynamic_stitch(order, slots))
        return found.stack()


def at_once(*calls: Callable[[], Any]) -> list[Any]:
    """Runs the calls in a thread each; their results."""
    results: list[Any] = [None] * len(calls)

    def run(i: int) -> None:
        results[i] = calls[i]()

    threads = [threading.Thread(target=run, args=(i,)) for i in range(len(calls))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results
