"""Sets of keys that are pickled, and located records that are selected or given another value."""

from __future__ import annotations

import pickle

import numpy as np
import pytest

import kafkafmt as kf
from _kafkafmt.batches.scan import scan
from _kafkafmt.records.decode import LocatedRecords
from _kafkafmt.records.key_table import KeySet


def located(*keys: bytes | None) -> LocatedRecords:
    builder = kf.RecordBatchBuilder()
    for key in keys:
        builder.append(1_700_000_000_000, key, b"value")
    run, *_ = scan(builder.build())
    return LocatedRecords(run)


def mask(*wanted: int) -> np.ndarray:
    return np.array(wanted, np.uint8)


def test_set_when_pickled_then_has_the_same_keys() -> None:
    assert set(pickle.loads(pickle.dumps(KeySet([b"a", b""])))) == {b"a", b""}


def test_records_when_selected_then_rows_of_others_are_gone() -> None:
    source = located(b"a", b"b", b"c")
    chosen = source.select(mask(1, 0, 1))
    assert [record.key for record in chosen] == [b"a", b"c"]
    assert chosen.offsets().tolist() == [0, 2]
    assert chosen.batch_numbers().tolist() == [0, 0]
    assert len(source.select(mask(0, 0, 0))) == 0


@pytest.mark.parametrize("value", [None, b"", b"another"])
def test_records_when_given_a_value_then_the_source_has_its_own(value: bytes | None) -> None:
    source = located(b"a", b"b")
    changed = source.with_value(mask(0, 1), value)
    assert [record.value for record in changed] == [b"value", value]
    assert [record.value for record in source] == [b"value", b"value"]


def test_mask_when_of_another_size_then_refused() -> None:
    with pytest.raises(ValueError, match="an entry for each of 2 records, found 1"):
        located(b"a", b"b").select(mask(1))
    with pytest.raises(ValueError, match="an entry for each of 2 records, found 3"):
        located(b"a", b"b").with_value(mask(1, 1, 1), None)
