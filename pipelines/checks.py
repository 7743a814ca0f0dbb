"""What can be found wrong with a run's parameters before anything starts."""

import dataclasses
import importlib.util
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from paraserve.components import storage
from paraserve.components.deploy.config import DeployConfig, RolloutConfig, parse_steps
from paraserve.components.evaluate.config import EvaluateConfig, Thresholds, columns_of
from paraserve.components.features.spec import load_spec
from paraserve.components.ingest.config import IngestConfig
from paraserve.components.train.config import TrainConfig, check_model_fits
from paraserve.pipelines.workdir import PLACES

_NEEDED = {"tensorflow": "tensorflow", "tf_keras": "tensorflow", "tensorflow_serving": "serving", "grpc": "serving"}
"""Modules that the steps import on this machine, and the extra of the package that brings each."""


def check(values: Mapping[str, Any]) -> None:
    """Raises ValueError, with the remedy, for the first thing that would make a run on this machine fail at once.

    `values` are all parameters by name. What costs time or needs a remote store is left to the steps.
    """
    _check_installed()
    _check_settings(values)
    _check_inputs(values)
    for name in PLACES:
        _check_writable(name, values[name])
    if values["target"] == "local":
        _check_endpoint(values)


def _check_installed() -> None:
    extras = sorted({extra for module, extra in _NEEDED.items() if importlib.util.find_spec(module) is None})
    if extras:
        raise ValueError(f"running the steps here needs more packages; pip install 'paraserve[{','.join(extras)}]'")


def _check_settings(values: Mapping[str, Any]) -> None:
    """Builds the configurations that the steps will build; they hold the checks."""
    _build(IngestConfig, values)
    _build(TrainConfig, values)
    slices = columns_of(values["slice_columns"])
    _build(EvaluateConfig, values, thresholds=_build(Thresholds, values), slice_columns=slices)
    steps = parse_steps(values["canary_steps"])
    _build(DeployConfig, values, rollout=_build(RolloutConfig, values, canary_steps=steps))


def _build(config: type[Any], values: Mapping[str, Any], **others: Any) -> Any:
    """A config from the parameters that it has; what only the run will know gets a stand-in."""
    fields = {field.name: field for field in dataclasses.fields(config)}
    known = {name: values[name] for name in fields if name in values}
    unknown = {name: "later" for name, field in fields.items() if name not in known and field.default is dataclasses.MISSING}
    return config(**{**unknown, **known, **others})


def _check_inputs(values: Mapping[str, Any]) -> None:
    try:
        check_model_fits(values["model"], load_spec(values["feature_spec"]))
    except OSError as error:
        raise ValueError(f"cannot read the feature spec: {error}; correct `feature_spec`") from error
    data = values["data"]
    if not data.startswith(storage.GCS) and not storage.list_files(data):
        raise ValueError(f"no file matches `data` {data} (in {Path.cwd()}); correct the path or the glob")


def _check_writable(name: str, place: str) -> None:
    if "://" in place:
        return
    path = Path(place)
    above = next(folder for folder in (path, *path.parents) if folder.exists())
    if not above.is_dir() or not os.access(above, os.W_OK | os.X_OK):
        raise ValueError(f"`{name}` is {place}, and {above} cannot be written; give another place, or the right to write there")


def _check_endpoint(values: Mapping[str, Any]) -> None:
    """That the port is free or our own endpoint's, and the serving folder not another model's."""
    from paraserve.components.deploy.local import new_state
    from paraserve.components.deploy.proxy import Proxy

    serving, port = Path(values["serving"]), values["serving_port"]
    new_state(serving, values["model_name"], values["registry"], port)
    Proxy(serving, port).check_port()
