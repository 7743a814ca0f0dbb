"""The state of a training on its servers, and what workers are asked to do with it."""

import itertools
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf
import tf_keras

from paraserve.components.manifest import Manifest
from paraserve.components.train.compression import FasterWay
from paraserve.components.train.config import TrainConfig
from paraserve.components.train.dense import DenseWeights
from paraserve.components.train.embedding import state
from paraserve.components.train.embedding.contents import StaticContents, TableContents
from paraserve.components.train.embedding.layout import GroupLayout
from paraserve.components.train.embedding.table import Group
from paraserve.components.train.exchanged import Exchanged
from paraserve.components.train.network import Network
from paraserve.components.train.schedules import learning_rate
from paraserve.components.train.step import ShardFunctions, Totals


@dataclass(frozen=True, kw_only=True, slots=True)
class ShardResult:
    """What a worker says of a shard."""

    loss: float
    """Sum of the examples' log losses."""
    examples: int
    counts: npt.NDArray[np.int64]
    """`curves.bin_counts` of all its examples, before the update that each exchange led to."""
    exchanged: Mapping[str, Any]
    """Figures of the exchanges with the servers (see `exchanged`); empty where nothing was trained."""


class Trainer:
    """The model and its tables on the servers, and the functions that workers run on them.

    Make it inside the connected strategy. All functions are traced here, while every server is alive: tracing registers a
    function with each server.
    """

    def __init__(self, config: TrainConfig, manifest: Manifest, servers: int, planned_steps: int):
        self.config, self.manifest, self.spec = config, manifest, manifest.spec
        self.planned_steps = planned_steps
        self.network = Network(config, manifest)
        self.dense = DenseWeights(self.network, config, servers)
        self.groups = [Group(layout, config, servers) for layout in self.network.layouts]
        self.functions = ShardFunctions(self.network, self.dense, self.groups, planned_steps)
        self._calls = itertools.count()
        place, number = tf.TensorSpec([], tf.string), tf.TensorSpec([], tf.int64)
        ways = {"none": [False], "topk": [True], "auto": [False, True]}[config.dense_compression]
        self._ways = FasterWay(ways)
        self._train = {way: self._training(way).get_concrete_function(place, number, number) for way in ways}
        self._evaluate = tf.function(self.functions.evaluate, autograph=False).get_concrete_function(place)
        self._predict = tf.function(self.functions.predict, autograph=False).get_concrete_function(place)

    def _training(self, compressed: bool) -> tf.types.experimental.PolymorphicFunction:
        # Not a partial of `train`: each call would first fail to bind its arguments, and fetch them for the message.
        def train(path: tf.Tensor, first_step: tf.Tensor, holder: tf.Tensor) -> Totals:
            return self.functions.train(path, first_step, holder, compressed)

        return tf.function(train, autograph=False)

    def train_shard(self, path: str, first_step: int) -> ShardResult:
        """Trains on every example of the shard at `path` on the worker of the current device scope, then returns.

        Raises tf.errors.UnavailableError, AbortedError or CancelledError when a server is lost, DataLossError and
        InvalidArgumentError for a shard that is damaged or of another layout, FloatingPointError when the loss or, unless
        `nonfinite` is drop, a gradient is not finite.
        """
        call, compressed, start = next(self._calls), self._ways.choose(), time.monotonic()
        try:
            totals = self._train[compressed](_argument(path), _argument(first_step), _argument(call))
        except tf.errors.OpError:
            if self.functions.permits:
                self.functions.permits.give_back_of(call)
            raise
        figures = {name: value.numpy() for name, value in totals.items()}
        self._ways.took(compressed, time.monotonic() - start, int(figures["examples"]))
        self._check_finite(figures, path, first_step)
        return ShardResult(
            loss=float(figures.pop("loss")),
            examples=int(figures.pop("examples")),
            counts=figures.pop("counts"),
            exchanged={**figures, "compressed": compressed},
        )

    def evaluate_shard(self, path: str) -> ShardResult:
        """The same without training."""
        totals = self._evaluate(_argument(path))
        return ShardResult(
            loss=float(totals["loss"]), examples=int(totals["examples"]), counts=totals["counts"].numpy(), exchanged={}
        )

    def predict_shard(self, path: str) -> npt.NDArray[np.float32]:
        """Probabilities of a shard's examples, float32 [examples]."""
        probabilities: npt.NDArray[np.float32] = self._predict(_argument(path)).numpy()
        return probabilities

    @property
    def linear(self) -> bool:
        """Whether the model wants a linear weight per value."""
        return self.network.linear

    @property
    def layouts(self) -> Sequence[GroupLayout]:
        return self.network.layouts

    def contents(self) -> list[StaticContents | TableContents]:
        """What the tables hold, for an export, in the order of the layouts; for a time when no worker runs."""
        return [state.contents(group) for group in self.groups]

    def local_model(self) -> tf_keras.Model:
        """The model on this machine, computing in float32, with the current weights."""
        arrays = self.dense.arrays()
        return self.network.local_model(tf.constant(arrays["weights"]), tf.constant(arrays["state"]))

    def exchanges(self) -> Exchanged:
        """Figures of exchanges, none added yet."""
        return Exchanged(self.dense, self.groups, with_slots=self.functions.local)

    def forget(self) -> None:
        """Empties the dynamic tables, before another snapshot is restored."""
        for group in self.groups:
            group.forget()

    def evict(self, step: int) -> dict[str, int]:
        """Takes their rows from keys that are to go at `step`; how many of each table. For a time when no worker runs."""
        return {
            table.name: int(count)
            for group in self.groups
            for table, count in zip(group.layout.tables, group.evict(step), strict=True)
        }

    def rate_at(self, step: int) -> float:
        """The learning rate of a step."""
        return float(learning_rate(self.config, tf.constant(step, tf.int64), self.planned_steps))

    def _check_finite(self, figures: Mapping[str, Any], path: str, first_step: int) -> None:
        remedy = f"lower `learning_rate` (now {self.config.learning_rate}) or add `clip` to the dense columns' transforms"
        if figures["dropped"] and self.config.nonfinite == "stop":
            raise FloatingPointError(
                f"gradients became NaN or infinite in shard {path} at about step {first_step}; {remedy}, or set `nonfinite` to "
                "drop, which leaves such gradients out and counts them"
            )
        if self.config.nonfinite == "stop" and not np.isfinite(figures["loss"]):
            raise FloatingPointError(f"the loss became {figures['loss']} in shard {path} at about step {first_step}; {remedy}")


def _argument(value: str | int) -> tf.Tensor:
    """A call's argument, on the coordinator. `tf.constant` in a worker's scope copies it there while it holds Python's lock: a
    worker that stands still would stop every thread."""
    with tf.device(None):
        return tf.constant(value, tf.int64 if isinstance(value, int) else tf.string)
