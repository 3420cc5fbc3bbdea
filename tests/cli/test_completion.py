"""Shell completion: click's own, tried in Bash."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.shell_completion import ShellComplete

from cli.logs import write_log
from kafkafmt.cli import main


def completions(*words: str) -> list[tuple[str, str]]:
    """What is completed for the last word, with the kind: plain, file or dir."""
    *before, incomplete = words
    found = ShellComplete(main, {}, "kafkafmt", "_KAFKAFMT_COMPLETE").get_completions(
        list(before), incomplete
    )
    return [(item.value, item.type) for item in found]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["in"], [("inspect", "plain")]),
        (["convert", "--to-m"], [("--to-magic", "plain")]),
        (["convert", "--codec", "z"], [("zstd", "plain")]),
        (["serve", "--help-"], [("--help-all", "plain")]),
        (["serve", "b"], [("b", "dir")]),
        (["verify", "b"], [("b", "file")]),
        (["replay", "a", "b"], [("b", "dir")]),
        (["mirror", "o"], [("offsets", "plain")]),
        (["mirror", "b"], [("b", "dir")]),
        (["mirror", "a", "o"], [("o", "dir")]),
        (["mirror", "offsets", "o"], [("o", "dir")]),
        (["mirror", "offsets", "--comm"], [("--commit", "plain")]),
    ],
    ids=str,
)
def test_word_when_it_is_begun_then_is_completed(words: list[str], expected: list[tuple[str, str]]) -> None:
    assert completions(*words) == expected


@pytest.mark.parametrize("command", ["convert", "replay", "table"])
def test_topics_when_the_source_is_a_local_folder_then_are_completed(command: str, tmp_path: Path) -> None:
    for name in ("orders-0", "orders-1", "page-views-0"):
        write_log(tmp_path / name, batches=1)
    assert completions(command, str(tmp_path), "out", "--topics", "o") == [("orders", "plain")]
    assert completions(command, str(tmp_path / "none"), "out", "--topics", "o") == []
    assert completions(command, "s3://bucket/logs", "out", "--topics", "o") == []


def test_script_when_bash_reads_it_then_completes_a_command() -> None:
    ask = 'COMP_WORDS=(kafkafmt conv); COMP_CWORD=1; _kafkafmt_completion kafkafmt; echo "${COMPREPLY[@]}"'
    script = f'eval "$(_KAFKAFMT_COMPLETE=bash_source kafkafmt)"\n{ask}'
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-c", script], capture_output=True, text=True, env={**os.environ, "PATH": path}, check=False
    )
    assert done.stdout == "convert\n", done.stderr
