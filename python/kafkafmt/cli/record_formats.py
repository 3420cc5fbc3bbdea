"""Keys and values of records as JSON, by `--key-format` and `--value-format`.

Without a format, bytes that are UTF-8 are a string, and others are base64 under another name: see `kafkafmt.cli.rows`.
With a format, `key` and `value` are what the bytes say. If they cannot be decoded, `value` is null, `value_error` says
why, and `value_base64` has the bytes.

json is the text of the payload itself, so numbers keep all their digits. `kafkafmt.decode` decodes the other formats,
some records at a time, and `kafkafmt.cli.json_values` makes JSON of them.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

import click

from kafkafmt.cli.options import needs
from kafkafmt.cli.output import print_text
from kafkafmt.cli.record_options import schemas_of_options

if TYPE_CHECKING:
    from kafkafmt.cli.row_decoding import RowDecoder
    from kafkafmt.decode import Decoding
    from kafkafmt.decode.framing import Frames
    from kafkafmt.decode.options import Side

BASE64 = "base64"
# What is decoded at a time.
_MAX_ROWS = 1024
_MAX_BYTES = 1024 * 1024
_NO_ASCII = re.compile("[^\\x00-\\x7f]")
_SCHEMA_OPTIONS = ("--schemas", "--schemas-config-file", "--framing")
_SIDES: tuple[Side, Side] = ("key", "value")

Row = dict[str, Any]


class Rendered(NamedTuple):
    """A key or a value as JSON text. data: the bytes, if they cannot be decoded for the reason `error`."""

    text: str
    error: str | None = None
    data: bytes = b""


@dataclass
class RecordFormats:
    """Renders keys and values of the rows of records. `of_options` makes it.

    key, value: the formats; None leaves bytes as they are. decoding: that of the formats which Kafka's own are; None
    without one.
    """

    key: str | None
    value: str | None
    decoding: Decoding | None
    _decoders: Mapping[Side, RowDecoder] = field(default_factory=dict)

    @classmethod
    def of_options(
        cls,
        key_format: str | None,
        value_format: str | None,
        schemas: str | None,
        schemas_config_file: Path | None,
        framing: str | None,
    ) -> RecordFormats | None:
        """Return the formats of a command line; None without any. Raises click.UsageError for contradictions."""
        if key_format is None and value_format is None:
            for name, given in zip(_SCHEMA_OPTIONS, (schemas, schemas_config_file, framing), strict=True):
                if given is not None:
                    raise click.UsageError(f"{name} is for --key-format and --value-format")
            return None
        own = [None if one == BASE64 else one for one in (key_format, value_format)]
        is_plain = schemas is None and schemas_config_file is None and framing is None
        if is_plain and all(one in (None, "text", "json") for one in own):
            return cls(key_format, value_format, None)
        if own == [None, None]:
            raise click.UsageError(f"{', '.join(_SCHEMA_OPTIONS)} have no effect on base64")
        with needs("a format of keys or values", "decode"):
            from kafkafmt._util.user_errors import UserError
            from kafkafmt.decode import Decoding

            try:
                source = schemas_of_options(schemas, schemas_config_file)
                decoding = Decoding(own[0], own[1], schemas=source, framing=framing)  # type: ignore[arg-type]
            except UserError as error:
                raise click.UsageError(str(error)) from None
        return cls(key_format, value_format, decoding)

    def rendered(self, rows: Iterable[Row]) -> Iterator[Row]:
        """Yield rows with `Rendered` keys and values. Markers of transactions stay as they are."""
        for some in _chunks(rows):
            self._render([row for row in some if not row.get("is_control")])
            yield from some

    def _render(self, rows: Sequence[Row]) -> None:
        decoded = self._decoded(rows)
        for side, name in zip(_SIDES, (self.key, self.value), strict=True):
            if name is None:
                continue
            found = decoded.get(side)
            if found is None:
                render = _RENDERERS[name]
                found = [_NULL if row[side] is None else render(row[side]) for row in rows]
            for row, one in zip(rows, found, strict=True):
                row[side] = one

    def _decoded(self, rows: Sequence[Row]) -> dict[Side, list[Rendered]]:
        """Return the keys and values whose formats `kafkafmt.decode` decodes."""
        found: dict[Side, list[Rendered]] = {}
        for side, decoder in self._row_decoders().items():
            if decoder.decoding.format_of(side) == "json":
                found[side] = _json_payloads(rows, side, decoder.frames(rows))
            else:
                found[side] = [
                    Rendered(json.dumps(one.value)) if one.error is None else _failed(row[side], one.error)
                    for row, one in zip(rows, decoder.decode(rows), strict=True)
                ]
        return found

    def _row_decoders(self) -> Mapping[Side, RowDecoder]:
        if self.decoding is not None and not self._decoders:
            from kafkafmt.cli.row_decoding import RowDecoder

            sides = [side for side in self.decoding.sides() if self.decoding.format_of(side) != "text"]
            self._decoders = {side: RowDecoder(side, self.decoding) for side in sides}
        return self._decoders


def print_rendered(row: Mapping[str, Any]) -> None:
    """Print a row with rendered keys and values as JSON, in one line on standard output."""
    parts = []
    for name, value in row.items():
        if not isinstance(value, Rendered):
            parts.append(f"{json.dumps(name)}: {json.dumps(value)}")
            continue
        parts.append(f"{json.dumps(name)}: {value.text}")
        if value.error is not None:
            text = base64.b64encode(value.data).decode()
            parts.append(f'"{name}_error": {json.dumps(value.error)}, "{name}_base64": "{text}"')
    print_text(f"{{{', '.join(parts)}}}\n")


_NULL = Rendered("null")


def _failed(data: bytes | None, error: str) -> Rendered:
    return _NULL if data is None else Rendered("null", error, data)


def _text(data: bytes) -> Rendered:
    try:
        return Rendered(json.dumps(data.decode()))
    except UnicodeDecodeError as error:
        return _failed(data, f"position {error.start}: expected UTF-8; found byte {data[error.start]:#04x}")


def _base64(data: bytes) -> Rendered:
    return Rendered(f'"{base64.b64encode(data).decode()}"')


def _json(payload: bytes, data: bytes | None = None) -> Rendered:
    """Render a payload that is JSON; its bytes with the framing are `data`."""
    data = payload if data is None else data
    try:
        text = payload.decode()
        json.loads(text, parse_int=_same, parse_float=_same, parse_constant=_refuse_constant)
        # In valid JSON line breaks are whitespace, and all that is not ASCII is in strings.
        return Rendered(_NO_ASCII.sub(_escaped, re.sub("[\n\r]", " ", text.strip())))
    except UnicodeDecodeError as error:
        return _failed(
            data, f"position {error.start}: expected UTF-8; found byte {payload[error.start]:#04x}"
        )
    except json.JSONDecodeError as error:
        return _failed(data, f"position {error.pos}: expected JSON: {error.msg}")
    except ValueError as error:
        return _failed(data, f"expected JSON: {error}")
    except RecursionError:
        return _failed(data, "the JSON is nested too deeply")


def _escaped(match: re.Match[str]) -> str:
    return json.dumps(match[0])[1:-1]


def _same(text: str) -> str:
    return text


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"found {name}")


_RENDERERS: dict[str, Callable[[bytes], Rendered]] = {"text": _text, BASE64: _base64, "json": _json}


def _json_payloads(rows: Sequence[Row], side: Side, frames: Frames) -> list[Rendered]:
    """Render JSON without its framing."""
    payloads, found = frames.payloads, []
    for number, row in enumerate(rows):
        data = row[side]
        if data is None:
            found.append(_NULL)
        elif number in frames.errors:
            found.append(_failed(data, frames.errors[number]))
        else:
            payload = payloads.data[payloads.starts[number] : payloads.ends[number]].tobytes()
            found.append(_json(payload, data))
    return found


def _chunks(rows: Iterable[Row]) -> Iterator[list[Row]]:
    """Group rows, up to a number of rows and about a number of bytes."""
    chunk: list[Row] = []
    size = 0
    for row in rows:
        chunk.append(row)
        size += sum(len(row[side]) for side in _SIDES if isinstance(row[side], bytes))
        if len(chunk) == _MAX_ROWS or size >= _MAX_BYTES:
            yield chunk
            chunk, size = [], 0
    if chunk:
        yield chunk
