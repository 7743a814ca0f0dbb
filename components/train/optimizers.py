"""Optimizers as single kernels that run on the parameter server that holds the variable.

A worker sends a gradient; the server's kernel reads, computes and writes, under the variable's own lock where it knows one, so
that racing workers lose no update of a row. The learning rate is an argument of the call.
"""

from dataclasses import dataclass, field

import tensorflow as tf

ADAGRAD_START = 0.1
"""Initial squared-gradient sum, as in tf_keras."""
ADAGRAD_EPSILON = 1e-7


@dataclass(frozen=True, slots=True)
class Slotted:
    """A variable and its optimizer slots, all on one device."""

    variable: tf.Variable
    slots: dict[str, tf.Variable] = field(default_factory=dict)


class Sgd:
    """w -= lr g. The kernel for rows takes no lock: of two updates of one row at the same moment one may be lost (Hogwild, Niu
    et al., 2011); in a test of two threads on one row 8 of 40,000 were."""

    slots: tuple[str, ...] = ()

    def slotted(self, variable: tf.Variable) -> Slotted:
        return Slotted(variable)

    def apply_dense(self, target: Slotted, gradient: tf.Tensor, learning_rate: tf.Tensor) -> None:
        tf.raw_ops.ResourceApplyGradientDescent(
            var=target.variable.handle, alpha=learning_rate, delta=gradient, use_locking=True
        )

    def apply_rows(self, target: Slotted, rows: tf.Tensor, gradient: tf.Tensor, learning_rate: tf.Tensor) -> None:
        tf.raw_ops.ResourceScatterSub(resource=target.variable.handle, indices=rows, updates=gradient * learning_rate)


class Adagrad:
    """a += g^2; w -= lr g / (sqrt(a) + epsilon) (Duchi, Hazan and Singer, 2011)."""

    slots: tuple[str, ...] = ("accumulator",)

    def slotted(self, variable: tf.Variable) -> Slotted:
        with tf.device(variable.device):
            start = tf.fill(variable.shape, tf.constant(ADAGRAD_START, variable.dtype))
            return Slotted(variable, {"accumulator": tf.Variable(start, trainable=False)})

    def apply_dense(self, target: Slotted, gradient: tf.Tensor, learning_rate: tf.Tensor) -> None:
        tf.raw_ops.ResourceApplyAdagradV2(
            var=target.variable.handle,
            accum=target.slots["accumulator"].handle,
            lr=learning_rate,
            epsilon=ADAGRAD_EPSILON,
            grad=gradient,
            use_locking=True,
        )

    def apply_rows(self, target: Slotted, rows: tf.Tensor, gradient: tf.Tensor, learning_rate: tf.Tensor) -> None:
        tf.raw_ops.ResourceSparseApplyAdagradV2(
            var=target.variable.handle,
            accum=target.slots["accumulator"].handle,
            lr=learning_rate,
            epsilon=ADAGRAD_EPSILON,
            grad=gradient,
            indices=rows,
            use_locking=True,
        )


Optimizer = Sgd | Adagrad


def optimizer(name: str) -> Optimizer:
    """The optimizer of a config's `optimizer`."""
    return Sgd() if name == "sgd" else Adagrad()
