"""The metadata of a cluster, read from the committed folder of a real broker, and from small logs."""

from __future__ import annotations

import base64
import shutil
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import datetime, timezone
from pathlib import Path
from uuid import UUID

import pytest

from broker.administered import PASSWORD, SECRET_CONFIG, TOKEN_SECRET
from cli.logs import run
from internal_topics.metadata_logs import (
    CLUSTER,
    FOLDER,
    START_MS,
    as_described,
    copied,
    described,
    entities,
    framed,
    put_metadata,
    put_snapshot,
)
from kafkafmt import RecordBatchBuilder
from kafkafmt.errors import CorruptRecordError, InvalidRecordError, KafkaFormatError
from kafkafmt.log import PartitionLog, cluster_metadata
from kafkafmt.log.internal_topics.metadata.names import is_sensitive, metadata_version_name
from kafkafmt.log.internal_topics.metadata.rows import KINDS, fields_of
from kafkafmt.schemas import decode_metadata_record
from kafkafmt.schemas.clients import KRaftVersionRecord, LeaderChangeMessage, VotersRecord
from kafkafmt.schemas.metadata import (
    AbortTransactionRecord,
    BeginTransactionRecord,
    ClearElrRecord,
    ClientQuotaRecord,
    ConfigRecord,
    EndTransactionRecord,
    FeatureLevelRecord,
    PartitionChangeRecord,
    PartitionRecord,
    RemoveTopicRecord,
    TopicRecord,
    UserScramCredentialRecord,
)

ID, OTHER_ID = UUID(int=7), UUID(int=8)
(SNAPSHOT,) = FOLDER.glob("*.checkpoint")
SNAPSHOT_OFFSET = int(SNAPSHOT.name[:20])


def topic(name: str, topic_id: UUID = ID) -> TopicRecord:
    return TopicRecord(name, topic_id)


def test_metadata_of_a_real_cluster_then_is_what_its_admin_client_says() -> None:
    expected = described()
    found = cluster_metadata(CLUSTER, end_offset=expected.pop("end_offset"))
    assert (found.warnings, found.is_complete, found.metadata_version) == ((), True, "4.3-IV0")
    assert as_described(found) == expected
    assert found.configs_of("group", "billing") == {"consumer.session.timeout.ms": "50000"}


def test_metadata_of_a_broker_that_has_ended_then_has_no_leaders_and_a_fenced_broker() -> None:
    found = cluster_metadata(CLUSTER)
    assert {partition.leader for partition in found.partitions} == {-1}
    assert [broker.is_fenced for broker in found.brokers] == [True]


def test_metadata_when_read_from_the_snapshot_alone_then_is_that_of_the_log_at_its_offset(
    tmp_path: Path,
) -> None:
    log = copied(tmp_path / "log", snapshots=False)
    of_snapshot = cluster_metadata(SNAPSHOT)
    of_log = cluster_metadata(log, end_offset=SNAPSHOT_OFFSET)
    assert of_snapshot.end_offset == of_log.end_offset == SNAPSHOT_OFFSET
    assert of_snapshot.last_timestamp_ms == of_log.last_timestamp_ms
    assert entities(of_snapshot, "voter") == entities(of_log, "voter")


def test_metadata_when_read_without_the_snapshot_then_is_the_same(tmp_path: Path) -> None:
    log = copied(tmp_path / "log", snapshots=False)
    whole, from_log = cluster_metadata(FOLDER), cluster_metadata(log)
    assert (whole.snapshot_offset, from_log.snapshot_offset) == (SNAPSHOT_OFFSET, None)
    assert entities(whole) == entities(from_log)


def test_metadata_when_the_snapshot_is_damaged_then_the_log_is_read_and_it_is_said(tmp_path: Path) -> None:
    folder = copied(tmp_path / "log")
    damaged = folder / SNAPSHOT.name
    damaged.write_bytes(SNAPSHOT.read_bytes()[:-10])
    found = cluster_metadata(folder)
    assert entities(found) == entities(cluster_metadata(FOLDER))
    assert found.is_complete
    (warning,) = found.warnings
    assert warning.startswith(str(damaged))
    assert "an earlier snapshot or the log is read instead" in warning


