"""Optimizers, applied by ops on the parameter server that holds the variable.

A worker sends a gradient; the server reads, computes and writes. Learning rate and the run's step are arguments of the call.
Nothing here reads a whole table, or runs Python in the graph.

Dense variables change by TensorFlow's training kernels, under the variable's own lock. Rows are gathered, changed and scattered
under a mutex of their table, so that racing workers lose no update, whatever the optimizer. Measured on 2 cores, rows of 16:

- Without the mutex two threads that did nothing else lost 13 % of the updates of one row, and 16 % of those of 2,473 rows drawn
  by a Zipf law (35 % of the hottest row's); with pauses of 8 ms between the updates 0.6 % (1.9 %). Adding by ResourceScatterAdd
  lost some still, and took twice as long.
- The mutex costs 0.04 ms an update; TensorFlow's own sparse kernels cost more. Milliseconds of CPU for 6,296 of 650,000 rows:

      ResourceScatterSub 0.93              Sgd 0.47        RowwiseAdagrad 0.93 (no kernel)
      ResourceSparseApplyAdagradV2 2.24    Adagrad 1.23    LazyAdam 1.73 (no kernel)
      ResourceSparseApplyFtrl 2.80         Ftrl 1.69
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import tensorflow as tf

from paraserve.components.train.embedding.mutex import Mutex

ADAGRAD_START = 0.1
"""Initial sum of squared gradients, as in tf_keras."""
ADAGRAD_EPSILON = 1e-7
ROWWISE_START = 0.0
"""As in FBGEMM, TorchRec and PyTorch."""
ROWWISE_EPSILON = 1e-8
ADAM_BETA_1 = 0.9
ADAM_BETA_2 = 0.999
ADAM_EPSILON = 1e-7
FTRL_L1 = 1e-4
"""Against the mean loss of a batch: a weight stays 0 until its gradients add up to more."""


@dataclass(frozen=True, slots=True)
class Slot:
    """What an optimizer keeps beside a variable."""

    name: str
    start: float
    """The value where no gradient has been applied."""
    per_row: bool = False
    """One number a row, shape [rows]; else the shape of the variable."""


class Variable(Protocol):
    """What an optimizer needs of a variable."""

    @property
    def handle(self) -> tf.Tensor: ...

    @property
    def shape(self) -> tf.TensorShape: ...


@dataclass(frozen=True)
class Target:
    """A variable and its optimizer slots, all on one device, that one worker alone changes."""

    variable: Variable
    slots: Mapping[str, Variable] = field(default_factory=dict)
    mutex: Mutex | None = field(default=None, init=False)
    """Held, on the variable's device, by whoever changes rows, where several may."""

    def handles(self, slots: Sequence[Slot]) -> list[tf.Tensor]:
        """The variable's, then the slots'."""
        return [self.variable.handle, *(self.slots[slot.name].handle for slot in slots)]


@dataclass(frozen=True)
class Slotted(Target):
    """The same on a server. Make it in eager mode, and once for each variable."""

    variable: tf.Variable
    slots: Mapping[str, tf.Variable] = field(default_factory=dict)

    def __post_init__(self) -> None:
        with tf.device(self.variable.handle.device):
            object.__setattr__(self, "mutex", Mutex())


class Optimizer(Protocol):
    """How a gradient changes a variable and its slots, by ops on the device of the caller's `tf.device` scope."""

    slots: tuple[Slot, ...]
    idle_at_zero: bool
    """Whether `apply_dense` changes nothing where the gradient is 0, and is `apply_rows` elsewhere."""

    def apply_dense(self, target: Target, gradient: tf.Tensor, learning_rate: tf.Tensor, step: tf.Tensor) -> None:
        """Applies `gradient`, float32 in the variable's shape, at `step`, int64, the run's steps before this one."""

    def apply_rows(
        self, target: Target, rows: tf.Tensor, gradient: tf.Tensor, learning_rate: tf.Tensor, step: tf.Tensor
    ) -> None:
        """Applies `gradient`, float32 [n, width], to the distinct rows `rows`, int32 or int64 [n], of one [rows, width].

        Sum the gradients of a row that stands there more than once first: here all but one of them would be lost.

        Raises tf.errors.InvalidArgumentError, and changes nothing, when one of them is not there.
        """


class Sgd:
    """w -= lr g."""

    slots: tuple[Slot, ...] = ()
    idle_at_zero = True

    def apply_dense(self, target: Target, gradient: tf.Tensor, learning_rate: tf.Tensor, step: tf.Tensor) -> None:
        tf.raw_ops.ResourceApplyGradientDescent(
            var=target.variable.handle, alpha=learning_rate, delta=gradient, use_locking=True
        )

    def apply_rows(
        self, target: Target, rows: tf.Tensor, gradient: tf.Tensor, learning_rate: tf.Tensor, step: tf.Tensor
    ) -> None:
        change = learning_rate * gradient
        _update(target, self.slots, rows, (change,), lambda weights: (weights - change,))


