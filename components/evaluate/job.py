"""The evaluate step: a model, as exported, on the test split, against the champion."""

from pathlib import Path

from paraserve.components import storage
from paraserve.components.evaluate.config import EvaluateConfig
from paraserve.components.evaluate.evaluation import Evaluation
from paraserve.components.evaluate.gate import Champion, decide
from paraserve.components.evaluate.matrices import differences
from paraserve.components.evaluate.metrics import Probabilities, score, usable
from paraserve.components.evaluate.predict import predict_test_split
from paraserve.components.evaluate.report import render
from paraserve.components.evaluate.slices import check_columns, read_names, score_slices
from paraserve.components.exported import Description, read_description
from paraserve.components.manifest import Manifest, read_manifest
from paraserve.components.register.audit import CHAMPION
from paraserve.components.register.content import content_digest
from paraserve.components.register.registry import Registry


def evaluate_model(config: EvaluateConfig) -> Evaluation:
    """Evaluates a model and writes the report.

    Raises ValueError when the model was made for other columns than the data holds, when the test split holds one label only,
    or when a slice column is unknown.
    """
    manifest, description = read_manifest(config.shards), read_description(config.model)
    check_columns(config.slice_columns, manifest.spec)
    if wrong := differences(description.spec, manifest.spec):
        raise ValueError(f"the model cannot be judged on {config.shards}: {'; '.join(wrong)}; train it on this data")
    evaluation = _evaluate(config, description, manifest)
    storage.write_bytes(config.report, render(evaluation).encode())
    return evaluation


def _evaluate(config: EvaluateConfig, description: Description, manifest: Manifest) -> Evaluation:
    names = read_names(config.shards, config.slice_columns)
    model = Path(config.model)
    seen = predict_test_split(model, description.spec, config.shards, manifest, config.slice_columns)
    probabilities, scores, digest = usable(seen.probabilities), score(seen.labels, seen.probabilities), content_digest(model)
    champion, champion_probabilities = _judge_champion(config, manifest, digest)
    return Evaluation(
        model_name=config.model_name,
        gate=decide(scores, champion, config.thresholds),
        labels=seen.labels,
        probabilities=probabilities,
        scores=scores,
        champion=champion,
        champion_probabilities=champion_probabilities,
        slices=score_slices(seen.labels, probabilities, seen.keys, names),
        thresholds=config.thresholds,
        description=description,
        manifest=manifest,
        content_digest=digest,
    )


def _judge_champion(
    config: EvaluateConfig, manifest: Manifest, candidate_digest: str
) -> tuple[Champion | None, Probabilities | None]:
    """The champion on the same examples, with its predictions where it could make any."""
    registry = Registry(config.registry)
    version = registry.aliases(config.model_name).get(CHAMPION)
    if version is None:
        return None, None
    if registry.card(config.model_name, version)["content_digest"] == candidate_digest:
        return Champion(version=version, same=True), None
    place = registry.get(config.model_name, version).saved_model
    spec = read_description(place).spec
    if wrong := differences(spec, manifest.spec):
        return Champion(version=version, differences=wrong), None
    with storage.local_folder(place) as folder:
        seen = predict_test_split(folder, spec, config.shards, manifest)
    return Champion(version=version, scores=score(seen.labels, seen.probabilities)), usable(seen.probabilities)
