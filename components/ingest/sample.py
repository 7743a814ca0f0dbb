"""The raw sample: the first rows of the eval split as text, which is what a client would send for them."""

import gzip
import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from paraserve.components.features.spec import FeatureSpec

FILE = "raw_eval.jsonl.gz"


class RawSample:
    """Writes gzipped JSON lines, {feature: text} each."""

    def __init__(self, path: Path, spec: FeatureSpec, wanted: int):
        self.path, self.spec, self.wanted, self.rows = path, spec, wanted, 0
        self.path.write_bytes(b"")

    def add(self, texts: Mapping[str, pa.StringArray], where: npt.NDArray[np.int64]) -> None:
        """Adds the rows at `where` (int64 [n]) until there are as many as wanted."""
        where = where[: self.wanted - self.rows]
        if not len(where):
            return
        taken = {f.name: texts[f.column].take(pa.array(where)).to_pylist() for f in self.spec.features}
        rows = [dict(zip(taken, values, strict=True)) for values in zip(*taken.values(), strict=True)]
        # Members of a gzip file may follow each other; a fixed time keeps equal content equal.
        content = "".join(json.dumps(row) + "\n" for row in rows).encode()
        with self.path.open("ab") as file:
            file.write(gzip.compress(content, mtime=0))
        self.rows += len(rows)
