"""`--key-format` and `--value-format`: one form of keys and values in JSON, on every command that prints records."""

from __future__ import annotations

import base64
import json
import struct
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from cli.logs import FIRST_TIMESTAMP, is_one_line, json_lines, run
from decode.stand_in import Registry, running_registry
from kafkafmt import RecordBatchBuilder
from kafkafmt.log import PartitionLogWriter

NAN_PAYLOAD = b'{"a": NaN}'


def write_records(folder: Path, records: Sequence[tuple[bytes | None, bytes | None]]) -> Path:
    builder = RecordBatchBuilder()
    for number, (key, value) in enumerate(records):
        builder.append(FIRST_TIMESTAMP + number, key, value)
    with PartitionLogWriter(folder) as writer:
        writer.append(builder.build())
    return folder


def shown(folder: Path, *options: object) -> list[dict[str, Any]]:
    """The keys and values that `replay` and `inspect` print, which are the same."""
    found = []
    for words in (("replay", folder), ("inspect", folder, "--records", "--json")):
        result = run(*words, *options)
        assert result.exit_code == 0, result.stderr
        rows = json_lines(result.stdout)
        found.append([{k: v for k, v in row.items() if k.startswith(("key", "value"))} for row in rows])
    assert found[0] == found[1]
    return found[0]


def test_text_when_it_is_utf_8_then_is_a_string_and_else_its_error_and_its_bytes(tmp_path: Path) -> None:
    log = write_records(tmp_path / "a-0", [(b"k", "ä".encode()), (None, b"ab\xff"), (b"", None)])
    assert shown(log, "--value-format", "text") == [
        {"key": "k", "value": "ä"},
        {
            "key": None,
            "value": None,
            "value_error": "position 2: expected UTF-8; found byte 0xff",
            "value_base64": "YWL/",
        },
        {"key": "", "value": None},
    ]


def test_base64_when_bytes_are_text_or_not_then_is_the_value_itself(tmp_path: Path) -> None:
    log = write_records(tmp_path / "a-0", [(b"\xff", b"text"), (b"k", None)])
    assert shown(log, "--value-format", "base64", "--key-format", "base64") == [
        {"key": "/w==", "value": "dGV4dA=="},
        {"key": "aw==", "value": None},
    ]


@pytest.mark.parametrize(
    ("payload", "expected"),
    [
        (b'{"a": [1, null, "x"]}', '{"a": [1, null, "x"]}'),
        (b' {\n "a":\r\n1 }\n', '{  "a":  1 }'),
        (b"12345678901234567890123.50", "12345678901234567890123.50"),
        (b"1e999", "1e999"),
        ('"ä\\u00e4\U0001f600"'.encode(), '"\\u00e4\\u00e4\\ud83d\\ude00"'),
        (b"null", "null"),
    ],
)
def test_json_when_it_is_valid_then_is_the_text_of_the_payload_in_one_line(
    tmp_path: Path, payload: bytes, expected: str
) -> None:
    log = write_records(tmp_path / "a-0", [(None, payload)])
    line = run("replay", log, "--value-format", "json").stdout
    assert f'"value": {expected}, ' in line
    assert line.count("\n") == 1


@pytest.mark.parametrize(
    ("payload", "error"),
    [
        (b'{"a": ', "position 6: expected JSON"),
        (NAN_PAYLOAD, "expected JSON: found NaN"),
        (b'"\n"', "position 1: expected JSON"),
        (b"\xff", "position 0: expected UTF-8"),
        (b"[" * 100_000, "the JSON is nested too deeply"),
        (b"", "position 0: expected JSON"),
        (b"1 2", "position 2: expected JSON"),
    ],
)
def test_json_when_it_is_not_valid_then_its_error_and_its_bytes_are_there_and_the_others_too(
    tmp_path: Path, payload: bytes, error: str
) -> None:
    log = write_records(tmp_path / "a-0", [(None, b"1"), (None, payload), (None, b"2")])
    one, broken, two = shown(log, "--value-format", "json")
    assert (one, two) == ({"key": None, "value": 1}, {"key": None, "value": 2})
    assert broken["value"] is None
    assert broken["value_error"].startswith(error)
    assert base64.b64decode(broken["value_base64"]) == payload


