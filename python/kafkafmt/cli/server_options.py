"""Options of the commands that are Kafka servers: addresses, TLS, users, timeouts, metrics and logs."""

from __future__ import annotations

import ipaddress
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import click

from kafkafmt._util.sizes import size_text
from kafkafmt.cli.options import Decorator, log_options, options
from kafkafmt.cli.values import FILE, Address, AddressType, Count, Seconds, Size
from kafkafmt.server.options import DEFAULT_HOST, DEFAULT_PORT, ServerOptions, TlsOptions
from kafkafmt.server.security.users import MECHANISMS, Users, load_or_create_secret, read_users
from kafkafmt.types import Codec


def size_option(
    defaults: type[ServerOptions], name: str, setting: str, maximum: int, help_text: str
) -> Decorator:
    """Return an option for a size. defaults: the options that have its default as `setting`."""
    return click.option(
        name,
        setting,
        type=Size(most=maximum),
        default=size_text(getattr(defaults, setting)),
        help=help_text,
    )


class _OldCodec(click.Choice[str]):
    """A codec that message formats v0 and v1 have."""

    def __init__(self) -> None:
        super().__init__(["gzip", "snappy", "lz4"])

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if value == "zstd":
            self.fail("expected gzip, snappy or lz4, found zstd, which v0 and v1 do not have", param, ctx)
        return Codec[super().convert(value, param, ctx).upper()]


downconversion_codec_option = click.option(
    "--downconversion-codec",
    type=_OldCodec(),
    help="Codec of all batches that are converted, for consumers behind slow links.  [default: each keeps its own]",
)
listening_options = options(
    click.option(
        "--listen",
        type=AddressType(least_port=0),
        default=str(Address(DEFAULT_HOST, DEFAULT_PORT)),
        help="Address to listen on; port 0: any free port.",
    ),
    click.option(
        "--advertise",
        "advertised",
        type=AddressType(least_port=1),
        help="Address that clients are told to connect to.  [default: as --listen]",
    ),
    click.option(
        "--workers",
        type=Count(most=256),
        default=ServerOptions.workers,
        help="Processes that share the port.",
    ),
)
security_options = options(
    click.option("--tls-cert", type=FILE, help="Certificate with its chain, in PEM form."),
    click.option("--tls-key", type=FILE, help="Key of the certificate, not encrypted."),
    click.option(
        "--tls-client-ca",
        type=FILE,
        help="Certificate authorities. Clients must show a certificate that one of them signed.",
    ),
    click.option("--sasl-users", type=FILE, help="File of the users who may connect, by SASL."),
    click.option(
        "--sasl-mechanisms",
        metavar="NAMES",
        help=f"SASL mechanisms that users may use, comma-separated: {', '.join(MECHANISMS)}.  [default: all]",
    ),
)
connections_per_ip_option = click.option(
    "--max-connections-per-ip",
    type=Count(),
    help="Most connections of each process from one IP address.  [default: no limit]",
)
timeout_options = options(
    *(
        click.option(
            f"--{name}-timeout",
            type=Seconds(),
            default=getattr(ServerOptions, f"{name}_timeout"),
            help=help_text,
        )
        for name, help_text in {
            "write": "Longest time in which a client reads nothing of a response.",
            "request": "Longest time for a request to arrive, and for a client to authenticate.",
            "idle": "Longest time without a request on a connection.",
            "shutdown": "Longest time for responses to end after SIGTERM.",
        }.items()
    ),
)
operations_options = options(
    click.option(
        "--metrics",
        type=AddressType(least_port=0),
        help="Address on which metrics are served, in Prometheus' format.",
    ),
    log_options(),
)


def tls_options(certificate: Path | None, key: Path | None, client_ca: Path | None) -> TlsOptions | None:
    """Return the TLS options. Raises click.UsageError if some are missing."""
    if certificate is not None and key is not None:
        return TlsOptions(certificate, key, client_ca)
    if certificate is not None or key is not None:
        raise click.UsageError("--tls-cert and --tls-key go together")
    if client_ca is not None:
        raise click.UsageError("--tls-client-ca needs --tls-cert and --tls-key")
    return None


def users(path: Path | None, names: str | None, state: Path | None) -> Users | None:
    """Return the users of a file. Raises click.UsageError for mechanisms that are none."""
    if names is not None and path is None:
        raise click.UsageError("--sasl-mechanisms needs --sasl-users")
    mechanisms = MECHANISMS if names is None else tuple(name.strip().upper() for name in names.split(","))
    for name in mechanisms:
        if name not in MECHANISMS:
            raise click.UsageError(f"--sasl-mechanisms: expected {', '.join(MECHANISMS)}, found {name!r}")
    if path is None:
        return None
    return read_users(path, mechanisms, secret=None if state is None else load_or_create_secret(state))


def security_warnings(
    options: ServerOptions, allowed: str, secrets: Iterable[Path | None]
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield log events for options that are allowed but seldom intended.

    allowed: what clients may do, as "read all topics". secrets: files that contain passwords; None: there is none.
    """
    if not is_loopback(options.host):
        if options.users is None and (options.tls is None or options.tls.client_ca is None):
            yield f"every client that reaches the port can {allowed}", {"host": options.host}
        if options.tls is None:
            yield "without TLS, others on the network can read what is sent", {"host": options.host}
    for path in filter(None, (*secrets, options.tls.key if options.tls else None)):
        if path.stat().st_mode & (stat.S_IRGRP | stat.S_IROTH):
            yield "other users can read a file of secrets", {"file": str(path)}


def is_loopback(host: str) -> bool:
    """Return whether only this machine reaches an address."""
    address = _address(host)
    return host == "localhost" or (address is not None and address.is_loopback)


def is_wildcard(host: str) -> bool:
    """Return whether an address stands for all of this machine."""
    address = _address(host)
    return address is not None and address.is_unspecified


def _address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """Return the IP address; None if `host` is a name."""
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None
