"""Texts as points in time: epoch numbers as they are, or ISO 8601 as seconds since 1970 (UTC where no zone is given)."""

from datetime import UTC, datetime

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from paraserve.components.ingest.numbers import numbers_of


class TimeReader:
    """Reads a time column whose entries are all of one kind, numbers or ISO 8601: the two do not compare."""

    def __init__(self, column: str):
        self.column = column
        self.kinds: dict[str, str] = {}
        """Each kind that was met, with its first text."""

    def times_of(self, texts: pa.StringArray) -> npt.NDArray[np.float64]:
        """float64 [n], NaN where a text is no time. Raises ValueError when both kinds were met."""
        values = numbers_of(texts)
        values[~np.isfinite(values)] = np.nan
        self._met("numbers", texts, np.flatnonzero(~np.isnan(values)))
        others = np.flatnonzero(np.isnan(values))
        values[others] = [_seconds(texts[int(i)].as_py()) for i in others]
        self._met("ISO 8601", texts, others[~np.isnan(values[others])])
        return values

    def _met(self, kind: str, texts: pa.StringArray, where: npt.NDArray[np.int64]) -> None:
        if len(where):
            self.kinds.setdefault(kind, texts[int(where[0])].as_py())
        if len(self.kinds) > 1:
            both = " and ".join(f"{kind} ('{text}')" for kind, text in self.kinds.items())
            raise ValueError(f"the time column '{self.column}' holds both {both}, which do not compare; write it in one way")


def _seconds(text: str) -> float:
    try:
        time = datetime.fromisoformat(text)
        return (time if time.tzinfo else time.replace(tzinfo=UTC)).timestamp()
    except (ValueError, OverflowError):
        return float("nan")
