"""Archives for executors, wheels to make them of, and Pythons that have nothing else."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import zipfile
from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path

from child_processes import started
from kafkafmt.spark.archive import OPTIONAL, SHIPPED, _installed

OTHER_SUFFIX = ".cpython-399-vax-linux-gnu.so"
OTHER_TAG = "cp399-cp399-linux_vax"
SECONDS = 200

# Imports from the archive argv[1], with the packages in argv[2] beside it, and runs argv[3].
_ISOLATED = "import sys; sys.path[:0] = [sys.argv[1]]; sys.path.append(sys.argv[2]); exec(sys.argv[3])"

ROUND_TRIP = """
import kafkafmt as kf
for codec in kf.Codec:
    builder = kf.RecordBatchBuilder(codec=codec)
    builder.append(1, b"key", b"value" * 100)
    (record,) = kf.MemoryRecords(builder.build()).records()
    assert record.value == b"value" * 100
print(kf.__file__)
"""


def link_packages(folder: Path, names: Sequence[str]) -> Path:
    """A folder with nothing but these packages of this Python, where they are there."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.origin is not None:
            package = Path(spec.origin).parent if spec.submodule_search_locations else Path(spec.origin)
            libraries = package.with_name(f"{name}.libs")
            for path in (package, libraries):
                if path.exists():
                    (folder / path.name).symlink_to(path)
    return folder


def start_isolated(
    archive: Path, packages: Path, temporary: Path, code: str = ROUND_TRIP
) -> AbstractContextManager[subprocess.Popen[str]]:
    """Run code in a Python without site-packages that unpacks under `temporary`."""
    return started(
        [sys.executable, "-I", "-S", "-c", _ISOLATED, archive, packages, code],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={"TMPDIR": str(temporary)},
    )


def run_isolated(archive: Path, packages: Path, temporary: Path, code: str = ROUND_TRIP) -> tuple[str, str]:
    """What the code prints, to its output and as the last line of its errors."""
    with start_isolated(archive, packages, temporary, code) as process:
        output, errors = process.communicate(timeout=SECONDS)
    return output.strip(), errors.strip().rpartition("\n")[2]


def write_wheel(folder: Path, name: str, *, other: bool = False) -> Path:
    """A wheel of what is installed under a name; with `other`, as if it were for a platform that nobody has."""
    source = _installed(name)
    distribution = source.distribution
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}-{distribution.version}-{OTHER_TAG if other else distribution.tags[0]}.whl"
    with zipfile.ZipFile(path, "w") as wheel:
        for member, data in source.files.items():
            if other and member.endswith(".so"):
                member = f"{member.partition('.')[0]}{OTHER_SUFFIX}"
            if other and member.endswith(".dist-info/WHEEL"):
                data = f"Wheel-Version: 1.0\nTag: {OTHER_TAG}\n".encode()
            wheel.writestr(member, data)
        wheel.writestr(f"{distribution.name}.data/scripts/tool", "not for site-packages")
    return path


def write_wheels(folder: Path, *, other: bool = False) -> list[Path]:
    return [write_wheel(folder, name, other=other) for name in (*SHIPPED, *OPTIONAL)]
