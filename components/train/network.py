"""The model as a function of plain tensors, so that a worker computes with weights that it pulled in one piece.

The model's variables live on the coordinator, as a template. Its gradient is traced there once; the graph is then imported
wherever a batch is computed, with variables of the worker in place of the template's. Whatever a model's layers do with their
variables, in loops or nested functions too, they do it to the worker's.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import tensorflow as tf
import tf_keras

from paraserve.components.features.graph import transform_dense
from paraserve.components.features.spec import FeatureSpec
from paraserve.components.manifest import Manifest
from paraserve.components.train.config import TrainConfig
from paraserve.components.train.embedding.layout import GroupLayout, GroupValues, model_inputs, place_specs
from paraserve.components.train.models import model_builder
from paraserve.components.train.on_worker import Flat, WorkerWeights
from paraserve.components.train.optimizers import Slot


@dataclass(frozen=True, kw_only=True, slots=True)
class Computed:
    """What a worker computes from a batch."""

    losses: tf.Tensor
    """float32 scalar: the sum of the examples' log losses, without penalties."""
    logits: tf.Tensor
    """float32 [examples]."""
    places: Sequence[Sequence[tf.Tensor]]
    """For each group the gradients of its `GroupValues.tensors` that are values of rows."""
    weights: Sequence[tf.Tensor]
    """The gradient of each trainable variable, in its shape."""


class Network:
    """The model's template, its flat layout, and its two functions. Make it outside of the strategy's scope."""

    def __init__(self, config: TrainConfig, manifest: Manifest):
        self.config, self.manifest, self.spec = config, manifest, manifest.spec
        tf_keras.utils.set_random_seed(config.seed)
        with _computing_in(config.compute_dtype):
            self.model = model_builder(config.model)(self.spec, config)
            self.linear = bool(getattr(self.model, "linear_weights", False))
            build(self.model, config.model, self.spec, self.linear)
        self.layouts = GroupLayout.all_of(self.spec, self.linear)
        self.weights = Flat.of(self.model.trainable_variables)
        self.state = Flat.of(self.model.non_trainable_variables)
        # Functions that cannot be traced fail here, before anything is trained.
        self._gradient = self._traced(self._compute_gradient, labels=True)
        self._logits = self._traced(self._compute_logits, labels=False)

    def on_worker(self, slots: Sequence[Slot] = ()) -> WorkerWeights:
        """Variables for this network on the worker that runs the function being traced, with an optimizer's slots."""
        return WorkerWeights(self.weights, self.state, slots)

    def gradient(
        self, weights: WorkerWeights, groups: Sequence[GroupValues], dense: tf.Tensor, labels: tf.Tensor, copy: int
    ) -> Computed:
        """Losses and gradients of the mean loss of a batch.

        Args:
            groups: the rows of each group's places.
            dense: float32 [examples, dense columns] as packed. labels: float32 [examples].
            copy: tells the copies of the network in one function apart, for their random numbers.
        """
        inputs = [tensor for group in groups for tensor in group.tensors]
        outputs = iter(self._gradient.imported([*inputs, dense, labels], weights, copy))
        losses, logits = next(outputs), next(outputs)
        gradients = [next(outputs) for _ in self.weights.variables]
        places = [[next(outputs) for _ in group.values] for group in groups]
        return Computed(losses=losses, logits=logits, weights=gradients, places=places)

    def logits(self, weights: WorkerWeights, groups: Sequence[GroupValues], dense: tf.Tensor) -> tf.Tensor:
        """float32 [examples], as when serving."""
        inputs = [tensor for group in groups for tensor in group.tensors]
        (logits,) = self._logits.imported([*inputs, dense], weights, copy=0)
        return logits

    def local_model(self, weights: tf.Tensor, state: tf.Tensor) -> tf_keras.Model:
        """A model of this network's kind with these weights, computing in float32."""
        with _computing_in("float32"):
            model = model_builder(self.config.model)(self.spec, self.config)
            build(model, self.config.model, self.spec, self.linear)
        Flat.of(model.trainable_variables).assign(weights)
        Flat.of(model.non_trainable_variables).assign(state)
        return model

    def _traced(self, function: Callable[..., list[tf.Tensor]], labels: bool) -> "_Body":
        signature = [spec for layout in self.layouts for spec in place_specs(layout)]
        signature.append(tf.TensorSpec([None, len(self.spec.dense)], tf.float32))
        if labels:
            signature.append(tf.TensorSpec([None], tf.float32))
        traced = tf.function(function, input_signature=signature).get_concrete_function()
        return _Body.of(traced, [*self.weights.variables, *self.state.variables])

    def _groups(self, inputs: Iterator[tf.Tensor]) -> list[GroupValues]:
        return [GroupValues.of(layout, inputs) for layout in self.layouts]

    def _compute_logits(self, *inputs: tf.Tensor) -> list[tf.Tensor]:
        groups = self._groups(iter(inputs[:-1]))
        return [self._forward(groups, inputs[-1], training=False)]

    def _compute_gradient(self, *inputs: tf.Tensor) -> list[tf.Tensor]:
        *tensors, dense, labels = inputs
        groups = self._groups(iter(tensors))
        values = [value for group in groups for value in group.values]
        variables = self.weights.variables
        examples = tf.cast(tf.maximum(tf.shape(labels)[0], 1), tf.float32)
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch([*values, *variables])
            logits = self._forward(groups, dense, training=True)
            losses = tf.reduce_sum(tf.nn.sigmoid_cross_entropy_with_logits(labels, logits))
            objective = losses / examples
            if self.config.l2:
                objective += self.config.l2 / examples * tf.add_n([tf.reduce_sum(tf.square(value)) for value in values])
        # A variable or column that the loss does not depend on has a gradient of zeros.
        gradients = tape.gradient(objective, [*variables, *values], unconnected_gradients=tf.UnconnectedGradients.ZERO)
        return [losses, logits, *(tf.convert_to_tensor(gradient) for gradient in gradients)]

    def _forward(self, groups: Sequence[GroupValues], dense: tf.Tensor, training: bool) -> tf.Tensor:
        columns: dict[str, tf.Tensor] = {}
        for group in groups:
            columns |= group.columns()
        numbers = transform_dense(self.spec, self.manifest.moments, dense)
        logits = self.model(model_inputs(self.spec, numbers, columns, self.linear), training=training)
        return tf.cast(logits[:, 0], tf.float32)


