"""The models, and how a user's own is found.

A model is a tf_keras.Model over named embeddings; it knows nothing of tables, servers or workers. It is called with a dict:

    each categorical or list feature by its name: float32 [examples, dimension], a list already pooled
    "dense": float32 [examples, dense columns], transformed
    "linear": float32 [examples, embedded columns], one weight per value; only for a model with `linear_weights = True`

and returns logits, float32 [examples, 1].
"""

import importlib
from collections.abc import Callable

import tf_keras

from paraserve.components.features.spec import FeatureSpec
from paraserve.components.train.config import MODELS, TrainConfig

ModelBuilder = Callable[[FeatureSpec, TrainConfig], tf_keras.Model]
"""What `model: package.module:function` names: makes an unbuilt model, or raises ValueError where the spec does not fit it."""


def model_builder(name: str) -> ModelBuilder:
    """The builder that a config's `model` names. Raises ValueError when there is none."""
    if name in MODELS:
        name = f"{__name__}.{name}:build"
    module, _, function = name.partition(":")
    try:
        builder: ModelBuilder = getattr(importlib.import_module(module), function)
    except (ImportError, AttributeError) as error:
        raise ValueError(
            f"`model` is '{name}', which cannot be imported ({error}); install its package where the train step runs"
        ) from error
    return builder
