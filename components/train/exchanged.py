"""What the exchanges between workers and servers came to: rows and bytes by table, staleness, what was refused or dropped."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from paraserve.components.train.dense import DenseWeights
from paraserve.components.train.embedding.table import Group

COUNTS = ("steps", "exchanges", "refused", "dropped", "held")
DENSE = "dense"
"""The network's weights, beside the tables."""


class Exchanged:
    """Adds up the figures of shards (`ShardFunctions.train`)."""

    def __init__(self, dense: DenseWeights, groups: Sequence[Group], with_slots: bool):
        """`with_slots`: whether the optimizer's slots travel with weights and rows."""
        self._dense, self._groups, self._with_slots = dense, groups, with_slots
        self._counts = dict.fromkeys(COUNTS, 0)
        self._rows = {"pulled": np.zeros(0, np.int64), "pushed": np.zeros(0, np.int64)}
        self._without_cache = 0
        self._dense_pushed = 0
        self.staleness: npt.NDArray[np.int64] = np.zeros(0, np.int64)
        """int64 [bins]: exchanges by staleness in steps."""

    def add(self, figures: Mapping[str, Any]) -> None:
        """Those of one shard."""
        for name in COUNTS:
            self._counts[name] += int(figures[name])
        for name, rows in self._rows.items():
            self._rows[name] = rows + figures[name] if len(rows) else np.array(figures[name])
        self.staleness = self.staleness + figures["staleness"] if len(self.staleness) else np.array(figures["staleness"])
        self._without_cache += int(figures["distinct"]) * int(figures["steps"])
        self._dense_pushed += int(figures["exchanges"]) * self._dense.bytes_pushed(self._with_slots, figures["compressed"])

    @property
    def refused_steps(self) -> int:
        """Steps whose gradients were too stale."""
        return self._counts["refused"]

    @property
    def dropped_steps(self) -> int:
        """Steps whose gradients were not finite."""
        return self._counts["dropped"]

    @property
    def held(self) -> int:
        """Exchanges before which a worker had to wait."""
        return self._counts["held"]

    @property
    def rows_pulled(self) -> int:
        """Of all tables."""
        return int(self._rows["pulled"].sum())

    @property
    def mean_staleness(self) -> float:
        """Steps."""
        exchanges = max(int(self.staleness.sum()), 1)
        return float(self.staleness @ np.arange(len(self.staleness))) / exchanges

    @property
    def cache_hit_rate(self) -> float:
        """Share of the distinct rows of each batch that were there already, pulled for another batch of the exchange."""
        return 1.0 - self.rows_pulled / self._without_cache if self._without_cache else 0.0

    def bytes_by_table(self) -> dict[str, dict[str, int]]:
        """Bytes `pulled` and `pushed` by each table and by DENSE, without the transport's own."""
        bytes_of = {
            DENSE: {
                "pulled": self._counts["exchanges"] * self._dense.bytes_pulled(self._with_slots),
                "pushed": self._dense_pushed,
            }
        }
        number = 0
        for group in self._groups:
            for table in group.layout.tables:
                rows = {name: int(values[number]) if len(values) else 0 for name, values in self._rows.items()}
                bytes_of[table.name] = {
                    "pulled": group.bytes_pulled(rows["pulled"], self._with_slots),
                    "pushed": group.bytes_pushed(rows["pushed"], self._with_slots),
                }
                number += 1
        return bytes_of

    def figures(self) -> dict[str, float]:
        """By name, for TensorBoard and the step's outputs."""
        by_table = self.bytes_by_table()
        total = {way: sum(table[way] for table in by_table.values()) for way in ("pulled", "pushed")}
        return {
            "staleness_mean": self.mean_staleness,
            "refused_steps": self.refused_steps,
            "dropped_steps": self.dropped_steps,
            "held_exchanges": self.held,
            "cache_hit_rate": self.cache_hit_rate,
            "bytes_pulled": total["pulled"],
            "bytes_pushed": total["pushed"],
        }
