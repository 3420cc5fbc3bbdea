"""What a repair says of files that it leaves out."""

from __future__ import annotations

from pathlib import Path

from cli.logs import run
from mirror.folders import batches, put_log


def test_repair_when_a_swap_file_doubles_a_segment_then_is_told_once(tmp_path: Path) -> None:
    log = put_log(tmp_path / "logs" / "t-0", batches(0, 20))
    folder = tmp_path / "logs" / "t-0"
    segment = folder / "00000000000000000000.log"
    (folder / f"{segment.name}.swap").write_bytes(segment.read_bytes())
    assert log.exists()
    result = run("repair", tmp_path / "logs", tmp_path / "target")
    told = [line for line in result.stderr.splitlines() + result.stdout.splitlines() if ".swap" in line]
    assert len([line for line in told if line.startswith("mended: ")]) == 1, told
    assert not any("no sound batch" in line for line in told)


def test_repair_when_the_mark_of_a_clean_shutdown_is_damaged_then_is_written_empty(tmp_path: Path) -> None:
    put_log(tmp_path / "logs" / "t-0", batches(0, 20))
    (tmp_path / "logs" / ".kafka_cleanshutdown").write_bytes(b"{damaged")
    aside = tmp_path / "logs" / f"t-1.{'a' * 32}-future"
    aside.mkdir()
    result = run("repair", tmp_path / "logs", tmp_path / "target")
    said = result.stdout + result.stderr
    assert ".kafka_cleanshutdown: damaged, written empty" in said
    assert (tmp_path / "target" / ".kafka_cleanshutdown").read_bytes() == b""
    assert f"{aside.name}: a log that a broker has put aside, left out" in said
