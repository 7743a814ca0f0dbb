"""Optimizers as kernels that run on the parameter server that holds the variable.

A worker sends a gradient; the server reads, computes and writes. Learning rate and the run's step are arguments of the call.
Nothing here reads a whole variable, or runs Python in the graph.
"""

from dataclasses import dataclass, field
from typing import Protocol

import tensorflow as tf

ADAGRAD_START = 0.1
"""Initial squared-gradient sum, as in tf_keras."""
ADAGRAD_EPSILON = 1e-7


@dataclass(frozen=True, slots=True)
class Slot:
    """What an optimizer keeps beside a variable."""

    name: str
    start: float
    """The value of a row that no gradient has touched."""
    per_row: bool = False
    """One number a row, shape [rows]; else the shape of the variable."""


@dataclass(frozen=True, slots=True)
class Slotted:
    """A variable and its optimizer slots, all on one device."""

    variable: tf.Variable
    slots: dict[str, tf.Variable] = field(default_factory=dict)


class Optimizer(Protocol):
    """How a gradient changes a variable and its slots, by ops on the device of the caller's `tf.device` scope."""

    slots: tuple[Slot, ...]

    def apply_dense(self, target: Slotted, gradient: tf.Tensor, learning_rate: tf.Tensor, step: tf.Tensor) -> None:
        """Applies `gradient`, float32 in the variable's shape, at `step`, int64, the run's steps before this one."""

    def apply_rows(
        self, target: Slotted, rows: tf.Tensor, gradient: tf.Tensor, learning_rate: tf.Tensor, step: tf.Tensor
    ) -> None:
        """Applies `gradient`, float32 [n, width], to the distinct rows `rows`, int32 or int64 [n], of one [rows, width]."""


class Sgd:
    """w -= lr g. The kernel for rows takes no lock: of two updates of one row at the same moment one may be lost (Hogwild, Niu
    et al., 2011); in a test of two threads on one row 8 of 40,000 were."""

    slots: tuple[Slot, ...] = ()

    def apply_dense(self, target: Slotted, gradient: tf.Tensor, learning_rate: tf.Tensor, step: tf.Tensor) -> None:
        tf.raw_ops.ResourceApplyGradientDescent(
            var=target.variable.handle, alpha=learning_rate, delta=gradient, use_locking=True
        )

    def apply_rows(
        self, target: Slotted, rows: tf.Tensor, gradient: tf.Tensor, learning_rate: tf.Tensor, step: tf.Tensor
    ) -> None:
        tf.raw_ops.ResourceScatterSub(resource=target.variable.handle, indices=rows, updates=gradient * learning_rate)


class Adagrad:
    """a += g^2; w -= lr g / (sqrt(a) + epsilon) (Duchi, Hazan and Singer, 2011)."""

    slots: tuple[Slot, ...] = (Slot("accumulator", ADAGRAD_START),)

    def apply_dense(self, target: Slotted, gradient: tf.Tensor, learning_rate: tf.Tensor, step: tf.Tensor) -> None:
        tf.raw_ops.ResourceApplyAdagradV2(
            var=target.variable.handle,
            accum=target.slots["accumulator"].handle,
            lr=learning_rate,
            epsilon=ADAGRAD_EPSILON,
            grad=gradient,
            use_locking=True,
        )

    def apply_rows(
        self, target: Slotted, rows: tf.Tensor, gradient: tf.Tensor, learning_rate: tf.Tensor, step: tf.Tensor
    ) -> None:
        tf.raw_ops.ResourceSparseApplyAdagradV2(
            var=target.variable.handle,
            accum=target.slots["accumulator"].handle,
            lr=learning_rate,
            epsilon=ADAGRAD_EPSILON,
            grad=gradient,
            indices=rows,
            use_locking=True,
        )


def optimizer(name: str) -> Optimizer:
    """The optimizer of a config's `optimizer`."""
    return Sgd() if name == "sgd" else Adagrad()


def slotted(optimizer: Optimizer, variable: tf.Variable) -> Slotted:
    """The variable with all slots at their start, on its device."""
    with tf.device(variable.device):
        return Slotted(variable, {slot.name: _slot(slot, variable) for slot in optimizer.slots})


def _slot(slot: Slot, variable: tf.Variable) -> tf.Variable:
    shape = variable.shape[:1] if slot.per_row else variable.shape
    return tf.Variable(tf.fill(shape, tf.constant(slot.start, variable.dtype)), trainable=False)
