"""Commands about the configuration file itself."""

import json

import typer

from cdfd.cli.parameters import Group, write

configuration = typer.Typer(
    cls=Group, help="Show what a configuration can have.", no_args_is_help=True, rich_markup_mode=None
)


@configuration.command()
def schema() -> None:
    """Print the JSON schema of the configuration, for editors."""
    from cdfd.config.schema import json_schema

    write(json.dumps(json_schema(), indent=1) + "\n")
