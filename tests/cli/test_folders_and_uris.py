"""Each command that reads a log directory prints the same for a local folder, a store, tiered storage and a backup.

Where a log directory is written, a store gets the files of the local folder, and a view is refused. Commands that write
a file refuse a URI.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

import pytest

from cli.logs import is_one_line, run, write_log
from kafkafmt.storage import StoragePath, read_file, storage_of, storage_path
from store_folders import files_in, upload, uri_of

pytest.importorskip("pyarrow.fs")

from backup.stored import TOPIC, StoredBackup

PLACES = ["file", "s3", "tiered+file", "tiered+s3", "backup+file", "backup+s3"]
READERS: dict[str, tuple[str, ...]] = {
    "inspect": ("inspect", "--json"),
    "inspect records": ("inspect", "--records", "--offsets", "10:30", "--json"),
    "inspect summary": ("inspect", "--summary", "--json"),
    "verify": ("verify", "--json"),
    "replay": ("replay", "--by-time"),
    "repair": ("repair", "--dry-run", "--json"),
}
Place = tuple[str, Path]
COORDINATORS = Path(__file__).parents[1] / "data" / "coordinators" / "3.9"
EMPTY_TEXT = [
    ("inspect", "", "PATH"),
    ("verify", "logs", "", "PATH"),
    ("groups", "", "DIR"),
    ("cluster", "", "PATH"),
    ("convert", "", "out", "--to-magic", "2", "SRC"),
    ("erase", "logs", "", "--keys", "keys", "DST"),
    ("repair", "", "out", "SRC"),
    ("replay", "", "SRC"),
    ("replay", "logs", "", "TARGET"),
    ("restore", "", "kafka://127.0.0.1:1", "URI"),
    ("serve", "", "DIR"),
    ("table", "", "out", "SRC"),
    ("export", "", "out", "SRC"),
    ("export", "logs", "", "DST"),
    ("export", "compact", "", "--format", "delta", "TABLE"),
]


@pytest.mark.parametrize("arguments", EMPTY_TEXT, ids=lambda one: one[0])
def test_path_when_empty_then_is_refused_and_not_the_current_folder(
    tmp_path: Path, arguments: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    write_log(tmp_path / "orders-0")
    (tmp_path / "keys").touch()
    monkeypatch.chdir(tmp_path)
    before = sorted(tmp_path.rglob("*"))
    *given, name = arguments
    result = run(*given)
    assert result.exit_code == 2
    assert is_one_line(result.stderr, [name, "expected a folder or a URI, found ''"]), result.stderr
    assert sorted(tmp_path.rglob("*")) == before


def copy_of(view: StoragePath, folder: Path) -> Path:
    """Copy what a view shows to a local folder."""
    folder.mkdir(parents=True)
    storage = storage_of(view)
    with storage.entries(view) as entries:
        for entry in list(entries):
            path = storage.path_of(view, entry)
            if entry.is_dir():
                copy_of(path, folder / entry.name)
            else:
                (folder / entry.name).write_bytes(read_file(path))
    return folder


def as_tiered(log: Path, root: Path) -> Path:
    """Copy the segments of a topic to the layout of Kafka's LocalTieredStorage."""
    folder = root / "kafka-tiered-storage" / f"{TOPIC}-0-{'A' * 22}"
    folder.mkdir(parents=True)
    for number, segment in enumerate(sorted((log / f"{TOPIC}-0").glob("*.log"))):
        stored = folder / f"{segment.stem}-{'B' * 21}{number}.log"
        for suffix in (".log", ".index", ".timeindex"):
            stored.with_suffix(suffix).write_bytes(segment.with_suffix(suffix).read_bytes())
        epochs = "".join(f"{epoch} {epoch * 80}\n" for epoch in range(number + 1))
        stored.with_suffix(".leader_epoch_checkpoint").write_text(f"0\n{number + 1}\n{epochs}")
    return root


@pytest.fixture(scope="module")
def places(
    tmp_path_factory: pytest.TempPathFactory, s3: object, s3_options: Mapping[str, str]
) -> dict[str, Place]:
    """The URIs of the same log at each place, with a local folder of what is there."""
    root = tmp_path_factory.mktemp("places")
    (root / "spool").mkdir()
    stored = StoredBackup(root / "backup", root / "spool")
    for _ in range(2):
        stored.grow()
    log = copy_of(storage_path(f"backup+{(root / 'backup').as_uri()}"), root / "log")
    tiered = as_tiered(log, root / "tiered")
    tiered_log = copy_of(storage_path(f"tiered+{tiered.as_uri()}"), root / "tiered log")
    uploaded = {
        name: upload(root / name, uri_of(s3_options, f"places/{name}"))
        for name in ("log", "tiered", "backup")
    }
    return {
        "file": (log.as_uri(), log),
        "s3": (uploaded["log"], log),
        "tiered+file": (f"tiered+{tiered.as_uri()}", tiered_log),
        "tiered+s3": (f"tiered+{uploaded['tiered']}", tiered_log),
        "backup+file": (f"backup+{(root / 'backup').as_uri()}", log),
        "backup+s3": (f"backup+{uploaded['backup']}", log),
    }


