"""What can be found wrong with a run's parameters before anything starts."""

import dataclasses
import importlib.util
import tempfile
import zlib
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from paraserve.components import storage
from paraserve.components.deploy.config import DeployConfig, RolloutConfig, parse_steps
from paraserve.components.evaluate.config import EvaluateConfig, Thresholds, columns_of
from paraserve.components.features.spec import load_spec
from paraserve.components.ingest.config import IngestConfig
from paraserve.components.ingest.readers import find_sources
from paraserve.components.train.config import TrainConfig, check_model_fits
from paraserve.pipelines.workdir import PLACES

_NEEDED = {"tensorflow": "tensorflow", "tf_keras": "tensorflow", "tensorflow_serving": "serving", "grpc": "serving"}
"""Modules that the steps import on this machine, and the extra of the package that brings each."""

MANIFEST = "manifest.json"
"""Of a snapshot (see train.snapshot, which imports TensorFlow)."""


def check(values: Mapping[str, Any]) -> None:
    """Raises ValueError, with the remedy, for the first thing that would make a run on this machine fail at once.

    `values` are all parameters by name. What costs time or needs a remote store is left to the steps.
    """
    _check_installed()
    ingest, slices = _check_settings(values)
    _check_inputs(values, ingest, slices)
    _check_model(values["model"])
    _check_snapshot(values["resume_from"])
    for name in PLACES:
        _check_writable(name, values[name])
    if values["target"] == "local":
        _check_endpoint(values)


def _check_installed() -> None:
    extras = sorted({extra for module, extra in _NEEDED.items() if importlib.util.find_spec(module) is None})
    if extras:
        raise ValueError(f"running the steps here needs more packages; pip install 'paraserve[{','.join(extras)}]'")


def _check_settings(values: Mapping[str, Any]) -> tuple[IngestConfig, tuple[str, ...]]:
    """Builds the configurations that the steps will build; they hold the checks. Returns what `_check_inputs` takes."""
    ingest: IngestConfig = _build(IngestConfig, values)
    _build(TrainConfig, values)
    slices = columns_of(values["slice_columns"])
    _build(EvaluateConfig, values, thresholds=_build(Thresholds, values), slice_columns=slices)
    steps = parse_steps(values["canary_steps"])
    _build(DeployConfig, values, rollout=_build(RolloutConfig, values, canary_steps=steps))
    if values["target"] == "kserve" and not values["kserve_namespace"]:
        raise ValueError("`target` is kserve, and `kserve_namespace` is empty; name the InferenceService's namespace")
    return ingest, slices


def _build(config: type[Any], values: Mapping[str, Any], **others: Any) -> Any:
    """A config from the parameters that it has; what only the run will know gets a stand-in."""
    fields = {field.name: field for field in dataclasses.fields(config)}
    known = {name: values[name] for name in fields if name in values}
    unknown = {name: "later" for name, field in fields.items() if name not in known and field.default is dataclasses.MISSING}
    return config(**{**unknown, **known, **others})


def _check_inputs(values: Mapping[str, Any], ingest: IngestConfig, slices: Collection[str]) -> None:
    """The spec, and the log's first lines against it."""
    try:
        spec = load_spec(values["feature_spec"])
    except OSError as error:
        raise ValueError(f"cannot read the feature spec: {error}; correct `feature_spec`") from error
    check_model_fits(values["model"], spec)
    if ingest.split == "time" and not spec.time:
        raise ValueError("`split` is time, but the feature spec names no time column; add `time: COLUMN`, or split at random")
    known = [column.name for column in spec.categorical]
    if unknown := [name for name in slices if name not in known]:
        raise ValueError(
            f"`slice_columns` names {', '.join(unknown)}; the spec's categorical columns are: {', '.join(known) or 'none'}"
        )
    if not ingest.data.startswith(storage.GCS):
        _check_log(ingest, spec.columns)


def _check_log(ingest: IngestConfig, columns: Sequence[str]) -> None:
    try:
        find_sources(ingest, columns)
    except (OSError, EOFError, zlib.error) as error:  # no right to read, or a damaged .gz file
        raise ValueError(f"cannot read the log: {error}; correct `data` {ingest.data}, or the file") from error


def _check_model(model: str) -> None:
    """That the package of a user's own model is there; the module itself may be slow to import, or need TensorFlow."""
    package = model.partition(":")[0].partition(".")[0]
    if ":" in model and (not package.isidentifier() or importlib.util.find_spec(package) is None):
        raise ValueError(
            f"`model` is {model}, and there is no package '{package}'; install it, or put its folder on PYTHONPATH"
        )


def _check_snapshot(place: str) -> None:
    if place and "://" not in place and not (Path(place) / MANIFEST).is_file():
        raise ValueError(
            f"`resume_from` is {place}, which holds no snapshot (no {MANIFEST}); name a folder such as .../epoch-0003"
        )


def _check_writable(name: str, place: str) -> None:
    """Tries it: root is refused nothing by its rights, but by file systems such as /proc."""
    if "://" in place:
        return
    path = Path(place)
    above = next(folder for folder in (path, *path.parents) if folder.exists())
    try:
        with tempfile.NamedTemporaryFile(dir=above, prefix=".paraserve-"):
            pass
    except OSError as error:
        raise ValueError(f"`{name}` is {place}, and {above} cannot be written ({error}); give another place") from error


def _check_endpoint(values: Mapping[str, Any]) -> None:
    """That the port is free or our own endpoint's, and the serving folder not another model's."""
    from paraserve.components.deploy.local import new_state
    from paraserve.components.deploy.proxy import Proxy

    serving, port = Path(values["serving"]), values["serving_port"]
    new_state(serving, values["model_name"], values["registry"], port)
    Proxy(serving, port).check_port()
