"""Which split a row belongs to: random by seed, or by time."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt

from paraserve.components.ingest.checks import Checked

TRAIN, EVAL, TEST = range(3)
"""Positions in manifest.SPLITS."""
_CHUNK = 1 << 17


def uniform(seed: int, index: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
    """float64 [n] in [0, 1), of the seed and each index alone: SplitMix64 (Steele et al., 2014) as a counter hash."""
    stream = _mixed(np.array([seed], np.uint64))
    bits = _mixed(stream + (index.astype(np.uint64) + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15))
    return (bits >> np.uint64(11)).astype(np.float64) * 2.0**-53


def _mixed(z: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


class RandomSplit:
    """A row's split depends on the seed and on its number in the source alone."""

    def __init__(self, seed: int, eval_fraction: float, test_fraction: float):
        self.seed, self.eval_fraction, self.test_fraction = seed, eval_fraction, test_fraction

    def of(self, rows: Checked) -> npt.NDArray[np.int8]:
        """int8 [n]: TRAIN, EVAL or TEST."""
        u = uniform(self.seed, rows.index)
        held_out = np.where(u < self.test_fraction, TEST, EVAL)
        return np.where(u < self.test_fraction + self.eval_fraction, held_out, TRAIN).astype(np.int8)


class TimeSplit:
    """The oldest rows train, the next are eval, the newest test; rows of one time stay together, in the earlier part."""

    def __init__(self, train_until: float, eval_until: float):
        self.train_until, self.eval_until = train_until, eval_until

    def of(self, rows: Checked) -> npt.NDArray[np.int8]:
        """int8 [n]: TRAIN, EVAL or TEST."""
        later = (rows.times > self.train_until).astype(np.int8)
        return later + (rows.times > self.eval_until)


class TimeSpill:
    """The times of all rows in a file, 8 bytes each, so that their exact quantiles need no memory that grows with the rows."""

    def __init__(self, path: Path):
        self.path, self.count = path, 0

    def add(self, times: npt.NDArray[np.float64]) -> None:
        with self.path.open("ab") as file:
            (times + 0.0).tofile(file)  # + 0.0 turns -0.0, which sorts apart, into 0.0
        self.count += len(times)

    def split(self, eval_fraction: float, test_fraction: float) -> TimeSplit:
        """The split that comes nearest to the fractions without tearing rows of one time apart; at least one row."""
        test, held_out = round(self.count * test_fraction), round(self.count * (eval_fraction + test_fraction))
        ends = (max(self.count - held_out, 1), max(self.count - test, 1))
        return TimeSplit(*(self._value_at(end - 1) for end in ends))

    def _value_at(self, rank: int) -> float:
        """The time that stands at `rank` (from 0) in order: a radix selection, 16 bits a pass."""
        prefix = 0
        for shift in (48, 32, 16, 0):
            counts = np.zeros(1 << 16, np.int64)
            for bits in self._ordered_bits():
                same = bits if shift == 48 else bits[bits >> np.uint64(shift + 16) == prefix]
                digits = (same >> np.uint64(shift)) & np.uint64(0xFFFF)
                counts += np.bincount(digits.astype(np.int64), minlength=1 << 16)
            upto = np.cumsum(counts)
            digit = int(np.searchsorted(upto, rank, side="right"))
            rank -= int(upto[digit] - counts[digit])
            prefix = prefix << 16 | digit
        bits64 = prefix ^ (1 << 63) if prefix >> 63 else prefix ^ ((1 << 64) - 1)
        return float(np.array([bits64], np.uint64).view(np.float64)[0])

    def _ordered_bits(self) -> Iterator[npt.NDArray[np.uint64]]:
        """The times as whole numbers that sort like them: of a negative one all bits flipped, of another the sign."""
        with self.path.open("rb") as file:
            while len(times := np.fromfile(file, np.float64, _CHUNK)):
                bits = times.view(np.uint64)
                negative = bits >> np.uint64(63) == 1
                yield np.where(negative, ~bits, bits ^ np.uint64(1 << 63))
