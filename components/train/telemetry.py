"""What people watch while a model trains: TensorBoard logs and a progress bar."""

import sys
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import tensorflow as tf
from tqdm import tqdm

from paraserve.components.train.embedding import state
from paraserve.components.train.exchanged import Exchanged
from paraserve.components.train.trainer import Trainer

SAMPLE_ROWS = 10_000
"""Rows of a group that go into its histogram."""


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

    def epoch(self, epoch: int, step: int, figures: Mapping[str, float], exchanged: Exchanged, trainer: Trainer) -> None:
        """An epoch is trained and evaluated; `exchanged` are its exchanges."""
        self._bar.write(
            f"epoch {epoch}: log loss {figures['loss']:.4f}, AUC {figures['auc']:.4f}; "
            f"on eval {figures['eval_loss']:.4f}, {figures['eval_auc']:.4f}"
        )
        with self._writer.as_default(step=step):
            tf.summary.scalar("train/auc", figures["auc"])
            tf.summary.scalar("eval/loss", figures["eval_loss"])
            tf.summary.scalar("eval/auc", figures["eval_auc"])
            for variable in trainer.local_model().trainable_variables:
                tf.summary.histogram(f"model/{variable.name}", variable)
            for group in trainer.groups:
                tf.summary.histogram(f"{group.layout.name}/rows", state.sample(group, SAMPLE_ROWS))
            self._exchanged(exchanged)
        self._writer.flush()

    def _exchanged(self, exchanged: Exchanged) -> None:
        for name, value in exchanged.figures().items():
            tf.summary.scalar(f"exchange/{name}", value)
        for table, ways in exchanged.bytes_by_table().items():
            for way, count in ways.items():
                tf.summary.scalar(f"bytes_{way}/{table}", count)
        # As many of each as there were, up to a number that a histogram is none the worse for.
        counts = exchanged.staleness
        shares = np.ceil(counts * min(1.0, SAMPLE_ROWS / max(int(counts.sum()), 1))).astype(np.int64)
        tf.summary.histogram("exchange/staleness", np.repeat(np.arange(len(counts)), shares))
