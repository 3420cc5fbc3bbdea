"""The archive for executors, imported from by Pythons that have no kafkafmt; no Spark is started."""

from __future__ import annotations

import os
import re
import shutil
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from cli.logs import is_one_line, run, run_process
from kafkafmt.spark import ArchiveError, unpack
from kafkafmt.spark.archive import (
    ASSUMED,
    BEFORE_3_14,
    OPTIONAL,
    SHIPPED,
    Archive,
    _installed,
    loaded_from,
    read_archive,
    write_archive,
)
from spark.archives import (
    OTHER_SUFFIX,
    OTHER_TAG,
    SECONDS,
    link_packages,
    run_isolated,
    start_isolated,
    write_wheel,
    write_wheels,
)

COMMAND_LINE_ONLY = {"click", "rich", "tomli"}

# One worker writes the archive that many tests read.
pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("spark-archive")]


@pytest.fixture(scope="module", autouse=True)
def _quick_compression() -> Iterator[None]:
    """Archives of this process are compressed quickly: most of the time went into that, and no test is about it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(zlib, "Z_DEFAULT_COMPRESSION", zlib.Z_BEST_SPEED)
        yield


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("archive") / "kafkafmt.zip"
    write_archive(path)
    return path


@pytest.fixture(scope="module")
def again(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Archive]:
    """The same archive, written once more, and what is told of it then."""
    path = tmp_path_factory.mktemp("again") / "again.zip"
    return path, write_archive(path)


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What executors are assumed to have."""
    return link_packages(tmp_path_factory.mktemp("packages"), ASSUMED)


