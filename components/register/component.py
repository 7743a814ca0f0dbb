"""KFP component `register`."""

from typing import NamedTuple

from kfp import dsl
from kfp.dsl import Input, Model

from paraserve.components import images


@dsl.component(base_image=images.LIGHT, install_kfp_package=False)
def register(model: Input[Model], evaluation: str, shards: str, registry: str, model_name: str, run_folder: str) -> NamedTuple(  # type: ignore[valid-type]
    "Outputs", [("version", str), ("model_uri", str)]
):
    """Stores a model that the gate let through as an immutable version in the registry, and makes it the candidate.

    Args:
        model: The SavedModel that train exported.
        evaluation: What evaluate returned about it, as JSON.
        shards: Place of the packed data set that it was evaluated on.
        registry: Path or gs:// address of the registry.
        model_name: Small letters, digits and -, at most 40 characters.
        run_folder: Place where the steps of all runs write their records.
    """
    from paraserve.components import run_folder as runs
    from paraserve.components.register.config import RegisterConfig
    from paraserve.components.register.job import register_model

    with runs.step(run_folder, "register") as outputs:
        config = RegisterConfig(
            model=model.path,
            evaluation=evaluation,
            shards=shards,
            registry=registry,
            model_name=model_name,
            run_id=runs.run_id(),
        )
        registered = register_model(config)
        outputs["model"] = {"name": registered.name, "version": registered.version, "uri": registered.model_uri}
    return registered.version, registered.model_uri
