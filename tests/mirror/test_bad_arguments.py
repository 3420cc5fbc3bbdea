"""Arguments of a mirror and a backup that cannot be right: one line, which says what is expected."""

from __future__ import annotations

from pathlib import Path

import pytest

from cli.logs import run
from endpoints.endpoint_process import EndpointProcess
from mirror.folders import batches, put_log


def test_target_when_it_is_a_file_then_the_error_expects_a_folder(tmp_path: Path) -> None:
    put_log(tmp_path / "source" / "t-0", batches(0, 10))
    target = tmp_path / "bad.ini"
    target.touch()
    result = run("mirror", tmp_path / "source", target)
    assert (result.exit_code, result.stderr) == (2, f"kafkafmt: {target}: expected a folder, found a file\n")


def test_group_when_it_is_empty_then_is_refused(tmp_path: Path) -> None:
    result = run("mirror", "kafka://127.0.0.1:1/t", tmp_path / "copy", "--group", "")
    assert (result.exit_code, result.stderr) == (
        2,
        "kafkafmt: --group: expected the name of a group, found an empty one\n",
    )


def test_keep_when_it_is_0_then_the_error_names_both_forms(tmp_path: Path) -> None:
    result = run("backup", "prune", tmp_path, "--keep", 0)
    assert result.exit_code == 2
    assert "expected a number of generations, as 10, or a number and s, m, h, d or w, as 30d" in result.stderr


@pytest.mark.clients
def test_target_when_it_is_an_endpoint_that_takes_no_records_then_the_error_names_the_option(
    tmp_path: Path,
) -> None:
    put_log(tmp_path / "served" / "s-0", batches(0, 10))
    put_log(tmp_path / "source" / "t-0", batches(0, 10))
    with EndpointProcess(tmp_path / "served", log=tmp_path / "log") as running:
        result = run("mirror", tmp_path / "source", f"kafka://{running.address}")
    assert result.exit_code == 2
    assert result.stderr.rstrip().endswith("(kafkafmt serve takes records only with --allow-produce)")