@pytest.fixture(scope="module")
def unpacked(archive: Path, packages: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where a run has unpacked the archive, and found it whole."""
    temporary = tmp_path_factory.mktemp("unpacked")
    assert run_isolated(archive, packages, temporary) == imported_from(site(temporary, archive))
    return temporary


@pytest.fixture(scope="module")
def other_wheels(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return write_wheels(tmp_path_factory.mktemp("wheels"), other=True)


@pytest.fixture(scope="module")
def other_archive(tmp_path_factory: pytest.TempPathFactory, other_wheels: list[Path]) -> Path:
    path = tmp_path_factory.mktemp("archive") / "other.zip"
    write_archive(path, other_wheels)
    return path


def private_folder(temporary: Path) -> Path:
    return temporary / f"kafkafmt-{os.getuid()}"


def site(temporary: Path, archive: Path) -> Path:
    return private_folder(temporary) / read_archive(archive).digest


def imported_from(folder: Path) -> tuple[str, str]:
    """What a run that went well prints."""
    return str(folder / "kafkafmt" / "__init__.py"), ""


# What goes along


def test_requirements_when_listed_then_each_is_shipped_or_assumed() -> None:
    required = {
        re.split(r"[^\w-]", line)[0] for line in metadata.requires("kafkafmt") or () if "extra ==" not in line
    }
    assert required - COMMAND_LINE_ONLY - set(ASSUMED) == set(SHIPPED) - {"kafkafmt"}


def test_archive_when_written_again_then_has_the_same_bytes(
    archive: Path, again: tuple[Path, Archive]
) -> None:
    assert again[0].read_bytes() == archive.read_bytes()


def test_archive_when_made_of_wheels_then_is_that_of_their_installation(
    archive: Path, tmp_path: Path
) -> None:
    write_archive(tmp_path / "of-wheels.zip", write_wheels(tmp_path))
    assert (tmp_path / "of-wheels.zip").read_bytes() == archive.read_bytes()


def test_archive_when_read_then_tells_what_was_written(archive: Path, again: tuple[Path, Archive]) -> None:
    path, written = again
    found = read_archive(archive)
    assert found == written
    assert [distribution.name for distribution in found.distributions] == [*SHIPPED, *OPTIONAL]
    assert list(path.parent.iterdir()) == [path]


def test_archive_when_it_holds_files_then_none_is_of_the_installer(archive: Path) -> None:
    with zipfile.ZipFile(archive) as opened:
        names = opened.namelist()
    assert not [name for name in names if re.search(r"RECORD|INSTALLER|__pycache__|bin/", name)]
    assert not [name for name in names if "tool" in name]


# Importing


def test_kafkafmt_when_imported_from_the_archive_then_reads_every_codec(
    archive: Path, packages: Path, tmp_path: Path
) -> None:
    assert run_isolated(archive, packages, tmp_path) == imported_from(site(tmp_path, archive))
    assert private_folder(tmp_path).stat().st_mode & 0o777 == 0o700
    assert sorted(path.name for path in private_folder(tmp_path).iterdir()) == [
        ".lock",
        read_archive(archive).digest,
    ]


@pytest.mark.parametrize(
    "code",
    [
        "from _kafkafmt.records.decode import Record; import kafkafmt",
        "import kafkafmt.records.base",
        "import kafkafmt, importlib; importlib.reload(kafkafmt)",
    ],
)
def test_module_of_either_package_when_imported_first_then_is_the_unpacked_one(
    archive: Path, packages: Path, tmp_path: Path, code: str
) -> None:
    code += "; import _kafkafmt; print(*(m.__spec__.origin for m in (kafkafmt, _kafkafmt)), sep='\\n')"
    folder = site(tmp_path, archive)
    wanted = "\n".join(str(folder / name / "__init__.py") for name in ("kafkafmt", "_kafkafmt"))
    assert run_isolated(archive, packages, tmp_path, code) == (wanted, "")


def test_threads_when_they_import_at_once_then_none_sees_half_a_package(
    archive: Path, packages: Path, tmp_path: Path
) -> None:
    code = (
        "from concurrent.futures import ThreadPoolExecutor\n"
        "def names(_):\n"
        "    import kafkafmt\n"
        "    return len(kafkafmt.__all__), kafkafmt.build_batches.__name__\n"
        "print(len(set(ThreadPoolExecutor(8).map(names, range(64)))))"
    )
    assert run_isolated(archive, packages, tmp_path, code) == ("1", "")


def test_processes_when_they_unpack_at_once_then_all_use_one_folder(
    archive: Path, packages: Path, tmp_path: Path
) -> None:
    with ExitStack() as stack:
        running = [stack.enter_context(start_isolated(archive, packages, tmp_path)) for _ in range(4)]
        found = [process.communicate(timeout=SECONDS) for process in running]
    assert [(output.strip(), errors) for output, errors in found] == [
        imported_from(site(tmp_path, archive))
    ] * 4
    assert len(list(private_folder(tmp_path).iterdir())) == 2


def test_archive_when_imported_from_then_a_driver_finds_and_reads_it(
    archive: Path, packages: Path, tmp_path: Path
) -> None:
    code = "import kafkafmt.spark.archive as a; print(a.loaded_from())"
    assert run_isolated(archive, packages, tmp_path, code) == (str(archive), "")
    assert loaded_from() is None


def test_archive_when_it_cannot_be_unpacked_then_the_error_says_where(archive: Path, packages: Path) -> None:
    missing = "/proc/kafkafmt" if Path("/proc/self").exists() else "/dev/null"
    code = f"import tempfile; tempfile.tempdir = {missing!r}; import kafkafmt"
    _, error = run_isolated(archive, packages, Path("/tmp"), code)
    assert error.startswith("ImportError: ")
    assert missing in error
    assert "TMPDIR" in error


# Folders that are not as they were left


def plant(folder: Path) -> None:
    """A package that must not be run."""
    (folder / "kafkafmt").mkdir(parents=True)
    (folder / "kafkafmt" / "__init__.py").write_text("raise SystemExit('planted')")


@pytest.mark.parametrize("mode", [0o777, 0o755, 0o710, 0o701])
def test_folder_that_others_may_enter_when_there_then_is_not_used(
    archive: Path, packages: Path, tmp_path: Path, mode: int
) -> None:
    plant(site(tmp_path, archive))
    private_folder(tmp_path).chmod(mode)
    output, error = run_isolated(archive, packages, tmp_path)
    (used,) = tmp_path.glob(f"kafkafmt-{os.getuid()}-*")
    assert (output, error) == imported_from(used / read_archive(archive).digest)
    if mode == 0o777:  # the next worker finds what the first one made
        assert run_isolated(archive, packages, tmp_path) == (output, "")


def test_link_when_in_place_of_the_folder_then_is_not_followed(
    archive: Path, packages: Path, tmp_path: Path
) -> None:
    target = tmp_path / "elsewhere"
    plant(target / read_archive(archive).digest)
    target.chmod(0o700)
    private_folder(tmp_path).symlink_to(target)
    output, error = run_isolated(archive, packages, tmp_path)
    assert (str(target) in output, error) == (False, "")


def test_folder_of_another_user_when_there_then_is_not_private(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tmp_path.chmod(0o700)
    assert unpack._is_private(tmp_path)
    monkeypatch.setattr(os, "getuid", lambda: tmp_path.stat().st_uid + 1)
    assert not unpack._is_private(tmp_path)


@pytest.mark.parametrize("damage", ["removed", "changed", "grown", "linked", "a file for all"])
def test_file_when_not_as_it_was_unpacked_then_all_is_unpacked_again(
    archive: Path, packages: Path, unpacked: Path, tmp_path: Path, damage: str
) -> None:
    shutil.copytree(private_folder(unpacked), private_folder(tmp_path))
    folder = site(tmp_path, archive)
    path = folder / "kafkafmt" / "types.py"
    data = path.read_bytes()
    if damage == "changed":
        path.write_bytes(b"#" + data[1:])
    elif damage == "grown":
        path.write_bytes(data + b"\nraise SystemExit('planted')\n")
    elif damage == "linked":
        path.rename(tmp_path / "types.py")
        path.symlink_to(tmp_path / "types.py")
    elif damage == "removed":
        path.unlink()
    else:
        folder.rename(tmp_path / "moved")
        folder.touch()
    assert run_isolated(archive, packages, tmp_path) == imported_from(folder)
    assert path.read_bytes() == data


def test_leftover_of_a_kill_when_there_then_is_in_nobodys_way(
    archive: Path, packages: Path, tmp_path: Path
) -> None:
    folder = site(tmp_path, archive)
    private_folder(tmp_path).mkdir(0o700)
    plant(folder.with_name(f".{folder.name}.tmp"))
    assert run_isolated(archive, packages, tmp_path) == imported_from(folder)
    assert len(list(private_folder(tmp_path).iterdir())) == 2


# Other platforms


def test_wheels_for_another_platform_when_given_then_the_archive_is_for_it(other_archive: Path) -> None:
    found = read_archive(other_archive)
    assert found.native_suffix == OTHER_SUFFIX
    assert {distribution.tags for distribution in found.distributions} == {(OTHER_TAG,)}


def test_archive_for_another_platform_when_alone_then_the_error_tells_both(
    other_archive: Path, packages: Path, tmp_path: Path
) -> None:
    _, error = run_isolated(other_archive, packages, tmp_path)
    assert error.startswith(f"ImportError: {other_archive} has native modules *{OTHER_SUFFIX}, this Python")
    assert "kafkafmt spark-archive --wheel" in error
    assert not list(tmp_path.iterdir())


def test_archive_for_another_platform_when_one_for_this_is_behind_it_then_makes_way(
    archive: Path, other_archive: Path, packages: Path, tmp_path: Path
) -> None:
    code = f"sys.path.insert(1, {str(archive)!r}); import kafkafmt; print(kafkafmt.__spec__.origin)"
    assert run_isolated(other_archive, packages, tmp_path, code) == imported_from(site(tmp_path, archive))


def test_wheels_when_of_two_platforms_then_are_refused(other_wheels: list[Path], tmp_path: Path) -> None:
    lz4 = SHIPPED.index("lz4")
    wheels = [*other_wheels[:lz4], write_wheel(tmp_path, "lz4"), *other_wheels[lz4 + 1 :]]
    refuse(wheels, tmp_path, "more than one platform", OTHER_SUFFIX, "lz4")


def test_wheels_when_one_is_missing_then_the_error_names_it(other_wheels: list[Path], tmp_path: Path) -> None:
    wheels = [path for path in other_wheels if not path.name.startswith("isal")]
    refuse(wheels, tmp_path, "no wheel of isal")


def test_wheels_when_for_a_python_that_has_their_codecs_then_need_neither_lz4_nor_zstandard(
    other_wheels: list[Path], tmp_path: Path
) -> None:
    wheels = [path for path in other_wheels if not path.name.startswith(BEFORE_3_14)]
    found = write_archive(tmp_path / "without.zip", wheels)
    names = {distribution.name for distribution in found.distributions}
    assert names == {*SHIPPED, *OPTIONAL} - set(BEFORE_3_14)


@pytest.mark.parametrize(("python", "is_refused"), [("cp313", True), ("cp314", False), ("cp314t", False)])
def test_installed_packages_when_lz4_and_zstandard_are_missing_then_only_an_earlier_python_is_refused(
    python: str, is_refused: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def installed(name: str) -> Any:
        if name in BEFORE_3_14:
            raise ArchiveError(f"{name} is not installed here")
        source = _installed(name)
        tags = (f"cp{python.removeprefix('cp').removesuffix('t')}-{python}-linux_x86_64",)
        return replace(source, distribution=replace(source.distribution, tags=tags))

    monkeypatch.setattr("kafkafmt.spark.archive._installed", installed)
    if is_refused:
        with pytest.raises(ArchiveError, match="lz4 is not installed here"):
            write_archive(tmp_path / "without.zip")
        return
    found = write_archive(tmp_path / "without.zip")
    assert not {distribution.name for distribution in found.distributions} & set(BEFORE_3_14)


def test_wheel_of_what_is_optional_when_missing_then_the_archive_is_without(
    other_wheels: list[Path], tmp_path: Path
) -> None:
    wheels = [path for path in other_wheels if not path.name.startswith(OPTIONAL)]
    found = write_archive(tmp_path / "without.zip", wheels)
    assert [distribution.name for distribution in found.distributions] == list(SHIPPED)


def test_wheel_when_given_twice_then_is_refused(other_wheels: list[Path], tmp_path: Path) -> None:
    refuse([*other_wheels, other_wheels[0]], tmp_path, other_wheels[0].name, "another wheel of kafkafmt")


def test_wheel_when_nothing_needs_it_then_is_refused(other_wheels: list[Path], tmp_path: Path) -> None:
    refuse([*other_wheels, write_wheel(tmp_path, "click")], tmp_path, "click does not go into the archive")


def test_kafkafmt_when_without_native_modules_then_is_refused(
    other_wheels: list[Path], tmp_path: Path
) -> None:
    path = tmp_path / "kafkafmt-editable.whl"
    with zipfile.ZipFile(path, "w") as wheel:
        wheel.writestr("kafkafmt-0.1.0.dist-info/WHEEL", "Tag: py3-none-any\n")
        wheel.writestr("kafkafmt-0.1.0.dist-info/METADATA", "Name: kafkafmt\nVersion: 0.1.0\n")
    refuse([path, *other_wheels[1:]], tmp_path, "native modules", "editable")


@pytest.mark.parametrize("content", [b"", b"not a zip", None])
def test_wheel_when_it_is_none_then_the_error_names_it(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "kafkafmt.whl"
    if content is not None:
        path.write_bytes(content)
    else:
        with zipfile.ZipFile(path, "w") as other:
            other.writestr("readme", "no wheel")
    refuse([path], tmp_path, f"{path} is no wheel")


def test_wheel_with_a_data_folder_when_given_then_its_modules_are_placed(
    other_wheels: list[Path], other_archive: Path, tmp_path: Path
) -> None:
    path = tmp_path / "kafkafmt.whl"
    with zipfile.ZipFile(other_wheels[0]) as wheel, zipfile.ZipFile(path, "w") as moved:
        for name in wheel.namelist():
            prefix = "kafkafmt-0.1.0.data/platlib/" if name.startswith("_kafkafmt/") else ""
            moved.writestr(prefix + name, wheel.read(name))
    of_moved = write_archive(tmp_path / "moved.zip", [path, *other_wheels[1:]])
    assert of_moved == read_archive(other_archive)


def refuse(wheels: list[Path], folder: Path, *words: str) -> None:
    with pytest.raises(ArchiveError) as refused:
        write_archive(folder / "out.zip", wheels)
    assert [word for word in words if word not in str(refused.value)] == []
    assert not (folder / "out.zip").exists()


@pytest.mark.parametrize("content", [b"not a zip", None])
def test_archive_when_it_is_none_then_the_error_names_it(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "kafkafmt.zip"
    with pytest.raises(ArchiveError, match=f"{path}: No such file"):
        read_archive(path)
    if content is not None:
        path.write_bytes(content)
    else:
        write_wheel(tmp_path, "click").rename(path)
    with pytest.raises(ArchiveError, match=f"{path} is no archive"):
        read_archive(path)


# The command


def test_command_when_run_then_tells_what_it_wrote_and_how_to_use_it(tmp_path: Path) -> None:
    out = tmp_path / "kafkafmt.zip"
    found = run("spark-archive", out)
    assert (found.exit_code, found.stderr) == (0, "")
    archive = read_archive(out)
    told = [str(out), archive.native_suffix, f"--py-files {out}", "register(spark", "MiB", *SHIPPED]
    told += [tag for distribution in archive.distributions for tag in distribution.tags]
    assert [words for words in told if words not in found.stdout] == []


def test_command_when_out_exists_then_only_force_replaces_it(tmp_path: Path) -> None:
    out = tmp_path / "kafkafmt.zip"
    out.write_text("something else")
    found = run_process("spark-archive", out)
    assert is_one_line(found.stderr, [str(out), "--force"]), found.stderr
    assert (found.returncode, out.read_text()) == (2, "something else")
    assert run("spark-archive", out, "--force").exit_code == 0
    assert read_archive(out).native_suffix


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        ("kafkafmt.tar", [], [".zip"]),
        ("no/where/kafkafmt.zip", [], ["no/where/kafkafmt.zip: No such file"]),
        ("kafkafmt.zip", ["--wheel", "missing.whl"], ["missing.whl: No such file"]),
        ("kafkafmt.zip", ["--wheel", __file__], ["is no wheel"]),
        ("folder.zip", ["--force"], ["folder.zip is there"]),
    ],
)
def test_command_when_arguments_are_wrong_then_is_one_line_and_nothing_is_left(
    tmp_path: Path, name: str, options: list[str], words: list[str]
) -> None:
    (tmp_path / "folder.zip").mkdir()
    found = run_process("spark-archive", tmp_path / name, *options)
    assert is_one_line(found.stderr, words), found.stderr
    assert found.returncode == 2
    assert [path.name for path in tmp_path.iterdir()] == ["folder.zip"]
