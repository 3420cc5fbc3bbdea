"""Which of two mirrors a partition belongs to, by their claims (KIP-447; KIP-618, "Zombie fencing")."""

from __future__ import annotations

import pytest

from kafkafmt.mirror.claims import Claim, ClaimedOffsetMapStore, claim_value
from kafkafmt.mirror.errors import MirrorError
from kafkafmt.mirror.offset_map import MappedRange
from kafkafmt.mirror.protocols import Membership
from kafkafmt.types import TopicPartition

PARTITION = TopicPartition("t", 0)


def claim(order: int, generation: int | None = None, group: str = "g") -> Claim:
    membership = None if generation is None else Membership(group, generation, f"member-{order}")
    return Claim(f"id-{order}", order, membership)


def is_there(_: Membership) -> bool:
    return True


def has_left(_: Membership) -> bool:
    return False


@pytest.mark.parametrize(("order", "other"), [(1, 2), (2, 1)])
def test_claim_when_its_generation_is_later_then_is_newer_in_any_order(order: int, other: int) -> None:
    new, old = claim(order, generation=8), claim(other, generation=7)
    assert new.is_newer(old, is_there)
    assert not old.is_newer(new, is_there)


def test_claim_when_the_member_of_a_later_generation_has_left_then_is_newer() -> None:
    """A group that was deleted counts from 1 again: claims of its earlier generations must not last for ever."""
    assert claim(9, generation=1).is_newer(claim(4, generation=17), has_left)


@pytest.mark.parametrize(
    ("new", "old"),
    [
        (claim(5, generation=3), claim(4, generation=3)),
        (claim(5, generation=3), claim(4, generation=9, group="other")),
        (claim(5), claim(4)),
        (claim(5), claim(4, generation=9)),
    ],
    ids=["static member", "another group", "folder", "with and without a group"],
)
def test_claim_when_generations_do_not_decide_then_the_later_one_is_newer(new: Claim, old: Claim) -> None:
    assert new.is_newer(old, is_there)
    assert not old.is_newer(new, is_there)


@pytest.fixture
def store() -> ClaimedOffsetMapStore:
    """What it writes is read back at once, at the next offset of the topic."""
    store = ClaimedOffsetMapStore("map", "east", cluster=None)  # type: ignore[arg-type]
    offsets = iter(range(100))

    def write(topic: str, records: object) -> None:
        assert topic == "map"
        for key, value in records:  # type: ignore[attr-defined]
            store._take(key, value, next(offsets))

    store.write = write
    store._read_on = lambda _=0: None  # type: ignore[method-assign]
    return store


def test_store_when_claims_are_written_then_has_them_with_the_order_of_the_first(
    store: ClaimedOffsetMapStore,
) -> None:
    membership = Membership("g", 3, "m")
    store.claim([PARTITION], "one", claim_value(membership, None))
    store.claim([PARTITION], "two", claim_value(None, None))
    store.claim([PARTITION], "one-again", claim_value(membership, 0))
    assert store.claims(PARTITION) == {
        "one": Claim("one", 0, membership),
        "two": Claim("two", 1, None),
        "one-again": Claim("one-again", 0, membership),
    }


def test_store_when_a_claim_is_dropped_then_the_next_save_deletes_it(store: ClaimedOffsetMapStore) -> None:
    store.claim([PARTITION], "one", claim_value(None, None))
    store.drop_claim(PARTITION, "one")
    assert "one" in store.claims(PARTITION)
    store.save_dropped()
    assert not store.claims(PARTITION)


def test_store_when_a_dropped_partition_is_claimed_again_then_the_claim_stays(
    store: ClaimedOffsetMapStore,
) -> None:
    store.claim([PARTITION], "one", claim_value(None, None))
    store.drop_claim(PARTITION, "one")
    store.claim([PARTITION], "one", claim_value(None, None))
    store.save_dropped()
    assert "one" in store.claims(PARTITION)


def test_store_when_it_has_claims_then_ranges_are_beside_them(store: ClaimedOffsetMapStore) -> None:
    store.claim([PARTITION], "one", claim_value(None, None))
    store.save({PARTITION: {5: MappedRange(5, 7, 2)}})
    assert store.load(PARTITION) == [MappedRange(5, 7, 2)]


def test_store_when_a_record_is_of_another_kind_then_says_so(store: ClaimedOffsetMapStore) -> None:
    with pytest.raises(MirrorError, match="expected ranges of an offset map, found a record of another kind"):
        store._take(b'{"source":"east","topic":"t","partition":0,"claim":"one"}', b"{", 0)
