"""`kafkafmt mirror offsets`: where a consumer group continues at the target of a mirror."""

from __future__ import annotations

from pathlib import Path

import click

from kafkafmt.cli.help import HelpCommand
from kafkafmt.cli.mirror_options import MirrorAddressType, shared_options
from kafkafmt.cli.options import client_settings, cluster_errors, json_option
from kafkafmt.cli.output import print_json, print_table
from kafkafmt.mirror.addresses import Address as MirrorAddress
from kafkafmt.mirror.options import MirrorOptions
from kafkafmt.mirror.topic_names import TopicNames


@click.command(
    cls=HelpCommand,
    common="--group --commit --offset-map --source-config-file --target-config-file --json",
    page="mirror.md",
)
@click.argument("source", metavar="SRC", type=MirrorAddressType())
@click.argument("target", metavar="DST", type=MirrorAddressType())
@click.option("--group", required=True, help="The consumer group whose offsets are looked up.")
@click.option("--commit", is_flag=True, help="Commit the offsets found for the group at DST.")
@shared_options()
@json_option("Print JSON lines: one object for each partition.")
def offsets(
    source: MirrorAddress,
    target: MirrorAddress,
    group: str,
    commit: bool,
    renames: tuple[str, ...],
    topic_prefix: str,
    offset_map: str,
    source_config: tuple[tuple[str, str], ...],
    source_config_file: Path | None,
    target_config: tuple[tuple[str, str], ...],
    target_config_file: Path | None,
    as_json: bool,
) -> int:
    """Show where a consumer group continues at DST.

    \b
    kafkafmt mirror offsets kafka://east:9092 kafka://west:9092 --group billing
    kafkafmt mirror offsets kafka://a:9092 kafka://b:9092 --group billing --commit

    The offset map of a mirror from SRC translates the group's offsets. --rename, --topic-prefix and --offset-map must
    be those of the mirror.

    The group misses no record there. It may read some again, because the map does not have every offset.
    """
    with cluster_errors("mirror"):
        from kafkafmt.mirror.group_offsets import look_up_group

        asked = MirrorOptions(
            source,
            target,
            source_config=client_settings(source_config, source_config_file),
            target_config=client_settings(target_config, target_config_file),
            offset_map=offset_map,
            topic_names=TopicNames.parsed(topic_prefix, renames),
        )
        found = look_up_group(asked, group, commit=commit)
    if as_json:
        for (topic, partition), at, name, other in found:
            there = {"source_offset": at, "target_topic": name, "target_offset": other}
            print_json({"topic": topic, "partition": partition, **there})
        return 0
    rows = [
        (topic, str(partition), str(at), name, "-" if other is None else str(other))
        for (topic, partition), at, name, other in found
    ]
    print_table(("topic", "partition#", "source offset#", "target topic", "target offset#"), rows)
    return 0
