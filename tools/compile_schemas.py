"""Compile the JSON schemas in Kafka's jars into the modules of `kafkafmt.schemas`.

    .venv/bin/python tools/compile_schemas.py          write the modules
    .venv/bin/python tools/compile_schemas.py --check  exit with 1 if a module differs from what the jars give

Kafka 4.3.1 is the base. A message that it has no longer comes from the newest older jar that has it. So does an early
layout of a message whose layout changed without a new version: its class has the prefix `Early`. Texts of the schemas
("about", comments) are not carried over.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
JARS = ROOT / "build" / "jars"
PACKAGE = ROOT / "python" / "kafkafmt" / "schemas"
RELEASES = ("4.3.1", "4.0.0", "3.9.1")  # the newest first

# The module that each jar's messages go to, and its subject.
MODULES = {
    "kafka-metadata": ("metadata", "the records of `__cluster_metadata`"),
    "kafka-group-coordinator": ("group_coordinator", "the records of `__consumer_offsets`"),
    "kafka-transaction-coordinator": ("transaction_coordinator", "the records of `__transaction_state`"),
    "kafka-share-coordinator": ("share_coordinator", "the records of `__share_group_state`"),
    "kafka-storage": ("storage", "the records of `__remote_log_metadata`, and producer snapshots"),
    "kafka-raft": ("raft", "the state of a voter of the metadata quorum"),
    "kafka-clients": ("clients", "control records, and what members of groups exchange"),
}
# The number of a record type that 4.3.1 has no longer; its older schemas have it as the key's version.
DROPPED_API_KEYS = {"ShareGroupPartitionMetadataKey": 9, "ShareGroupPartitionMetadataValue": 9}
KINDS = ("coordinator-key", "coordinator-value", "data", "metadata")

# What generated modules import, if they use it.
IMPORTS = {
    "message": ("Message", "Struct"),
    "schema": (
        "NO_VERSIONS", "ZERO_UUID", "FieldSchema", "MessageSchema", "StructSchema", "TaggedField", "Versions",
    ),
}  # fmt: skip
PYTHON_TYPES = {"bool": "bool", "float64": "float", "uuid": "UUID", "string": "str", "bytes": "bytes"}


@dataclass
class Message:
    """A parsed message: `structs` has its structures by name, each after those that it refers to."""

    name: str
    api_key: int | None
    versions: str
    flexible: str
    fields: list[dict[str, Any]]
    structs: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    early: bool = False

    @property
    def class_name(self) -> str:
        return f"Early{self.name}" if self.early else self.name


def parse(text: str) -> dict[str, Any]:
    """Parse a schema; its comments are whole lines that begin with `//`."""
    lines = [line for line in text.splitlines() if not line.lstrip().startswith("//")]
    parsed: dict[str, Any] = json.loads("\n".join(lines))
    return parsed


def read_release(release: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield module and parsed schema of each message in the jars of a release."""
    for jar, (module, _) in MODULES.items():
        path = JARS / f"kafka-{release}" / f"{jar}-{release}.jar"
        if not path.exists():
            continue
        with zipfile.ZipFile(path) as opened:
            for name in sorted(opened.namelist()):
                if re.fullmatch(r"(common/)?(message|metadata)/\w+\.json", name):
                    parsed = parse(opened.read(name).decode("utf-8"))
                    if parsed["type"] in KINDS:
                        yield module, parsed


def to_message(parsed: dict[str, Any], api_keys: dict[str, int]) -> Message:
    message = Message(
        parsed["name"],
        parsed.get("apiKey", api_keys.get(parsed["name"])),
        parsed["validVersions"],
        parsed["flexibleVersions"],
        parsed["fields"],
    )
    common = {struct["name"]: struct["fields"] for struct in parsed.get("commonStructs", [])}
    collect_structs(message, parsed["fields"], common)
    if message.name.endswith("Key") and message.api_key is not None and message.versions != "0":
        set_versions_to_zero(message)
    return message


def collect_structs(
    message: Message, fields: list[dict[str, Any]], common: dict[str, list[dict[str, Any]]]
) -> None:
    for each in fields:
        _, kind, struct = wire_type(each)
        if kind == "struct" and struct not in message.structs:
            inner = each.get("fields") or common[struct]
            collect_structs(message, inner, common)
            message.structs[struct] = inner


def set_versions_to_zero(message: Message) -> None:
    """Set the versions of a key to 0. Until Kafka 4.1 a key's version was the number of its record type."""
    message.versions = "0"
    for each in message.fields:
        each["versions"] = "0"


