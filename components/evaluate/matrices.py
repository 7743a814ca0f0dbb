"""What a model is fed, from shards that another spec may have laid out.

Keys depend on a column's salt (its table's name), its closed set of values, the texts that mean "missing" and a list's
separator, on nothing else in a spec. So a model of an older spec reads newer shards column by column, by name, in any order,
as long as those agree.
"""

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from paraserve.components.features.spec import CategoricalColumn, FeatureSpec, ListColumn
from paraserve.components.records import Block, Layout


def differences(model: FeatureSpec, data: FeatureSpec) -> tuple[str, ...]:
    """Why a model of one spec cannot be judged on data of another, in words; empty when it can."""
    return tuple(_differences(model, data))


def _differences(model: FeatureSpec, data: FeatureSpec) -> Iterator[str]:
    if model.label != data.label:
        yield f"it predicts another label (column '{model.label.column}') than the data holds (column '{data.label.column}')"
    if model.embedded and set(model.missing_values) != set(data.missing_values):
        yield f"it takes {sorted(model.missing_values)} for missing, the data {sorted(data.missing_values)}"
    there = {feature.name: feature for feature in data.features}
    for feature in model.features:
        other = there.get(feature.name)
        if other is None or type(other) is not type(feature):
            yield f"it needs the column '{feature.name}', which the data lacks"
        elif other.column != feature.column:
            yield f"its column '{feature.name}' reads '{feature.column}' of the log, the data's '{other.column}'"
        elif isinstance(feature, CategoricalColumn | ListColumn):
            assert isinstance(other, CategoricalColumn | ListColumn)
            yield from _hashed_otherwise(feature, other)


def _hashed_otherwise(model: CategoricalColumn | ListColumn, data: CategoricalColumn | ListColumn) -> Iterator[str]:
    if model.table != data.table:
        yield f"its column '{model.name}' is hashed with salt '{model.table}', the data's with '{data.table}'"
    if (model.values and set(model.values)) != (data.values and set(data.values)):
        yield f"its column '{model.name}' has another closed set of values than the data's"
    if isinstance(model, ListColumn) and isinstance(data, ListColumn):
        if model.separator != data.separator:
            yield f"its list '{model.name}' is split at '{model.separator}', the data's at '{data.separator}'"
        if model.max_length > data.max_length:
            yield f"its list '{model.name}' holds up to {model.max_length} items, the data's only {data.max_length}"


def matrices(block: Block, layout: Layout, spec: FeatureSpec) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float32]]:
    """The inputs of a model of `spec`, from a block that is laid out otherwise; there must be no `differences`.

    Returns:
        ids: int64 [examples, spec.id_width]; dense: float32 [examples, dense columns], NaN where missing.
    """
    lists = tuple(_newest(*block.lists[layout.lists.index(column.name)], column.max_length) for column in spec.lists)
    chosen = Block(
        labels=block.labels,
        dense=block.dense[:, [layout.dense.index(column.name) for column in spec.dense]],
        ids=block.ids[:, [layout.categorical.index(column.name) for column in spec.categorical]],
        lists=lists,
    )
    return chosen.id_matrix(Layout.of(spec)), chosen.dense


def _newest(
    lengths: npt.NDArray[np.int32], values: npt.NDArray[np.int64], most: int
) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int64]]:
    """The last `most` items of each row, as ingest and the served model cut them."""
    ends = np.repeat(np.cumsum(lengths), lengths)
    return np.minimum(lengths, np.int32(most)), values[ends - np.arange(len(values)) <= most]
