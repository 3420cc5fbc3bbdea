"""Help in two lengths: `--help` fits one screen, `--help-all` shows everything. Commands are listed in groups."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any

import click

# click's mark of a paragraph whose lines are not filled: the examples.
_UNFILLED = "\b"


class HelpCommand(click.Command):
    """A command with a short `--help` and a complete `--help-all`.

    The short help has the docstring up to its examples, the options named in `common`, and a link to `page`. Options
    show their defaults.

    common: the most used options, as "--listen --workers". page: the command's documentation, a path below docs/.
    """

    def __init__(self, *args: Any, common: str, page: str, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._common, self._page = common.split(), page
        for one in self.params:
            if (
                isinstance(one, click.Option)
                and not one.is_flag
                and isinstance(one.default, str | int | float)
            ):
                one.show_default = True
        self._help_all = click.Option(
            ["--help-all"],
            is_flag=True,
            is_eager=True,
            expose_value=False,
            callback=_print_complete_help,
            help="Show all options and all details.",
        )

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, args)
        except click.UsageError as error:
            error.ctx = error.ctx or ctx  # click names no command if the argument of an option is missing
            raise

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        return [*super().get_params(ctx), self._help_all]

    def format_complete_help(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the whole help text and all options."""
        self.format_usage(ctx, formatter)
        super().format_help_text(ctx, formatter)
        common, others = self._divided_options(ctx)
        _write_options(ctx, formatter, "Common options" if others else "Options", common)
        _write_options(ctx, formatter, "More options", others)
        formatter.write_paragraph()
        formatter.write_text(f"Documentation: docs/{self._page}")

    def format_help_text(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        paragraphs = inspect.cleandoc(self.help or "").split("\n\n")
        examples = next((i for i, one in enumerate(paragraphs) if one.startswith(_UNFILLED)), 0)
        formatter.write_paragraph()
        with formatter.indentation():
            formatter.write_text("\n\n".join(paragraphs[: examples + 1]))

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        common, _ = self._divided_options(ctx)
        _write_options(ctx, formatter, "Options", common)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        formatter.write_paragraph()
        formatter.write_text(f"All options:   {ctx.command_path} --help-all")
        formatter.write_text(f"Documentation: docs/{self._page}")

    def _divided_options(self, ctx: click.Context) -> tuple[list[click.Option], list[click.Option]]:
        """Return the common options in the order of `common`, then the help options; and all others."""
        options = [one for one in self.get_params(ctx) if isinstance(one, click.Option)]
        by_name = {name: one for one in options for name in one.opts}
        common = [by_name[name] for name in (*self._common, "--help", "--help-all")]
        return common, [one for one in options if one not in common]


def _print_complete_help(ctx: click.Context, _: click.Parameter, is_given: bool) -> None:
    if not is_given or ctx.resilient_parsing:
        return
    assert isinstance(ctx.command, HelpCommand)
    formatter = ctx.make_formatter()
    ctx.command.format_complete_help(ctx, formatter)
    click.echo(formatter.getvalue().rstrip("\n"), color=ctx.color)
    ctx.exit()


def _write_options(
    ctx: click.Context, formatter: click.HelpFormatter, title: str, options: Sequence[click.Option]
) -> None:
    records = [record for one in options if (record := one.get_help_record(ctx)) is not None]
    if records:
        with formatter.section(title):
            formatter.write_dl(records)


class GroupedCommands(click.Group):
    """A group whose help lists the commands under headings. A command is imported when it is first asked for.

    headings: the names of the commands of each heading. package: has a module for each command. The module and the
    command in it have the command's name, with underscores for hyphens.
    """

    def __init__(
        self, *args: Any, headings: Mapping[str, Sequence[str]], package: str, **kwargs: Any
    ) -> None:
        super().__init__(*args, **kwargs)
        self._headings, self._package = headings, package

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(name for names in self._headings.values() for name in names)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self.commands and cmd_name in self.list_commands(ctx):
            name = cmd_name.replace("-", "_")
            self.add_command(getattr(import_module(f"{self._package}.{name}"), name))
        return super().get_command(ctx, cmd_name)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        # The descriptions of all headings begin in the same column.
        widest = max(map(len, self.list_commands(ctx)))
        limit = formatter.width - widest - 6
        for heading, names in self._headings.items():
            commands = [command for name in names if (command := self.get_command(ctx, name)) is not None]
            with formatter.section(heading):
                formatter.write_dl(
                    [(f"{one.name:{widest}}", one.get_short_help_str(limit)) for one in commands]
                )