def wire_type(each: dict[str, Any]) -> tuple[bool, str, str]:
    """Return whether a field is an array, its wire type, and its structure's name ("" if none)."""
    name = each["type"]
    array = name.startswith("[]")
    name = name.removeprefix("[]")
    return (array, "struct", name) if name[0].isupper() else (array, name, "")


def numbers(versions: str | None) -> tuple[int, int | None] | None:
    """Parse "2", "2-4" or "2+" (last is None). None for "none" and for no text."""
    if versions in (None, "none"):
        return None
    assert versions is not None
    if versions.endswith("+"):
        return int(versions[:-1]), None
    first, _, last = versions.partition("-")
    return int(first), int(last or first)


def layout(message: Message, version: int) -> list[Any]:
    """What decides which bytes a decoder accepts: the types of the fields that have a fixed place."""

    def facts(fields: list[dict[str, Any]]) -> list[Any]:
        return [
            (array, kind, facts(message.structs[struct]) if struct else None)
            for each in fields
            for array, kind, struct in [wire_type(each)]
            if contains(each.get("versions", each.get("taggedVersions")), version)
            and not contains(each.get("taggedVersions"), version)
        ]

    return facts(message.fields)


def contains(versions: str | None, version: int) -> bool:
    limits = numbers(versions)
    return limits is not None and limits[0] <= version and (limits[1] is None or version <= limits[1])


def collect() -> dict[str, list[Message]]:
    """Merge the releases: the messages of each module, by name."""
    merged: dict[str, dict[str, Message]] = {module: {} for module, _ in MODULES.values()}
    api_keys = dict(DROPPED_API_KEYS)
    for release in RELEASES:
        for module, parsed in read_release(release):
            if "apiKey" in parsed:
                api_keys[parsed["name"]] = parsed["apiKey"]
            message = to_message(parsed, api_keys)
            known = merged[module]
            if message.name not in known:
                known[message.name] = message
            elif is_early(message, known[message.name]):
                message.early = True
                early = known.setdefault(message.class_name, message)
                assert not is_early(message, early), f"{message.name} has two early layouts"
    return {module: [messages[name] for name in sorted(messages)] for module, messages in merged.items()}


def is_early(older: Message, newer: Message) -> bool:
    """Whether a version that both have has another layout in the older release."""
    return any(
        layout(older, version) != layout(newer, version)
        for version in range(100)
        if contains(older.versions, version) and contains(newer.versions, version)
    )


def snake_case(name: str) -> str:
    """KRaftVersion -> k_raft_version, ISR -> isr."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", name).lower()


def camel_case(name: str) -> str:
    """Kafka's names in JSON: the first letter in lower case."""
    return name[0].lower() + name[1:]


def versions_text(versions: str | None) -> str:
    limits = numbers(versions)
    if limits is None:
        return "NO_VERSIONS"
    first, last = limits
    return f"Versions({first})" if last is None else f"Versions({first}, {last})"


def default_text(each: dict[str, Any]) -> str:
    """The Python literal of a field's default."""
    array, kind, _ = wire_type(each)
    given = each.get("default")
    if given == "null" and numbers(each.get("nullableVersions")):
        return "None"  # JSON's null, unlike the string, is no default for Kafka's generator
    if array or kind == "struct":
        return "()"
    if kind == "uuid":
        return "ZERO_UUID"
    if kind == "bool":
        return repr(str(given).lower() == "true")
    if kind == "string":
        return json.dumps(given or "")
    if kind == "bytes":
        return 'b""'
    return repr(float(given or 0)) if kind == "float64" else repr(int(str(given or 0), 0))


def field_schema(each: dict[str, Any]) -> str:
    array, kind, struct = wire_type(each)
    tagged = each.get("taggedVersions")
    words = [
        json.dumps(snake_case(each["name"])),
        json.dumps(camel_case(each["name"])),
        json.dumps(kind),
        versions_text(each.get("versions", tagged)),
    ]
    words += ["array=True"] if array else []
    words += [f"struct={json.dumps(struct)}"] if struct else []
    if numbers(each.get("nullableVersions")):
        words.append(f"nullable={versions_text(each['nullableVersions'])}")
    if numbers(tagged):
        words.append(f"tagged={versions_text(tagged)}, tag={int(each['tag'])}")
    words.append(f"default={default_text(each)}")
    words += ["ignorable=True"] if each.get("ignorable") else []
    return f"FieldSchema({', '.join(words)})"