def test_numbers_then_are_decoded_as_kafkas_serializers_write_them(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    log = write_records(
        tmp_path / "a-0",
        [
            (struct.pack(">q", -7), struct.pack(">d", 1.5)),
            (b"\x00", struct.pack(">d", float("nan"))),
            (None, None),
        ],
    )
    assert shown(log, "--key-format", "long", "--value-format", "double") == [
        {"key": -7, "value": 1.5},
        {"key": None, "key_error": shown_error(log), "key_base64": "AA==", "value": "NaN"},
        {"key": None, "value": None},
    ]


def shown_error(log: Path) -> str:
    (error,) = {
        row["key_error"] for row in shown(log, "--key-format", "integer") if row.get("key_base64") == "AA=="
    }
    return error.replace("4 bytes", "8 bytes")


def test_json_when_it_is_framed_then_its_framing_is_left_out(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    log = write_records(tmp_path / "a-0", [(b"k", b'\0\0\0\0\7{"a": 1}'), (b"k", b'{"a": 2}')])
    framed = shown(log, "--value-format", "json", "--framing", "confluent")
    assert framed[0] == {"key": "k", "value": {"a": 1}}
    assert framed[1]["value_error"].startswith("position 0: expected byte 0 and a schema id")
    assert base64.b64decode(framed[1]["value_base64"]) == b'{"a": 2}'
    values = [row["value"] for row in shown(log, "--value-format", "json", "--framing", "auto")]
    assert values == [{"a": 1}, {"a": 2}]


def test_avro_when_schemas_are_in_a_folder_then_is_decoded_with_them(tmp_path: Path) -> None:
    pytest.importorskip("kafkafmt.decode.avro")
    fields = [{"name": "id", "type": "long"}, {"name": "raw", "type": "bytes"}]
    (tmp_path / "schemas").mkdir()
    (tmp_path / "schemas" / "1.avsc").write_text(
        json.dumps({"type": "record", "name": "Order", "fields": fields})
    )
    payload = b"\0\0\0\0\1\x0e\x04\xff\xfe"
    log = write_records(tmp_path / "a-0", [(None, payload), (None, b"\0\0\0\0\2\x0e"), (None, None)])
    good, broken, null = shown(log, "--value-format", "avro", "--schemas", tmp_path / "schemas")
    assert good == {"key": None, "value": {"id": 7, "raw": "//4="}}
    assert (broken["value"], broken["value_base64"]) == (None, "AAAAAAIO")
    assert null == {"key": None, "value": None}


def test_table_when_values_have_a_format_then_shows_what_they_say(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    log = write_records(tmp_path / "a-0", [(struct.pack(">i", 41), b'{"a": 1}')])
    out = run("inspect", log, "--records", "--key-format", "integer", "--value-format", "json").stdout
    assert "41" in out
    assert '{"a": 1}' in out


def test_records_when_there_are_more_than_are_decoded_at_a_time_then_are_all_there_in_order(
    tmp_path: Path,
) -> None:
    pytest.importorskip("pyarrow")
    log = write_records(tmp_path / "a-0", [(None, struct.pack(">i", number)) for number in range(3000)])
    rows = shown(log, "--value-format", "integer")
    assert [row["value"] for row in rows] == list(range(3000))
    limited = run("inspect", log, "--records", "--json", "--value-format", "integer", "--limit", "1500")
    assert limited.stdout.count("\n") == 1500


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--schemas", "x"), "--schemas is for --key-format and --value-format"),
        (("--framing", "auto"), "--framing is for --key-format and --value-format"),
        (("--schemas-config-file", __file__), "--schemas-config-file is for --key-format and --value-format"),
        (
            ("--value-format", "text", "--schemas-config-file", __file__),
            "is for the registry of --schemas URL",
        ),
        (
            ("--value-format", "avro", "--schemas", "x", "--schemas-config-file", __file__),
            "is for the registry of --schemas URL",
        ),
        (("--value-format", "text", "--schemas", "http://localhost:1"), "schemas have no effect on text"),
        (("--value-format", "base64", "--framing", "none"), "have no effect on base64"),
        (("--value-format", "avro"), "avro needs schemas"),
        (("--value-format", "csv"), "'csv' is not one of"),
        (("--value-format", "avro", "--schemas", "no-such-file"), "no-such-file"),
    ],
)
def test_wrong_formats_are_one_line(tmp_path: Path, options: tuple[str, ...], words: str) -> None:
    pytest.importorskip("pyarrow")
    log = write_records(tmp_path / "a-0", [(None, b"1")])
    for command in (("replay", log), ("inspect", log, "--records", "--json")):
        result = run(*command, *options)
        assert (result.exit_code, result.stdout) == (2, ""), result.stdout
        assert is_one_line(result.stderr)
        assert words in result.stderr


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (("replay", "{}", "out"), "are for standard output"),
        (("inspect", "{}"), "are for --records"),
        (("inspect", "{}", "--records", "--raw"), "without --raw and --parquet"),
        (("inspect", "{}", "--records", "--parquet", "x"), "kafkafmt export writes decoded columns"),
    ],
)
def test_formats_when_they_have_no_effect_then_are_refused(
    tmp_path: Path, words: tuple[str, ...], error: str
) -> None:
    log = write_records(tmp_path / "a-0", [(None, b"1")])
    result = run(*(word.format(log) for word in words), "--value-format", "json")
    assert (result.exit_code, result.stdout) == (2, "")
    assert error in result.stderr