def test_metadata_at_an_offset_then_has_what_was_there_before_it() -> None:
    names = {
        end_offset: [topic.name for topic in cluster_metadata(FOLDER, end_offset=end_offset).topics]
        for end_offset in range(cluster_metadata(FOLDER).end_offset)
    }
    assert names[0] == []
    assert any("gone" in some for some in names.values())
    assert names[max(names)] == ["grown", "orders", "plain"]


def test_metadata_at_a_time_then_has_the_records_up_to_it(tmp_path: Path) -> None:
    put_metadata(tmp_path / "log", [topic("a"), topic("b", OTHER_ID), RemoveTopicRecord(ID)])
    for after_ms, expected in ((-1, []), (0, ["a"]), (999, ["a"]), (1000, ["a", "b"]), (5000, ["b"])):
        found = cluster_metadata(tmp_path / "log", timestamp=START_MS + after_ms)
        assert [one.name for one in found.topics] == expected
    moment = datetime.fromtimestamp((START_MS + 1000) / 1000, timezone.utc)
    assert len(cluster_metadata(tmp_path / "log", timestamp=moment).topics) == 2


def test_metadata_at_a_time_when_the_snapshot_is_later_then_leaves_it_out(tmp_path: Path) -> None:
    put_metadata(tmp_path / "log", [topic("a"), topic("b", OTHER_ID)])
    put_snapshot(tmp_path / "log", 2, [topic("a"), topic("b", OTHER_ID)], START_MS + 1000)
    found = cluster_metadata(tmp_path / "log", timestamp=START_MS + 500)
    assert ([one.name for one in found.topics], found.snapshot_offset) == (["a"], None)


def test_metadata_transaction_then_is_applied_when_it_ends(tmp_path: Path) -> None:
    records = [BeginTransactionRecord("t"), topic("a"), EndTransactionRecord(), BeginTransactionRecord()]
    log = put_metadata(tmp_path / "log", [*records, topic("b", OTHER_ID)])
    found = [cluster_metadata(log, end_offset=end) for end in range(6)]
    assert [len(one.topics) for one in found] == [0, 0, 0, 1, 1, 1]
    assert [one.open_transaction_offset for one in found] == [None, 0, 0, None, 3, 3]


def test_metadata_transaction_when_it_is_aborted_then_leaves_nothing(tmp_path: Path) -> None:
    records = [BeginTransactionRecord(), topic("a"), AbortTransactionRecord("why"), topic("b", OTHER_ID)]
    found = cluster_metadata(put_metadata(tmp_path / "log", records))
    assert [one.name for one in found.topics] == ["b"]


def test_topic_when_it_is_removed_then_its_configuration_is_removed_too(tmp_path: Path) -> None:
    config = ConfigRecord(2, "a", "retention.ms", "1")
    log = put_metadata(tmp_path / "log", [topic("a"), config, RemoveTopicRecord(ID), topic("a", OTHER_ID)])
    found = cluster_metadata(log)
    assert (found.configs, found.topics[0].topic_id) == ((), OTHER_ID)


def test_partition_when_it_changes_then_keeps_what_did_not(tmp_path: Path) -> None:
    partition = PartitionRecord(0, ID, (1, 2, 3), (1, 2), leader=1, leader_epoch=4, partition_epoch=9)
    moved = PartitionChangeRecord(0, ID, isr=(2,), leader=2, eligible_leader_replicas=(1,))
    values = [topic("a"), partition, framed(moved, 2)]
    (before,) = cluster_metadata(put_metadata(tmp_path / "log", values)).partitions
    assert (before.replicas, before.isr, before.leader) == ((1, 2, 3), (2,), 2)
    assert (before.leader_epoch, before.partition_epoch, before.eligible_leader_replicas) == (5, 10, (1,))
    (after,) = cluster_metadata(put_metadata(tmp_path / "next", [*values, ClearElrRecord("a")])).partitions
    assert (after.partition_epoch, after.eligible_leader_replicas) == (11, ())


