"""What a worker runs: whole shards, read, pulled, computed and pushed inside one TensorFlow function.

A worker *exchanges* with the servers at each batch, or once for several (`exchange_steps`). Since a shard's ids are known
ahead, the rows that any of the batches needs are pulled together, each once: rows of frequent ids, which most batches want,
travel once instead of many times (the lookahead cache of BagPipe, Agarwal et al., 2023, https://arxiv.org/abs/2202.12429).

With one batch an exchange, its gradients are pushed, and the servers apply the optimizer. With several, the worker holds rows,
weights and the optimizer's slots, and applies the optimizer to them batch after batch, so that each batch sees what those
before it learned; then it pushes what changed, which the servers add to whatever others changed meanwhile (local steps: Stich,
2019, https://arxiv.org/abs/1805.09767). Nothing is held when the call returns.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import tensorflow as tf

from paraserve.components.records import read_shard_graph
from paraserve.components.train.curves import BINS, bin_counts
from paraserve.components.train.dense import DenseWeights
from paraserve.components.train.embedding.layout import IndexedPlaces
from paraserve.components.train.embedding.table import Group, Pulled, Want
from paraserve.components.train.network import Network
from paraserve.components.train.on_worker import WorkerRows, WorkerWeights
from paraserve.components.train.optimizers import apply_held
from paraserve.components.train.schedules import learning_rate
from paraserve.components.train.staleness import BINS as STALENESS_BINS
from paraserve.components.train.staleness import Clock, Permits

UNROLLED = 2
"""Exchanges in one round of the graph's loop. Each round costs messages between worker and servers, and each exchange that is
unrolled time to make the graph ready."""
Totals = dict[str, tf.Tensor]
OnWorker = tuple[WorkerWeights, Sequence[WorkerRows]]


@dataclass(frozen=True, kw_only=True)
class Exchange:
    """Several batches of one worker, between a pull and a push."""

    examples: Mapping[str, tf.Tensor]
    """`records.read_shard_graph`'s tensors, of all batches."""
    wants: Sequence[Want]
    """For each group."""
    first_step: tf.Tensor
    """int64 scalar: the run's step that its first batch is."""
    steps: tf.Tensor
    """int64 scalar: how many batches there are; the last exchange of a shard is not full."""


@dataclass(frozen=True, kw_only=True)
class Held:
    """What a worker pulled for an exchange."""

    at: tf.Tensor
    """int64 scalar: the servers' steps by then."""
    permit: tf.Tensor | None
    waited: tf.Tensor
    """bool scalar."""
    weights: Sequence[tf.Tensor]
    """float32 [weights]: the weights; where the worker applies the optimizer, also each slot."""
    state: tf.Tensor
    groups: Sequence[Pulled]


@dataclass(frozen=True, kw_only=True)
class Learned:
    """What an exchange's batches came to."""

    loss: tf.Tensor
    counts: tf.Tensor
    """`curves.bin_counts`."""
    weights: Sequence[tf.Tensor]
    """float32 [weights]: the gradient; or the changes of `Held.weights`."""
    rows: Sequence[Sequence[tf.Tensor]]
    """For each group float32 [n, width]: the gradient; or the changes of `Pulled.parts`."""


