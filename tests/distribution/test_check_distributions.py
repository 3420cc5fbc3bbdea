"""The check of sdists and wheels: a file that is missing, or that does not belong there, is named."""

from __future__ import annotations

import io
import json
import subprocess
import tarfile
import zipfile
from importlib.metadata import distribution
from pathlib import Path

import pytest

from distribution_tools import PROJECT, ROOT, check_distributions

FILES = [
    ".ci/run",
    ".gitignore",
    "pyproject.toml",
    "python/kafkafmt/__init__.py",
    "python/kafkafmt/py.typed",
    "src/_kafkafmt/crc/checksums.pyx",
    "src/_kafkafmt/crc/checksums.pyi",
    "src/_kafkafmt/crc/checksums.pxd",
    "src/_kafkafmt/crc/crc32.c",
    "tests/conftest.py",
]
WHEEL = [
    "kafkafmt/__init__.py",
    "kafkafmt/py.typed",
    "_kafkafmt/crc/checksums.cpython-314t-x86_64-linux-gnu.so",
    "_kafkafmt/crc/checksums.pyi",
    *(f"kafkafmt-1.2.dist-info/{name}" for name in sorted(check_distributions.DIST_INFO)),
]


def bill(version: str = "1.2", cython: str = "3.2") -> str:
    component = {"name": "kafkafmt", "version": version}
    return json.dumps(
        {"metadata": {"component": component}, "components": [{"name": "Cython", "version": cython}]}
    )


def wheel(folder: Path, names: list[str], materials: str) -> Path:
    path = folder / "kafkafmt-1.2-cp314-cp314t-linux_x86_64.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for name in names:
            archive.writestr(name, materials if name.endswith(".cdx.json") else "")
    return path


def sdist(folder: Path, names: list[str]) -> Path:
    path = folder / "kafkafmt-1.2.tar.gz"
    with tarfile.open(path, "w:gz") as archive:
        for name in names:
            archive.addfile(tarfile.TarInfo(f"kafkafmt-1.2/{name}"), io.BytesIO())
    return path


def test_wheel_when_it_has_what_belongs_there_then_no_problem(tmp_path: Path) -> None:
    assert list(check_distributions.problems(wheel(tmp_path, WHEEL, bill()), FILES)) == []


@pytest.mark.parametrize("name", WHEEL)
def test_wheel_when_a_file_is_missing_then_it_is_named(tmp_path: Path, name: str) -> None:
    made = wheel(tmp_path, [other for other in WHEEL if other != name], bill())
    (problem,) = check_distributions.problems(made, FILES)
    assert problem.startswith("missing: ")
    assert Path(name).name.partition(".")[0] in problem


@pytest.mark.parametrize(
    "name", ["_kafkafmt/crc/checksums.pyx", "_kafkafmt/crc/crc32.c", "tests/conftest.py"]
)
def test_wheel_when_a_file_does_not_belong_there_then_it_is_named(tmp_path: Path, name: str) -> None:
    made = wheel(tmp_path, [*WHEEL, name], bill())
    assert list(check_distributions.problems(made, FILES)) == [f"unexpected: {name}"]


def test_wheel_when_its_bill_of_materials_has_another_version_then_is_a_problem(tmp_path: Path) -> None:
    made = wheel(tmp_path, WHEEL, bill(version="1.1", cython=""))
    assert list(check_distributions.problems(made, FILES)) == [
        "kafkafmt-1.2.dist-info/sboms/kafkafmt.cdx.json: expected version 1.2, found 1.1",
        "kafkafmt-1.2.dist-info/sboms/kafkafmt.cdx.json: Cython: expected a version, found ''",
    ]


def test_sdist_when_a_file_is_missing_or_does_not_belong_there_then_it_is_named(tmp_path: Path) -> None:
    right = ["PKG-INFO", *FILES[2:]]
    assert list(check_distributions.problems(sdist(tmp_path, right), FILES)) == []
    wrong = sdist(tmp_path, [*right[1:], ".ci/run"])
    assert list(check_distributions.problems(wrong, FILES)) == ["missing: PKG-INFO", "unexpected: .ci/run"]


def test_sdist_when_configured_then_leaves_out_what_the_check_expects() -> None:
    excluded = PROJECT["tool"]["scikit-build"]["sdist"]["exclude"]
    assert excluded == [name.rstrip("/") for name in check_distributions.NOT_IN_SDIST]


def test_program_when_a_wheel_lacks_files_then_names_them_with_status_1(tmp_path: Path) -> None:
    git = subprocess.run(["git", "rev-parse"], cwd=ROOT, capture_output=True, check=False)
    if git.returncode:
        pytest.skip("the files are known only in a clone")
    assert check_distributions.main([str(wheel(tmp_path, WHEEL, bill()))]) == 1


def test_bill_of_materials_when_installed_then_names_what_is_compiled_in() -> None:
    installed = distribution("kafkafmt")
    text = installed.read_text("sboms/kafkafmt.cdx.json")
    assert text is not None
    materials = json.loads(text)
    assert materials["bomFormat"] == "CycloneDX"
    assert materials["metadata"]["component"]["version"] == installed.version
    assert [component["name"] for component in materials["components"]] == ["Cython", "CPython"]
    references = {
        materials["metadata"]["component"]["bom-ref"],
        *(part["bom-ref"] for part in materials["components"]),
    }
    assert {entry["ref"] for entry in materials["dependencies"]} == references
