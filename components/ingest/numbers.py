"""Texts as numbers, by the grammar that the served model's graph applies too."""

import re

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from paraserve.components.features.transforms import NUMBER

_NUMBER = re.compile(NUMBER)


def number_of(text: str) -> float:
    """The number that a text without white space around it says; NaN when it says none, as even "nan" and "inf" do not."""
    if not _NUMBER.fullmatch(text):
        return float("nan")
    if "x" not in text.lower():
        return float(text)
    try:
        return float.fromhex(text)
    except OverflowError:
        return float("inf")


def numbers_of(texts: pa.StringArray) -> npt.NDArray[np.float64]:
    """`number_of` each text, float64 [n]; texts as few as can be, since one odd one makes all go the slow way."""
    try:
        values: npt.NDArray[np.float64] = np.array(pc.cast(texts, pa.float64()).to_numpy(zero_copy_only=False))
    except pa.ArrowInvalid:
        return np.fromiter(map(number_of, texts.to_pylist()), np.float64, len(texts))
    for i in np.flatnonzero(~np.isfinite(values)):  # Arrow reads "nan" and "inf" as numbers
        values[i] = number_of(texts[int(i)].as_py())
    return values
