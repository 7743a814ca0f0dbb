"""Peer: PyTorch in one process, sparse embedding gradients, Adagrad, one thread for each core."""

import itertools
import os
from collections.abc import Iterator

import numpy as np
import torch

from benchmarks.train.meter import Figures, Meter
from benchmarks.train.network import Network
from benchmarks.train.workload import Workload
from paraserve.components.manifest import Manifest, read_manifest
from paraserve.components.records import Block, read_shard


class Net(torch.nn.Module):
    """One Embedding over all columns, hidden layers, one logit."""

    def __init__(self, workload: Workload):
        super().__init__()
        log = workload.log
        self.embedding = torch.nn.Embedding(workload.rows, workload.dimension, sparse=True)
        torch.nn.init.normal_(self.embedding.weight, std=workload.embedding_init)
        widths = [log.dense + log.columns * workload.dimension, *workload.hidden]
        layers: list[torch.nn.Module] = []
        for inputs, outputs in itertools.pairwise(widths):
            layers += [torch.nn.Linear(inputs, outputs), torch.nn.ReLU()]
        self.deep = torch.nn.Sequential(*layers, torch.nn.Linear(widths[-1], 1))

    def forward(self, ids: torch.Tensor, dense: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.deep(torch.cat([dense, self.embedding(ids).flatten(1)], dim=1))
        return logits


class _Training:
    def __init__(self, workload: Workload):
        self.net = Net(workload)
        self.batches = _batches(workload, read_manifest(str(workload.shards)))
        settings = {"lr": workload.learning_rate, "initial_accumulator_value": 0.1, "eps": 1e-7}
        # The fused kernel takes no sparse gradients.
        self.optimizers = [
            torch.optim.Adagrad(self.net.embedding.parameters(), **settings),
            torch.optim.Adagrad(self.net.deep.parameters(), fused=True, **settings),
        ]
        self.examples = 0

    def run(self) -> None:
        loss = torch.nn.BCEWithLogitsLoss()
        for ids, dense, labels in self.batches:
            for optimizer in self.optimizers:
                optimizer.zero_grad()
            loss(self.net(ids, dense), labels).backward()
            for optimizer in self.optimizers:
                optimizer.step()
            self.examples += len(labels)


def run(workload: Workload, network: Network) -> Figures:
    torch.set_num_threads(workload.cores)
    training = _Training(workload)
    meter = Meter(roles={"coordinator": [os.getpid()]}, interface=network.interface)
    return meter.measure(training.run, lambda: training.examples, workload.warm_examples, workload.seconds)


def _batches(workload: Workload, manifest: Manifest) -> Iterator[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]:
    """Batches from memory, again and again: rows of the table, dense values, labels."""
    files = [workload.shards / shard.file for shard in manifest.splits["train"].shards[: workload.peer_shards]]
    block = Block.concatenate([read_shard(path, manifest.layout) for path in files])
    offsets = np.arange(workload.log.columns) * workload.log.values
    arrays = (block.ids % workload.log.values + offsets, block.dense, block.labels[:, None])
    tensors = [torch.from_numpy(np.ascontiguousarray(array)) for array in arrays]
    while True:
        for start in range(0, len(block) - workload.batch_size + 1, workload.batch_size):
            ids, dense, labels = (tensor[start : start + workload.batch_size] for tensor in tensors)
            yield ids, dense, labels
