"""`--help` teaches: each command shows an example and explains each option, and 80 columns hold it."""

import re
from collections.abc import Iterator

import click
import pytest

from fedvi.cli.main import main

COLUMNS = 80


def contexts(parent: click.Context, name: str) -> Iterator[click.Context]:
    """Yields a command's context, and those of a group's commands."""
    assert isinstance(parent.command, click.Group)
    command = parent.command.get_command(parent, name)
    assert command is not None
    # click leaves two columns of a terminal empty.
    context = click.Context(command, info_name=name, parent=parent, terminal_width=COLUMNS - 2)
    yield context
    if isinstance(command, click.Group):
        for inner in command.list_commands(context):
            yield from contexts(context, inner)


@pytest.mark.parametrize("name", ["check", "init"])
def test_a_bound_on_records_is_explained_where_it_is_stated_and_where_it_is_read(name: str) -> None:
    (context,) = contexts(click.Context(main, info_name="fedvi"), name)
    text = " ".join(context.command.get_help(context).split())
    assert "of a site with more, only the first are used" in text
    assert "Take it from the protocol or a register, not from a count of a file" in text


@pytest.mark.parametrize("name", main.list_commands(click.Context(main)))
def test_the_help_of_a_command_teaches(name: str) -> None:
    for context in contexts(click.Context(main, info_name="fedvi"), name):
        path, text = context.command_path, context.command.get_help(context)
        assert re.search(rf"^ {{4,}}{path}( |$)", text, re.MULTILINE), path
        assert [line for line in text.splitlines() if len(line) > COLUMNS] == []
        for item in context.command.params:
            if isinstance(item, click.Option):
                assert (item.help or "").partition("[")[0].strip(), f"{path} --{item.name}"