def test_record_of_an_unknown_type_then_is_kept_and_told(tmp_path: Path) -> None:
    later_version = framed(FeatureLevelRecord("metadata.version", 99)).replace(b"\x0c\0", b"\x0c\x63", 1)
    found = cluster_metadata(put_metadata(tmp_path / "log", [b"\x01\x70\x02any", later_version, topic("a")]))
    assert [(one.offset, one.api_key, one.version) for one in found.unknown_records] == [
        (0, 0x70, 2),
        (1, 12, 99),
    ]
    assert found.unknown_records[0].data == b"any"
    (warning,) = found.warnings
    assert "2 records of unknown types are not applied: 112 version 2, 12 version 99" in warning
    assert [one.name for one in found.topics] == ["a"]


def test_quota_when_its_entity_has_a_type_twice_then_the_last_name_counts(tmp_path: Path) -> None:
    entity = tuple(ClientQuotaRecord.EntityData("user", name) for name in ("alice", None))
    (quota,) = cluster_metadata(
        put_metadata(tmp_path / "log", [ClientQuotaRecord(entity, "consumer_byte_rate", 1.0)])
    ).quotas
    assert quota.entity == {"user": None}


def test_record_about_an_entity_that_is_not_there_then_is_counted(tmp_path: Path) -> None:
    change = PartitionChangeRecord(0, ID, leader=2)
    (warning,) = cluster_metadata(put_metadata(tmp_path / "log", [change, change])).warnings
    assert "2 of PartitionChangeRecord name an entity that is not there" in warning


def test_log_when_its_beginning_is_missing_then_is_incomplete(tmp_path: Path) -> None:
    log = put_metadata(tmp_path / "log", [topic("b", OTHER_ID)], first_offset=10)
    found = cluster_metadata(log)
    assert ([one.name for one in found.topics], found.is_complete) == (["b"], False)
    assert "the records from offset 0 to before 10 are missing" in found.warnings[0]
    with pytest.raises(ValueError, match="the metadata before offset 10 is no longer here"):
        cluster_metadata(log, end_offset=5)
    put_snapshot(log, 10, [topic("a")])
    assert [one.name for one in cluster_metadata(log).topics] == ["a", "b"]
    assert cluster_metadata(log).is_complete


def test_log_when_it_has_a_snapshot_alone_then_is_that(tmp_path: Path) -> None:
    put_snapshot(tmp_path / "log", 10, [topic("a")])
    found = cluster_metadata(tmp_path / "log")
    assert (found.end_offset, found.is_complete, len(found.topics)) == (10, True, 1)


def test_metadata_when_a_snapshot_alone_is_after_the_bound_then_is_refused(tmp_path: Path) -> None:
    put_snapshot(tmp_path / "log", 10, [topic("a")], START_MS)
    for bound in ({"end_offset": 9}, {"timestamp": START_MS - 1}):
        with pytest.raises(ValueError, match="no segments here, and no readable snapshot within the bound"):
            cluster_metadata(tmp_path / "log", **bound)
    for bound in ({"end_offset": 10}, {"timestamp": START_MS}):
        assert cluster_metadata(tmp_path / "log", **bound).is_complete


def test_metadata_when_the_only_file_is_a_damaged_snapshot_then_is_incomplete(tmp_path: Path) -> None:
    damaged = put_snapshot(tmp_path / "log", 10, [topic("a")])
    damaged.write_bytes(damaged.read_bytes()[:-10])
    found = cluster_metadata(tmp_path / "log")
    assert (found.is_complete, found.topics) == (False, ())
    assert str(damaged) in found.warnings[0]


def leader(node_id: int, *voters: int) -> LeaderChangeMessage:
    return LeaderChangeMessage(
        leader_id=node_id, voters=tuple(LeaderChangeMessage.Voter(one) for one in voters)
    )


