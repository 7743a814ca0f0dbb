"""Each reason for which a row is bad, and what is not bad."""

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from paraserve.components.features.spec import parse_spec
from paraserve.components.ingest import checks
from paraserve.components.ingest.checks import BadRow, Checked, Checker
from paraserve.components.ingest.readers import NOT_UTF8, Malformed, Rows

SPEC: dict[str, Any] = {
    "label": {"column": "y", "positive_at_least": 4},
    "time": "t",
    "missing_values": ["NA"],
    "dense": {"age": {}, "size": {}},
    "categorical": {"city": {"dimension": 2, "rows": 4, "values": ["x"]}},
}
GOOD = {"y": "4", "t": "100", "age": "30", "size": "1", "city": "x"}


def check(*rows: dict[str, str], spec: dict[str, Any] | None = None, time: bool = True, malformed: Any = ()) -> Checked:
    parsed = parse_spec(spec or SPEC)
    texts = {name: pa.array([{**GOOD, **row}[name] for row in rows], pa.string()) for name in parsed.columns}
    count = np.arange(len(rows))
    batch = Rows(place="f", texts=texts, lines=count + 2, index=count, malformed=malformed, blank_lines=0, end=len(rows))
    return Checker(parsed, with_time=time).check(batch)


@pytest.mark.parametrize(
    ("row", "reasons"),
    [
        ({}, ()),
        ({"y": " 4\t"}, ()),
        ({"y": "NA"}, (checks.LABEL_MISSING,)),
        ({"y": " "}, (checks.LABEL_MISSING,)),
        ({"y": "four"}, (checks.LABEL_NO_NUMBER,)),
        ({"y": "inf"}, (checks.LABEL_NO_NUMBER,)),
        ({"y": "1e400"}, (checks.LABEL_NO_NUMBER,)),
        ({"age": ""}, ()),
        ({"age": " NA "}, ()),
        ({"age": "n/a"}, (f"{checks.DENSE_NO_NUMBER}: age",)),
        ({"age": "1e39"}, (f"{checks.DENSE_INFINITE}: age",)),
        ({"age": "old", "size": "1e400"}, (f"{checks.DENSE_NO_NUMBER}: age", f"{checks.DENSE_INFINITE}: size")),
        ({"city": "elsewhere"}, ()),
        ({"city": ""}, ()),
        ({"city": f"x{NOT_UTF8}"}, (checks.TEXT_NOT_UTF8,)),
        ({"age": NOT_UTF8, "y": "NA"}, (checks.TEXT_NOT_UTF8,)),
        ({"t": "NA"}, (checks.TIME_MISSING,)),
        ({"t": "yesterday"}, (checks.TIME_UNREADABLE,)),
        ({"t": "nan"}, (checks.TIME_UNREADABLE,)),
        ({"y": "", "t": ""}, (checks.LABEL_MISSING, checks.TIME_MISSING)),
    ],
)
def test_reasons(row: dict[str, str], reasons: tuple[str, ...]) -> None:
    checked = check({}, row, {})
    assert [(bad.line, bad.reasons) for bad in checked.bad] == ([(3, reasons)] if reasons else [])
    assert checked.index.tolist() == ([0, 2] if reasons else [0, 1, 2])
    assert {len(text) for text in checked.texts.values()} == {len(checked)}


def test_the_time_matters_only_to_a_split_by_time() -> None:
    assert check({"t": "yesterday"}, time=False).bad == ()


def test_values() -> None:
    checked = check({"age": " 7 ", "size": "NA", "y": "3.9"}, {"age": "1e3", "size": "0x10", "y": "4"})
    np.testing.assert_array_equal(checked.dense, np.array([[7, np.nan], [1000, 16]], np.float32))
    assert checked.labels.tolist() == [0, 1]
    assert checked.texts["age"].to_pylist() == ["7", "1e3"]


def test_a_label_by_its_texts() -> None:
    spec = SPEC | {"label": {"column": "y", "positive_values": ["yes", "1"]}}
    checked = check({"y": "yes "}, {"y": "1"}, {"y": "no"}, {"y": "NA"}, spec=spec)
    assert checked.labels.tolist() == [1, 1, 0]
    assert [bad.reasons for bad in checked.bad] == [(checks.LABEL_MISSING,)]


@pytest.mark.parametrize(
    ("texts", "times"),
    [
        (["1.5", "-2", "1e3"], [1.5, -2, 1000]),
        (["1970-01-01", "1970-01-02T00:00:00", "1970-01-01T01:00:00+01:00", "1970-01-01 00:00:01Z"], [0, 86400, 0, 1]),
    ],
)
def test_times(texts: list[str], times: list[float]) -> None:
    assert check(*({"t": text} for text in texts)).times.tolist() == times


def test_times_of_two_kinds_do_not_compare() -> None:
    with pytest.raises(ValueError, match=r"'t' holds both numbers \('100'\) and ISO 8601 \('2020-01-01'\)"):
        check({}, {"t": "2020-01-01"})


def test_malformed_rows() -> None:
    malformed = (Malformed(line=3, span=1, text="a"), Malformed(line=9, span=4, text=f'"b{NOT_UTF8}'))
    assert check({}, malformed=malformed).bad == (
        BadRow(line=3, rows=1, reasons=(checks.WRONG_FIELDS,), values="a"),
        BadRow(line=9, rows=4, reasons=(checks.UNCLOSED_QUOTE, checks.TEXT_NOT_UTF8), values=f'"b{NOT_UTF8}'),
    )


def test_the_values_of_a_bad_row_are_kept_as_they_stood() -> None:
    (bad,) = check({"y": "NA", "age": " 7 "}).bad
    assert bad.values == GOOD | {"y": "NA", "age": " 7 "}
