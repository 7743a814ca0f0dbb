"""What an exported model looks like to the steps after train: its signatures and the description that travels inside it.

    saved_model.pb, variables/              a SavedModel (https://www.tensorflow.org/guide/saved_model)
    assets.extra/paraserve.json             the description: spec, fitted moments, data digest, training settings, versions
    assets.extra/tf_serving_warmup_requests requests that TensorFlow Serving replays before it says "available"

Signature `serving_default` takes raw values, as they would stand in the log:
    each feature by its name: string [examples]; a list as its items joined by the spec's separator; missing as "".
Signature `prehashed` takes two matrices (one for all ids, one for all numbers, since each named input costs time per call):
    ids: int64 [examples, spec.id_width] (see FeatureSpec.id_slices); dense: float32 [examples, dense columns], NaN missing.
Both return `probability`: float32 [examples], that the label is positive.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from paraserve.components import storage
from paraserve.components.features.spec import FeatureSpec, parse_spec
from paraserve.components.features.transforms import Moments, moments_from_json, moments_to_json

DESCRIPTION = "assets.extra/paraserve.json"
WARMUP = "assets.extra/tf_serving_warmup_requests"
RAW_SIGNATURE = "serving_default"
MATRIX_SIGNATURE = "prehashed"
IDS, DENSE, PROBABILITY = "ids", "dense", "probability"
FORMAT = 1


@dataclass(frozen=True, kw_only=True)
class Description:
    """Where a model comes from, and what it takes to feed it."""

    spec: FeatureSpec
    moments: Mapping[str, Moments]
    data_digest: str
    """Of the packed data set that it was trained on."""
    training: Mapping[str, Any]
    """The train step's settings."""
    versions: Mapping[str, str]
    """Package name to version, at export."""
    run_id: str

    def to_json(self) -> bytes:
        content = {
            "format": FORMAT,
            "run_id": self.run_id,
            "spec_digest": self.spec.digest,
            "data_digest": self.data_digest,
            "training": dict(self.training),
            "versions": dict(self.versions),
            "moments": moments_to_json(self.moments),
            "spec": self.spec.source,
        }
        return json.dumps(content, indent=1).encode()

    @classmethod
    def from_json(cls, content: bytes) -> "Description":
        values = json.loads(content)
        if values.get("format") != FORMAT:
            raise ValueError(
                f"the model's description has format {values.get('format')}; this version reads {FORMAT}: train the model again"
            )
        return cls(
            spec=parse_spec(values["spec"]),
            moments=moments_from_json(values["moments"]),
            data_digest=values["data_digest"],
            training=values["training"],
            versions=values["versions"],
            run_id=values["run_id"],
        )


def read_description(model: str) -> Description:
    """The description inside the SavedModel folder at `model` (a path or gs:// address). Raises ValueError when it has none."""
    try:
        return Description.from_json(storage.read_bytes(storage.join(model, DESCRIPTION)))
    except FileNotFoundError as error:
        raise ValueError(f"{model} is not a model that paraserve exported (no {DESCRIPTION})") from error
