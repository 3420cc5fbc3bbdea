"""The archive that brings kafkafmt to Spark's executors: a zip that is imported from, and unpacks itself.

    kafkafmt/__init__.py, _kafkafmt/__init__.py    stand in for the packages, and hand over to
    _kafkafmt_archive_<digest>.py                  what unpacks: `unpack`
    kafkafmt-archive.json                          what is in it, and which Python that is for
    kafkafmt-site/...                              kafkafmt and what it needs, as pip would install them

It comes from what is installed here, or from wheels of another platform. The same content makes the same bytes, and
the digest is that of the content. What executors have themselves (ASSUMED) is left out, as is what the command line
alone needs.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import sys
import zipfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path, PurePosixPath

import kafkafmt
from kafkafmt.spark import unpack

SHIPPED = ("kafkafmt", "cramjam", "isal", "lz4", "python-snappy", "zstandard")
# What one of the data sources needs, where it is there.
OPTIONAL = ("kafka-python",)
ASSUMED = ("numpy", "pyarrow")

_STANDS_IN = ("_kafkafmt", "kafkafmt")
_INSTALLER_FILES = {"INSTALLER", "RECORD", "REQUESTED", "direct_url.json"}  # which wheels lack, or differ in
_NATIVE_SUFFIX = re.compile(r"\.cpython-\w+-[\w-]+\.so$")
_ZIP_EPOCH = (1980, 1, 1, 0, 0, 0)
_FILE_MODE = 0o644


class ArchiveError(Exception):
    """What an archive is to be made of, or what was given as one, does not do; says what would."""


@dataclass(frozen=True)
class Distribution:
    """A distribution in an archive: the tags of its wheel, and what it takes unpacked."""

    name: str
    version: str
    tags: tuple[str, ...]
    size_bytes: int


@dataclass(frozen=True)
class Archive:
    """What is in an archive.

    digest: SHA-256 of the content, in hex.
    native_suffix: what the names of its native modules end in, as `.cpython-311-x86_64-linux-gnu.so`: which Pythons
    it is for.
    """

    digest: str
    native_suffix: str
    distributions: tuple[Distribution, ...]


@dataclass(frozen=True)
class _Source:
    """A distribution to be put into an archive: its files by their names under site-packages."""

    distribution: Distribution
    files: Mapping[str, bytes]


def write_archive(path: Path, wheels: Sequence[Path] = ()) -> Archive:
    """Write the archive to `path`, which is replaced, and there only once it is whole.

    wheels: a wheel for each name in SHIPPED, and for those in OPTIONAL that are to go along, all for one platform;
    without any, what is installed here.

    Raises ArchiveError and OSError.
    """
    sources = _of_wheels(wheels) if wheels else _all_installed()
    files = {name: data for source in sources for name, data in source.files.items()}
    archive = Archive(
        _digest(files), _native_suffix(sources), tuple(source.distribution for source in sources)
    )
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with zipfile.ZipFile(temporary, "w") as opened:
            for name, data in sorted(_members(archive, files)):
                opened.writestr(_member(name), data)
        temporary.rename(path)
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink()
    return archive


def read_archive(path: Path) -> Archive:
    """What is in an archive that `write_archive` wrote. Raises ArchiveError where there is none."""
    try:
        with zipfile.ZipFile(path) as opened:
            manifest = json.loads(opened.read(unpack.MANIFEST))
    except OSError as error:
        raise ArchiveError(f"{path}: {error.strerror or error}") from None
    except (zipfile.BadZipFile, KeyError, ValueError):
        raise ArchiveError(f"{path} is no archive that kafkafmt spark-archive wrote") from None
    distributions = (
        Distribution(**{**row, "tags": tuple(row["tags"])}) for row in manifest.pop("distributions")
    )
    return Archive(**manifest, distributions=tuple(distributions))


def loaded_from() -> Path | None:
    """The archive that this kafkafmt was itself imported from; None where it is installed."""
    folder = Path(kafkafmt.__file__).parents[1].name
    for entry in map(Path, sys.path):
        with contextlib.suppress(ArchiveError):
            if entry.is_file() and read_archive(entry).digest == folder:
                return entry
    return None


def _members(archive: Archive, files: Mapping[str, bytes]) -> Iterator[tuple[str, bytes]]:
    # A name of its own for each content: several archives may be on a path, each for another platform.
    unpacker = f"_kafkafmt_archive_{archive.digest[:16]}"
    yield f"{unpacker}.py", Path(unpack.__file__).read_bytes()
    yield unpack.MANIFEST, json.dumps(asdict(archive), indent=1).encode()
    for package in _STANDS_IN:
        yield f"{package}/__init__.py", f"__import__({unpacker!r}).become(__name__)\n".encode()
    for name, data in files.items():
        yield unpack.SITE + name, data


def _member(name: str) -> zipfile.ZipInfo:
    """The header of a member: the same wherever and whenever it is written."""
    info = zipfile.ZipInfo(name, _ZIP_EPOCH)
    info.create_system = 3  # Unix, to which the mode means something
    info.external_attr = _FILE_MODE << 16
    info.compress_type = zipfile.ZIP_DEFLATED
    return info


def _digest(files: Mapping[str, bytes]) -> str:
    digest = hashlib.sha256()
    for name, data in sorted(files.items()):
        digest.update(f"{name}\0{len(data)}\0".encode())
        digest.update(data)
    return digest.hexdigest()


def _native_suffix(sources: Sequence[_Source]) -> str:
    """The suffix that all native modules share."""
    found: dict[str, str] = {}
    for source in sources:
        for name in source.files:
            if match := _NATIVE_SUFFIX.search(name):
                found.setdefault(match[0], source.distribution.name)
    if len(found) > 1:
        which = ", ".join(f"{name} *{suffix}" for suffix, name in found.items())
        raise ArchiveError(f"native modules for more than one platform ({which}): give wheels for one")
    own = next(source for source in sources if source.distribution.name == "kafkafmt")
    if not any(name.startswith("_kafkafmt/") and _NATIVE_SUFFIX.search(name) for name in own.files):
        raise ArchiveError(
            "kafkafmt is not there with its native modules (an editable install?): pip install a wheel of it"
        )
    return next(iter(found))


def _all_installed() -> list[_Source]:
    sources = [_installed(name) for name in SHIPPED]
    for name in OPTIONAL:
        with contextlib.suppress(ArchiveError):
            sources.append(_installed(name))
    return sources


def _installed(name: str) -> _Source:
    try:
        distribution = metadata.distribution(name)
    except metadata.PackageNotFoundError:
        raise ArchiveError(f"{name} is not installed here: pip install {name}") from None
    names = [(file.as_posix(), Path(str(file.locate()))) for file in distribution.files or ()]
    return _source(distribution, ((name, path.read_bytes()) for name, path in names if _is_shipped(name)))


def _of_wheels(wheels: Sequence[Path]) -> list[_Source]:
    found: dict[str, _Source] = {}
    for path in wheels:
        source = _of_wheel(path)
        name = source.distribution.name
        if name not in (*SHIPPED, *OPTIONAL):
            takes = ", ".join((*SHIPPED, *OPTIONAL))
            raise ArchiveError(f"{path}: {name} does not go into the archive, which takes {takes}")
        if name in found:
            raise ArchiveError(f"{path}: there is another wheel of {name}")
        found[name] = source
    missing = [name for name in SHIPPED if name not in found]
    if missing:
        raise ArchiveError(f"no wheel of {', '.join(missing)} is given: with --wheel, all come from wheels")
    return [found[name] for name in (*SHIPPED, *OPTIONAL) if name in found]


def _of_wheel(path: Path) -> _Source:
    try:
        with zipfile.ZipFile(path) as opened:
            (info,) = (name for name in opened.namelist() if re.fullmatch(r"[^/]+\.dist-info/WHEEL", name))
            distribution = metadata.PathDistribution(zipfile.Path(opened, info.removesuffix("WHEEL")))
            members = ((name, _place(name)) for name in opened.namelist() if not name.endswith("/"))
            return _source(
                distribution,
                ((place, opened.read(name)) for name, place in members if place and _is_shipped(place)),
            )
    except OSError as error:
        raise ArchiveError(f"{path}: {error.strerror or error}") from None
    except (zipfile.BadZipFile, ValueError):
        raise ArchiveError(f"{path} is no wheel") from None


def _place(name: str) -> str | None:
    """Where a member of a wheel goes under site-packages; None for what goes elsewhere, as scripts do."""
    folder, _, rest = name.partition("/")
    if not folder.endswith(".data"):
        return name
    scheme, _, rest = rest.partition("/")
    return rest if scheme in {"purelib", "platlib"} else None


def _is_shipped(name: str) -> bool:
    """Whether a file of a distribution goes along: not what lies outside of site-packages, nor what pip adds."""
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts or "__pycache__" in path.parts:
        return False
    return not (path.parent.name.endswith(".dist-info") and path.name in _INSTALLER_FILES)


def _source(distribution: metadata.Distribution, contents: Iterable[tuple[str, bytes]]) -> _Source:
    files = dict(contents)
    name = re.sub(r"[-_.]+", "-", distribution.metadata["Name"]).lower()
    tags = re.findall(r"^Tag: *(\S+)", distribution.read_text("WHEEL") or "", re.MULTILINE)
    size_bytes = sum(map(len, files.values()))
    return _Source(Distribution(name, distribution.version, tuple(tags), size_bytes), files)
