"""What terminals would obey, or cannot show, is printed as escapes; a full disk is named, and so is standard output."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from cli.logs import command, run, run_process, write_log
from file_limits import file_size_limit
from kafkafmt import RecordBatchBuilder
from kafkafmt.cli.output import print_table
from log.samples import put_segment

TESTS = Path(__file__).parents[1]
COMMAND = "\x1b]0;owned\x07\x1b[2J"


def test_table_when_a_name_commands_the_terminal_then_shows_escapes_in_line(
    capsys: pytest.CaptureFixture[str],
) -> None:
    print_table(["group", "records#"], [[COMMAND, "1"], ["caf\u00e9", "20"]], title=f"of {COMMAND}")
    title, *lines = capsys.readouterr().out.splitlines()
    assert title == r"of \x1b]0;owned\x07\x1b[2J"
    assert [line.split() for line in lines] == [
        ["group", "records"],
        [r"\x1b]0;owned\x07\x1b[2J", "1"],
        ["caf\u00e9", "20"],
    ]
    assert len({len(line) for line in lines}) == 1  # the columns are wide enough for the escapes


def test_error_when_a_path_commands_the_terminal_then_shows_escapes(tmp_path: Path) -> None:
    ended = run("inspect", tmp_path / COMMAND)
    assert ended.exit_code == 2
    assert "\x1b" not in ended.stderr
    assert r"\x1b]0;owned\x07" in ended.stderr


def test_table_when_standard_output_lacks_a_character_then_shows_an_escape(tmp_path: Path) -> None:
    builder = RecordBatchBuilder()
    builder.append(0, "Gda\u0144sk".encode(), b"v")
    (tmp_path / "00000000000000000000.log").write_bytes(builder.build())
    ended = run_process("inspect", tmp_path, "--records", PYTHONIOENCODING="ascii")
    assert (ended.returncode, ended.stderr) == (0, "")
    assert r"Gda\u0144sk" in ended.stdout


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="only Linux has a device that is always full")
@pytest.mark.parametrize("asked", ["verify {}", "verify {} --json", "table {} out"])
def test_output_when_its_disk_is_full_then_the_error_names_it(tmp_path: Path, asked: str) -> None:
    write_log(tmp_path / "logs" / "orders-0")
    with Path("/dev/full").open("w") as full:
        ended = subprocess.run(
            command(*asked.format("logs").split()),
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
            cwd=tmp_path,
        )
    assert (ended.returncode, ended.stderr) == (1, "kafkafmt: standard output: No space left on device\n")


def test_command_when_it_gets_no_more_memory_then_says_so_in_one_line_with_status_1(tmp_path: Path) -> None:
    builder = RecordBatchBuilder(codec="zstd")
    builder.append(0, b"k", bytes(64 << 20))
    put_segment(tmp_path / "t-0", 0, [builder.build()])
    program = (
        f"import sys; sys.path.append({str(TESTS)!r})\n"
        "from process_memory import limit_virtual_bytes\n"
        "from kafkafmt.cli import main\n"
        "limit_virtual_bytes(100 << 20)\n"
        f"main(['inspect', {str(tmp_path)!r}, '--records', '--json'])"
    )
    ended = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False
    )
    assert ended.returncode == 1
    assert ended.stderr.startswith("kafkafmt: out of memory")
    assert ended.stderr.count("\n") == 1


@pytest.mark.parametrize("name", ["convert", "repair"])
def test_target_when_its_disk_is_full_then_the_error_names_it_and_not_the_source(
    tmp_path: Path, name: str
) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    write_log(source / "orders-0", segment_bytes=100_000)
    with file_size_limit(1000):
        ended = run(name, source, target, *(("--to-magic", 1, "--jobs", 1) if name == "convert" else ()))
    assert ended.exit_code == 1
    told = next(line for line in ended.stderr.splitlines() if "File too large" in line)
    assert "target" in told
    assert f"{source}" not in told
