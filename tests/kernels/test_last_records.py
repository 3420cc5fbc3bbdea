"""The table of keys, the set of keys and the last record of each key, against dict and set."""

from __future__ import annotations

import gc
import threading
import time
from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import kafkafmt as kf
from _kafkafmt.records.decode import LocatedRecords
from _kafkafmt.records.key_table import KeySet
from _kafkafmt.records.last_records import LastRecords
from kafkafmt.records.decoding import locate
from kafkafmt.records.runs import whole_batches

TIME = 1_700_000_000_000
SEED = 0
# With a seed of 0 the first 16 bytes have no effect on the hash if the first 8 are 0. Then all hashes of one tail are
# equal.
colliding_keys = st.builds(
    lambda start, tail: bytes(8) + start + tail,
    st.binary(min_size=8, max_size=8),
    st.sampled_from([b"tail", b"a tail of more than sixteen bytes"]),
)
keys = st.one_of(st.binary(max_size=40), colliding_keys, st.sampled_from([b"", b"k", b"another"]))
records = st.lists(st.tuples(st.none() | keys, st.none() | st.binary(max_size=60)), max_size=60)


def located(rows: list[tuple[bytes | None, bytes | None]], base_offset: int = 0) -> LocatedRecords:
    builder = kf.RecordBatchBuilder(base_offset=base_offset)
    for number, (key, value) in enumerate(rows):
        builder.append(TIME + base_offset + number, key, value)
    return locate(whole_batches(builder.build()), verify=True, limit=1 << 20)


def last_of(rows: list[tuple[bytes | None, bytes | None]]) -> list[kf.types.LastRecord]:
    found: dict[bytes, kf.types.LastRecord] = {}
    for offset, (key, value) in enumerate(rows):
        if key is not None:
            found[key] = kf.types.LastRecord(key, value, offset, TIME + offset)
    return list(found.values())


@settings(max_examples=200, deadline=None)
@given(st.lists(records, max_size=8))
def test_last_records_when_added_in_any_portions_then_equal_to_dict(portions):
    last = LastRecords(seed=SEED)
    rows: list[tuple[bytes | None, bytes | None]] = []
    for portion in portions:
        last.add(located(portion, len(rows)))
        rows += portion
        assert list(last) == last_of(rows)
    assert len(last) == len(last_of(rows))
    assert last.null_keys == sum(key is None for key, _ in rows)


@settings(max_examples=200, deadline=None)
@given(st.lists(keys, max_size=40), records)
def test_key_set_when_any_keys_then_members_equal_to_set(members, rows):
    found = KeySet(members, seed=SEED)
    assert len(found) == len(set(members))
    assert found.members(located(rows)).tolist() == [key in set(members) for key, _ in rows]
    for key in (*members, *(key for key, _ in rows if key is not None)):
        assert (key in found) == (key in set(members))


def test_key_set_when_thousands_of_hashes_are_equal_then_finds_each():
    members = [bytes(8) + number.to_bytes(8, "big") + b"tail" for number in range(3000)]
    found = KeySet(members[::2], seed=SEED)
    assert len(found) == 1500
    assert [key in found for key in members] == [number % 2 == 0 for number in range(3000)]


def seconds_to_add(keys: list[bytes]) -> float:
    began = time.thread_time()
    KeySet(keys)
    return time.thread_time() - began


@pytest.mark.parametrize("after", [b"", bytes(4), bytes(13), bytes(13) + b"tail", bytes(13) + b"tail" * 5])
def test_key_set_when_keys_have_zeros_then_takes_about_as_long_as_for_other_keys(after):
    """Keys whose hashes are equal, whatever the seed is, would take more than a hundred times as long."""
    numbers = [number.to_bytes(3, "big") for number in range(20_000)]
    usual = min(seconds_to_add([b"a usual key " + number for number in numbers]) for _ in range(3))
    assert min(seconds_to_add([number + after for number in numbers]) for _ in range(3)) < 25 * usual


@pytest.mark.parametrize("wrong", [["text"], [None], [bytearray(b"key")], 5])
def test_key_set_when_keys_are_not_bytes_then_type_error(wrong):
    with pytest.raises(TypeError):
        KeySet(wrong)


def test_last_records_when_values_change_size_then_memory_follows_the_last_values():
    last = LastRecords()
    for round_ in range(200):
        size = 10_000 if round_ % 2 else 100
        last.add(located([(b"key-%d" % number, bytes(size)) for number in range(20)], round_ * 20))
    assert last.used_bytes < 5 * 20 * 10_000
    assert {len(value or b"") for _, value, _, _ in last} == {10_000}


def test_last_records_when_source_is_freed_then_keys_and_values_remain():
    last = LastRecords()
    last.add(located([(b"key", b"value")]))
    gc.collect()
    assert [(key, value) for key, value, _, _ in last] == [(b"key", b"value")]


def test_last_records_when_iterated_while_records_are_added_then_no_row_is_mixed():
    last = LastRecords()
    portion = located([(b"key-%d" % number, b"value-%d" % number) for number in range(5000)])

    def add() -> None:
        for _ in range(50):
            with suppress(RuntimeError):  # without the GIL, the iteration may read a row meanwhile
                last.add(portion)

    thread = threading.Thread(target=add)
    thread.start()
    while thread.is_alive():
        try:
            assert all(key.replace(b"key", b"value") == value for key, value, _, _ in last)
        except RuntimeError as error:
            assert "found another one that uses them" in str(error)  # noqa: PT017
    thread.join()
    last.add(portion)
    assert len(last) == 5000
