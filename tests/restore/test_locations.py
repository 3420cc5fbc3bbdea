"""What a restore reads, without a cluster."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from backup.stored import StoredBackup, log_of, write_key_ring
from cli.logs import flip
from kafkafmt.log import LogDirectory
from kafkafmt.mirror.addresses import parse_address
from kafkafmt.restore.errors import RestoreError
from kafkafmt.restore.locations import find_source
from kafkafmt.restore.options import RestoreOptions

COORDINATORS = Path(__file__).parents[1] / "data" / "coordinators" / "3.9"
TARGET = parse_address("kafka://new:9092")


@pytest.mark.parametrize("name", ["new!", "we!rd", "really?", "50%25", "a#b"])
def test_source_when_the_folder_of_a_backup_has_signs_of_a_uri_then_is_read(
    tmp_path: Path, name: str
) -> None:
    ring = write_key_ring(tmp_path)
    backup = StoredBackup(tmp_path / name, tmp_path, ring)
    manifest = backup.grow()
    found = find_source(RestoreOptions(str(tmp_path / name), TARGET, key_ring=ring))  # type: ignore[arg-type]
    assert (found.generation, found.groups) == (manifest.name, manifest.groups)
    assert log_of(LogDirectory(found.path)) == backup.logs[0]


@pytest.mark.parametrize("end", ["", "!", "!/"])
def test_source_when_it_is_a_view_with_a_generation_then_that_one_is_restored(
    tmp_path: Path, end: str
) -> None:
    backup = StoredBackup(tmp_path / "backup", tmp_path)
    first = backup.grow()
    backup.grow()
    source = f"backup+file://{tmp_path}/backup{end}?generation=1"
    assert find_source(RestoreOptions(source, TARGET)).generation == first.name  # type: ignore[arg-type]


def test_source_when_it_is_a_partition_of_a_view_then_the_error_names_the_option_for_topics(
    tmp_path: Path,
) -> None:
    StoredBackup(tmp_path / "backup", tmp_path).grow()
    source = f"backup+file://{tmp_path}/backup!/orders-0?generation=1"
    with pytest.raises(
        RestoreError, match="backup!/orders-0: expected a backup, found orders-0 in one: --topics"
    ):
        find_source(RestoreOptions(source, TARGET))  # type: ignore[arg-type]


def options_of(directory: Path, **more: object) -> RestoreOptions:
    return RestoreOptions(str(directory), TARGET, **more)  # type: ignore[arg-type]


def test_groups_when_a_broker_has_another_partition_of_their_topic_than_the_first_then_are_found(
    tmp_path: Path,
) -> None:
    shutil.copytree(COORDINATORS / "__consumer_offsets-0", tmp_path / "__consumer_offsets-7")
    found = find_source(options_of(tmp_path)).groups
    assert found == find_source(options_of(COORDINATORS)).groups
    assert found


def test_groups_when_their_topic_is_damaged_then_are_an_error_unless_it_is_skipped_or_none_are_wanted(
    tmp_path: Path,
) -> None:
    shutil.copytree(COORDINATORS / "__consumer_offsets-0", tmp_path / "__consumer_offsets-0")
    flip(next((tmp_path / "__consumer_offsets-0").glob("*.log")), 100)
    with pytest.raises(RestoreError, match="__consumer_offsets-0 at offset 0"):
        find_source(options_of(tmp_path))
    assert find_source(options_of(tmp_path, on_corrupt="skip")).groups
    assert find_source(options_of(tmp_path, groups=None)).groups == {}
