"""Texts as numbers, by the grammar that the served model's graph applies too (tf.strings.to_number)."""

import re

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

_DECIMAL = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")
_HEXADECIMAL = re.compile(r"[+-]?0[xX][0-9a-fA-F]+")


def number_of(text: str) -> float:
    """The number that a text without white space around it says; NaN when it says none, as even "nan" and "inf" do not."""
    if _DECIMAL.fullmatch(text):
        return float(text)
    if _HEXADECIMAL.fullmatch(text):
        try:
            return float.fromhex(text)
        except OverflowError:
            return float("inf")
    return float("nan")


def numbers_of(texts: pa.StringArray) -> npt.NDArray[np.float64]:
    """`number_of` each text, float64 [n]; texts as few as can be, since one odd one makes all go the slow way."""
    try:
        values: npt.NDArray[np.float64] = np.array(pc.cast(texts, pa.float64()).to_numpy(zero_copy_only=False))
    except pa.ArrowInvalid:
        return np.fromiter(map(number_of, texts.to_pylist()), np.float64, len(texts))
    for i in np.flatnonzero(~np.isfinite(values)):  # Arrow reads "nan" and "inf" as numbers
        values[i] = number_of(texts[int(i)].as_py())
    return values
