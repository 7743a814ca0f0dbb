"""The key contract: how a categorical value becomes a 64-bit key. Fixed for ever; tests hold golden vectors.

    key = farmhash Fingerprint64(salt + "\\x1f" + text), read as a signed 64-bit integer

`text` is the value as it stands in the log, without leading and trailing ASCII white space, in UTF-8. `salt` is the name of
the column, or of the column whose vocabulary it shares. Keys are never reduced: what wants a row number takes the modulo
itself. Keys 0 to 15 are reserved; a fingerprint that falls on one of them moves up by 16.

Fingerprint64 is the portable hash of FarmHash (https://github.com/google/farmhash), the one that BigQuery's
FARM_FINGERPRINT and TensorFlow's Fingerprint op compute.
"""

from collections.abc import Iterable

import farmhash
import numpy as np
import numpy.typing as npt

SEPARATOR = "\x1f"

MISSING = 0
"""The key of a value that is absent."""
OUT_OF_RANGE = 1
"""The key of a value outside the closed set of values that its column declares."""
PADDING = 2
"""Fills the unused places of a list in a matrix of keys; it stands for no value and adds nothing to a pooled list."""
RESERVED = 16
"""Keys below this are never the fingerprint of a value; those not named above are kept for the tables' own use."""


def key_of(salt: str, text: str) -> int:
    """The key of one value: a Python int in the range of int64."""
    unsigned = farmhash.fingerprint64(salt + SEPARATOR + text)
    if unsigned < RESERVED:
        unsigned += RESERVED
    return int(unsigned - (1 << 64) if unsigned >= 1 << 63 else unsigned)


def keys_of(salt: str, texts: Iterable[str]) -> npt.NDArray[np.int64]:
    """The keys of `texts`, in their order; int64, shape [len(texts)]. Hash distinct values and take from the result."""
    return np.fromiter((key_of(salt, text) for text in texts), dtype=np.int64)
