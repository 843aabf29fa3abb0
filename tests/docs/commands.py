"""docs/reference/commands.md: every command of `trialfleet`, its arguments and its options."""

from __future__ import annotations

import inspect
from collections.abc import Iterator

import click

from tests.docs.tables import plain, table
from trialfleet.workflows.cli.main import main


def page() -> str:
    """Return the generated part of the page: a section per command, groups in front of theirs."""
    return "\n\n".join(_section(context) for context in walk()) + "\n"


def walk() -> Iterator[click.Context]:
    """Yield every command but `trialfleet` itself, in the order of `--help`."""
    yield from _below(click.Context(main, info_name="trialfleet"))


def _below(context: click.Context) -> Iterator[click.Context]:
    group = context.command
    assert isinstance(group, click.Group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        child = click.Context(command, info_name=name, parent=context)
        yield child
        if isinstance(command, click.Group):
            yield from _below(child)


def options(command: click.Command) -> list[click.Option]:
    """Return a command's own options: all but `--help`, which every command has."""
    return [each for each in command.params if isinstance(each, click.Option)]


def _section(context: click.Context) -> str:
    command = context.command
    level = "##" if context.parent and context.parent.parent is None else "###"
    parts = [f"{level} `{context.command_path}`", plain(inspect.cleandoc(command.help or ""))]
    if not isinstance(command, click.Group):
        usage = " ".join([context.command_path, *command.collect_usage_pieces(context)])
        parts.insert(1, f"```text\n{usage}\n```")
    if rows := [_row(option, context) for option in options(command)]:
        parts.append(table(["Option", "Meaning"], rows))
    if command.epilog:
        epilog = inspect.cleandoc(command.epilog.replace("\b\n", ""))
        parts.append(f"```text\n{epilog}\n```")
    return "\n\n".join(parts)


def _row(option: click.Option, context: click.Context) -> tuple[str, str]:
    record = option.get_help_record(context)
    assert record is not None, f"{option.name} is hidden"
    names, meaning = record
    return f"`{names}`", plain(meaning)
