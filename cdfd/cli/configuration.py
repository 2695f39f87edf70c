"""Commands about the configuration file itself."""

import json
from pathlib import Path
from typing import Annotated

import typer

from cdfd.cli.parameters import Group
from cdfd.errors import ConfigError
from cdfd.runtime.output import write

configuration = typer.Typer(
    cls=Group, help="Describe the configuration file.", no_args_is_help=True, rich_markup_mode=None
)


@configuration.command()
def schema() -> None:
    """Print the JSON schema of the configuration, for editors."""
    from cdfd.config.schema import json_schema

    write(json.dumps(json_schema(), indent=1) + "\n")


def init(
    tables: Annotated[list[str], typer.Argument(metavar="TABLE", help="Paths or URIs of Delta tables.")],
    kafka: Annotated[str | None, typer.Option(metavar="HOST:PORT", help="Deliver to this Kafka cluster.")] = None,
    files: Annotated[
        str | None, typer.Option(metavar="DIR", help="Deliver to files in this folder. Default: changes.")
    ] = None,
    delta: Annotated[
        str | None, typer.Option(metavar="DIR", help="Deliver to Delta tables in this folder or URI.")
    ] = None,
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="FILE", help="The file to write. It must not exist.")
    ] = Path("cdfd.yaml"),
) -> None:
    """Write a commented configuration for some tables and a sink.

    Opens each table, and writes its settings with the reasons for them. Nothing is delivered yet.
    """
    places = {"kafka": kafka, "files": files, "delta": delta}
    sinks = [(kind, place) for kind, place in places.items() if place is not None]
    if len(sinks) > 1:
        options = " and ".join(f"--{kind}" for kind, _ in sinks)
        raise ConfigError(f"{options} exclude each other", hint="Give one of them, and add `sinks` to the file later")
    from cdfd.cli.commands import init as command

    write(command.run(tables, sinks[0] if sinks else ("files", "changes"), output))
