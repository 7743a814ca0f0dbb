"""What a worker holds during an exchange: variables of its own, which its optimizer steps change."""

import uuid
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import tensorflow as tf

from paraserve.components.train.optimizers import Slot, Target


@dataclass(frozen=True, kw_only=True)
class Flat:
    """Several variables as one vector."""

    variables: Sequence[tf.Variable]
    sizes: Sequence[int]

    @classmethod
    def of(cls, variables: Sequence[tf.Variable]) -> "Flat":
        return cls(variables=tuple(variables), sizes=tuple(int(np.prod(v.shape)) for v in variables))

    @property
    def size(self) -> int:
        return sum(self.sizes)

    def join(self, tensors: Sequence[tf.Tensor]) -> tf.Tensor:
        """float32 [size]."""
        return tf.concat([tf.zeros([0]), *(tf.reshape(tensor, [-1]) for tensor in tensors)], axis=0)

    def split(self, vector: tf.Tensor) -> list[tf.Tensor]:
        """A tensor in each variable's shape."""
        if not self.variables:
            return []
        parts = tf.split(vector, self.sizes)
        return [tf.reshape(part, variable.shape) for part, variable in zip(parts, self.variables, strict=True)]

    def values(self) -> tf.Tensor:
        """What the variables hold, float32 [size]."""
        return self.join([variable.value() for variable in self.variables])

    def assign(self, vector: tf.Tensor) -> None:
        for variable, value in zip(self.variables, self.split(vector), strict=True):
            variable.assign(value)


class WorkerWeights:
    """A network's variables on the worker that runs the function in whose body this is made."""

    def __init__(self, weights: Flat, state: Flat, slots: Sequence[Slot]):
        self._weights, self._state = weights, state
        parts = [[LocalVariable(v.shape) for v in weights.variables] for _ in range(1 + len(slots))]
        self._parts, self._held = parts, [LocalVariable(v.shape) for v in state.variables]
        names = [slot.name for slot in slots]
        self.targets = [Target(v, dict(zip(names, of_slots, strict=True))) for v, *of_slots in zip(*parts, strict=True)]
        """Each trainable variable, for the optimizer."""

    @property
    def handles(self) -> list[tf.Tensor]:
        """Of the trainable variables, then the others."""
        return [variable.handle for variable in [*self._parts[0], *self._held]]

    def assign(self, parts: Sequence[tf.Tensor], state: tf.Tensor) -> None:
        """Takes over pulled vectors, float32 [weights] each: the weights, then each slot; and the state, float32 [state]."""
        for variables, part in zip(self._parts, parts, strict=True):
            for variable, value in zip(variables, self._weights.split(part), strict=True):
                variable.assign(value)
        for variable, value in zip(self._held, self._state.split(state), strict=True):
            variable.assign(value)

    def parts(self) -> list[tf.Tensor]:
        """What batches made of the weights and slots, float32 [weights] each."""
        return [self._weights.join([variable.read() for variable in variables]) for variables in self._parts]

    def state(self) -> tf.Tensor:
        """float32 [state]: what the batches made of the variables that no gradient changes."""
        return self._state.join([variable.read() for variable in self._held])


class LocalVariable:
    """A float32 variable on the worker that runs the function in whose body this is made; undefined until it is assigned.

    The worker keeps one, whichever shard it runs.
    """

    def __init__(self, shape: Sequence[int | None] | tf.TensorShape):
        self.shape = tf.TensorShape(shape)
        name = f"local-{uuid.uuid4().hex}"
        self.handle = tf.raw_ops.VarHandleOp(dtype=tf.float32, shape=self.shape, shared_name=name)

    def assign(self, value: tf.Tensor) -> None:
        tf.raw_ops.AssignVariableOp(resource=self.handle, value=value)

    def read(self) -> tf.Tensor:
        return tf.raw_ops.ReadVariableOp(resource=self.handle, dtype=tf.float32)

    def gather(self, index: tf.Tensor) -> tf.Tensor:
        """Its rows of the numbers `index`, int32 of any shape."""
        return tf.raw_ops.ResourceGather(resource=self.handle, indices=index, dtype=tf.float32)


class WorkerRows:
    """Rows that a worker pulled of a group, with the optimizer's slots, in the function in whose body this is made."""

    def __init__(self, width: int, slots: Sequence[Slot]):
        shapes = [[None, width], *([None] if slot.per_row else [None, width] for slot in slots)]
        self._variables = [LocalVariable(shape) for shape in shapes]
        named = zip([slot.name for slot in slots], self._variables[1:], strict=True)
        self.target = Target(self._variables[0], dict(named))
        """For the optimizer."""

    def assign(self, parts: Sequence[tf.Tensor]) -> None:
        """Takes over pulled rows, float32 [n, width], then each slot."""
        for variable, part in zip(self._variables, parts, strict=True):
            variable.assign(part)

    def parts(self) -> list[tf.Tensor]:
        """What batches made of them."""
        return [variable.read() for variable in self._variables]

    def gather(self, index: tf.Tensor) -> tf.Tensor:
        """The rows of the numbers `index`, int32 of any shape."""
        return self._variables[0].gather(index)