@pytest.mark.parametrize(
    "command",
    [
        ("transactions", "{}"),
        ("groups", "{}"),
        ("serve", "{}"),
        ("backup", "list", "{}"),
        ("backup", "verify", "{}"),
        ("backup", "prune", "{}", "--keep", "1"),
        ("convert", "{}", "out", "--codec", "lz4"),
        ("repair", "{}", "out"),
        ("replay", "{}"),
        ("table", "{}", "out"),
    ],
    ids=" ".join,
)
@pytest.mark.parametrize("form", ["{}", "file://{}"])
def test_folder_when_it_is_a_file_or_missing_then_all_commands_say_so_alike(
    tmp_path: Path, command: tuple[str, ...], form: str
) -> None:
    (tmp_path / "file").touch()
    for name, reason in (("file", "expected a folder, found a file"), ("missing", "no such folder")):
        path = tmp_path / name
        ended = run(*(one.format(form.format(path)) for one in command))
        assert (ended.exit_code, ended.stdout) == (2, "")
        assert f"{path}: {reason}" in ended.stderr
        assert ended.stderr.count("\n") == 1


def output_of(where: str | Path, *arguments: str) -> tuple[int, str]:
    """The exit status and output of a command, with PLACE for the path of the folder."""
    done = run(arguments[0], where, *arguments[1:])
    assert done.exit_code in (0, 1), done.output
    return done.exit_code, done.stdout.replace(str(storage_path(str(where))), "PLACE")


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("place", PLACES)
def test_reading_command_when_the_log_is_at_a_uri_then_prints_what_it_prints_of_a_local_folder(
    places: dict[str, Place], place: str, reader: str
) -> None:
    uri, local = places[place]
    there, here = output_of(uri, *READERS[reader]), output_of(local, *READERS[reader])
    assert there == here
    assert here[1]


@pytest.mark.parametrize("command", ["groups", "transactions"])
def test_groups_and_transactions_when_the_log_is_at_a_uri_then_are_those_of_a_local_folder(
    s3: object, s3_options: dict[str, str], command: str
) -> None:
    uri = upload(COORDINATORS, uri_of(s3_options, "places/coordinators"))
    times = re.compile(r'"(open_ms|at)": *[^,}]*')  # until now
    outputs = [output_of(where, command, "--json") for where in (uri, COORDINATORS)]
    there, here = ((code, times.sub("", output)) for code, output in outputs)
    assert there == here
    assert here[1]


def test_table_when_the_log_is_at_a_uri_then_has_the_rows_of_a_local_folder(
    places: dict[str, Place], tmp_path: Path
) -> None:
    pytest.importorskip("rocksdict")
    import pyarrow.parquet as pq

    for place, (uri, local) in places.items():
        for name, source in (("there", uri), ("here", local)):
            assert run("table", source, tmp_path / f"{place} {name}").exit_code == 0
        there, here = (pq.read_table(tmp_path / f"{place} {name}") for name in ("there", "here"))
        assert there.equals(here)
        assert there.num_rows


@pytest.mark.parametrize("command", ["convert", "erase", "repair", "replay"])
@pytest.mark.parametrize("place", PLACES)
def test_writing_command_when_the_log_is_at_a_uri_then_writes_what_it_writes_of_a_local_folder(
    places: dict[str, Place], tmp_path: Path, s3: object, s3_options: dict[str, str], place: str, command: str
) -> None:
    (tmp_path / "keys").write_text("key-3\nkey-99\n")
    options = {
        "convert": ("--codec", "lz4", "--jobs", 1),
        "erase": ("--keys", tmp_path / "keys", "--jobs", 1),
        "repair": (),
        "replay": (),
    }[command]
    uri, local = places[place]
    there, target = uri_of(s3_options, f"written/{command}/{place}"), tmp_path / "here"
    for source, out in ((uri, there), (local, target)):
        assert run(command, source, out, *options).exit_code == 0
    assert logs_in(there) == logs_in(target)
    assert any(name.endswith(".log") for name in logs_in(target))


def logs_in(where: str | Path) -> dict[str, bytes]:
    """The files of a log directory, without those that name their source."""
    return {
        name: data
        for name, data in files_in(where).items()
        if not name.endswith((".converted", ".lock", "kafkafmt-convert.json"))
    }


@pytest.mark.parametrize("command", ["convert", "erase", "repair", "replay"])
@pytest.mark.parametrize("view", ["tiered", "backup"])
def test_writing_command_when_the_target_is_a_view_then_refused(
    places: dict[str, Place], tmp_path: Path, view: str, command: str
) -> None:
    (tmp_path / "keys").write_text("key-3\n")
    (tmp_path / "store").mkdir()
    options = {"convert": ("--codec", "lz4"), "erase": ("--keys", tmp_path / "keys")}.get(command, ())
    refused = run(command, places["file"][1], f"{view}+{(tmp_path / 'store').as_uri()}", *options)
    assert refused.exit_code == 2, refused.output
    assert len(refused.stderr.splitlines()) == 1
    assert files_in(tmp_path / "store") == {}


@pytest.mark.parametrize(
    "arguments",
    [
        ("table", "SRC", "URI"),
        ("table", "SRC", "out.parquet", "--state", "URI"),
        ("inspect", "SRC", "--parquet", "URI"),
        ("inspect", "SRC", "--html", "URI"),
        ("erase", "SRC", "out", "--keys", "keys", "--report", "URI"),
        ("spark-archive", "URI"),
    ],
    ids=" ".join,
)
def test_command_when_a_file_would_be_written_to_a_uri_then_refused(
    places: dict[str, Place],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    s3_options: dict[str, str],
    arguments: tuple[str, ...],
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "keys").write_text("key-3\n")
    given = {"SRC": places["file"][1], "URI": uri_of(s3_options, "a/file")}
    refused = run(*(given.get(one, one) for one in arguments))
    assert refused.exit_code == 2
    assert "expected a local path, found a URI" in refused.stderr
    assert {path.name for path in tmp_path.iterdir()} == {"keys"}
