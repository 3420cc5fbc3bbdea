"""The descriptors of Protobuf schemas: of FileDescriptorSets, and of the text of `.proto` files.

Text is compiled by `protoc` of grpcio-tools, in a process of its own: it is Protobuf's own compiler, so that every
syntax and edition means what it means elsewhere, and a schema that crashes it does not crash this process.
"""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from functools import lru_cache
from graphlib import CycleError, TopologicalSorter
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from kafkafmt._util.user_errors import UserError
from kafkafmt.decode.payloads import Schema, SchemaError
from kafkafmt.decode.protobuf.imports import OPTIONS_FILE, text_of_import, texts_of_imports
from kafkafmt.decode.schemas.source import SchemaSourceError

if TYPE_CHECKING:
    from google.protobuf.descriptor import Descriptor, FileDescriptor

_MAX_FILES = 1000
_COMPILE_SECONDS = 60
# What the process returns if protoc refuses the schema. Python returns other numbers if it fails itself.
_REFUSED = 100
_COMPILER = (
    "import os, sys; sys.path[:] = sys.argv[1].split(os.pathsep); from grpc_tools import protoc;"
    f" sys.exit({_REFUSED} if protoc.main(['protoc', *sys.argv[2:]]) else 0)"
)
# Errors of a path that no machine can have. Others, such as a full disk, are those of this machine.
_PATH_ERRORS = frozenset({errno.EEXIST, errno.EISDIR, errno.ENAMETOOLONG, errno.ENOTDIR})
_ROOT_NAME = "schema.proto"
_STANDARD_PATH = "google/protobuf/"
_STANDARD_FILES = frozenset(
    f"{_STANDARD_PATH}{name}.proto"
    for name in (
        "any",
        "api",
        "descriptor",
        "duration",
        "empty",
        "field_mask",
        "source_context",
        "struct",
        "timestamp",
        "type",
        "wrappers",
    )
)


def message_descriptors(schema: Schema) -> list[Descriptor]:
    """Return the message of the payloads of a schema, or the two that its indexes may mean, the likelier first.

    Confluent's Java client does not count the entries of maps among the nested messages, and its other clients do.

    Raises SchemaError if the schema is damaged or incomplete, or has no such message. Raises SchemaSourceError if this
    machine cannot compile it now, for example because its disk is full.
    """
    file = _file_descriptor(Schema(schema.kind, schema.content, schema.references))
    if isinstance(schema.message, str):
        return [_message_named(file, schema.message)]
    if isinstance(schema.message, int):
        return [_message_numbered(file, schema.message)]
    found = [_message_at(file, schema.message, with_entries=counted) for counted in (False, True)]
    known = [message for message in found if message is not None]
    if not known:
        shown = ", ".join(map(str, schema.message))
        raise SchemaError(f"the Protobuf schema has no message with the index {shown}")
    return known[:1] if known[0] is known[-1] else known


def _message_named(file: FileDescriptor, name: str) -> Descriptor:
    """Return the message with a name: in the file, as Apicurio's `Ref` has it, or else a full name."""
    if name in file.message_types_by_name:
        return file.message_types_by_name[name]
    for full_name in (name, f"{file.package}.{name}"):
        try:
            return file.pool.FindMessageTypeByName(full_name)
        except KeyError:
            continue
    raise SchemaError(f"the Protobuf schema has no message {name}")


def _message_numbered(file: FileDescriptor, index: int) -> Descriptor:
    """Return the message with an index among all messages in the order of their full names, as AWS Glue has it."""
    found = list(file.message_types_by_name.values())
    for message in found:  # which grows
        found.extend(message.nested_types)
    found.sort(key=lambda message: message.full_name)
    if not 0 <= index < len(found) or found[index].GetOptions().map_entry:
        raise SchemaError(f"the Protobuf schema has no message with the index {index} of AWS Glue")
    return found[index]


def _message_at(file: FileDescriptor, indexes: tuple[int, ...], *, with_entries: bool) -> Descriptor | None:
    """Return the message with these indexes. with_entries: the entries of maps count."""
    messages = list(file.message_types_by_name.values())
    found = None
    for index in indexes:
        if not 0 <= index < len(messages):
            return None
        found = messages[index]
        messages = [
            nested for nested in found.nested_types if with_entries or not nested.GetOptions().map_entry
        ]
    return None if found is None or found.GetOptions().map_entry else found


def _file_descriptor(schema: Schema) -> FileDescriptor:
    """Return the file of a schema, in a pool with all that it imports."""
    found = _file_or_error(schema)
    if isinstance(found, str):
        raise SchemaError(found)
    return found


