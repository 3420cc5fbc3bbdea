"""`--threads N` of `kafkafmt replay` and `kafkafmt table`: the results are those of one thread.

Memory Management in Kafka Streams, "Summary": Total is divided evenly by numThreads when the instance starts up.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cli.logs import is_one_line, run
from jobs.logs import make_logs


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    source = tmp_path_factory.mktemp("threads") / "logs"
    make_logs(source, topics=("a", "b"), partitions=3)
    return source


def segments_of(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*.log")}


@pytest.mark.parametrize("order", [("--by-time",), ()], ids=["by time", "in order"])
@pytest.mark.parametrize("threads", [2, 5, 16])
def test_replay_when_several_threads_read_a_folder_then_is_that_of_one(
    source: Path, tmp_path: Path, order: tuple[str, ...], threads: int
) -> None:
    found = {}
    for number in (1, threads):
        to_folder = tmp_path / str(number)
        result = run("replay", source, *order, "--threads", number, "--memory", "96m")
        assert result.exit_code == 0, result.stderr
        assert run("replay", source, to_folder, *order, "--threads", number, "--memory", "96m").exit_code == 0
        found[number] = result.stdout, segments_of(to_folder)
    assert found[threads] == found[1]
    assert found[1][0]


@pytest.mark.full
@pytest.mark.parametrize("threads", [2, 16])
def test_table_when_several_threads_read_a_folder_then_is_that_of_one(
    source: Path, tmp_path: Path, threads: int
) -> None:
    pytest.importorskip("rocksdict")
    import pyarrow.parquet as pq

    tables = []
    for number in (1, threads):
        path = tmp_path / f"{number}.parquet"
        result = run("table", source, path, "--threads", number, "--memory", "256m", "--json")
        assert result.exit_code == 0, result.stderr
        summary = json.loads(result.stdout)
        assert 0 < summary["peak_bytes"] <= summary["memory_bytes"]
        tables.append(pq.read_table(path))
    assert tables[0].equals(tables[1])
    assert tables[0].num_rows


def test_state_when_it_is_of_another_number_of_threads_then_is_refused_in_one_line(
    source: Path, tmp_path: Path
) -> None:
    pytest.importorskip("rocksdict")
    state = "--state", tmp_path / "state"
    assert run("table", source, tmp_path / "out", *state, "--threads", 2, "--memory", "96m").exit_code == 0
    again = run("table", source, tmp_path / "out", *state, "--threads", 2, "--force", "--memory", "96m")
    assert again.exit_code == 0, again.stderr
    for number in (1, 3):
        refused = run(
            "table", source, tmp_path / "out", *state, "--threads", number, "--memory", "96m", "--force"
        )
        assert refused.exit_code != 0
        assert is_one_line(refused.stderr, ["thread"])