class ShardFunctions:
    """The functions that workers run, over the network's weights and the tables on the servers."""

    def __init__(self, network: Network, dense: DenseWeights, groups: Sequence[Group], planned_steps: int):
        self.network, self.dense, self.groups = network, dense, groups
        self.config, self.manifest, self.planned_steps = network.config, network.manifest, planned_steps
        self.clock = Clock(self.config.staleness_bound if self.config.staleness_action == "refuse" else 0)
        holds = self.config.staleness_action == "hold"
        self.permits = Permits(self.config.staleness_bound, self.config.exchange_steps) if holds else None
        # A held worker may not hold one permit while it waits for the next.
        self.overlap = self.config.overlap and not holds
        self.local = self.config.exchange_steps > 1

    def train(self, path: tf.Tensor, first_step: tf.Tensor, holder: tf.Tensor, compressed: bool) -> Totals:
        """Trains on the shard at `path`, a string scalar, whose first batch is the run's step `first_step`, int64.

        `holder`, int64, tells this call from all others.
        """
        shard = read_shard_graph(path, self.manifest.layout)
        weights = self.network.on_worker(self.dense.optimizer.slots if self.local else ())
        rows = [self._rows_on_worker(group) for group in self.groups]
        examples = tf.shape(shard["labels"])[0]
        per_exchange = self.config.exchange_steps * self.config.batch_size
        exchanges = -(-examples // per_exchange)

        def round_of(begin: tf.Tensor, totals: Totals, residual: tf.Tensor) -> tuple[tf.Tensor, Totals, tf.Tensor]:
            numbers = [begin + number for number in range(UNROLLED)]
            todo = [self._exchange(shard, number * per_exchange, first_step) for number in numbers]
            held = self._pull(todo[0], holder)
            for number, exchange in enumerate(todo):
                last = number + 1 == UNROLLED
                # Pulled before this one's push in the program, so that neither waits for the other.
                ahead = self._pull(todo[number + 1], holder) if self.overlap and not last else None
                news, residual = self._learn_and_push(exchange, held, (weights, rows), number, residual, compressed)
                totals = {name: totals[name] + news[name] for name in totals}
                if not last:
                    held = ahead or self._pull(todo[number + 1], holder)
            return begin + UNROLLED, totals, residual

        vectors = 1 + len(self.dense.optimizer.slots) * int(self.local)
        residual = tf.zeros([vectors, self.dense.size if compressed else 0])
        _, totals, residual = tf.while_loop(
            lambda begin, *_: begin < exchanges,
            round_of,
            (tf.constant(0), self._no_totals(), residual),
            parallel_iterations=1,
        )
        if compressed:
            # A worker keeps nothing when it is idle.
            last_step = first_step + tf.cast(examples // self.config.batch_size, tf.int64)
            self._push_weights(tf.unstack(residual), last_step, tf.constant(True))
        return {**totals, "examples": tf.cast(examples, tf.int64), "distinct": self._distinct(shard)}

    def evaluate(self, path: tf.Tensor) -> Totals:
        """The same without training: `loss` and `counts`."""
        shard = read_shard_graph(path, self.manifest.layout)
        weights = self.network.on_worker()
        examples, size = tf.shape(shard["labels"])[0], self.config.batch_size * self.config.exchange_steps
        # Nobody trains meanwhile, so that one pull will do.
        weights.assign(*self.dense.pull(training=False, with_slots=False))

        def batch_of(start: tf.Tensor, loss: tf.Tensor, counts: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
            batch = _slice(shard, start, size)
            logits = self._logits(batch, weights)
            loss += tf.reduce_sum(tf.nn.sigmoid_cross_entropy_with_logits(batch["labels"], logits))
            return start + size, loss, counts + bin_counts(logits, batch["labels"])

        _, loss, counts = tf.while_loop(
            lambda start, *_: start < examples,
            batch_of,
            (tf.constant(0), tf.constant(0.0), tf.zeros([2, BINS], tf.int64)),
            parallel_iterations=1,
        )
        return {"loss": loss, "counts": counts, "examples": tf.cast(examples, tf.int64)}

    def predict(self, path: tf.Tensor) -> tf.Tensor:
        """Probabilities of a shard's examples, float32 [examples]."""
        weights = self.network.on_worker()
        weights.assign(*self.dense.pull(training=False, with_slots=False))
        return tf.sigmoid(self._logits(read_shard_graph(path, self.manifest.layout), weights))

    def _rate(self, step: tf.Tensor) -> tf.Tensor:
        return learning_rate(self.config, step, self.planned_steps)

    def _logits(self, batch: Mapping[str, tf.Tensor], weights: WorkerWeights) -> tf.Tensor:
        values = []
        for group in self.groups:
            places = group.layout.places(batch["ids"], self.network.spec)
            want = group.want(places)
            pulled = group.pull(want, tf.constant(0, tf.int64), training=False, with_slots=False)
            values.append(want.places.values(_taker(pulled.rows)))
        return self.network.logits(weights, values, batch["dense"])

    def _exchange(self, shard: Mapping[str, tf.Tensor], start: tf.Tensor, first_step: tf.Tensor) -> Exchange:
        size = self.config.batch_size
        examples = _slice(shard, start, size * self.config.exchange_steps)
        wants = [group.want(group.layout.places(examples["ids"], self.network.spec)) for group in self.groups]
        return Exchange(
            examples=examples,
            wants=wants,
            first_step=first_step + tf.cast(start // size, tf.int64),
            steps=tf.cast(-(-tf.size(examples["labels"]) // size), tf.int64),
        )

    def _pull(self, exchange: Exchange, holder: tf.Tensor) -> Held:
        permit, waited = self.permits.take(holder) if self.permits else (None, tf.constant(False))
        with tf.control_dependencies([] if permit is None else [permit]):
            at = self.clock.now()
            weights, state = self.dense.pull(training=True, with_slots=self.local)
            groups = [
                group.pull(want, exchange.first_step, training=True, with_slots=self.local)
                for group, want in zip(self.groups, exchange.wants, strict=True)
            ]
        return Held(at=at, permit=permit, waited=waited, weights=weights, state=state, groups=groups)

    def _learn_and_push(
        self, exchange: Exchange, held: Held, on_worker: OnWorker, copy: int, residual: tf.Tensor, compressed: bool
    ) -> tuple[Totals, tf.Tensor]:
        weights, _ = on_worker
        weights.assign(held.weights, held.state)
        learn = self._learn_locally if self.local else self._gradient
        learned = learn(exchange, held, on_worker, copy)
        change = weights.state() - held.state
        sound = _finite([*learned.weights, change, *(part for parts in learned.rows for part in parts)])
        # At a shard's end an exchange may have no batch. That is no step: Adam would make one of zeros, too.
        arrival = self.clock.arrive(held.at, exchange.steps, sound & (exchange.steps > 0))
        accept = arrival.accept
        if compressed:
            residual = self._push_largest(learned.weights, exchange.first_step, accept, sound, residual)
        else:
            self._push_weights(learned.weights, exchange.first_step, accept)
        self.dense.push_state(change, accept)
        sent = [
            self._push_rows(group, want, pulled, parts, exchange.first_step, accept)
            for group, want, pulled, parts in zip(self.groups, exchange.wants, held.groups, learned.rows, strict=True)
        ]
        if self.permits and held.permit is not None:
            with tf.control_dependencies([accept, *sent]):
                self.permits.give_back(held.permit)
        bins = tf.one_hot(tf.minimum(arrival.staleness, STALENESS_BINS - 1), STALENESS_BINS, dtype=tf.int64)
        none = tf.constant(0, tf.int64)
        return {
            "loss": tf.where(sound, learned.loss, 0.0),
            "counts": learned.counts,
            "steps": exchange.steps,
            "exchanges": tf.minimum(exchange.steps, 1),
            "refused": tf.where(sound & ~accept, exchange.steps, none),
            "dropped": tf.where(sound, none, exchange.steps),
            "held": tf.cast(held.waited, tf.int64),
            "staleness": bins * tf.minimum(exchange.steps, 1),
            "pulled": tf.concat([none[None][:0], *(want.rows_of_table for want in exchange.wants)], axis=0),
            "pushed": tf.concat([none[None][:0], *sent], axis=0),
        }, residual

    def _gradient(self, exchange: Exchange, held: Held, on_worker: OnWorker, copy: int) -> Learned:
        """The gradients of the one batch that the exchange has."""
        batch, (weights, _), places = exchange.examples, on_worker, _places(exchange, held)
        values = [of_group.values(_taker(pulled.rows)) for of_group, pulled in zip(places, held.groups, strict=True)]
        computed = self.network.gradient(weights, values, batch["dense"], batch["labels"], copy)
        rows = [
            [tf.math.unsorted_segment_sum(of_group.flat_gradient(gradients), of_group.flat(), tf.shape(pulled.rows)[0])]
            for of_group, gradients, pulled in zip(places, computed.places, held.groups, strict=True)
        ]
        flat = self.network.weights.join(computed.weights)
        return Learned(loss=computed.losses, counts=bin_counts(computed.logits, batch["labels"]), weights=[flat], rows=rows)

    def _learn_locally(self, exchange: Exchange, held: Held, on_worker: OnWorker, copy: int) -> Learned:
        """Trains what is held, batch after batch, in a loop that has nothing to do with servers, and so costs little."""
        size, examples = self.config.batch_size, tf.size(exchange.examples["labels"])
        weights, rows = on_worker
        for targets, pulled in zip(rows, held.groups, strict=True):
            targets.assign(pulled.parts)
        of_exchange = _places(exchange, held)

        def batch(start: tf.Tensor, loss: tf.Tensor, counts: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
            stop = tf.minimum(start + size, examples)
            places = [of_group.between(start, stop) for of_group in of_exchange]
            values = [of_group.values(targets.gather) for of_group, targets in zip(places, rows, strict=True)]
            part = _slice(exchange.examples, start, size)
            computed = self.network.gradient(weights, values, part["dense"], part["labels"], copy)
            step = exchange.first_step + tf.cast(start // size, tf.int64)
            rate = self._rate(step)
            for target, gradient in zip(weights.targets, computed.weights, strict=True):
                self.dense.optimizer.apply_dense(target, gradient, rate, step)
            of_groups = zip(self.groups, places, computed.places, held.groups, rows, strict=True)
            for group, of_group, gradients, pulled, targets in of_groups:
                flat, count = of_group.flat_gradient(gradients), tf.shape(pulled.rows)[0]
                gradient = tf.math.unsorted_segment_sum(flat, of_group.flat(), count)
                apply_held(group.optimizer, targets.target, gradient, rate, step)
            return start + size, loss + computed.losses, counts + bin_counts(computed.logits, part["labels"])

        _, loss, counts = tf.while_loop(
            lambda start, *_: start < examples,
            batch,
            (tf.constant(0), tf.constant(0.0), tf.zeros([2, BINS], tf.int64)),
            parallel_iterations=1,
        )
        return Learned(
            loss=loss,
            counts=counts,
            weights=[now - before for now, before in zip(weights.parts(), held.weights, strict=True)],
            rows=[
                [now - before for now, before in zip(targets.parts(), pulled.parts, strict=True)]
                for targets, pulled in zip(rows, held.groups, strict=True)
            ],
        )

    def _push_weights(self, parts: Sequence[tf.Tensor], step: tf.Tensor, accept: tf.Tensor) -> None:
        if self.local:
            self.dense.add(parts, accept)
        else:
            self.dense.push(parts[0], self._rate(step), step, accept)

    def _push_largest(
        self, parts: Sequence[tf.Tensor], step: tf.Tensor, accept: tf.Tensor, sound: tf.Tensor, residual: tf.Tensor
    ) -> tf.Tensor:
        """Returns the new residual."""
        whole = tf.unstack(tf.where(sound, tf.stack(parts), 0.0) + residual)
        if self.local:
            rest = self.dense.add_largest(whole, accept)
        else:
            rest = [self.dense.push_largest(whole[0], self._rate(step), step, accept)]
        # Of what is refused nothing is kept for later either.
        return tf.where(accept, tf.stack(rest), residual)

    def _push_rows(
        self, group: Group, want: Want, pulled: Pulled, parts: Sequence[tf.Tensor], step: tf.Tensor, accept: tf.Tensor
    ) -> tf.Tensor:
        if self.local:
            return group.add(want, pulled, parts, accept)
        return group.push(want, pulled, parts[0], self._rate(step), step, accept)

    def _rows_on_worker(self, group: Group) -> WorkerRows:
        return WorkerRows(group.layout.width, group.optimizer.slots if self.local else ())

    def _no_totals(self) -> Totals:
        none = tf.constant(0, tf.int64)
        tables = tf.zeros([sum(len(group.layout.tables) for group in self.groups)], tf.int64)
        return {
            "loss": tf.constant(0.0),
            "counts": tf.zeros([2, BINS], tf.int64),
            **dict.fromkeys(("steps", "exchanges", "refused", "dropped", "held"), none),
            "staleness": tf.zeros([STALENESS_BINS], tf.int64),
            "pulled": tables,
            "pushed": tables,
        }

    def _distinct(self, shard: Mapping[str, tf.Tensor]) -> tf.Tensor:
        """int64 scalar: the distinct rows that the shard's first batch wants; what it would pull without the cache."""
        ids = _slice(shard, tf.constant(0), self.config.batch_size)["ids"]
        wanted = [tf.unique(group.layout.places(ids, self.network.spec).numbers)[0] for group in self.groups]
        return tf.add_n([tf.constant(0, tf.int64), *(tf.size(rows, tf.int64) for rows in wanted)])


def _slice(shard: Mapping[str, tf.Tensor], start: tf.Tensor, size: int) -> dict[str, tf.Tensor]:
    return {name: values[start : start + size] for name, values in shard.items()}


def _places(exchange: Exchange, held: Held) -> list[IndexedPlaces]:
    """For each group which of the pulled rows each place learns."""
    pairs = zip(exchange.wants, held.groups, strict=True)
    return [want.places if pulled.learner is None else want.places.at(pulled.learner) for want, pulled in pairs]


def _taker(rows: tf.Tensor) -> Callable[[tf.Tensor], tf.Tensor]:
    return lambda index: tf.gather(rows, index)


def _finite(tensors: Sequence[tf.Tensor]) -> tf.Tensor:
    """bool scalar: whether no number is NaN or infinite; of their sums, which are both if any number is."""
    return tf.reduce_all([tf.math.is_finite(tf.reduce_sum(tensor)) for tensor in tensors])
