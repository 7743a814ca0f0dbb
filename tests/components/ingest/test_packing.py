"""Packing: keys, lists, and the bounded memory of keys. That it agrees with the graph is test_agreement's part."""

import numpy as np
import pyarrow as pa
import pytest

from paraserve.components.features import keys
from paraserve.components.features.spec import parse_spec
from paraserve.components.ingest import packing
from paraserve.components.ingest.checks import Checked
from paraserve.components.ingest.packing import Packer

SPEC = parse_spec(
    {
        "label": {"column": "y", "positive_at_least": 1},
        "missing_values": ["NA"],
        "categorical": {"city": {"dimension": 1, "rows": 1}, "kind": {"dimension": 1, "rows": 1, "values": ["k"]}},
        "lists": {"seen": {"dimension": 1, "rows": 1, "table": "city", "max_length": 2}},
    }
)


def rows(city: list[str], kind: list[str], seen: list[str]) -> Checked:
    texts = {"city": city, "kind": kind, "seen": seen}
    return Checked(
        texts={name: pa.array(values, pa.string()) for name, values in texts.items()},
        index=np.arange(len(city)),
        labels=np.zeros(len(city), np.float32),
        dense=np.zeros((len(city), 0), np.float32),
        times=np.zeros(0),
        bad=(),
    )


def test_keys_and_lists() -> None:
    packed = Packer(SPEC).pack(rows(["a", "NA", "a"], ["k", "", "other"], ["a", " a| NA||b|c ", ""]))
    a, b, c = (keys.key_of("city", text) for text in "abc")
    assert packed.block.ids.tolist() == [
        [a, keys.key_of("kind", "k")],
        [keys.MISSING, keys.MISSING],
        [a, keys.OUT_OF_RANGE],
    ]
    ((lengths, values),) = packed.block.lists
    assert lengths.tolist() == [1, 2, 0]
    assert values.tolist() == [a, b, c]
    assert packed.cut == {"seen": 1}


def test_a_full_memory_is_emptied(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packing, "REMEMBERED", 3)
    packer = Packer(SPEC)
    for start in range(0, 40, 4):
        texts = [str(i) for i in range(start, start + 4)]
        block = packer.pack(rows(texts, ["k"] * 4, texts)).block
        assert block.ids[:, 0].tolist() == [keys.key_of("city", text) for text in texts]
        assert len(packer.memories["city"]) == 4
