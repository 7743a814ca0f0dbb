"""The manifest of a packed data set: what ingest promises to later steps. Written last, so that its presence means "whole"."""

import dataclasses
import gzip
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from paraserve.components import storage
from paraserve.components.features.spec import FeatureSpec, parse_spec
from paraserve.components.features.transforms import Moments, moments_from_json, moments_to_json
from paraserve.components.records import Layout

FILE = "manifest.json"
FORMAT = 1
SPLITS = ("train", "eval", "test")


@dataclass(frozen=True, kw_only=True, slots=True)
class Shard:
    """One packed file."""

    file: str
    """Relative to the manifest's folder."""
    rows: int
    bytes: int
    sha256: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Split:
    """One of train, eval and test."""

    rows: int
    positives: int
    shards: tuple[Shard, ...]


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """What a packed data set holds."""

    spec: FeatureSpec
    moments: Mapping[str, Moments]
    """For each dense column with `standardise`, what was fitted on the train split."""
    splits: Mapping[str, Split]
    """By name, all of SPLITS."""
    data_digest: str
    """sha256 over the spec's digest and the shards' digests in order: equal data, spec and split give an equal digest."""
    source: Mapping[str, Any]
    """The pattern, and the files that it named with their sizes."""
    rows_read: int
    rows_bad: int
    bad_by_reason: Mapping[str, int]
    settings: Mapping[str, Any]
    """The ingest settings that decide the content: the split and its seed, shard rows and so on."""
    raw_sample: Mapping[str, Any]
    """`file` (gzipped JSON lines, one {feature: text} each: what a client would send) and `rows`; line i is row i of the eval
    split, counted over its shards in order. No rows where sampling is off."""

    @property
    def layout(self) -> Layout:
        return Layout.of(self.spec)

    def to_json(self) -> bytes:
        content = {
            "format": FORMAT,
            "data_digest": self.data_digest,
            "spec_digest": self.spec.digest,
            "splits": {name: dataclasses.asdict(split) for name, split in self.splits.items()},
            "rows": {"read": self.rows_read, "kept": self.rows_read - self.rows_bad, "bad": self.rows_bad},
            "bad_rows": dict(self.bad_by_reason),
            "moments": moments_to_json(self.moments),
            "raw_sample": dict(self.raw_sample),
            "settings": dict(self.settings),
            "source": dict(self.source),
            "spec": self.spec.source,
        }
        return json.dumps(content, indent=1).encode()

    @classmethod
    def from_json(cls, content: bytes) -> "Manifest":
        values = json.loads(content)
        if values.get("format") != FORMAT:
            raise ValueError(
                f"the manifest has format {values.get('format')}; this version reads {FORMAT}: ingest the data again"
            )
        splits = {
            name: Split(**{**split, "shards": tuple(Shard(**shard) for shard in split["shards"])})
            for name, split in values["splits"].items()
        }
        return cls(
            spec=parse_spec(values["spec"]),
            moments=moments_from_json(values["moments"]),
            splits=splits,
            data_digest=values["data_digest"],
            source=values["source"],
            rows_read=values["rows"]["read"],
            rows_bad=values["rows"]["bad"],
            bad_by_reason=values["bad_rows"],
            settings=values["settings"],
            raw_sample=values["raw_sample"],
        )


def read_manifest(shards: str) -> Manifest:
    """The manifest of the packed data set at `shards`, a path or gs:// address. Raises ValueError when there is none."""
    try:
        return Manifest.from_json(storage.read_bytes(storage.join(shards, FILE)))
    except FileNotFoundError as error:
        raise ValueError(
            f"there is no packed data set at {shards} (no {FILE}); run ingest first, or correct the place"
        ) from error


def read_raw_sample(shards: str, manifest: Manifest) -> list[dict[str, str]]:
    """The rows of the manifest's raw sample, each {feature: text}, in order; none where sampling was off."""
    if not manifest.raw_sample["rows"]:
        return []
    content = gzip.decompress(storage.read_bytes(storage.join(shards, manifest.raw_sample["file"])))
    return [json.loads(line) for line in content.splitlines()]