@pytest.mark.parametrize(
    ("name", "content", "kind", "words"),
    [
        ("bad.avsc", "{bad", "avro", "expected an Avro schema"),
        ("bad.avsc", '{"type": "record", "name": "R"}', "avro", "fields"),
        ("bad.json", "[1]", "json", "expected a JSON Schema"),
        ("bad.proto", 'syntax = "proto3"; messag X {}', "protobuf", "schema.proto:1"),
        ("none.avsc", None, "avro", "No such file or directory"),
        ("none", None, "avro", "No such file or directory"),
        ("a.txt", "", "avro", "expected a file ending in .avsc"),
    ],
)
@pytest.mark.parametrize("command", ["inspect", "replay", "export"])
def test_schemas_when_the_file_is_damaged_or_missing_then_one_line_names_it_before_any_record(
    tmp_path: Path, command: str, name: str, content: str | None, kind: str, words: str
) -> None:
    for partition in ("a-0", "b-0"):
        write_records(tmp_path / "logs" / partition, [(None, b"x")])
    file = tmp_path / name
    if content is not None:
        file.write_text(content)
    more = {"inspect": ("--records",), "replay": (), "export": (tmp_path / "lake",)}[command]
    result = run(command, tmp_path / "logs", *more, "--value-format", kind, "--schemas", file)
    assert (result.exit_code, result.stdout) == (2, "")
    assert is_one_line(result.stderr, [f"{file}: ", words]), result.stderr


def test_avro_when_records_have_different_schemas_then_each_has_the_fields_that_it_was_written_with(
    tmp_path: Path,
) -> None:
    pytest.importorskip("kafkafmt.decode.avro")
    (tmp_path / "schemas").mkdir()
    fields: list[dict[str, Any]] = [{"name": "id", "type": "long"}]
    for number in (1, 2):
        schema = {"type": "record", "name": "Order", "fields": fields[:number]}
        (tmp_path / "schemas" / f"{number}.avsc").write_text(json.dumps(schema))
        fields.append({"name": "tags", "type": {"type": "map", "values": "double"}})
    new = b"\0\0\0\0\2\x10\x02\x02a" + struct.pack("<d", 0.5) + b"\0"
    log = write_records(tmp_path / "a-0", [(None, b"\0\0\0\0\1\x0e"), (None, new), (None, b"\0\0\0\0\1\x12")])
    rows = shown(log, "--value-format", "avro", "--schemas", tmp_path / "schemas")
    assert [row["value"] for row in rows] == [{"id": 7}, {"id": 8, "tags": {"a": 0.5}}, {"id": 9}]


def test_avro_when_schemas_are_of_a_registry_then_each_is_asked_for_once(tmp_path: Path) -> None:
    pytest.importorskip("kafkafmt.decode.avro")
    with running_registry() as registry:
        number = registry.register("a-value", {"schema": '"long"'})
        payload = b"\0" + number.to_bytes(4, "big") + b"\x0e"
        log = write_records(tmp_path / "a-0", [(None, payload)] * 2000 + [(None, b"\0\0\0\0\x63\x0e")])
        result = run("replay", log, "--value-format", "avro", "--schemas", registry.url)
        assert len([path for path in registry.requests if f"/schemas/ids/{number}" in path]) == 1
    rows = json_lines(result.stdout)
    assert [row["value"] for row in rows] == [7] * 2000 + [None]
    assert "99" in rows[-1]["value_error"]


def test_registry_when_it_does_not_answer_then_one_line_says_so(tmp_path: Path) -> None:
    pytest.importorskip("kafkafmt.decode.avro")
    with running_registry() as registry:
        registry.failures = [401]
        log = write_records(tmp_path / "a-0", [(None, b"\0\0\0\0\x07\x0e")])
        result = run("replay", log, "--value-format", "avro", "--schemas", registry.url)
    assert (result.exit_code, result.stdout) == (2, "")
    assert is_one_line(result.stderr)
    assert "401" in result.stderr