def build(model: tf_keras.Model, name: str, spec: FeatureSpec, linear: bool) -> None:
    """Calls a fresh model once, so that its variables exist. Raises ValueError where it does not fit the spec."""
    columns = {c.name: tf.zeros([1, c.dimension + int(linear)]) for c in spec.embedded}
    inputs = model_inputs(spec, tf.zeros([1, len(spec.dense)]), columns, linear)
    try:
        logits = model(inputs)
    except Exception as error:
        dimensions = {column.name: column.dimension for column in spec.embedded}
        raise ValueError(
            f"the model '{name}' fails on {dimensions} and {len(spec.dense)} dense columns with {type(error).__name__}: "
            f"{error}; make it fit the spec's columns"
        ) from error
    if tuple(logits.shape) != (1, 1):
        raise ValueError(f"the model '{name}' returns shape {logits.shape} for one example; it must be (1, 1)")
    for variable in model.variables:
        if variable.dtype.base_dtype != tf.float32:
            raise ValueError(
                f"the model '{name}' has the variable {variable.name} of {variable.dtype.name}; servers keep float32 only"
            )


@contextmanager
def _computing_in(dtype: str) -> Iterator[None]:
    before = tf_keras.mixed_precision.global_policy()
    tf_keras.mixed_precision.set_global_policy("float32" if dtype == "float32" else f"mixed_{dtype}")
    try:
        yield
    finally:
        tf_keras.mixed_precision.set_global_policy(before)


@dataclass(frozen=True, kw_only=True)
class _Body:
    """A traced function's graph, to be imported with other variables than it was traced with."""

    graph: tf.compat.v1.GraphDef
    inputs: Sequence[str]
    variables: Mapping[int, str]
    """Number of a variable to the name of the placeholder that stands for it."""
    outputs: Sequence[str]

    @classmethod
    def of(cls, traced: tf.types.experimental.ConcreteFunction, variables: Sequence[tf.Variable]) -> "_Body":
        captured = {id(external): placeholder.name for external, placeholder in traced.graph.captures}
        known = {id(v.handle) for v in variables}
        if foreign := [name for external, name in captured.items() if external not in known]:
            raise ValueError(
                f"the model uses {', '.join(foreign)}, which is none of its variables; make it a tf.Variable of a layer, or a "
                "constant inside `call`"
            )
        names = {i: captured[id(v.handle)] for i, v in enumerate(variables) if id(v.handle) in captured}
        inputs = [tensor.name for tensor in traced.inputs if tensor.name not in set(names.values())]
        return cls(graph=traced.graph.as_graph_def(), inputs=inputs, variables=names, outputs=[t.name for t in traced.outputs])

    def imported(self, inputs: Sequence[tf.Tensor], weights: WorkerWeights, copy: int) -> list[tf.Tensor]:
        """The outputs, of a copy in the function being traced."""
        mapped = dict(zip(self.inputs, inputs, strict=True))
        # An import takes tensors of its own graph alone: the identity of one from around a loop is in the loop's.
        mapped |= {name: tf.identity(weights.handles[i]) for i, name in self.variables.items()}
        outputs: list[tf.Tensor] = tf.graph_util.import_graph_def(
            self._seeded(copy), input_map=mapped, return_elements=list(self.outputs), name="network"
        )
        return outputs

    def _seeded(self, copy: int) -> tf.compat.v1.GraphDef:
        """The graph with other random numbers: copies with the same seeds would drop the same activations."""
        graph = tf.compat.v1.GraphDef()
        graph.CopyFrom(self.graph)
        nodes = [*graph.node, *(node for function in graph.library.function for node in function.node_def)]
        for node in nodes:
            if "seed2" in node.attr:
                node.attr["seed2"].i += copy
        return graph
