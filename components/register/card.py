"""The model card: where a version comes from, what it was found to be worth, and how it is called."""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from paraserve.components import exported
from paraserve.components.exported import Description
from paraserve.components.features.spec import FeatureSpec
from paraserve.components.manifest import Manifest

METRICS = ("auc", "logloss", "calibration_error", "examples")


def build_card(description: Description, manifest: Manifest, evaluation: Mapping[str, Any], run_id: str) -> dict[str, Any]:
    """The card of a model (JSON values), but for what the registry adds: name, version, content digest and files.

    Args:
        description: what train wrote into the model.
        manifest: of the data set that it was evaluated on.
        evaluation: what evaluate returned: `metrics`, `reasons`, `thresholds`, `champion` and so on.
    """
    return {
        "registered": datetime.now(UTC).isoformat(timespec="seconds"),
        "run_id": run_id,
        "metrics": evaluation["metrics"],
        "evaluation": {k: v for k, v in evaluation.items() if k not in ("metrics", "champion", "content_digest")},
        "champion": evaluation["champion"],
        "lineage": {
            "training_run_id": description.run_id,
            "training_data_digest": description.data_digest,
            "test_data_digest": manifest.data_digest,
            "test_data_source": manifest.source["pattern"],
            "spec_digest": description.spec.digest,
            "spec": dict(description.spec.source),
            "training": dict(description.training),
            "versions": dict(description.versions),
        },
        "signatures": signatures(description.spec),
    }


def signatures(spec: FeatureSpec) -> dict[str, Any]:
    """Inputs and outputs of a model of this spec, as train exports it (see exported): {signature: {tensor: type}}."""
    outputs = {exported.PROBABILITY: "float32 [examples]"}
    return {
        exported.RAW_SIGNATURE: {"inputs": {f.name: "string [examples]" for f in spec.features}, "outputs": outputs},
        exported.MATRIX_SIGNATURE: {
            "inputs": {
                exported.IDS: f"int64 [examples, {spec.id_width}]",
                exported.DENSE: f"float32 [examples, {len(spec.dense)}]",
            },
            "outputs": outputs,
        },
    }


def to_markdown(card: Mapping[str, Any]) -> str:
    """The card for people: its main facts. What it lacks is left out."""
    lines = [f"# {card['name']} {card['version']}", "", f"Content `{card['content_digest']}`"]
    for title, facts in (
        ("Metrics on the test split", card.get("metrics")),
        ("Champion at that time", card.get("champion")),
        ("Lineage", {k: v for k, v in card.get("lineage", {}).items() if not isinstance(v, Mapping)}),
        ("Training settings", card.get("lineage", {}).get("training")),
        ("Package versions", card.get("lineage", {}).get("versions")),
    ):
        if facts:
            lines += ["", f"## {title}", "", "| what | value |", "| --- | --- |"]
            lines += [f"| {name} | {_cell(value)} |" for name, value in facts.items()]
    reasons = card.get("evaluation", {}).get("reasons", [])
    lines += ["", "## Why the gate let it through", "", *(f"- {reason}" for reason in reasons)] if reasons else []
    return "\n".join(lines) + "\n"


def _cell(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value).replace("|", "\\|").replace("\n", " ")
