"""The archive that ships kafkafmt to Spark's executors: a zip that unpacks itself when it is imported.

    kafkafmt/__init__.py, _kafkafmt/__init__.py    stand-ins for the packages, which call
    _kafkafmt_archive_<digest>.py                  the unpacker: `unpack`
    kafkafmt-archive.json                          the manifest: content, and the Python that it is for
    kafkafmt-site/...                              kafkafmt and its dependencies, as pip installs them

It is built from the installed packages, or from wheels for another platform. Equal content gives equal bytes. The
digest is that of the content. Packages that executors already have (ASSUMED), and dependencies of the command line,
are not included.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
import sys
import zipfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path, PurePosixPath

import kafkafmt
from kafkafmt._util.staging import staged_file
from kafkafmt._util.user_errors import UserError
from kafkafmt.spark import unpack

SHIPPED = ("kafkafmt", "cramjam", "isal", "lz4", "python-snappy", "zstandard")
# kafkafmt requires them up to Python 3.13 only. For a later Python they are included if they are there.
BEFORE_3_14 = ("lz4", "zstandard")
# For one of the data sources; included if installed.
OPTIONAL = ("kafka-python",)
ASSUMED = ("numpy", "pyarrow")

_STANDS_IN = ("_kafkafmt", "kafkafmt")
_INSTALLER_FILES = {"INSTALLER", "RECORD", "REQUESTED", "direct_url.json"}  # missing or different in wheels
_NATIVE_SUFFIX = re.compile(r"\.cpython-\w+-[\w-]+\.so$")
_ZIP_EPOCH = (1980, 1, 1, 0, 0, 0)
_FILE_MODE = 0o644


class ArchiveError(UserError):
    """An archive is invalid or cannot be built. The message says what is expected."""


@dataclass(frozen=True)
class Distribution:
    """A distribution in an archive: the tags of its wheel, and its unpacked size in bytes."""

    name: str
    version: str
    tags: tuple[str, ...]
    size_bytes: int


@dataclass(frozen=True)
class Archive:
    """The content of an archive.

    digest: SHA-256 of the content, in hex.
    native_suffix: the suffix of its native modules, as `.cpython-311-x86_64-linux-gnu.so`. It names the Python version
    and platform.
    """

    digest: str
    native_suffix: str
    distributions: tuple[Distribution, ...]


@dataclass(frozen=True)
class _Source:
    """A distribution to add to an archive, with its files by their names under site-packages."""

    distribution: Distribution
    files: Mapping[str, bytes]


def write_archive(path: Path, wheels: Sequence[Path] = ()) -> Archive:
    """Write the archive to `path` and return its content. The file replaces an existing one when it is complete.

    wheels: a wheel for each name in SHIPPED, and for those in OPTIONAL to include, all for one platform. From Python
    3.14 on, those in BEFORE_3_14 may be missing. By default the installed packages.

    Raises ArchiveError and OSError.
    """
    sources = _of_wheels(wheels) if wheels else _all_installed()
    files = {name: data for source in sources for name, data in source.files.items()}
    archive = Archive(
        _digest(files), _native_suffix(sources), tuple(source.distribution for source in sources)
    )
    with staged_file(path) as file, zipfile.ZipFile(file, "w") as opened:
        for name, data in sorted(_members(archive, files)):
            opened.writestr(_member(name), data)
    return archive


def read_archive(path: Path) -> Archive:
    """Return the content of an archive that `write_archive` wrote. Raises ArchiveError if `path` is no such archive."""
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
    """Return the archive from which this kafkafmt was imported, or None if it is installed."""
    folder = Path(kafkafmt.__file__).parents[1].name
    for entry in map(Path, sys.path):
        with contextlib.suppress(ArchiveError):
            if entry.is_file() and read_archive(entry).digest == folder:
                return entry
    return None


def _members(archive: Archive, files: Mapping[str, bytes]) -> Iterator[tuple[str, bytes]]:
    # A separate name for each content: several archives, for different platforms, may be on `sys.path`.
    unpacker = f"_kafkafmt_archive_{archive.digest[:16]}"
    yield f"{unpacker}.py", Path(unpack.__file__).read_bytes()
    yield unpack.MANIFEST, json.dumps(asdict(archive), indent=1).encode()
    for package in _STANDS_IN:
        yield f"{package}/__init__.py", f"__import__({unpacker!r}).become(__name__)\n".encode()
    for name, data in files.items():
        yield unpack.SITE + name, data


def _member(name: str) -> zipfile.ZipInfo:
    """Return the header of a member, which depends on nothing but its name."""
    info = zipfile.ZipInfo(name, _ZIP_EPOCH)
    info.create_system = 3  # Unix, so that the mode applies
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
    """Return the suffix that all native modules share. Raises ArchiveError if they have several."""
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


def _required(own: Distribution) -> tuple[str, ...]:
    """Return the names that an archive must have for the Python that kafkafmt was built for."""
    pythons = [int(found[1]) for tag in own.tags if (found := re.match(r"cp3(\d+)-", tag))]
    is_later = bool(pythons) and min(pythons) >= 14
    return tuple(name for name in SHIPPED if not (is_later and name in BEFORE_3_14))


def _all_installed() -> list[_Source]:
    first, *others = SHIPPED
    sources = [_installed(first)]
    required = _required(sources[0].distribution)
    for name in (*others, *OPTIONAL):
        with contextlib.nullcontext() if name in required else contextlib.suppress(ArchiveError):
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
    required = _required(found["kafkafmt"].distribution) if "kafkafmt" in found else SHIPPED
    missing = [name for name in required if name not in found]
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
    """Return the name of a wheel's member under site-packages, or None if it is installed elsewhere, as scripts."""
    folder, _, rest = name.partition("/")
    if not folder.endswith(".data"):
        return name
    scheme, _, rest = rest.partition("/")
    return rest if scheme in {"purelib", "platlib"} else None


def _is_shipped(name: str) -> bool:
    """Return whether a file is included: not if it is outside of site-packages, or pip added it."""
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