def voters(*node_ids: int) -> VotersRecord:
    return VotersRecord(voters=tuple(VotersRecord.Voter(one) for one in node_ids))


def quorum_log(folder: Path) -> Path:
    """A log whose voters and leader changed at offsets 4 and 5, with a snapshot at offset 6."""
    version = KRaftVersionRecord(k_raft_version=1)
    put_metadata(folder, [leader(1), version, voters(1, 2, 3), topic("a"), voters(4, 5, 6), leader(4)])
    put_snapshot(folder, 6, [topic("a")], quorum=[version, voters(4, 5, 6)])
    return folder


def damage_batch(folder: Path, offset: int) -> None:
    batch = next(PartitionLog(folder).batches(offset))
    (path,) = folder.glob("*.log")
    data = bytearray(path.read_bytes())
    data[batch.position + batch.size_in_bytes - 1] ^= 1
    path.write_bytes(data)


def test_quorum_when_there_is_a_snapshot_then_its_voters_and_the_last_leader_of_the_log(
    tmp_path: Path,
) -> None:
    found = cluster_metadata(quorum_log(tmp_path / "log"))
    assert [one.voter_id for one in found.voters] == [4, 5, 6]
    assert (found.leader, found.kraft_version, found.warnings) == (4, 1, ())


def test_quorum_when_the_log_before_the_snapshot_is_damaged_then_it_is_that_of_the_snapshot(
    tmp_path: Path,
) -> None:
    log = quorum_log(tmp_path / "log")
    damage_batch(log, 4)
    found = cluster_metadata(log)
    assert [one.voter_id for one in found.voters] == [4, 5, 6]
    assert (found.leader, found.is_complete, [one.name for one in found.topics]) == (None, True, ["a"])
    (warning,) = found.warnings
    assert str(log) in warning
    assert "the leader of the quorum is taken from the records from offset 6 on" in warning


def test_quorum_when_an_old_leader_record_is_malformed_then_it_is_a_warning(tmp_path: Path) -> None:
    version = KRaftVersionRecord(k_raft_version=1)
    log = put_metadata(tmp_path / "log", [leader(1), topic("a"), leader(2)])
    (path,) = log.glob("*.log")
    builder = RecordBatchBuilder(base_offset=3, is_control=True)
    builder.append(START_MS, b"\0\0\0\2", b"\0")
    path.write_bytes(path.read_bytes() + builder.build())
    put_snapshot(log, 4, [topic("a")], quorum=[version, voters(7)])
    found = cluster_metadata(log)
    assert (found.leader, [one.voter_id for one in found.voters]) == (None, [7])
    assert len(found.warnings) == 1


def test_snapshot_when_it_is_cut_anywhere_then_is_one_clean_error(tmp_path: Path) -> None:
    data, path = SNAPSHOT.read_bytes(), tmp_path / SNAPSHOT.name
    for size in (*range(0, len(data), 97), len(data) - 1):
        path.write_bytes(data[:size])
        with pytest.raises(CorruptRecordError, match=SNAPSHOT.name):
            cluster_metadata(path)


def test_snapshot_when_a_byte_is_flipped_then_is_read_or_is_one_clean_error(tmp_path: Path) -> None:
    data, path = SNAPSHOT.read_bytes(), tmp_path / SNAPSHOT.name
    refused = 0
    for position in range(0, len(data), 13):
        path.write_bytes(data[:position] + bytes((data[position] ^ 0x5A,)) + data[position + 1 :])
        try:
            cluster_metadata(path)
        except KafkaFormatError as error:
            refused += "\n" not in str(error)
    assert refused >= len(data) // 13 - 5, "only offsets and leader epochs are outside the CRC"