class Adagrad:
    """a += g^2; w -= lr g / (sqrt(a) + epsilon) (Duchi, Hazan and Singer, 2011)."""

    slots: tuple[Slot, ...] = (Slot("accumulator", ADAGRAD_START),)
    idle_at_zero = True

    def apply_dense(self, target: Target, gradient: tf.Tensor, learning_rate: tf.Tensor, step: tf.Tensor) -> None:
        _apply_dense_adagrad(target, self.slots[0], gradient, learning_rate, ADAGRAD_EPSILON)

    def apply_rows(
        self, target: Target, rows: tf.Tensor, gradient: tf.Tensor, learning_rate: tf.Tensor, step: tf.Tensor
    ) -> None:
        squares, change = tf.square(gradient), learning_rate * gradient

        def updated(weights: tf.Tensor, sums: tf.Tensor) -> Sequence[tf.Tensor]:
            sums += squares
            return weights - change / (tf.sqrt(sums) + ADAGRAD_EPSILON), sums

        _update(target, self.slots, rows, (squares, change), updated)


class RowwiseAdagrad:
    """a += mean of g^2 over the row; w -= lr g / (sqrt(a) + epsilon), with one number of state a row (Mudigere et al., 2022).

    As in FBGEMM (EXACT_ROW_WISE_ADAGRAD) a starts at 0: a row's first gradient moves it by about lr, however small it is.

    The rows of a dense variable are the indices of its first dimension; those of a vector are single numbers, so that this is
    plain Adagrad there.
    """

    slots: tuple[Slot, ...] = (Slot("row_accumulator", ROWWISE_START, per_row=True),)
    idle_at_zero = False

    def apply_dense(self, target: Target, gradient: tf.Tensor, learning_rate: tf.Tensor, step: tf.Tensor) -> None:
        if target.variable.shape.rank < 2:
            _apply_dense_adagrad(target, self.slots[0], gradient, learning_rate, ROWWISE_EPSILON)
        else:
            self.apply_rows(target, tf.range(target.variable.shape[0]), gradient, learning_rate, step)

    def apply_rows(
        self, target: Target, rows: tf.Tensor, gradient: tf.Tensor, learning_rate: tf.Tensor, step: tf.Tensor
    ) -> None:
        inside = list(range(1, gradient.shape.rank))
        squares, change = tf.reduce_mean(tf.square(gradient), axis=inside), learning_rate * gradient

        def updated(weights: tf.Tensor, sums: tf.Tensor) -> Sequence[tf.Tensor]:
            sums += squares
            divisors = tf.reshape(tf.sqrt(sums) + ROWWISE_EPSILON, [-1, *(1 for _ in inside)])
            return weights - change / divisors, sums

        _update(target, self.slots, rows, (squares, change), updated)


class LazyAdam:
    """m += (1 - b1) (g - m); v += (1 - b2) (g^2 - v); w -= lr sqrt(1 - b2^t) / (1 - b1^t) m / (sqrt(v) + epsilon) (Kingma and
    Ba, 2015), t being the run's steps so far, this one included.

    Lazy: the moments of a row stand still while no gradient touches it.
    """

    slots: tuple[Slot, ...] = (Slot("momentum", 0.0), Slot("velocity", 0.0))
    idle_at_zero = False

    def apply_dense(self, target: Target, gradient: tf.Tensor, learning_rate: tf.Tensor, step: tf.Tensor) -> None:
        power_1, power_2 = _powers(step)
        tf.raw_ops.ResourceApplyAdam(
            var=target.variable.handle,
            m=target.slots["momentum"].handle,
            v=target.slots["velocity"].handle,
            beta1_power=power_1,
            beta2_power=power_2,
            lr=learning_rate,
            beta1=ADAM_BETA_1,
            beta2=ADAM_BETA_2,
            epsilon=ADAM_EPSILON,
            grad=gradient,
            use_locking=True,
        )

    def apply_rows(
        self, target: Target, rows: tf.Tensor, gradient: tf.Tensor, learning_rate: tf.Tensor, step: tf.Tensor
    ) -> None:
        power_1, power_2 = _powers(step)
        rate = learning_rate * tf.sqrt(1 - power_2) / (1 - power_1)
        squares = tf.square(gradient)

        def updated(weights: tf.Tensor, momentum: tf.Tensor, velocity: tf.Tensor) -> Sequence[tf.Tensor]:
            momentum += (1 - ADAM_BETA_1) * (gradient - momentum)
            velocity += (1 - ADAM_BETA_2) * (squares - velocity)
            return weights - rate * momentum / (tf.sqrt(velocity) + ADAM_EPSILON), momentum, velocity

        _update(target, self.slots, rows, (gradient, squares, rate), updated)


