"""What a dynamic table may hold, and where each table's rows stand on a server."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

EVICTIONS = ("none", "lru", "lfu", "ttl")


@dataclass(frozen=True, kw_only=True, slots=True)
class TableLimits:
    """The budget of one table, and who gets a row of it."""

    name: str
    max_keys: int
    """Rows on all servers together, at least 1."""
    admit_after: int = 1
    """The sighting of a key that gives it a row, at least 1. Before it the key uses the table's shared row."""
    evict: str = "none"
    """Which keys lose their row when the table is nearly full: those seen longest ago (lru) or least often (lfu); or, whatever
    its fill, those not seen for `ttl_steps` (ttl)."""
    ttl_steps: int = 0
    """Steps; for `evict` ttl, at least 1."""

    def __post_init__(self) -> None:
        if self.max_keys < 1:
            raise ValueError(f"table '{self.name}': `max_keys` is {self.max_keys}; set it to at least 1")
        if self.admit_after < 1:
            raise ValueError(f"table '{self.name}': `admit_after` is {self.admit_after}; set it to at least 1")
        if self.evict not in EVICTIONS:
            raise ValueError(f"table '{self.name}': `evict` is '{self.evict}'; choose one of {', '.join(EVICTIONS)}")
        if self.evict == "ttl" and self.ttl_steps < 1:
            raise ValueError(f"table '{self.name}': `evict` ttl needs `ttl_steps`, at least 1; got {self.ttl_steps}")
        if self.evict != "ttl" and self.ttl_steps:
            raise ValueError(f"table '{self.name}': `ttl_steps` has no effect with `evict` {self.evict}; set `evict` to ttl")


@dataclass(frozen=True, kw_only=True, slots=True)
class SlotRanges:
    """The slots of one server: slot t is table t's shared row, then each table has a range of its own.

    A range costs no memory until its rows are used, keeps a table's budget by its length, and tells a slot's table.
    """

    limits: npt.NDArray[np.int32]
    """Rows of each table, without the shared one."""
    offsets: npt.NDArray[np.int32]
    """First slot of each table's range."""

    @classmethod
    def of(cls, tables: Sequence[TableLimits], held: int, buckets: int) -> "SlotRanges":
        """The ranges on a server that holds `held` of all `buckets`.

        Raises ValueError for tables of one name, a share without a row, and more rows than int32 can number.
        """
        if twice := [name for name, count in Counter(table.name for table in tables).items() if count > 1]:
            raise ValueError(f"two tables are named '{twice[0]}'; give each its own name")
        # Rounded down, so that all servers together keep the budget.
        limits = np.array([table.max_keys * held // buckets for table in tables], np.int64)
        for table, limit in zip(tables, limits, strict=True):
            if limit < 1:
                raise ValueError(
                    f"table '{table.name}': of `max_keys` {table.max_keys} no row is left for a server with {held} of "
                    f"{buckets} buckets; set it to at least {-(-buckets // held)} or use fewer servers"
                )
        ends = len(tables) + np.cumsum(limits)
        if ends[-1] > np.iinfo(np.int32).max:
            raise ValueError(f"the tables ask for {ends[-1]:,} rows on one server, over 2^31; lower `max_keys` or add servers")
        return cls(limits=limits.astype(np.int32), offsets=(ends - limits).astype(np.int32))

    @property
    def tables(self) -> int:
        return len(self.limits)

    @property
    def capacity(self) -> int:
        return int(self.offsets[-1]) + int(self.limits[-1])
