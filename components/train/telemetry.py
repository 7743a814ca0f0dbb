"""What people watch while a model trains: TensorBoard logs and a progress bar."""

import sys
from collections.abc import Mapping
from pathlib import Path

import tensorflow as tf
from tqdm import tqdm

from paraserve.components.train.embedding.table import Stack
from paraserve.components.train.step import Trainer

SAMPLE_ROWS = 10_000
"""Rows of a stack that go into its histogram."""


class Telemetry:
    """Writes TensorBoard event files to a folder and draws the bar; a context manager that ends both."""

    def __init__(self, logs: Path, settings: Mapping[str, object], rows: int):
        self._writer = tf.summary.create_file_writer(str(logs))
        with self._writer.as_default(step=0):
            tf.summary.text("settings", "\n".join(f"- {name}: {value}" for name, value in settings.items()))
        # Into a log file a line now and then, on a terminal a living bar.
        seconds = 0.2 if sys.stderr.isatty() else 5.0
        self._bar = tqdm(total=rows, unit=" examples", unit_scale=True, mininterval=seconds, dynamic_ncols=True)

    def __enter__(self) -> "Telemetry":
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.close()
        self._writer.close()

    def shard(self, step: int, rows: int, loss: float, learning_rate: float) -> None:
        """A shard is trained: `loss` is its mean log loss, `step` the run's step where it began."""
        self._bar.update(rows)
        self._bar.set_postfix(loss=f"{loss:.4f}", refresh=False)
        with self._writer.as_default(step=step):
            tf.summary.scalar("train/loss", loss)
            tf.summary.scalar("train/learning_rate", learning_rate)

    def epoch(self, epoch: int, step: int, figures: Mapping[str, float], trainer: Trainer) -> None:
        """An epoch is trained and evaluated."""
        self._bar.write(
            f"epoch {epoch}: log loss {figures['loss']:.4f}, AUC {figures['auc']:.4f}; "
            f"on eval {figures['eval_loss']:.4f}, {figures['eval_auc']:.4f}"
        )
        with self._writer.as_default(step=step):
            tf.summary.scalar("train/auc", figures["auc"])
            tf.summary.scalar("eval/loss", figures["eval_loss"])
            tf.summary.scalar("eval/auc", figures["eval_auc"])
            for variable in trainer.model.trainable_variables:
                tf.summary.histogram(f"model/{variable.name}", variable)
            for stack in trainer.stacks:
                tf.summary.histogram(f"{stack.layout.name}/rows", _sample(stack))
        self._writer.flush()


def _sample(stack: Stack) -> tf.Tensor:
    each = SAMPLE_ROWS // len(stack.shards)
    return tf.concat([shard.variable[:each] for shard in stack.shards], axis=0)
