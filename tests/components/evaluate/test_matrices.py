from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from paraserve.components.evaluate.matrices import differences, matrices
from paraserve.components.features import keys
from paraserve.components.records import Block, Layout

GENDER, CITY = {"dimension": 2, "rows": 8}, {"dimension": 2, "rows": 8}
GENRES = {"dimension": 2, "rows": 8, "max_length": 3}


def test_the_own_spec_gives_the_blocks_own_matrix(tiny: SimpleNamespace) -> None:
    spec, block = tiny.spec_of(), tiny.make_block(50, 3)
    ids, dense = matrices(block, Layout.of(spec), spec)
    np.testing.assert_array_equal(ids, block.id_matrix(Layout.of(spec)))
    np.testing.assert_array_equal(dense, block.dense)


def test_another_order_and_a_shorter_list(tiny: SimpleNamespace) -> None:
    block = Block(
        labels=np.zeros(3, np.float32),
        dense=np.array([[1, 2], [3, np.nan], [5, 6]], np.float32),
        ids=np.array([[11, 21], [12, 22], [13, 23]]),
        lists=((np.array([3, 0, 1], np.int32), np.array([101, 102, 103, 104])),),
    )
    ids, dense = matrices(block, Layout.of(tiny.spec_of()), tiny.REORDERED)
    padding = keys.PADDING
    assert ids.tolist() == [[21, 11, 102, 103], [22, 12, padding, padding], [23, 13, 104, padding]]
    np.testing.assert_array_equal(dense, np.array([[2, 1], [np.nan, 3], [6, 5]], np.float32))


def test_a_subset_of_the_columns(tiny: SimpleNamespace) -> None:
    spec = tiny.spec_of(dense={}, categorical={"city": CITY}, lists={})
    assert differences(spec, tiny.spec_of()) == ()
    ids, dense = matrices(tiny.make_block(5, 0), Layout.of(tiny.spec_of()), spec)
    assert (ids.shape, dense.shape) == ((5, 1), (5, 0))


@pytest.mark.parametrize(
    ("changes", "found"),
    [
        ({"label": {"column": "sale", "positive_at_least": 1}}, "another label"),
        ({"missing_values": ["NA"]}, "takes ['', 'NA'] for missing"),
        ({"dense": {"age": {}, "height": {}}}, "needs the column 'height', which the data lacks"),
        ({"dense": {"age": {"column": "years"}, "price": {}}}, "'age' reads 'years' of the log, the data's 'age'"),
        ({"categorical": {"gender": GENDER, "genres": CITY}, "lists": {}}, "needs the column 'genres', which the data lacks"),
        ({"categorical": {"gender": GENDER, "city": CITY | {"table": "gender"}}}, "salt 'gender', the data's with 'city'"),
        ({"categorical": {"gender": GENDER | {"values": ["F"]}, "city": CITY}}, "'gender' has another closed set"),
        ({"lists": {"genres": GENRES | {"separator": ","}}}, "split at ',', the data's at '|'"),
        ({"lists": {"genres": GENRES | {"max_length": 4}}}, "up to 4 items, the data's only 3"),
    ],
)
def test_what_keeps_a_model_from_being_judged(tiny: SimpleNamespace, changes: dict[str, Any], found: str) -> None:
    (difference,) = differences(tiny.spec_of(**changes), tiny.spec_of())
    assert found in difference


def test_what_does_not_matter(tiny: SimpleNamespace) -> None:
    assert differences(tiny.REORDERED, tiny.spec_of()) == ()
    transformed = tiny.spec_of(dense={"age": {"transforms": ["log1p", "standardise"]}, "price": {}})
    assert differences(transformed, tiny.spec_of()) == ()
