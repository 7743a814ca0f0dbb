"""What a worker runs: whole shards, read, looked up, computed and pushed inside one TensorFlow function."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import tensorflow as tf
import tf_keras

from paraserve.components.features.graph import transform_dense
from paraserve.components.manifest import Manifest
from paraserve.components.records import read_shard_graph
from paraserve.components.train.config import TrainConfig
from paraserve.components.train.curves import BINS, bin_counts
from paraserve.components.train.embedding.table import Stack, model_inputs, stack_layouts
from paraserve.components.train.models import model_builder
from paraserve.components.train.optimizers import Slotted, optimizer, slotted
from paraserve.components.train.schedules import learning_rate


@dataclass(frozen=True, kw_only=True, slots=True)
class ShardResult:
    """What a worker says of a shard."""

    loss: float
    """Sum of the examples' log losses."""
    examples: int
    counts: npt.NDArray[np.int64]
    """`curves.bin_counts` of all its examples, before the update that each batch led to."""


class Trainer:
    """The model and its tables on the servers, and the functions that workers run on them.

    Make it inside the connected strategy. All functions are traced here, while every server is alive: tracing registers a
    function with each server.
    """

    def __init__(
        self, config: TrainConfig, manifest: Manifest, strategy: tf.distribute.Strategy, servers: int, planned_steps: int
    ):
        self.config, self.manifest, self.spec = config, manifest, manifest.spec
        self.planned_steps = planned_steps
        self.optimizer = optimizer(config.optimizer)
        with strategy.scope():
            tf_keras.utils.set_random_seed(config.seed)
            self.model = model_builder(config.model)(self.spec, config)
            self.linear = bool(getattr(self.model, "linear_weights", False))
            self._build()
        self.dense = [slotted(self.optimizer, variable) for variable in self.model.trainable_variables]
        layouts = stack_layouts(self.spec, self.linear)
        self.stacks = [Stack.create(layout, servers, self.optimizer, config.embedding_init, config.seed) for layout in layouts]
        place, step = tf.TensorSpec([], tf.string), tf.TensorSpec([], tf.int64)
        self._train = tf.function(self._train_shard).get_concrete_function(place, step)
        self._evaluate = tf.function(self._evaluate_shard).get_concrete_function(place)
        self._predict = tf.function(self._predict_shard).get_concrete_function(place)

    def train_shard(self, place: str, first_step: int) -> ShardResult:
        """Trains on every example of the shard at `place` on the worker of the current device scope, then returns.

        Raises tf.errors.UnavailableError, AbortedError or CancelledError when a server is lost, DataLossError and
        InvalidArgumentError for a shard that is damaged or of another layout, FloatingPointError when the loss is not finite.
        """
        loss, examples, counts = self._train(tf.constant(place), tf.constant(first_step, tf.int64))
        if not np.isfinite(loss.numpy()):
            raise FloatingPointError(
                f"the loss became {loss.numpy()} in shard {place} at about step {first_step}; lower `learning_rate` "
                f"(now {self.config.learning_rate}) or add `clip` to the dense columns' transforms"
            )
        return ShardResult(loss=float(loss), examples=int(examples), counts=counts.numpy())

    def evaluate_shard(self, place: str) -> ShardResult:
        """The same without training."""
        loss, examples, counts = self._evaluate(tf.constant(place))
        return ShardResult(loss=float(loss), examples=int(examples), counts=counts.numpy())

    def predict_shard(self, place: str) -> npt.NDArray[np.float32]:
        """Probabilities of a shard's examples, float32 [examples]."""
        probabilities: npt.NDArray[np.float32] = self._predict(tf.constant(place)).numpy()
        return probabilities

    def rate_at(self, step: int) -> float:
        """The learning rate of a step."""
        return float(learning_rate(self.config, tf.constant(step, tf.int64), self.planned_steps))

    def dense_arrays(self) -> Iterator[tuple[str, tf.Variable]]:
        """Every variable of the model and of its optimizer, by a name that is the same in each run."""
        for i, variable in enumerate(self.model.variables):
            yield f"model/{i}", variable
        for i, target in enumerate(self.dense):
            for name, slot in target.slots.items():
                yield f"{name}/{i}", slot

    def _build(self) -> None:
        """Calls the model once, so that its variables exist. Raises ValueError where it does not fit the spec."""
        columns = {c.name: tf.zeros([1, c.dimension + int(self.linear)]) for c in self.spec.embedded}
        logits = self.model(model_inputs(self.spec, tf.zeros([1, len(self.spec.dense)]), columns, self.linear))
        if tuple(logits.shape) != (1, 1):
            raise ValueError(f"the model '{self.config.model}' returns shape {logits.shape} for one example; it must be (1, 1)")

    def _train_shard(self, place: tf.Tensor, first_step: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        shard = read_shard_graph(place, self.manifest.layout)
        loss, counts = tf.constant(0.0), tf.zeros([2, BINS], tf.int64)
        examples = tf.shape(shard["labels"])[0]
        for i in tf.range(self._batches(examples)):
            batch = self._batch(shard, i)
            losses, logits = self._train_batch(batch, first_step + tf.cast(i, tf.int64))
            loss += tf.reduce_sum(losses)
            counts += bin_counts(logits, batch["labels"])
        return loss, examples, counts

    def _evaluate_shard(self, place: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        shard = read_shard_graph(place, self.manifest.layout)
        loss, counts = tf.constant(0.0), tf.zeros([2, BINS], tf.int64)
        examples = tf.shape(shard["labels"])[0]
        for i in tf.range(self._batches(examples)):
            batch = self._batch(shard, i)
            logits = self._logits(batch)
            loss += tf.reduce_sum(tf.nn.sigmoid_cross_entropy_with_logits(batch["labels"], logits))
            counts += bin_counts(logits, batch["labels"])
        return loss, examples, counts

    def _predict_shard(self, place: tf.Tensor) -> tf.Tensor:
        return tf.sigmoid(self._logits(read_shard_graph(place, self.manifest.layout)))

    def _batches(self, examples: tf.Tensor) -> tf.Tensor:
        return -(-examples // self.config.batch_size)

    def _batch(self, shard: Mapping[str, tf.Tensor], i: tf.Tensor) -> dict[str, tf.Tensor]:
        start = i * self.config.batch_size
        return {name: values[start : start + self.config.batch_size] for name, values in shard.items()}

    def _logits(self, batch: Mapping[str, tf.Tensor]) -> tf.Tensor:
        columns: dict[str, tf.Tensor] = {}
        for stack in self.stacks:
            wanted = stack.layout.wanted(batch["ids"], self.spec)
            rows, index = tf.unique(wanted.numbers)
            columns |= wanted.pooled(tf.gather(stack.lookup(rows), index))
        return self._forward(batch, columns, training=False)

    def _forward(self, batch: Mapping[str, tf.Tensor], columns: Mapping[str, tf.Tensor], training: bool) -> tf.Tensor:
        dense = transform_dense(self.spec, self.manifest.moments, batch["dense"])
        return self.model(model_inputs(self.spec, dense, columns, self.linear), training=training)[:, 0]

    def _train_batch(self, batch: Mapping[str, tf.Tensor], step: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        rate = learning_rate(self.config, step, self.planned_steps)
        wanted = [stack.layout.wanted(batch["ids"], self.spec) for stack in self.stacks]
        # Each distinct row travels once, whatever its count in the batch.
        unique = [tf.unique(w.numbers) for w in wanted]
        pulled = [stack.lookup(rows) for stack, (rows, _) in zip(self.stacks, unique, strict=True)]
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            weights = self.model.trainable_variables
            tape.watch([*pulled, *weights])
            columns: dict[str, tf.Tensor] = {}
            penalty = tf.constant(0.0)
            for w, rows, (_, index) in zip(wanted, pulled, unique, strict=True):
                values = tf.gather(rows, index)
                columns |= w.pooled(values)
                if self.config.l2:
                    penalty += self.config.l2 * tf.reduce_sum(tf.square(values)) / tf.cast(w.examples, tf.float32)
            logits = self._forward(batch, columns, training=True)
            losses = tf.nn.sigmoid_cross_entropy_with_logits(batch["labels"], logits)
            objective = tf.reduce_mean(losses) + penalty
        row_gradients, gradients = tape.gradient(objective, [pulled, weights])
        for stack, (rows, _), gradient in zip(self.stacks, unique, row_gradients, strict=True):
            stack.apply(rows, tf.convert_to_tensor(gradient), self.optimizer, rate, step)
        self._apply_dense(gradients, rate, step)
        return losses, logits

    def _apply_dense(self, gradients: list[tf.Tensor], rate: tf.Tensor, step: tf.Tensor) -> None:
        target: Slotted
        for target, gradient in zip(self.dense, gradients, strict=True):
            if gradient is None:
                continue  # a variable that the loss does not depend on
            with tf.device(target.variable.device):
                self.optimizer.apply_dense(target, tf.convert_to_tensor(gradient), rate, step)
