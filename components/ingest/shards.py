"""Packed shards of one split."""

from pathlib import Path

import numpy as np

from paraserve.components import storage
from paraserve.components.manifest import Shard, Split
from paraserve.components.records import Block, Layout, write_shard

SHUFFLED_SHARDS = 4
"""Rows are shuffled among as many as fill this many shards."""


class ShardWriter:
    """Writes the rows of one split as they come, or shuffled within a bounded buffer."""

    def __init__(self, folder: Path, split: str, layout: Layout, shard_rows: int, shuffle_seed: int | None = None):
        self.folder, self.split, self.layout, self.shard_rows = folder, split, layout, shard_rows
        self.shuffle_seed = shuffle_seed
        self.buffer_rows = shard_rows if shuffle_seed is None else shard_rows * SHUFFLED_SHARDS
        self.buffer: list[Block] = []
        self.buffered = self.buffers = self.positives = 0
        self.shards: list[Shard] = []

    def add(self, block: Block) -> None:
        self.positives += int(block.labels.sum(dtype=np.float64))
        self.buffer.append(block)
        self.buffered += len(block)
        while self.buffered >= self.buffer_rows:
            self._flush(self.buffer_rows)

    def close(self) -> Split:
        if self.buffered:
            self._flush(self.buffered)
        rows = sum(shard.rows for shard in self.shards)
        return Split(rows=rows, positives=self.positives, shards=tuple(self.shards))

    def _flush(self, rows: int) -> None:
        """Writes the first `rows` of the buffer."""
        whole = Block.concatenate(self.buffer)
        block, rest = whole.rows(0, rows), whole.rows(rows, len(whole))
        self.buffer, self.buffered = [rest], len(rest)
        if self.shuffle_seed is not None:
            order = np.random.default_rng([self.shuffle_seed, self.buffers]).permutation(rows)
            block = block.take(order)
        self.buffers += 1
        for start in range(0, rows, self.shard_rows):
            self._write(block.rows(start, start + self.shard_rows))

    def _write(self, block: Block) -> None:
        path = self.folder / f"{self.split}-{len(self.shards):05d}.records"
        with storage.explained(str(path)):
            write_shard(path, block, self.layout)
        shard = Shard(file=path.name, rows=len(block), bytes=path.stat().st_size, sha256=storage.sha256_of(path))
        self.shards.append(shard)