def avro_number(number: int) -> bytes:
    raw, out = number << 1 if number >= 0 else -2 * number - 1, bytearray()
    while raw >= 0x80:
        out.append(raw & 0x7F | 0x80)
        raw >>= 7
    return bytes([*out, raw])


WITHOUT_PANDAS = """
import sys

class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == "pandas":
            raise ModuleNotFoundError(name)

sys.meta_path.insert(0, Finder())
from kafkafmt.cli import main
main()
"""


def test_avro_when_times_have_nanoseconds_or_any_range_then_are_text_without_pandas(tmp_path: Path) -> None:
    pytest.importorskip("kafkafmt.decode.avro")
    schema = {"type": "record", "name": "R", "fields": [
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-nanos"}},
        {"name": "day", "type": {"type": "int", "logicalType": "date"}},
    ]}  # fmt: skip
    (tmp_path / "schema.avsc").write_text(json.dumps(schema))
    times = [(1_700_000_000_123_456_789, 0), (-1, 2**31 - 1)]
    log = write_records(tmp_path / "a-0", [(None, avro_number(at) + avro_number(day)) for at, day in times])
    options = ["--value-format", "avro", "--schemas", str(tmp_path / "schema.avsc")]
    words = [sys.executable, "-c", WITHOUT_PANDAS, "replay", str(log), *options]
    result = subprocess.run(words, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    assert [row["value"] for row in json_lines(result.stdout)] == [
        {"at": "2023-11-14T22:13:20.123456789Z", "day": "1970-01-01"},
        {"at": "1969-12-31T23:59:59.999999999Z", "day": "5881580-07-11"},
    ]


@pytest.fixture
def secured(tmp_path: Path) -> Iterator[tuple[Registry, Path, Path]]:
    """A registry that needs credentials, a log with a record of its schema, and the file with its settings."""
    pytest.importorskip("kafkafmt.decode.avro")
    with running_registry() as registry:
        registry.authorization = "Basic " + base64.b64encode(b"user:s3:cret").decode()
        number = registry.register("a-value", {"schema": '"long"'})
        log = write_records(tmp_path / "a-0", [(None, b"\0" + number.to_bytes(4, "big") + b"\x0e")])
        settings = tmp_path / "registry.properties"
        settings.write_text("# of the registry\nbasic.auth.user.info=user:s3:cret\n")
        yield registry, log, settings


def test_registry_when_a_file_has_its_credentials_then_they_are_sent(
    secured: tuple[Registry, Path, Path], tmp_path: Path
) -> None:
    registry, log, settings = secured
    options = ("--value-format", "avro", "--schemas", registry.url, "--schemas-config-file", settings)
    assert shown(log, *options) == [{"key": None, "value": 7}]
    result = run("export", log, tmp_path / "lake", *options)
    assert result.exit_code == 0, result.stderr
    settings.write_text("bearer.auth.token=s3cret\n")
    registry.authorization = "Bearer s3cret"
    assert shown(log, *options) == [{"key": None, "value": 7}]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("basic.auth.user.info=other:s3cret", "refuses the credentials"),
        ("basic.auth.user.info=s3cret", "basic.auth.user.info: expected USER:PASSWORD"),
        ("bearer.auth.token=s3cret s3cret", "has a character that no token can have"),
        ("bearer.auth.token=s3cret\nbasic.auth.user.info=user:s3cret", "not both"),
        ("basic.auth.userinfo=user:s3cret", "did you mean 'basic.auth.user.info'"),
        ("bearer.auth.token: s3cret=", "did you mean 'bearer.auth.token'"),
        ("password=s3cret", "unknown registry setting: expected one of basic.auth.user.info,"),
        ("ssl.key.location=key.pem", "needs its certificate"),
        ("s3cret", "line 1: expected KEY=VALUE"),
    ],
)
def test_registry_when_its_settings_are_wrong_then_one_line_says_so_without_them(
    secured: tuple[Registry, Path, Path], tmp_path: Path, text: str, words: str
) -> None:
    registry, log, settings = secured
    settings.write_text(text)
    options = ("--value-format", "avro", "--schemas", registry.url, "--schemas-config-file", settings)
    for command in (("replay", log), ("inspect", log, "--records"), ("export", log, tmp_path / "lake")):
        result = run(*command, *options)
        assert result.exit_code != 0
        assert words in result.stderr
        assert "s3cret" not in result.stderr + result.stdout
        assert is_one_line(result.stderr) or command[0] == "export", result.stderr
