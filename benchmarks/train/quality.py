"""How good the trained models are: against the best that is possible, and against training in one process."""

import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from benchmarks.train.child import call
from benchmarks.train.data import bayes_auc
from benchmarks.train.workload import CACHE, ROOT, Workload, pin
from paraserve.components.manifest import read_manifest
from paraserve.components.run_folder import RUN_ID_VARIABLE

MOVIELENS = ROOT / "examples" / "movielens"
SEEDS = (0, 1, 2)
INGEST_SETTINGS = ("shard_rows", "eval_fraction", "test_fraction")


@dataclass(frozen=True, kw_only=True, slots=True)
class Planted:
    """AUC of the test split of the synthetic log."""

    auc: float
    bayes: float
    """What the true probabilities reach."""

    @property
    def share(self) -> float:
        """Of the way from 0.5 to Bayes."""
        return (self.auc - 0.5) / (self.bayes - 0.5)


def planted(workload: Workload, settings: Mapping[str, Any]) -> Planted:
    """Trains ours with these settings on the workload's log, as long as its defaults say."""
    manifest = read_manifest(str(workload.shards))
    auc = call(f"{__name__}:train_planted", workload.to_json(), json.dumps(dict(settings)))
    return Planted(auc=auc, bayes=bayes_auc(manifest, "test"))


def movielens() -> dict[str, float]:
    """Mean AUC over the seeds on MovieLens-100k with the demo's settings: `ours`, and `reference`, in one process."""
    subprocess.run([sys.executable, MOVIELENS / "prepare.py", "--out", ROOT / ".cache" / "movielens"], check=True)
    shards = {seed: _ingested(seed) for seed in SEEDS}
    functions = {"ours": f"{__name__}:train_and_test", "reference": "benchmarks.train.reference:test_auc"}
    return {
        name: statistics.mean(call(function, shards[seed], {**_demo_settings(), "seed": seed}) for seed in SEEDS)
        for name, function in functions.items()
    }


def train_planted(workload: str, settings: str) -> float:
    """In this process: trains on the workload's log; AUC of its test split."""
    from benchmarks.train import ours

    wanted = Workload.from_json(workload)
    pin(wanted.cores)
    return train_and_test(str(wanted.shards), ours.changes(wanted, json.loads(settings)))


def train_and_test(shards: str, settings: Mapping[str, Any]) -> float:
    """In this process: trains as the train step does; AUC of the exported model on the test split."""
    from sklearn.metrics import roc_auc_score

    from paraserve.components.evaluate.predict import predict_test_split
    from paraserve.components.exported import read_description
    from paraserve.components.train.config import TrainConfig
    from paraserve.components.train.job import train

    os.environ[RUN_ID_VARIABLE] = "bench"
    with tempfile.TemporaryDirectory(prefix="paraserve-bench-") as folder:
        model = Path(folder) / "model"
        train(TrainConfig(shards=shards, snapshots=f"{folder}/snapshots", **settings), model, Path(folder) / "logs")
        seen = predict_test_split(model, read_description(str(model)).spec, shards, read_manifest(shards))
    return float(roc_auc_score(seen.labels, seen.probabilities))


def _ingested(seed: int) -> str:
    """Place of MovieLens-100k, split by that seed."""
    from paraserve.components.ingest.config import IngestConfig
    from paraserve.components.ingest.job import ingest

    demo = _demo()
    settings = {name: demo[name] for name in INGEST_SETTINGS if name in demo}
    data, spec = str(ROOT / demo["data"]), str(ROOT / demo["feature_spec"])
    config = IngestConfig(
        data=data, feature_spec=spec, shards=str(CACHE / "movielens"), split_seed=seed, raw_sample_rows=0, **settings
    )
    with tempfile.TemporaryDirectory(prefix="paraserve-bench-") as folder:
        return str(ingest(config, f"{folder}/report"))


def _demo() -> dict[str, Any]:
    settings: dict[str, Any] = yaml.safe_load((MOVIELENS / "params.yaml").read_text())
    return settings


def _demo_settings() -> dict[str, Any]:
    """What the demo's parameters say to the train step."""
    from paraserve.components.train.config import TrainConfig

    return {name: value for name, value in _demo().items() if name in TrainConfig.__dataclass_fields__}
