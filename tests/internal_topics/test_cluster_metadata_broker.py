"""The metadata that real brokers of Kafka 4.3 and 3.9 keep, against their admin client and `kafka-dump-log`."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from py4j.java_gateway import get_field

from broker.administered import administered_broker
from broker.broker import KAFKA_3, KAFKA_4, Broker, Kafka
from internal_topics.metadata_logs import FOLDER, as_described, entities
from kafkafmt.log import PartitionLog, cluster_metadata
from kafkafmt.log.internal_topics.metadata import names
from kafkafmt.log.internal_topics.metadata.snapshots import snapshots_in
from kafkafmt.schemas import RawMessage, decode_control_record, decode_metadata_record

if TYPE_CHECKING:
    from _kafkafmt.records.decode import Record
    from oracle.kafka import KafkaOracle

pytestmark = [pytest.mark.broker, pytest.mark.oracle, pytest.mark.full, pytest.mark.xdist_group("oracle")]


@dataclass(frozen=True)
class Kept:
    """What a broker kept while it ran (`live`) and after it had ended, and what its admin client said meanwhile."""

    broker: Broker
    live: Path
    ended: Path
    described: dict[str, Any]
    end_offset: int


@pytest.fixture(scope="module", params=[KAFKA_4, KAFKA_3], ids=lambda kafka: kafka.name)
def kept(
    request: pytest.FixtureRequest, oracle: KafkaOracle, tmp_path_factory: pytest.TempPathFactory
) -> Kept:
    folder = tmp_path_factory.mktemp("administered")
    with administered_broker(folder, request.param, oracle.jvm) as running:
        described, end_offset = running.described(), running.end_offset()
        shutil.copytree(running.folder, folder / "live")
        assert as_described(cluster_metadata(running.broker.log_dir)) == described
    return Kept(running.broker, folder / "live", running.folder, described, end_offset)


def test_metadata_of_a_running_broker_then_is_what_its_admin_client_says(kept: Kept) -> None:
    found = cluster_metadata(kept.live)
    assert as_described(found) == kept.described
    assert (found.is_complete, found.warnings) == (True, ())
    assert found.end_offset >= kept.end_offset


def test_metadata_of_a_broker_that_has_ended_then_is_the_same_at_the_same_offset(kept: Kept) -> None:
    assert as_described(cluster_metadata(kept.ended, end_offset=kept.end_offset)) == kept.described


def test_snapshots_of_a_broker_then_are_the_state_of_the_log_at_their_offsets(
    kept: Kept, tmp_path: Path
) -> None:
    snapshots = snapshots_in(kept.ended)
    assert snapshots
    shutil.copytree(kept.ended, tmp_path / "log", ignore=shutil.ignore_patterns("*.checkpoint"))
    for snapshot in snapshots:
        of_log = cluster_metadata(tmp_path / "log", end_offset=snapshot.end_offset)
        of_snapshot = cluster_metadata(snapshot.path)
        assert entities(of_snapshot, "voter") == entities(of_log, "voter")
        assert of_snapshot.last_timestamp_ms == of_log.last_timestamp_ms
    assert entities(cluster_metadata(tmp_path / "log")) == entities(cluster_metadata(kept.ended))


@pytest.mark.parametrize("tool", [KAFKA_4, KAFKA_3], ids=lambda kafka: kafka.name)
def test_records_then_are_what_kafka_dump_log_prints(kept: Kept, tool: Kafka) -> None:
    if tool is KAFKA_3 and kept.broker.kafka is KAFKA_4:
        pytest.skip("Kafka 3.9 does not know the record versions of 4.3")
    *_, snapshot = snapshots_in(kept.ended)  # a slow broker writes the first one before it has 30 records
    for path, records in (
        (kept.ended / f"{0:020}.log", PartitionLog(kept.ended).records(control=True)),
        (snapshot.path, snapshot.records()),
    ):
        dumped = list(dumped_records(tool, path))
        shown = list(shown_records(records, with_control=tool is KAFKA_4))
        assert len(dumped) > 30
        assert shown == dumped


def dumped_records(tool: Kafka, path: Path) -> Iterator[tuple[int, str, Any]]:
    """Offset, type and fields of each record; a control record of Kafka 3.9 has no fields."""
    command = [
        *tool.java("quiet.properties"),
        tool.dump_log,
        "--files",
        str(path),
        "--cluster-metadata-decoder",
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    for line in done.stdout.splitlines():
        if (match := re.match(r"\| offset: (\d+) .*? payload: (.*)", line)) is not None:
            payload = json.loads(match[2])
            yield int(match[1]), payload["type"], (payload["version"], payload["data"])
        elif (match := re.match(r"\| offset: (\d+) .*headerKeys: \[\] (\w+):? (\{.*\})$", line)) is not None:
            if tool is KAFKA_4:
                yield int(match[1]), match[2], json.loads(match[3])
        elif line.startswith("| "):
            assert "controlType" in line, line


def shown_records(records: Iterable[Record], *, with_control: bool) -> Iterator[tuple[int, str, Any]]:
    """The same of our decoders."""
    for record in records:
        if record.is_control:
            decoded = decode_control_record(record.key or b"", record.value or b"")
            kind = decoded.type_name or ""
        else:
            decoded = decode_metadata_record(record.value or b"")
            kind = re.sub("(?<!^)([A-Z])", r"_\1", decoded.type_name or "").upper()
        assert decoded.value is not None
        assert not isinstance(decoded.value, RawMessage)
        assert decoded.version is not None
        fields = decoded.value.to_json(decoded.version)
        if not record.is_control:
            yield record.offset, kind, (decoded.version, fields)
        elif with_control:
            yield record.offset, kind, fields


def test_committed_snapshot_and_log_then_are_what_kafka_dump_log_prints() -> None:
    (snapshot,) = snapshots_in(FOLDER)
    assert list(shown_records(snapshot.records(), with_control=True)) == list(
        dumped_records(KAFKA_4, snapshot.path)
    )


def test_directory_that_was_formatted_for_a_dynamic_quorum_then_has_its_voters(tmp_path: Path) -> None:
    settings = tmp_path / "server.properties"
    settings.write_text(
        "process.roles=broker,controller\nnode.id=1\ncontroller.listener.names=CONTROLLER\n"
        "listeners=PLAINTEXT://127.0.0.1:19092,CONTROLLER://127.0.0.1:19093\n"
        f"controller.quorum.bootstrap.servers=127.0.0.1:19093\nlog.dirs={tmp_path / 'data'}\n"
    )
    scram = "SCRAM-SHA-256=[name=admin,password=secret]"
    command = [*KAFKA_4.java("quiet.properties"), "kafka.tools.StorageTool", "format", "--standalone"]
    command += ["-t", "S7JvKxLho-IZjGwqzBMSgA", "-c", str(settings), "--add-scram", scram]
    subprocess.run(command, check=True, capture_output=True)
    found = cluster_metadata(tmp_path / "data")
    ((voter,), kraft_version) = found.voters, found.kraft_version
    assert (kraft_version, voter.voter_id, str(voter.endpoints[0])) == (1, 1, "CONTROLLER://127.0.0.1:19093")
    bootstrap = cluster_metadata(tmp_path / "data" / "bootstrap.checkpoint")
    assert [user.name for user in bootstrap.users] == ["admin"]
    assert bootstrap.metadata_version == "4.3-IV0"


def test_names_then_are_those_of_kafkas_enums(oracle: KafkaOracle) -> None:
    java = oracle.jvm.org.apache.kafka
    for kind, known in (
        (java.common.resource.ResourceType, names.ACL_RESOURCES),
        (java.common.resource.PatternType, names.PATTERNS),
        (java.common.acl.AclOperation, names.OPERATIONS),
        (java.common.acl.AclPermissionType, names.PERMISSIONS),
    ):
        assert {one.code(): one.name() for one in kind.values() if one.code()}.items() <= known.items()
    mechanisms = java.clients.admin.ScramMechanism.values()
    assert {one.type(): one.mechanismName() for one in mechanisms if one.type()} == names.SCRAM_MECHANISMS
    protocol = java.common.security.auth.SecurityProtocol
    assert {number: protocol.forId(number).name() for number in range(4)} == names.SECURITY_PROTOCOLS
    for one in java.server.common.MetadataVersion.values():
        if one.featureLevel() > 0:
            assert names.metadata_version_name(one.featureLevel()) == one.version()


def test_properties_of_type_password_then_are_sensitive(oracle: KafkaOracle) -> None:
    keys = oracle.jvm.kafka.server.KafkaConfig.configDef().configKeys()
    sensitive = {name for name in keys if get_field(keys[name], "type").name() == "PASSWORD"}
    assert len(sensitive) > 5
    assert [name for name in sensitive if not names.is_sensitive(name)] == []
    hidden = {name for name in keys if names.is_sensitive(name)} - sensitive
    assert {name for name in hidden if not name.startswith("password.encoder.")} == set()
