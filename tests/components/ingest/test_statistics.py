"""Statistics against NumPy's, and their bounds on memory."""

import json
from typing import Any

import numpy as np
import pytest

from paraserve.components.features import keys
from paraserve.components.features.spec import parse_spec
from paraserve.components.ingest import statistics
from paraserve.components.ingest.packing import Distinct, Packed
from paraserve.components.ingest.statistics import Statistics
from paraserve.components.records import Block

SPEC = parse_spec(
    {
        "label": {"column": "y", "positive_at_least": 1},
        "dense": {"age": {}},
        "categorical": {"city": {"dimension": 1, "rows": 1}},
        "lists": {"tags": {"dimension": 1, "rows": 1}},
    }
)


def distinct(texts: list[str]) -> Distinct:
    found, codes = np.unique(np.array(texts, dtype=object), return_inverse=True)
    special = {"": keys.MISSING, "OTHER": keys.OUT_OF_RANGE}
    values = np.array([special.get(text, keys.key_of("city", text)) for text in found], np.int64)
    return Distinct(texts=found.tolist(), keys=values, codes=codes.astype(np.int32))


def gathered(ages: np.ndarray, cities: list[str], batch: int = 1000) -> dict[str, Any]:
    stats, count = Statistics(SPEC), len(ages)
    for start in range(0, count, batch):
        part = slice(start, min(start + batch, count))
        rows = part.stop - part.start
        lengths = np.arange(part.start, part.stop, dtype=np.int32) % 4
        block = Block(
            labels=(np.arange(part.start, part.stop) % 2).astype(np.float32),
            dense=ages[part, None].astype(np.float32),
            ids=np.zeros((rows, 1), np.int64),
            lists=((lengths, np.zeros(lengths.sum(), np.int64)),),
        )
        packed = Packed(
            block=block, distinct={"city": distinct(cities[part]), "tags": distinct(["a", "", "b"])}, cut={"tags": 1}
        )
        stats.add(packed, (np.arange(rows) % 4 == 3).astype(np.int8), np.arange(part.start, part.stop))
    result: dict[str, Any] = json.loads(stats.to_json())
    return result


def test_exact_where_it_can_be() -> None:
    ages = np.arange(100, dtype=np.float32)
    ages[::10] = np.nan
    cities = ["a"] * 50 + ["b"] * 30 + ["c"] * 10 + [""] * 7 + ["OTHER"] * 3
    found = gathered(ages, cities, batch=20)
    finite = ages[~np.isnan(ages)]
    assert found["splits"]["train"] == {"rows": 75, "positives": 25, "label_rate": pytest.approx(1 / 3)}
    assert found["splits"]["test"] == {"rows": 0, "positives": 0, "label_rate": None}
    dense = found["dense"]["age"]
    assert (dense["count"], dense["missing"], dense["min"], dense["max"]) == (90, 10, 1, 99)
    assert dense["mean"] == pytest.approx(finite.mean())
    assert dense["std"] == pytest.approx(finite.std())
    assert dense["quantiles"]["0.5"] == np.quantile(finite, 0.5)
    assert dense["quantiles_from"] == "all values"
    city = found["categorical"]["city"]
    assert (city["count"], city["missing"], city["out_of_range"], city["distinct"]) == (100, 7, 3, 3)
    assert city["top"] == [
        {"value": v, "key": keys.key_of("city", v), "count": n} for v, n in (("a", 50), ("b", 30), ("c", 10))
    ]
    assert (city["distinct_is"], city["top_is"]) == ("exact", "exact")
    tags = found["lists"]["tags"]
    assert tags["distinct"] == 2
    assert (tags["rows"], tags["empty"], tags["cut"], tags["length_mean"], tags["length_max"]) == (100, 25, 5, 1.5, 3)
    assert tags["items"] == 10


def test_bounded_where_it_must_be(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, bound in (("SAMPLE", 2000), ("COUNTED", 100), ("SMALLEST", 400)):
        monkeypatch.setattr(statistics, name, bound)
    chance = np.random.default_rng(1)
    ages = chance.normal(50, 10, 20_000).astype(np.float32)
    cities = [f"often{i % 5}" if i % 2 else f"rare{i}" for i in range(20_000)]
    found = gathered(ages, cities)
    assert found["dense"]["age"]["quantiles_from"] == "a random sample of 2000 values"
    assert found["dense"]["age"]["quantiles"]["0.5"] == pytest.approx(np.median(ages), abs=1)
    city = found["categorical"]["city"]
    assert city["distinct"] == pytest.approx(10_005, rel=0.15)
    assert city["distinct_is"].startswith("estimated")
    assert city["top"][:5] == [{"value": f"often{i}", "key": keys.key_of("city", f"often{i}"), "count": 2000} for i in range(5)]
    assert city["top_is"].startswith("counted from below")


def test_a_column_without_any_value() -> None:
    found = gathered(np.full(10, np.nan), [""] * 10)
    assert found["dense"]["age"] == {"count": 0, "missing": 10}
    assert found["categorical"]["city"]["top"] == []
