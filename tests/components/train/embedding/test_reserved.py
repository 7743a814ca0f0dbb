"""Reserved keys become keys of one table."""

import tensorflow as tf

from paraserve.components.features import keys
from paraserve.components.train.embedding.reserved import own_key, own_keys, shared_key


def test_each_table_has_its_own_missing_and_out_of_range() -> None:
    own = [own_key(table, reserved) for table in ("user", "item") for reserved in (keys.MISSING, keys.OUT_OF_RANGE)]
    own += [shared_key("user"), shared_key("item")]

    assert len(set(own)) == 6
    assert not set(own) & set(range(keys.RESERVED))


def test_other_keys_and_padding_stay() -> None:
    value = keys.key_of("user", "7")
    ids = [[keys.MISSING, keys.MISSING, keys.MISSING], [value, keys.OUT_OF_RANGE, keys.PADDING]]

    told_apart = own_keys(tf.constant(ids, tf.int64), ["user", "item", "item"]).numpy().tolist()

    missing = own_key("item", keys.MISSING)
    assert told_apart == [[own_key("user", keys.MISSING), missing, missing], [value, own_key("item", keys.OUT_OF_RANGE), 2]]