@lru_cache(maxsize=256)
def _file_or_error(schema: Schema) -> FileDescriptor | str:
    """Return the file of a schema, or why it is damaged, so that no batch compiles a damaged schema again."""
    try:
        return _built_file(schema)
    except SchemaError as error:
        return str(error)


def _built_file(schema: Schema) -> FileDescriptor:
    pool_module = _protobuf("google.protobuf.descriptor_pool")
    files = _compiled(schema) if isinstance(schema.content, str) else _descriptor_files(schema)
    pool = pool_module.DescriptorPool()
    found: FileDescriptor | None = None
    for file in _in_order(files):
        try:
            found = pool.AddSerializedFile(file.SerializeToString())
        except (TypeError, ValueError) as error:
            raise SchemaError(f"the Protobuf schema is damaged: {' '.join(str(error).split())}") from None
    assert found is not None
    return found


def _in_order(files: dict[str, Any]) -> Iterator[Any]:
    """Yield the files that the last one needs, and then that one. Each file comes after those it imports."""
    root: str = next(reversed(files))
    graph: dict[str, list[str]] = {}
    needed, known = [root], dict(files)
    while needed:
        name = needed.pop()
        if name in graph:
            continue
        if len(graph) == _MAX_FILES:
            raise SchemaError(f"the Protobuf schema imports more than {_MAX_FILES} files")
        if name not in known:
            known.update(_known_files(name))
        _drop_imports(known[name], lambda imported: imported not in known and not _is_known(imported))
        graph[name] = list(known[name].dependency)
        needed.extend(graph[name])
    try:
        order = list(TopologicalSorter(graph).static_order())
    except CycleError as error:
        raise SchemaError(
            f"files of the Protobuf schema import each other: {' <- '.join(error.args[1])}"
        ) from None
    yield from (known[name] for name in order)


def _drop_imports(file: Any, is_missing: Any) -> None:
    """Drop the imports that are missing. They may only be for options, which no payload needs.

    If the file needs a type of a missing file, the pool raises.
    """
    kept = [name for name in file.dependency if not is_missing(name)]
    if len(kept) == len(file.dependency):
        return
    public = [file.dependency[index] for index in file.public_dependency if index < len(file.dependency)]
    del file.dependency[:], file.public_dependency[:], file.weak_dependency[:]
    file.dependency.extend(kept)
    file.public_dependency.extend(kept.index(name) for name in public if name in kept)


def _is_known(name: str) -> bool:
    """Return whether a file is known without a reference. Files with options are left out: no payload needs them."""
    return name in _STANDARD_FILES or (name != OPTIONS_FILE and text_of_import(name) is not None)


def _known_files(name: str) -> dict[str, Any]:
    """Return a file that comes with Protobuf or with clients of registries, with those that it imports."""
    if name not in _STANDARD_FILES:
        text = text_of_import(name)
        assert text is not None
        files = _compiled(Schema("PROTOBUF", text))
        file = files[next(reversed(files))]
        file.name = name
        return {**files, name: file}
    module = import_module(name.removesuffix(".proto").replace("/", ".") + "_pb2")
    file = _protobuf("google.protobuf.descriptor_pb2").FileDescriptorProto()
    module.DESCRIPTOR.CopyToProto(file)
    return {name: file}


def _descriptor_files(schema: Schema) -> dict[str, Any]:
    """Return the files of a FileDescriptorSet and of its references by name. The last one is the schema."""
    references = _references(schema)
    files: dict[str, Any] = {}
    for name, reference in references.items():
        if isinstance(reference.content, str):
            raise SchemaError(f"the Protobuf schema has descriptors, but its import {name} is text")
        _add_files(files, reference.content, name)
    assert isinstance(schema.content, bytes)
    _add_files(files, schema.content, None)
    return files


def _add_files(files: dict[str, Any], content: bytes, name: str | None) -> None:
    """Add the files of a FileDescriptorSet. The last one gets a name, if one is given or its own is taken."""
    from google.protobuf.message import DecodeError

    try:
        found = _protobuf("google.protobuf.descriptor_pb2").FileDescriptorSet.FromString(content)
    except DecodeError:
        raise SchemaError(f"expected a FileDescriptorSet; found {len(content)} other bytes") from None
    if not found.file:
        raise SchemaError("expected a FileDescriptorSet with a file; found none")
    for file in found.file:
        _ensure_names(file)
    *others, last = found.file
    for file in others:
        files.setdefault(file.name, file)
    if name is None:
        name = last.name
        while not name or name in files:
            name = f"_{name or _ROOT_NAME}"
    last.name = name
    files.pop(name, None)
    files[name] = last


