"""What a consumer tells a broker of its partitions from request to request (KIP-227), without sockets."""

from __future__ import annotations

import kafka.errors as kafka_errors
import pytest

from kafkafmt import TopicPartition
from kafkafmt.client.fetch_session import FetchPlan, FetchPosition, FetchSessionState

A, B, C = (TopicPartition("t", number) for number in range(3))
SESSION = 7
NO_SESSION, FIRST, NO_EPOCH, MAX_EPOCH = 0, 0, -1, 2**31 - 1


def at(offset: int, *, generation: int = 1) -> FetchPosition:
    return FetchPosition(offset, 3, 2, 1000, generation)


def begun(*partitions: TopicPartition) -> FetchSessionState:
    """A session that the broker has opened with these partitions, from offset 0 on."""
    state = FetchSessionState()
    for partition in partitions:
        state.put(partition, at(0))
    state.next_request(is_incremental=True)
    assert state.accept(SESSION, 0) is None
    return state


def test_first_request_when_a_session_begins_then_names_all_partitions() -> None:
    state = FetchSessionState()
    state.put(A, at(5))
    state.put(B, at(6))
    plan = state.next_request(is_incremental=True)
    assert plan == FetchPlan(NO_SESSION, FIRST, {A: at(5), B: at(6)}, [])


def test_request_without_a_session_when_a_partition_has_moved_then_names_it_after_the_others() -> None:
    state = FetchSessionState()
    for partition in (A, B, C):
        state.put(partition, at(0))
    state.next_request(is_incremental=False)
    for partition, offset in ((A, 9), (B, 0), (C, 0)):
        state.put(partition, at(offset))
    assert list(state.next_request(is_incremental=False).positions) == [B, C, A]


def test_next_request_when_nothing_has_changed_then_names_no_partition() -> None:
    assert begun(A, B).next_request(is_incremental=True) == FetchPlan(SESSION, 1, {}, [])


def test_next_request_when_partitions_moved_came_and_went_then_names_those_alone() -> None:
    state = begun(A, B)
    state.put(A, at(9))
    state.discard(B)
    state.put(C, at(0))
    plan = state.next_request(is_incremental=True)
    assert plan == FetchPlan(SESSION, 1, {A: at(9), C: at(0)}, [B])
    state.accept(SESSION, 0)
    assert state.next_request(is_incremental=True) == FetchPlan(SESSION, 2, {}, [])


@pytest.mark.parametrize("changes", [["put", "discard"], ["discard", "put"]])
def test_next_request_when_a_partition_is_as_before_then_does_not_name_it(changes: list[str]) -> None:
    state = begun(A, B)
    for change in changes:
        if change == "put":
            state.put(B, at(0))
            state.put(C, at(0))
        else:
            state.discard(B)
            state.discard(C)
    expected = {C: at(0)} if changes[-1] == "put" else {}
    forgotten = [] if changes[-1] == "put" else [B]
    assert state.next_request(is_incremental=True) == FetchPlan(SESSION, 1, expected, forgotten)


def test_next_request_when_only_the_generation_is_new_then_names_the_partition() -> None:
    state = begun(A)
    state.put(A, at(0, generation=2))
    assert state.next_request(is_incremental=True).positions == {A: at(0, generation=2)}


def test_fetched_position_when_a_partition_moves_then_is_that_of_the_request_in_flight() -> None:
    state = begun(A)
    state.put(A, at(9))
    assert state.fetched_position(A) == at(0)
    state.next_request(is_incremental=True)
    assert state.fetched_position(A) == at(9)
    state.discard(A)
    assert state.fetched_position(A) == at(9)
    state.next_request(is_incremental=True)
    assert state.fetched_position(A) is None


def test_epoch_when_it_is_the_last_one_then_continues_with_one() -> None:
    state = begun(A)
    state._epoch = MAX_EPOCH
    state.accept(SESSION, 0)
    assert state.next_request(is_incremental=True).epoch == 1


@pytest.mark.parametrize(
    ("error", "session_id"),
    [
        (kafka_errors.FetchSessionIdNotFoundError, NO_SESSION),
        (kafka_errors.InvalidFetchSessionEpochError, SESSION),
    ],
)
def test_accept_when_the_broker_refuses_the_session_then_a_new_one_names_all_partitions(
    error: type[kafka_errors.KafkaError], session_id: int
) -> None:
    state = begun(A, B)
    state.discard(B)
    state.put(A, at(9))
    state.next_request(is_incremental=True)
    assert isinstance(state.accept(NO_SESSION, error.errno), error)
    assert state.next_request(is_incremental=True) == FetchPlan(session_id, FIRST, {A: at(9)}, [])


def test_fail_when_an_answer_was_lost_then_a_new_session_replaces_the_old_one() -> None:
    state = begun(A)
    state.next_request(is_incremental=True)
    state.fail()
    assert state.next_request(is_incremental=True) == FetchPlan(SESSION, FIRST, {A: at(0)}, [])


def test_accept_when_the_broker_has_no_room_for_a_session_then_each_request_names_all_partitions() -> None:
    state = FetchSessionState()
    state.put(A, at(0))
    for _ in range(2):
        plan = state.next_request(is_incremental=True)
        assert plan == FetchPlan(NO_SESSION, FIRST, {A: at(0)}, [])
        state.accept(NO_SESSION, 0)


def test_requests_when_the_broker_knows_no_sessions_then_all_are_outside_of_any() -> None:
    state = begun(A)
    for _ in range(2):
        plan = state.next_request(is_incremental=False)
        assert plan == FetchPlan(NO_SESSION, NO_EPOCH, {A: at(0)}, [])
        state.accept(NO_SESSION, 0)
    assert state.next_request(is_incremental=True) == FetchPlan(NO_SESSION, FIRST, {A: at(0)}, [])


def test_topics_when_a_partition_is_only_forgotten_then_has_its_topic_until_the_request() -> None:
    state = begun(A, TopicPartition("u", 0))
    state.discard(TopicPartition("u", 0))
    assert (state.topics(), len(state)) == ({"t", "u"}, 1)
    state.next_request(is_incremental=True)
    assert state.topics() == {"t"}