def test_record_when_it_is_cut_anywhere_then_is_one_clean_error(tmp_path: Path) -> None:
    whole = framed(PartitionRecord(0, ID, (1, 2, 3), (1, 2), leader=1))
    for size in range(len(whole)):
        log = put_metadata(tmp_path / f"{size}", [topic("a"), whole[:size]])
        with pytest.raises(InvalidRecordError, match="offset 1: "):
            cluster_metadata(log)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("nothing", "no such file or folder"),
        ("", "no metadata of a cluster here, and no folder __cluster_metadata-0"),
        ("other.checkpoint", "expected a name as 00000000000000000123-0000000001.checkpoint"),
    ],
)
def test_source_when_it_has_no_metadata_then_is_one_line(tmp_path: Path, name: str, expected: str) -> None:
    (tmp_path / "other.checkpoint.part").touch()
    if name.endswith("checkpoint"):
        (tmp_path / name).touch()
    ended = run("cluster", tmp_path / name)
    assert ended.exit_code == 2
    assert expected in ended.stderr
    assert ended.stderr.count("\n") == 1


def test_secrets_then_are_in_no_output(tmp_path: Path) -> None:
    found = cluster_metadata(CLUSTER)
    parquet = tmp_path / "rows.parquet"
    run("cluster", CLUSTER, "--parquet", parquet)
    outputs = [
        repr(found),
        *(run("cluster", CLUSTER, *options).output for options in ([], ["--json"], ["--kind", "user"])),
        str(found.to_arrow().to_pylist()),
        parquet.read_bytes().decode("latin-1"),
    ]
    secrets = set(all_secrets())
    assert len(secrets) > 20
    assert [secret for secret in secrets for text in outputs if secret in text] == []


def all_secrets() -> Iterator[str]:
    """The secrets of the committed cluster, in any usual form."""
    secrets = [PASSWORD.encode(), SECRET_CONFIG.encode(), TOKEN_SECRET.encode()]
    for record in PartitionLog(FOLDER).records():
        with suppress(KafkaFormatError):
            message = decode_metadata_record(record.value or b"").value
            if isinstance(message, UserScramCredentialRecord):
                secrets += [message.salt, message.stored_key, message.server_key]
    forms: tuple[Callable[[bytes], str], ...] = (
        bytes.hex,
        lambda data: data.hex().upper(),
        lambda data: base64.b64encode(data).decode().rstrip("="),
        lambda data: base64.urlsafe_b64encode(data).decode().rstrip("="),
        lambda data: repr(data)[2:-1],
        lambda data: data.decode("latin-1"),
    )
    return (form(secret) for secret in secrets for form in forms)


def test_kinds_then_have_rows_of_their_fields_and_one_arrow_table() -> None:
    found = cluster_metadata(CLUSTER)
    for kind in KINDS:
        names = {field.name for field in fields_of([kind])}
        assert all(row.keys() == names for row in found.rows(kind))
        assert found.to_arrow(kind).num_rows == len(list(found.rows(kind)))
    assert set(found.to_arrow().column("kind").to_pylist()) == KINDS.keys() - {"producer-ids", "unknown"}
    with pytest.raises(ValueError, match="kind: expected one of cluster, feature"):
        found.to_arrow("topics")


def test_fields_of_the_same_name_then_have_one_type() -> None:
    types: dict[str, str] = {}
    for kind in KINDS.values():
        for field in kind.fields:
            assert types.setdefault(field.name, field.type) == field.type


def test_metadata_version_when_it_is_known_then_has_kafkas_name() -> None:
    assert [metadata_version_name(level) for level in (1, 4, 11, 19, 25, 27, 29)] == [
        "3.0-IV1",
        "3.3-IV0",
        "3.5-IV2",
        "3.7-IV4",
        "4.0-IV3",
        "4.1-IV1",
        "4.2-IV1",
    ]


@pytest.mark.parametrize(
    "name", ["retention.ms", "ssl.keystore.location", "sasl.mechanism", "min.insync.replicas"]
)
def test_property_when_it_is_no_secret_then_has_its_value(name: str) -> None:
    assert not is_sensitive(name)


def test_folder_that_is_copied_elsewhere_then_needs_no_name(tmp_path: Path) -> None:
    shutil.copytree(FOLDER, tmp_path / "anything")
    assert len(cluster_metadata(tmp_path / "anything").topics) == 3