def _ensure_names(file: Any) -> None:
    """Raise SchemaError if the name of a file or of an import is not UTF-8. Protobuf checks others."""
    for name in (file.name, *file.dependency):
        if isinstance(name, bytes):  # as Protobuf returns text that is not UTF-8
            raise SchemaError(f"expected the name of a Protobuf file in UTF-8; found {name!r}")


def _references(schema: Schema) -> dict[str, Schema]:
    """Return the schemas that a schema imports, those that they import included, by the paths of the imports."""
    found: dict[str, Schema] = {}
    waiting = list(schema.references)
    while waiting:
        name, reference = waiting.pop()
        if found.get(name, reference).content != reference.content:
            raise SchemaError(f"the Protobuf schema imports two versions of {name}")
        if name in found:
            continue
        path = PurePosixPath(name)
        if path.is_absolute() or not path.parts or ".." in path.parts or "\0" in name:
            raise SchemaError(f"a Protobuf import has a relative path; found {name!r}")
        if len(found) == _MAX_FILES:
            raise SchemaError(f"the Protobuf schema imports more than {_MAX_FILES} files")
        found[name] = reference
        waiting.extend(reference.references)
    return found


def _compiled(schema: Schema) -> dict[str, Any]:
    """Return the files of the text of a schema and of its references by name. The last one is the schema."""
    _ensure_compiler()
    references = _references(schema)
    root = _ROOT_NAME
    while root in references:
        root = f"_{root}"
    assert isinstance(schema.content, str)
    texts = {root: schema.content}
    for name, reference in references.items():
        if isinstance(reference.content, bytes):
            raise SchemaError(f"the Protobuf schema is text, but its import {name} has descriptors")
        texts[name] = reference.content
    texts = {**texts_of_imports(texts.values()), **texts}
    files: dict[str, Any] = {}
    _add_files(files, _compiler_output(texts, root), None)
    return files


def _compiler_output(texts: Mapping[str, str], root: str) -> bytes:
    """Return the FileDescriptorSet of texts by their paths."""
    try:
        with TemporaryDirectory(prefix="kafkafmt-protoc-") as folder:
            for name, text in texts.items():
                _write_source(Path(folder), name, text)
            return _run_compiler(Path(folder), root)
    except SchemaSourceError:
        raise
    except OSError as error:
        raise SchemaSourceError(f"the Protobuf schema cannot be compiled: {error}") from None


def _write_source(folder: Path, name: str, text: str) -> None:
    path = folder / name
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    except (OSError, UnicodeEncodeError) as error:
        if isinstance(error, OSError) and error.errno not in _PATH_ERRORS:
            raise
        problem = error.strerror if isinstance(error, OSError) else error
        raise SchemaError(f"the Protobuf import {name!r} cannot be written: {problem}") from None


def _run_compiler(sources: Path, root: str) -> bytes:
    package = find_spec("grpc_tools")
    assert package is not None
    folders = [sources, *(Path(folder, "_proto") for folder in package.submodule_search_locations or ())]
    paths = [f"--proto_path={folder}" for folder in folders]
    modules = os.pathsep.join(path for path in sys.path if Path(path).is_absolute())
    try:
        done = subprocess.run(
            # Isolated, so that no file of the sources can be imported, whatever its name is.
            [
                sys.executable,
                "-I",
                "-c",
                _COMPILER,
                modules,
                *paths,
                "--include_imports",
                "-o/dev/stdout",
                root,
            ],
            cwd=sources,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_COMPILE_SECONDS,
        )
    except subprocess.TimeoutExpired:
        raise SchemaSourceError(
            f"the Protobuf schema cannot be compiled: protoc does not end within {_COMPILE_SECONDS} seconds"
        ) from None
    if done.returncode == 0:
        return done.stdout
    lines = done.stderr.decode(errors="replace").replace(f"{sources}{os.sep}", "").splitlines()
    problems = [line for line in lines if " warning: " not in line and line.strip()]
    if done.returncode == _REFUSED:
        raise SchemaError(
            f"the Protobuf schema is damaged: {problems[0] if problems else 'protoc refuses it'}"
        )
    # Python ends its tracebacks with the error.
    problem = f": {problems[-1]}" if problems else ""
    raise SchemaSourceError(
        f"the Protobuf schema cannot be compiled: protoc ends with status {done.returncode}{problem}"
    )


def _ensure_compiler() -> None:
    _protobuf("google.protobuf")
    if find_spec("grpc_tools") is None:
        raise UserError("the text of Protobuf schemas needs grpcio-tools: pip install 'kafkafmt[decode]'")


def _protobuf(name: str) -> Any:
    """Return a module of Protobuf's own package."""
    try:
        return import_module(name)
    except ImportError:
        raise UserError("Protobuf payloads need protobuf: pip install 'kafkafmt[decode]'") from None
