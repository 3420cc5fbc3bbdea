"""Groups and transactions of running brokers, as our readers and the brokers' admin API tell them; and Kafka's
own tool, which decodes the records of internal topics."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from broker.broker import KAFKA_3, KAFKA_4, Broker, Kafka
from broker.coordinators import leave_state
from kafkafmt.log import PartitionLog, consumer_offsets, transactions
from kafkafmt.log.internal_topics.transactions import transaction_state
from kafkafmt.schemas import (
    Message,
    decode_assignment,
    decode_group_record,
    decode_subscription,
    decode_transaction_record,
)
from kafkafmt.schemas.group_coordinator import GroupMetadataValue
from log.coordinators import (
    FOLDER,
    OFFSETS,
    STATE,
    assert_groups_are_as_told,
    assert_transactions_are_as_told,
)
from log.samples import name

pytestmark = [pytest.mark.broker, pytest.mark.full]

RECORD = re.compile(r"\| offset: (\d+) .*? key: (.*?)(?: payload: (.*))?")


@pytest.mark.xdist_group("coordinators")
def test_state_when_a_running_broker_has_written_it_then_is_what_the_broker_tells(
    any_broker: Broker, tmp_path: Path
) -> None:
    told = leave_state(any_broker, "coordinators-")
    folder = Path(shutil.copytree(any_broker.log_dir, tmp_path / "logs"))
    assert_groups_are_as_told(consumer_offsets(folder), told)
    found = transactions(folder)
    assert_transactions_are_as_told(found, told)
    ours = [one for one in found.open if one.state and one.state.transactional_id == "coordinators-open"]
    assert [one.is_hanging for one in ours] == [False, False]


def dumped(kafka: Kafka, path: Path, decoder: str, tmp_path: Path) -> dict[int, tuple[str, str | None]]:
    """The key and the payload of each record, as the tool of a release prints them."""
    printed = Broker(tmp_path, kafka=kafka).dump_log(path, decoder, "--print-data-log")
    found = filter(None, map(RECORD.fullmatch, printed.splitlines()))
    return {int(one[1]): (one[2], one[3]) for one in found}


def as_json(api_key: int | None, message: Any, version: int, number: str) -> dict[str, Any]:
    assert isinstance(message, Message)
    return {number: str(version if api_key is None else api_key), "data": message.to_json(version)}


def with_decoded_bytes(member: GroupMetadataValue.MemberMetadata) -> dict[str, Any]:
    """The fields of a member that the tool decodes in turn, without their versions."""
    subscription, assignment = decode_subscription(member.subscription), decode_assignment(member.assignment)
    assert isinstance(subscription, Message)
    assert isinstance(assignment, Message)
    return {
        "subscription": subscription.to_json(int.from_bytes(member.subscription[:2], "big")),
        "assignment": assignment.to_json(int.from_bytes(member.assignment[:2], "big")),
    }


TOOLS = [pytest.param(KAFKA_3, "3.9"), pytest.param(KAFKA_4, "3.9"), pytest.param(KAFKA_4, "4.x")]


@pytest.mark.parametrize(("kafka", "release"), TOOLS, ids=lambda one: getattr(one, "name", one))
def test_records_of_groups_when_decoded_by_kafkas_tool_then_are_the_same(
    kafka: Kafka, release: str, tmp_path: Path
) -> None:
    path = FOLDER / release / OFFSETS
    theirs = dumped(kafka, path / name(0), "--offsets-decoder", tmp_path)
    compared = 0
    for record in PartitionLog(path).records():
        assert record.key is not None
        decoded = decode_group_record(record.key, record.value)
        key, payload = theirs[record.offset]
        assert json.loads(key) == as_json(decoded.api_key, decoded.key, 0, "type")
        if decoded.value is None:
            assert payload == "<DELETE>"
        else:
            assert decoded.version is not None
            ours = as_json(None, decoded.value, decoded.version, "version")
            if isinstance(decoded.value, GroupMetadataValue):
                ours["data"]["members"] = [
                    shown | with_decoded_bytes(one)
                    for shown, one in zip(ours["data"]["members"], decoded.value.members, strict=True)
                ]
            assert json.loads(payload or "") == ours
        compared += 1
    assert compared > 20


@pytest.mark.parametrize(("kafka", "release"), TOOLS, ids=lambda one: getattr(one, "name", one))
def test_records_of_transactions_when_decoded_by_kafkas_tool_then_are_the_same(
    kafka: Kafka, release: str, tmp_path: Path
) -> None:
    path = FOLDER / release / STATE
    theirs = dumped(kafka, path / name(0), "--transaction-log-decoder", tmp_path)
    records = list(PartitionLog(path).records())
    assert len(records) == len(theirs) > 10
    for record in records:
        assert record.key is not None
        decoded = decode_transaction_record(record.key, record.value)
        key, payload = theirs[record.offset]
        assert isinstance(decoded.key, Message)
        assert isinstance(decoded.value, Message)
        assert decoded.version is not None
        if kafka is KAFKA_4:
            assert json.loads(key) == as_json(decoded.api_key, decoded.key, 0, "type")
            assert json.loads(payload or "") == as_json(None, decoded.value, decoded.version, "version")
        else:
            ours = transaction_state(decoded.key, decoded.value, 0)
            assert key == f"transaction_metadata::transactionalId={ours.transactional_id}"
            assert payload == (
                f"producerId:{ours.producer_id},producerEpoch:{ours.producer_epoch},state={ours.state},"
                f"partitions=[{','.join(map(str, ours.partitions))}],"
                f"txnLastUpdateTimestamp={ours.last_update_timestamp},txnTimeoutMs={ours.timeout_ms}"
            )
