"""The version that ought to serve, by the registry."""

from paraserve.components.deploy.rollout import ServedModel
from paraserve.components.register.registry import Registry


def champion_of(registry: str, model_name: str) -> ServedModel | None:
    """The version behind the alias `champion`; None before the first promotion."""
    there = Registry(registry)
    version = there.aliases(model_name).get("champion")
    if version is None:
        return None
    return ServedModel(version=version, model_uri=there.get(model_name, version).model_uri)
