"""The checks of every row, and the numbers that come out of them. A row may be bad for several reasons."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from paraserve.components.features.spec import FeatureSpec
from paraserve.components.features.transforms import SMALLEST
from paraserve.components.ingest.numbers import numbers_of
from paraserve.components.ingest.readers import NOT_UTF8, Malformed, Rows
from paraserve.components.ingest.times import TimeReader

WRONG_FIELDS = "wrong number of fields"
UNCLOSED_QUOTE = "wrong number of fields, over several lines (a quote that is not closed?)"
TEXT_NOT_UTF8 = "text not UTF-8"
LABEL_MISSING = "label missing"
LABEL_NO_NUMBER = "label not a number"
DENSE_NO_NUMBER = "dense value not a number"
DENSE_INFINITE = "dense value infinite"
TIME_MISSING = "time missing"
TIME_UNREADABLE = "time not readable"

_Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True, kw_only=True, slots=True)
class BadRow:
    """A row that is left out."""

    line: int
    rows: int
    """How many rows it counts as: the lines of a row that an unclosed quote drew over many, else 1."""
    reasons: tuple[str, ...]
    values: Mapping[str, str] | str
    """By column, or the row's text where it did not fall into columns."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Checked:
    """Rows that may be learned from, and those that may not."""

    texts: Mapping[str, pa.StringArray]
    """For each wanted column the good rows' texts, without white space around them."""
    index: npt.NDArray[np.int64]
    """int64 [n]: the good rows' numbers in the source."""
    labels: npt.NDArray[np.float32]
    """float32 [n], 0 or 1."""
    dense: npt.NDArray[np.float32]
    """float32 [n, dense columns], NaN where missing."""
    times: npt.NDArray[np.float64]
    """float64 [n]; [0] where the time does not matter."""
    bad: tuple[BadRow, ...]

    def __len__(self) -> int:
        return len(self.labels)


class Checker:
    """Checks rows against a spec; the time column only when it is to split by."""

    def __init__(self, spec: FeatureSpec, with_time: bool):
        self.spec = spec
        self.missing = pa.array(spec.missing_values, pa.string())
        self.time = TimeReader(spec.time) if with_time and spec.time else None

    def check(self, rows: Rows) -> Checked:
        problems: dict[str, _Mask] = {}
        texts = {name: pc.ascii_trim_whitespace(text) for name, text in rows.texts.items()}
        unreadable = _any([_contains(text, NOT_UTF8) for text in texts.values()], len(rows.lines))
        problems[TEXT_NOT_UTF8] = unreadable
        labels = self._labels(texts, problems)
        dense = self._dense(texts, problems)
        times = self._times(texts, problems) if self.time else np.zeros(0)
        for name in problems.keys() - {TEXT_NOT_UTF8}:
            problems[name] &= ~unreadable  # its values cannot be told
        good = ~_any(list(problems.values()), len(rows.lines))
        kept = pa.array(np.flatnonzero(good))
        return Checked(
            texts={name: text.take(kept) for name, text in texts.items()} if not good.all() else texts,
            index=rows.index[good],
            labels=labels[good],
            dense=dense[good],
            times=times[good] if self.time else times,
            bad=(*map(_malformed, rows.malformed), *_bad_rows(rows, problems, np.flatnonzero(~good))),
        )

    def _is_missing(self, text: pa.StringArray) -> _Mask:
        return _mask(pc.is_in(text, value_set=self.missing))

    def _labels(self, texts: Mapping[str, pa.StringArray], problems: dict[str, _Mask]) -> npt.NDArray[np.float32]:
        label, text = self.spec.label, texts[self.spec.label.column]
        problems[LABEL_MISSING] = self._is_missing(text)
        if label.positive_values is not None:
            return _mask(pc.is_in(text, value_set=pa.array(label.positive_values, pa.string()))).astype(np.float32)
        numbers = self._numbers(text)
        assert label.positive_at_least is not None  # the spec has one of the two
        problems[LABEL_NO_NUMBER] = ~np.isfinite(numbers) & ~problems[LABEL_MISSING]
        return (numbers >= label.positive_at_least).astype(np.float32)

    def _dense(self, texts: Mapping[str, pa.StringArray], problems: dict[str, _Mask]) -> npt.NDArray[np.float32]:
        columns = []
        for column in self.spec.dense:
            numbers = self._numbers(texts[column.column])
            numbers[np.abs(numbers) < SMALLEST] = 0
            with np.errstate(over="ignore"):
                columns.append(numbers.astype(np.float32))
            problems[f"{DENSE_NO_NUMBER}: {column.name}"] = np.isnan(numbers) & ~self._is_missing(texts[column.column])
            problems[f"{DENSE_INFINITE}: {column.name}"] = np.isinf(columns[-1])
        count = len(texts[self.spec.label.column])
        return np.stack(columns, axis=1) if columns else np.zeros((count, 0), np.float32)

    def _times(self, texts: Mapping[str, pa.StringArray], problems: dict[str, _Mask]) -> npt.NDArray[np.float64]:
        assert self.time is not None
        text = texts[self.time.column]
        distinct = _distinct(text)
        times = self.time.times_of(distinct.dictionary)[distinct.indices.to_numpy()]
        problems[TIME_MISSING] = self._is_missing(text)
        times[problems[TIME_MISSING]] = np.nan
        problems[TIME_UNREADABLE] = np.isnan(times) & ~problems[TIME_MISSING]
        return times

    def _numbers(self, text: pa.StringArray) -> npt.NDArray[np.float64]:
        """float64 [n], NaN where missing or no number."""
        distinct = _distinct(text)
        missing = self._is_missing(distinct.dictionary)
        numbers = np.full(len(missing), np.nan)
        numbers[~missing] = numbers_of(distinct.dictionary.filter(pa.array(~missing)))
        return numbers[distinct.indices.to_numpy()]


def _distinct(text: pa.StringArray) -> pa.DictionaryArray:
    return text.dictionary_encode()


def _mask(array: pa.BooleanArray) -> _Mask:
    mask: _Mask = array.to_numpy(zero_copy_only=False)
    return mask


def _contains(text: pa.StringArray, part: str) -> _Mask:
    return _mask(pc.match_substring(text, part))


def _any(masks: list[_Mask], count: int) -> _Mask:
    return np.logical_or.reduce([np.zeros(count, np.bool_), *masks])


def _malformed(row: Malformed) -> BadRow:
    reasons = [WRONG_FIELDS if row.span == 1 else UNCLOSED_QUOTE]
    if NOT_UTF8 in row.text:
        reasons.append(TEXT_NOT_UTF8)
    return BadRow(line=row.line, rows=row.span, reasons=tuple(reasons), values=row.text)


def _bad_rows(rows: Rows, problems: Mapping[str, _Mask], where: npt.NDArray[np.int64]) -> list[BadRow]:
    return [
        BadRow(
            line=int(rows.lines[i]),
            rows=1,
            reasons=tuple(reason for reason, mask in problems.items() if mask[i]),
            values={name: text[int(i)].as_py() for name, text in rows.texts.items()},
        )
        for i in where
    ]
