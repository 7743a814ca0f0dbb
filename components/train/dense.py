"""The network's weights on the parameter servers, as one vector cut over them: one pull and one push for each server."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from paraserve.components.train.cluster import PARAMETER_SERVER, device
from paraserve.components.train.config import TrainConfig
from paraserve.components.train.network import Network
from paraserve.components.train.optimizers import Slotted, optimizer, slotted
from paraserve.components.train.wire import Wire

MIN_SHARD_BYTES = 256 << 10
"""A server's part is not cut smaller: each part is a message more."""
ON_WEIGHTS = {"rowwise_adagrad": "adagrad", "ftrl": "adagrad"}
"""What optimizers of rows are on weights without rows: see `optimizers`."""
KEPT = 1 / 32
"""Share of a gradient's numbers that top-k compression sends."""


class DenseWeights:
    """The weights, their optimizer slots, and the network's state (variables that no gradient changes)."""

    def __init__(self, network: Network, config: TrainConfig, servers: int):
        wanted = config.dense_optimizer or config.optimizer
        self.optimizer = optimizer(ON_WEIGHTS.get(wanted, wanted))
        self.pulls = Wire(config.pull_dtype)
        self.pushes = Wire(config.push_dtype, dithered=config.push_dtype != "float32")
        start = network.weights.values()
        cut = tf.distribute.experimental.partitioners.MinSizePartitioner(MIN_SHARD_BYTES, max_shards=servers)
        count = int(cut(tf.TensorShape([max(network.weights.size, 1)]), tf.float32)[0])
        self.sizes = [len(part) for part in np.array_split(np.empty(network.weights.size), count)]
        self.parts = [self._part(server, part) for server, part in enumerate(tf.split(start, self.sizes))]
        with tf.device(device(PARAMETER_SERVER, 0)):
            self.state = tf.Variable(network.state.values(), trainable=False)

    @property
    def size(self) -> int:
        return sum(self.sizes)

    def pull(self, training: bool, with_slots: bool) -> tuple[list[tf.Tensor], tf.Tensor]:
        """The weights, with them, if wanted, each slot, float32 [size] all; and the state. Exact unless it is for training."""
        wire = self.pulls if training else Wire("float32")
        parts = []
        for part in self.parts:
            with tf.device(part.variable.device):
                parts.append([wire.encode(variable.read_value()) for variable in self._variables(part, with_slots)])
        with tf.device(self.state.device):
            state = self.state.read_value()
        joined = [wire.decode(tf.concat(of_servers, axis=0)) for of_servers in zip(*parts, strict=True)]
        return [tf.ensure_shape(part, [self.size]) for part in joined], tf.identity(state)

    def push(self, gradient: tf.Tensor, rate: tf.Tensor, step: tf.Tensor, accept: tf.Tensor) -> None:
        """Sends a gradient, float32 [size], which the servers apply where `accept`, a bool scalar."""
        for part, values in zip(self.parts, tf.split(gradient, self.sizes), strict=True):
            encoded = self.pushes.encode(values)
            with tf.device(part.variable.device):
                self._apply_where(accept, part, self.pushes.decode(encoded), rate, step)

    def add(self, changes: Sequence[tf.Tensor], accept: tf.Tensor) -> None:
        """Sends changes of the weights and all slots, float32 [size] each, which the servers add where `accept`."""
        for part, *values in zip(self.parts, *(tf.split(change, self.sizes) for change in changes), strict=True):
            encoded = [self.pushes.encode(value) for value in values]
            with tf.device(part.variable.device):
                self._add_where(accept, part, [self.pushes.decode(value) for value in encoded])

    def push_largest(self, gradient: tf.Tensor, rate: tf.Tensor, step: tf.Tensor, accept: tf.Tensor) -> tf.Tensor:
        """Sends the KEPT share of largest numbers of a gradient; returns what stays at home, float32 [size].

        The caller adds that to the next gradient (error feedback: Stich, Cordonnier and Jaggi, 2018,
        https://arxiv.org/abs/1809.07599).
        """
        rest = []
        for part, values in zip(self.parts, tf.split(gradient, self.sizes), strict=True):
            chosen = self._largest(values)
            (encoded,) = self._chosen([values], chosen)
            with tf.device(part.variable.device):
                self._apply_where(accept, part, self._spread(encoded, chosen, values.shape), rate, step)
            rest.append(values - self._spread(encoded, chosen, values.shape))
        return tf.concat(rest, axis=0)

    def add_largest(self, changes: Sequence[tf.Tensor], accept: tf.Tensor) -> list[tf.Tensor]:
        """The same for changes of the weights and all slots; of the slots those go that the weights' largest have."""
        rest: list[list[tf.Tensor]] = [[] for _ in changes]
        for part, *values in zip(self.parts, *(tf.split(change, self.sizes) for change in changes), strict=True):
            chosen = self._largest(values[0])
            encoded = self._chosen(values, chosen)
            with tf.device(part.variable.device):
                self._add_where(accept, part, [self._spread(value, chosen, values[0].shape) for value in encoded])
            for kept, value, sent in zip(rest, values, encoded, strict=True):
                kept.append(value - self._spread(sent, chosen, value.shape))
        return [tf.concat(parts, axis=0) for parts in rest]

    def push_state(self, change: tf.Tensor, accept: tf.Tensor) -> None:
        """Adds what a worker's batches changed of the state, float32 [state]."""
        if not self.state.shape[0]:
            return
        with tf.device(self.state.device):
            self.state.assign_add(tf.where(accept, change, 0.0))

    @staticmethod
    def kept(size: int) -> int:
        """How many of `size` numbers top-k compression sends."""
        return max(1, int(size * KEPT))

    def bytes_pulled(self, with_slots: bool) -> int:
        """By one pull."""
        return self._vectors(with_slots) * self.size * self.pulls.bytes + 4 * int(self.state.shape[0])

    def bytes_pushed(self, with_slots: bool, compressed: bool) -> int:
        """By one push."""
        state = 4 * int(self.state.shape[0])
        vectors = self._vectors(with_slots)
        if compressed:
            return sum(self.kept(size) for size in self.sizes) * (vectors * self.pushes.bytes + 4) + state
        return vectors * self.size * self.pushes.bytes + state

    def _vectors(self, with_slots: bool) -> int:
        return 1 + len(self.optimizer.slots) * int(with_slots)

    def arrays(self) -> dict[str, npt.NDArray[np.float32]]:
        """All that is kept, by name, each in one piece: `weights`, each optimizer slot, `state`."""
        by_name = zip(*(self._variables(part, with_slots=True) for part in self.parts), strict=True)
        arrays = [np.concatenate([variable.numpy() for variable in variables]) for variables in by_name]
        return {**dict(zip(self._names(), arrays, strict=True)), "state": self.state.numpy()}

    def assign(self, arrays: dict[str, npt.NDArray[np.float32]]) -> None:
        """Puts `arrays` back, however many servers there were."""
        cuts = np.cumsum(self.sizes)[:-1]
        by_name = zip(*(self._variables(part, with_slots=True) for part in self.parts), strict=True)
        for name, variables in zip(self._names(), by_name, strict=True):
            for variable, values in zip(variables, np.split(arrays[name], cuts), strict=True):
                variable.assign(values)
        self.state.assign(arrays["state"])

    def _names(self) -> list[str]:
        return ["weights", *(slot.name for slot in self.optimizer.slots)]

    def _variables(self, part: Slotted, with_slots: bool) -> list[tf.Variable]:
        slots = self.optimizer.slots if with_slots else ()
        return [part.variable, *(part.slots[slot.name] for slot in slots)]

    def _largest(self, values: tf.Tensor) -> tf.Tensor:
        """Where the largest of `values`, float32 [n], stand: int32."""
        return tf.math.top_k(tf.abs(values), k=self.kept(int(values.shape[0])), sorted=False).indices

    def _chosen(self, values: Sequence[tf.Tensor], chosen: tf.Tensor) -> list[tf.Tensor]:
        return [self.pushes.encode(tf.gather(value, chosen)) for value in values]

    def _spread(self, encoded: tf.Tensor, chosen: tf.Tensor, shape: tf.TensorShape) -> tf.Tensor:
        return tf.scatter_nd(chosen[:, None], self.pushes.decode(encoded), shape)

    def _part(self, server: int, start: tf.Tensor) -> Slotted:
        with tf.device(device(PARAMETER_SERVER, server)):
            return slotted(self.optimizer, tf.Variable(start, trainable=False))

    def _apply_where(self, accept: tf.Tensor, part: Slotted, gradient: tf.Tensor, rate: tf.Tensor, step: tf.Tensor) -> None:
        def apply() -> tf.Tensor:
            with tf.device(part.variable.device):
                self.optimizer.apply_dense(part, gradient, rate, step)
                return tf.constant(True)

        tf.cond(accept, apply, lambda: tf.constant(False))

    def _add_where(self, accept: tf.Tensor, part: Slotted, changes: Sequence[tf.Tensor]) -> None:
        def add() -> tf.Tensor:
            with tf.device(part.variable.device):
                for variable, change in zip(self._variables(part, with_slots=True), changes, strict=True):
                    variable.assign_add(change)
                return tf.constant(True)

        tf.cond(accept, add, lambda: tf.constant(False))