def attribute(message: Message, each: dict[str, Any], nested: bool) -> str:
    """A line of a dataclass. nested: of a structure, which names other structures with their message."""
    array, kind, struct = wire_type(each)
    python_type = PYTHON_TYPES.get(kind, "int")
    if struct:
        python_type = f"{message.class_name}.{struct}" if nested else struct
    if array:
        python_type = f"tuple[{python_type}, ...]"
    default = default_text(each)
    if numbers(each.get("nullableVersions")):
        python_type += " | None"
    if struct and default == "()" and not array:
        default = f"field(default_factory=lambda: {message.class_name}.{struct}())"
    return f"{snake_case(each['name'])}: {python_type} = {default}"


def class_lines(message: Message) -> Iterator[str]:
    flexible = numbers(message.flexible) is not None
    yield "@dataclass(frozen=True, slots=True)"
    yield f"class {message.class_name}(Message):"
    for name, fields in message.structs.items():
        yield "    @dataclass(frozen=True, slots=True)"
        yield f"    class {name}(Struct):"
        for each in fields:
            yield f"        {attribute(message, each, nested=True)}"
        if flexible:
            yield "        unknown_tagged_fields: tuple[TaggedField, ...] = ()"
        yield ""
    for each in message.fields:
        yield f"    {attribute(message, each, nested=False)}"
    if flexible:
        yield "    unknown_tagged_fields: tuple[TaggedField, ...] = ()"
    yield "    SCHEMA: ClassVar[MessageSchema] = MessageSchema("
    yield f"        {json.dumps(message.name)},"
    yield f"        {message.api_key},"
    yield f"        {versions_text(message.versions)},"
    yield f"        {versions_text(message.flexible)},"
    yield f"        ({''.join(field_schema(each) + ', ' for each in message.fields)}),"
    if message.structs:
        yield "        ("
        for name, fields in message.structs.items():
            yield (
                f"            StructSchema({json.dumps(name)}, "
                f"({''.join(field_schema(each) + ', ' for each in fields)})),"
            )
        yield "        ),"
    yield "    )"
    yield ""
    yield ""


def module_text(subject: str, messages: list[Message]) -> str:
    body = "\n".join(line for message in messages for line in class_lines(message))
    imports = "".join(
        f"from kafkafmt.schemas.{module} import {', '.join(used)}\n"
        for module, names in IMPORTS.items()
        if (used := [name for name in names if re.search(rf"\b{name}\b", body)])
    )
    dataclass_names = "dataclass, field" if "field(" in body else "dataclass"
    uuid = "from uuid import UUID\n" if re.search(r"\bUUID\b", body) else ""
    text = (
        f'"""Generated by tools/compile_schemas.py: {subject}."""\n\n'
        "from __future__ import annotations\n\n"
        f"from dataclasses import {dataclass_names}\n"
        "from typing import ClassVar\n"
        f"{uuid}\n"
        f"{imports}\n\n"
        f"{body}"
    )
    return formatted(text)


def formatted(text: str) -> str:
    """Format Python as the project's other files: what is committed passes `ruff format --check`."""
    for arguments in (["check", "--select", "I", "--fix", "-q"], ["format", "-q"]):
        ran = subprocess.run(
            [sys.executable, "-m", "ruff", *arguments, "--stdin-filename", PACKAGE / "generated.py", "-"],
            input=text,
            capture_output=True,
            text=True,
            check=True,
            cwd=ROOT,
        )
        text = ran.stdout
    return text


def modules() -> dict[Path, str]:
    """Return the path and the text of each generated module. Raises FileNotFoundError if a release's jars lack."""
    for release in RELEASES:
        if not (folder := JARS / f"kafka-{release}").exists():
            raise FileNotFoundError(
                f"{folder}: expected Kafka's jars, found no folder; `make test` fetches them"
            )
    collected = collect()
    return {
        PACKAGE / f"{module}.py": module_text(subject, collected[module])
        for module, subject in MODULES.values()
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing, compare only")
    check = parser.parse_args().check
    try:
        compiled = modules()
    except FileNotFoundError as error:
        parser.error(str(error))
    differing = [path for path, text in compiled.items() if not path.exists() or path.read_text() != text]
    for path in differing:
        print(f"{'differs' if check else 'wrote'}: {path.relative_to(ROOT)}")
        if not check:
            path.write_text(compiled[path])
    return int(check and bool(differing))


if __name__ == "__main__":
    sys.exit(main())
