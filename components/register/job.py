"""The register step: an evaluated model becomes an immutable version and the candidate."""

import json
from pathlib import Path
from typing import Any

from paraserve.components.exported import read_description
from paraserve.components.manifest import read_manifest
from paraserve.components.register.card import build_card
from paraserve.components.register.config import RegisterConfig
from paraserve.components.register.content import content_digest
from paraserve.components.register.registry import RegisteredVersion, Registry


def register_model(config: RegisterConfig) -> RegisteredVersion:
    """Registers a model that the gate let through; a repeat finds the version again.

    Raises:
        ValueError: the evaluation is of another model, or rejected it; the folder is no exported model; no data set.
        OSError: the registry cannot be written.
    """
    registry = Registry(config.registry)
    evaluation = _checked_evaluation(config)
    description = read_description(config.model)
    card = build_card(description, read_manifest(config.shards), evaluation, config.run_id)
    return registry.register(config.model_name, Path(config.model), card, config.run_id)


def _checked_evaluation(config: RegisterConfig) -> dict[str, Any]:
    try:
        evaluation: dict[str, Any] = json.loads(config.evaluation)
        decision, digest = evaluation["decision"], evaluation["content_digest"]
    except (ValueError, TypeError, KeyError) as error:
        raise ValueError(f"`evaluation` is not what evaluate returns ({error!r}); pass its output `evaluation`") from error
    if decision != "promote":
        reasons = "; ".join(evaluation.get("reasons", []))
        raise ValueError(f"the gate decided '{decision}' ({reasons}); register only what it promotes")
    if digest != content_digest(Path(config.model)):
        raise ValueError(f"the evaluation is of another model ({digest}) than {config.model}; evaluate this one first")
    return evaluation