class Ftrl:
    """n' = n + g^2; z += lr g - (sqrt(n') - sqrt(n)) w; then w = 0 where |z| <= lr l1, else w = (sign(z) lr l1 - z) / sqrt(n')
    (FTRL-Proximal; McMahan et al., 2013).

    z carries the learning rate, so that a schedule does not rescale what was learned before. Whatever a row started from is
    forgotten with its first gradient. A network cannot start from zeros: on dense variables this is Adagrad, which is FTRL that
    starts where the variable does, without l1.
    """

    slots: tuple[Slot, ...] = (Slot("accumulator", ADAGRAD_START), Slot("linear", 0.0))
    idle_at_zero = False

    def apply_dense(self, target: Target, gradient: tf.Tensor, learning_rate: tf.Tensor, step: tf.Tensor) -> None:
        _apply_dense_adagrad(target, self.slots[0], gradient, learning_rate, ADAGRAD_EPSILON)

    def apply_rows(
        self, target: Target, rows: tf.Tensor, gradient: tf.Tensor, learning_rate: tf.Tensor, step: tf.Tensor
    ) -> None:
        squares, change, bound = tf.square(gradient), learning_rate * gradient, learning_rate * FTRL_L1

        def updated(weights: tf.Tensor, sums: tf.Tensor, linear: tf.Tensor) -> Sequence[tf.Tensor]:
            new_sums = sums + squares
            root = tf.sqrt(new_sums)
            linear += change - (root - tf.sqrt(sums)) * weights
            return (tf.clip_by_value(linear, -bound, bound) - linear) / root, new_sums, linear

        _update(target, self.slots, rows, (squares, change, bound), updated)


def optimizer(name: str) -> Optimizer:
    """The optimizer of a config's `optimizer`."""
    known: dict[str, Callable[[], Optimizer]] = {
        "sgd": Sgd,
        "adagrad": Adagrad,
        "rowwise_adagrad": RowwiseAdagrad,
        "lazy_adam": LazyAdam,
        "ftrl": Ftrl,
    }
    return known[name]()


def slotted(optimizer: Optimizer, variable: tf.Variable) -> Slotted:
    """The variable with all slots at their start, on its device."""
    with tf.device(variable.device):
        return Slotted(variable, {slot.name: _slot(slot, variable) for slot in optimizer.slots})


def _slot(slot: Slot, variable: tf.Variable) -> tf.Variable:
    shape = variable.shape[:1] if slot.per_row else variable.shape
    return tf.Variable(tf.fill(shape, tf.constant(slot.start, variable.dtype)), trainable=False)


def _update(
    target: Target,
    slots: Sequence[Slot],
    rows: tf.Tensor,
    inputs: Sequence[tf.Tensor],
    updated: Callable[..., Sequence[tf.Tensor]],
) -> None:
    """Sets rows of the variable and its slots to what `updated` makes of them; nobody else changes them meanwhile."""
    handles = target.handles(slots)

    def section() -> tf.Operation:
        old = [tf.raw_ops.ResourceGather(resource=handle, indices=rows, dtype=tf.float32) for handle in handles]
        return tf.group(
            *(
                tf.raw_ops.ResourceScatterUpdate(resource=handle, indices=rows, updates=new)
                for handle, new in zip(handles, updated(*old), strict=True)
            )
        )

    # What comes from the worker is there before the lock is taken: nobody waits for a slow worker.
    with tf.control_dependencies([rows, *inputs]):
        if target.mutex is None:
            section()
        else:
            target.mutex.held(section)


def add_rows(target: Target, slots: Sequence[Slot], rows: tf.Tensor, changes: Sequence[tf.Tensor]) -> None:
    """Adds changes to distinct rows of the variable and its slots: what a worker's own steps made of its copies."""
    _update(target, slots, rows, changes, lambda *old: [part + change for part, change in zip(old, changes, strict=True)])


def apply_held(optimizer: Optimizer, target: Target, gradient: tf.Tensor, learning_rate: tf.Tensor, step: tf.Tensor) -> None:
    """Applies a gradient, float32 [n, width], to all rows of a worker's copy; rows of zeros stay as they are."""
    if optimizer.idle_at_zero:
        optimizer.apply_dense(target, gradient, learning_rate, step)
        return
    touched = tf.where(tf.reduce_any(tf.not_equal(gradient, 0.0), axis=1))[:, 0]
    optimizer.apply_rows(target, touched, tf.gather(gradient, touched), learning_rate, step)


def _apply_dense_adagrad(target: Target, slot: Slot, gradient: tf.Tensor, learning_rate: tf.Tensor, epsilon: float) -> None:
    tf.raw_ops.ResourceApplyAdagradV2(
        var=target.variable.handle,
        accum=target.slots[slot.name].handle,
        lr=learning_rate,
        epsilon=epsilon,
        grad=gradient,
        use_locking=True,
    )


def _powers(step: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """b1^t and b2^t."""
    steps = tf.cast(step + 1, tf.float32)
    return tf.pow(ADAM_BETA_1, steps), tf.pow(ADAM_BETA_2, steps)
