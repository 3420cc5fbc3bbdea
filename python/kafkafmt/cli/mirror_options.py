"""Options of `kafkafmt mirror` and `kafkafmt mirror offsets`, and the types of their values."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click
from click.shell_completion import CompletionItem

from kafkafmt._util.sizes import GIB, KIB, MIB, size_text
from kafkafmt.cli.options import Decorator, client_options, options
from kafkafmt.cli.values import (
    NEEDS_PYARROW,
    AddressType,
    LocalPath,
    Seconds,
    Size,
    complete_folders,
    with_key_ring,
)
from kafkafmt.mirror.addresses import Address as MirrorAddress
from kafkafmt.mirror.addresses import parse_address
from kafkafmt.mirror.aliases import Aliases
from kafkafmt.mirror.errors import MirrorError
from kafkafmt.mirror.group_selection import GroupSelection
from kafkafmt.mirror.options import MirrorOptions
from kafkafmt.mirror.sealing import Sealing
from kafkafmt.server.options import DEFAULT_HOST
from kafkafmt.storage.locations import without_secrets

OFFSETS = "offsets"


class MirrorAddressType(click.ParamType["MirrorAddress"]):
    """The address of a cluster with topics, or of a folder. completes_offsets: also complete the subcommand."""

    name = "mirror address"

    def __init__(self, *, completes_offsets: bool = False) -> None:
        self._completes_offsets = completes_offsets

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> MirrorAddress:
        try:
            return parse_address(with_key_ring(value, ctx))
        except (ValueError, OSError) as error:
            self.fail(str(error), param, ctx)
        except ImportError:
            self.fail(f"{without_secrets(value)}: {NEEDS_PYARROW}", param, ctx)

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        if self._completes_offsets and incomplete and OFFSETS.startswith(incomplete):
            return [CompletionItem(OFFSETS)]
        return complete_folders(ctx, param, incomplete)


class MetricsAddressType(AddressType):
    """HOST:PORT, or PORT for this machine only."""

    def __init__(self) -> None:
        super().__init__(least_port=0)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if isinstance(value, str) and value.isdecimal():
            value = f"{DEFAULT_HOST}:{value}"
        return super().convert(value, param, ctx)


def shared_options() -> Decorator:
    """Return a decorator that adds the options for the clients of both sides, the names and the offset map."""
    config = (
        "A setting of the {}'s clients, under Kafka's name or kafka-python's, as security.protocol=SASL_SSL."
        " May be repeated."
    )
    file = "A file of settings of the {}'s clients, one KEY=VALUE a line, as for passwords."
    return options(
        click.option(
            "--rename",
            "renames",
            multiple=True,
            metavar="TOPIC=NAME",
            help="The name at DST of one of SRC's topics. May be repeated.",
        ),
        click.option(
            "--topic-prefix",
            default="",
            metavar="PREFIX",
            help="What is put before the names of all other topics at DST, as east. does.",
        ),
        click.option(
            "--offset-map",
            default=MirrorOptions.offset_map,
            metavar="PATH|topic:NAME",
            help="A file, or a topic at a target cluster, for the map of the source's offsets to the target's.",
        ),
        *(client_options(side, config.format(side), file.format(side)) for side in ("source", "target")),
    )


def sync_options() -> Decorator:
    """Return a decorator that adds the options of what is kept in sync beside the records."""
    return options(
        click.option(
            "--sync-topics",
            "syncs_topics",
            is_flag=True,
            help="Keep the configuration of topics at DST as it is at SRC, also of those that exist.",
        ),
        click.option(
            "--sync-groups",
            "syncs_groups",
            is_flag=True,
            help="Commit the offsets of SRC's consumer groups at DST, translated, for groups without members there.",
        ),
        click.option(
            "--groups",
            metavar="GROUP[,GROUP|REGEX]",
            help="The groups of --sync-groups.  [default: all but those of mirrors]",
        ),
        click.option(
            "--sync-interval",
            type=Seconds(),
            default=MirrorOptions.sync_interval,
            help="How often topics and groups are synced, and loops of mirrors are looked for.",
        ),
        click.option(
            "--heartbeats",
            metavar="SRC-ALIAS,DST-ALIAS",
            help="Write MirrorMaker 2's heartbeats to both clusters, under these aliases, and mirror them.",
        ),
        click.option(
            "--heartbeat-interval",
            type=Seconds(),
            default=MirrorOptions.heartbeat_interval,
            help="How often heartbeats are written.",
        ),
    )


def running_options(commits: str, progress: str = "How often progress is logged. 0: never.") -> Decorator:
    """Return a decorator that adds the intervals and the memory of a run. commits: the help of the first one."""
    return options(
        click.option(
            "--commit-interval", type=Seconds(), default=MirrorOptions.commit_interval, help=commits
        ),
        click.option(
            "--progress",
            "progress_interval",
            type=Seconds(may_be_zero=True),
            default=MirrorOptions.progress_interval,
            help=progress,
        ),
        click.option(
            "--memory",
            "memory_bytes",
            type=Size(most=64 * GIB),
            default=size_text(MirrorOptions.memory_bytes),
            help="The most memory beyond what the program needs to start.",
        ),
    )


def sealing_options() -> Decorator:
    """Return a decorator that adds the options of segments that are stored in an object store."""
    return options(
        click.option(
            "--segment-bytes",
            type=Size(least=KIB, most=GIB),
            default=size_text(Sealing.segment_bytes),
            help="The size at which a segment of a backup or in a store is complete; that of the topic if it is lower.",
        ),
        click.option(
            "--segment-age",
            type=Seconds(),
            default=Sealing.interval,
            help="The age at which such a segment is stored, full or not.",
        ),
        click.option(
            "--spool",
            metavar="DIR",
            type=LocalPath(file_okay=False),
            help="The folder for segments that are not stored yet.  [default: in a local backup, or that for temporary"
            " files]",
        ),
        click.option(
            "--spool-bytes",
            type=Size(least=MIB),
            default=size_text(Sealing.spool_bytes),
            help="The most bytes there. A full spool stores segments early, and reading waits for room.",
        ),
    )


def sync_settings(*, syncs_groups: bool, groups: str | None, heartbeats: str | None) -> Mapping[str, Any]:
    """Return the arguments of MirrorOptions for these options. Raises MirrorError."""
    if groups is not None and not syncs_groups:
        raise MirrorError("--groups needs --sync-groups: it selects the groups that are synced")
    selection = None
    if syncs_groups:
        selection = GroupSelection() if groups is None else GroupSelection.parsed(groups)
    return {
        "synced_groups": selection,
        "aliases": None if heartbeats is None else Aliases.parsed(heartbeats),
    }
