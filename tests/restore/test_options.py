"""What a restore refuses before it creates a topic."""

from __future__ import annotations

from pathlib import Path

import pytest

from backup.stored import StoredBackup
from cli.logs import run
from endpoints.endpoint_process import EndpointProcess
from kafkafmt.restore.errors import RestoreError
from kafkafmt.restore.options import THROTTLED_REPLICAS, renamed
from mirror.folders import batches, put_log


def test_groups_when_a_named_one_has_no_offsets_then_the_restore_does_not_start(tmp_path: Path) -> None:
    StoredBackup(tmp_path / "backup", tmp_path).grow()
    found = run("restore", tmp_path / "backup", "kafka://127.0.0.1:1", "--groups", "readers,nobody")
    assert (found.exit_code, found.stdout) == (2, "")
    assert "--groups: no group nobody with offsets in the restored topics" in found.stderr


@pytest.mark.parametrize("place", ["", "t:"])
@pytest.mark.parametrize("name", sorted(THROTTLED_REPLICAS))
def test_topic_config_when_it_throttles_replicas_then_the_restore_does_not_start(
    tmp_path: Path, place: str, name: str
) -> None:
    put_log(tmp_path / "t-0", batches(0, 10))
    found = run("restore", tmp_path, "kafka://127.0.0.1:1", "--topic-config", f"{place}{name}=0:1")
    assert (found.exit_code, found.stdout) == (2, "")
    (line,) = found.stderr.splitlines()
    assert line.startswith(
        f"kafkafmt: --topic-config {name}=0:1: a restore sets no throttles of replicas, as "
    )


def test_rename_when_no_topic_matches_then_is_refused() -> None:
    assert renamed(["a"], ["(a)=b.\\1", "a=c"]).renames == {"a": "c"}
    with pytest.raises(RestoreError, match="--rename nope=b: no topic of the restore matches nope"):
        renamed(["a"], ["nope=b"])


@pytest.mark.clients
def test_restore_when_the_target_has_no_transactions_then_no_topic_is_created(tmp_path: Path) -> None:
    put_log(tmp_path / "source" / "t-0", batches(0, 10))
    served = tmp_path / "served"
    served.mkdir()
    with EndpointProcess(served, "--allow-produce", log=tmp_path / "log") as running:
        result = run("restore", tmp_path / "source", f"kafka://{running.address}", "--log-level", "error")
    assert result.exit_code == 2
    line = result.stderr.splitlines()[-1]
    assert line.startswith("kafkafmt: a restore needs transactions at the target")
    assert ", or --no-transactions: " in line
    assert not (served / "t-0").exists()
