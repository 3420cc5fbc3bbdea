"""What values options take that click has no type for: sizes, and addresses."""

from __future__ import annotations

import re
from typing import Any, NamedTuple

import click

from kafkafmt.serve.options import host_and_port
from kafkafmt.sizes import parse_size

_MIB = 1024**2


class Size(click.ParamType[int]):
    """Bytes, as `kafkafmt.sizes` reads them. `maximum` is a whole number of MiB."""

    name = "size"

    def __init__(self, maximum: int) -> None:
        self._maximum = maximum

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        try:
            size = parse_size(value)
        except ValueError:
            size = 0
        if not 1 <= size <= self._maximum:
            most = self._maximum // _MIB
            self.fail(f"{value!r} is not a size from 1 byte to {most}M, as 524288, 512K or 1M", param, ctx)
        return size


class Address(NamedTuple):
    """Where something listens."""

    host: str
    port: int

    def __str__(self) -> str:
        return host_and_port(*self)


class AddressType(click.ParamType[Address]):
    """HOST:PORT; an IPv6 address in brackets. `least_port` is 0 where that stands for any port that is free."""

    name = "address"

    def __init__(self, *, least_port: int) -> None:
        self._least_port = least_port

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Address:
        if isinstance(value, Address):
            return value
        match = re.fullmatch(r"(?:\[([^\]\s]+)\]|([^\s:\[\]]+)):(\d{1,5})", value)
        if match is None or not self._least_port <= int(match[3]) <= 65535:
            form = f"HOST:PORT, as 127.0.0.1:9092 or [::1]:9092, a port from {self._least_port} to 65535"
            self.fail(f"{value!r} is not {form}", param, ctx)
        return Address(match[1] or match[2], int(match[3]))
