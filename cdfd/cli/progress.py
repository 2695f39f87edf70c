"""`cdfd progress`: the positions of tables."""

from typing import Annotated

import typer

from cdfd.cli.parameters import AS_JSON, CONFIG, NAME, SINK, Group
from cdfd.runtime.output import write

progress = typer.Typer(
    cls=Group, help="Show and set the positions of tables.", no_args_is_help=True, rich_markup_mode=None
)


@progress.command()
def show(config: CONFIG, as_json: AS_JSON = False, sink: SINK = None) -> None:
    """Show the positions in sink, ledger and table."""
    from cdfd.cli.commands import progress as progress_command

    report, code = progress_command.show(config, as_json=as_json, sink=sink)
    write(report)
    raise typer.Exit(code)


@progress.command("set")
def set_(
    config: CONFIG,
    table: NAME,
    version: Annotated[int, typer.Argument(min=0, help="The last delivered version.")],
    sink: SINK = None,
) -> None:
    """Set the position in sink and ledger to the version after VERSION."""
    from cdfd.cli.commands import progress as progress_command

    write(progress_command.set_position(config, table, version, sink))


@progress.command()
def reset(config: CONFIG, table: NAME, sink: SINK = None) -> None:
    """Delete a table's position in sink and ledger."""
    from cdfd.cli.commands import progress as progress_command

    write(progress_command.reset(config, table, sink))
