"""A small packed data set with a planted signal, and a way to train on it in a process of its own."""

import concurrent.futures
import dataclasses
import gzip
import json
import multiprocessing
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from paraserve.components import storage
from paraserve.components.features.keys import key_of
from paraserve.components.features.spec import parse_spec
from paraserve.components.features.transforms import Moments
from paraserve.components.manifest import FILE, Manifest, Shard, Split, read_manifest
from paraserve.components.records import Block, Layout, write_shard
from paraserve.components.run_folder import RUN_ID_VARIABLE

SPEC = {
    "label": {"column": "click", "positive_at_least": 1},
    "dense": {"price": {"transforms": ["log1p", "standardise"]}},
    "categorical": {
        "user": {"dimension": 8, "rows": 64, "values": None},
        "item": {"dimension": 8, "rows": 64},
    },
    "lists": {
        "tags": {"dimension": 8, "rows": 16, "max_length": 4},
        "history": {"dimension": 8, "rows": 64, "table": "item", "pooling": "sum", "max_length": 3},
    },
}


def _examples(rows: int, seed: int) -> tuple[Block, list[dict[str, str]]]:
    """A click is likely when user and item numbers have the same parity: only the embeddings' interaction tells."""
    rng = np.random.default_rng(seed)
    user, item = rng.integers(0, 20, rows), rng.integers(0, 30, rows)
    tags = [rng.integers(0, 8, rng.integers(0, 5)) for _ in range(rows)]
    history = [rng.integers(0, 30, rng.integers(0, 4)) for _ in range(rows)]
    price = rng.integers(0, 1000, rows).astype(np.float32)
    price[rng.random(rows) < 0.05] = np.nan
    labels = (rng.random(rows) < np.where((user + item) % 2 == 0, 0.9, 0.1)).astype(np.float32)
    raw = [
        {
            "price": "" if np.isnan(price[i]) else str(int(price[i])),
            "user": str(user[i]),
            "item": str(item[i]),
            "tags": "|".join(map(str, tags[i])),
            "history": "|".join(map(str, history[i])),
        }
        for i in range(rows)
    ]
    ids = np.array([[key_of("user", r["user"]), key_of("item", r["item"])] for r in raw])
    lists = tuple(
        (np.array([len(v) for v in values], np.int32), np.array([key_of(salt, str(x)) for v in values for x in v], np.int64))
        for salt, values in (("tags", tags), ("item", history))
    )
    return Block(labels=labels, dense=price[:, None], ids=ids, lists=lists), raw


@pytest.fixture(scope="session")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A packed data set: 3,000 train rows in 6 shards, 600 eval rows in 2, 600 test rows in 1; 200 raw rows."""
    folder = tmp_path_factory.mktemp("packed")
    spec = parse_spec(SPEC)
    splits, moments, sample = {}, {}, []
    for seed, (name, rows, shard_rows) in enumerate([("train", 3000, 500), ("eval", 600, 300), ("test", 600, 600)]):
        block, raw = _examples(rows, seed)
        shards = []
        for start in range(0, rows, shard_rows):
            part, path = block.rows(start, start + shard_rows), folder / f"{name}-{start // shard_rows:05d}.records"
            write_shard(path, part, Layout.of(spec), block_rows=128)
            shards.append(Shard(file=path.name, rows=len(part), bytes=path.stat().st_size, sha256=storage.sha256_of(path)))
        splits[name] = Split(rows=rows, positives=int(block.labels.sum()), shards=tuple(shards))
        if name == "train":
            moments["price"] = Moments.of(np.log1p(block.dense[:, 0]))
        if name == "eval":
            sample = raw[:200]
    lines = "\n".join(json.dumps(row) for row in sample)
    (folder / "raw_eval.jsonl.gz").write_bytes(gzip.compress(lines.encode()))
    manifest = Manifest(
        spec=spec,
        moments=moments,
        splits=splits,
        data_digest="planted",
        source={},
        rows_read=4200,
        rows_bad=0,
        bad_by_reason={},
        settings={},
        raw_sample={"file": "raw_eval.jsonl.gz", "rows": len(sample)},
    )
    (folder / FILE).write_bytes(manifest.to_json())
    return folder


class Training:
    """Trains in a process of its own: TensorFlow connects to a cluster once in a process's life.

    The processes are forked from a server that has imported TensorFlow and run nothing.
    """

    def __init__(self, packed: Path, folder: Path):
        self.packed, self.folder = packed, folder
        self.model, self.logs, self.snapshots = folder / "model", folder / "logs", folder / "snapshots"
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload(["paraserve.components.train.job"])

    def settings(self, **settings: Any) -> dict[str, Any]:
        small = {
            "batch_size": 100,
            "exchange_steps": 1,
            "learning_rate": 0.3,
            "hidden_units": "16",
            "embedding_init": 0.1,
            "epochs": 3,
        }
        return {"shards": str(self.packed), "snapshots": str(self.snapshots), **small, **settings}

    def make_dynamic(self, **tables: dict[str, Any]) -> None:
        """Trains from now on with dynamic tables: `max_keys` 1000 each, and what `tables` says of them."""
        copy = self.folder / "dynamic"
        shutil.copytree(self.packed, copy)
        manifest = read_manifest(str(copy))
        spec = json.loads(json.dumps(manifest.spec.source))
        columns = {**spec["categorical"], **spec["lists"]}
        for name, owner in {"user": "user", "item": "item", "tags": "tags", "history": "item"}.items():
            columns[name] |= {"rows": 0, "max_keys": 1000, **tables.get(owner, {})}
        (copy / FILE).write_bytes(dataclasses.replace(manifest, spec=parse_spec(spec)).to_json())
        self.packed = copy

    def start(self, run_id: str = "run", **settings: Any) -> "concurrent.futures.Future[Any]":
        """Starts a training; the future's result is its TrainResult."""
        pool = concurrent.futures.ProcessPoolExecutor(1, mp_context=self._context)
        future = pool.submit(_train, run_id, self.settings(**settings), self.model, self.logs)
        pool.shutdown(wait=False)
        return future

    def run(self, run_id: str = "run", **settings: Any) -> Any:
        """Trains to the end."""
        return self.start(run_id, **settings).result(timeout=240)

    def call(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Calls a function in such a process."""
        with concurrent.futures.ProcessPoolExecutor(1, mp_context=self._context) as pool:
            future = pool.submit(function, *arguments)
            try:
                return future.result(timeout=240)
            except TimeoutError:
                for process in pool._processes.values():
                    process.kill()  # else the pool would wait for it, and so would the test
                raise

    def with_trainer(self, function: Callable[..., Any], *arguments: Any, **settings: Any) -> Any:
        """Calls `function(trainer, cluster, paths, *arguments)` in such a process: a trainer on servers of its own, and the
        train shards. The function is one of a module; see `trainers`."""
        return self.call(_with_trainer, function, self.settings(**settings), arguments)


def _with_trainer(function: Callable[..., Any], settings: dict[str, Any], arguments: tuple[Any, ...]) -> Any:
    from tests.components.train.trainers import with_trainer

    return with_trainer(function, settings, arguments)


def _train(run_id: str, settings: dict[str, Any], model: Path, logs: Path) -> Any:
    from paraserve.components.train.config import TrainConfig
    from paraserve.components.train.job import train

    os.environ[RUN_ID_VARIABLE] = run_id
    tempfile.tempdir = str(model.parent)  # tells this training's servers from others' by their log files
    return train(TrainConfig(**settings), model, logs)


@pytest.fixture
def training(packed: Path, tmp_path: Path) -> Training:
    return Training(packed, tmp_path)
