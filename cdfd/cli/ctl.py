"""`cdfd ctl`: requests to the running daemon."""

import inspect
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import quote

import typer

from cdfd.cli.parameters import AS_JSON, NAME, SINK, Group
from cdfd.runtime.output import write

ctl = typer.Typer(cls=Group, help="Send a request to the running daemon.", no_args_is_help=True, rich_markup_mode=None)


def _send(
    action: str,
    body: dict[str, Any],
    config: Annotated[
        Path | None, typer.Option("--config", "-c", metavar="FILE", help="The daemon's configuration file.")
    ] = None,
    socket: Annotated[
        str | None, typer.Option(metavar="PATH", help="Instead of a configuration: the daemon's socket.")
    ] = None,
    url: Annotated[
        str | None, typer.Option(metavar="URL", help="Instead of a configuration: the daemon's HTTP server.")
    ] = None,
    token_file: Annotated[
        Path | None, typer.Option(metavar="FILE", help="With --url: the file that has the token.")
    ] = None,
    id: Annotated[
        str | None, typer.Option("--id", metavar="ID", help="Id of the request. The daemon carries out each id once.")
    ] = None,
    sink: SINK = None,
    as_json: AS_JSON = False,
) -> None:
    """Send a request. `body` are the command's own parameters; `table` becomes a part of the path."""
    from cdfd.cli.commands import ctl as control
    from cdfd.config.sinks import sink_address

    target = control.Target.of(config, socket, url, token_file)
    path = f"/{action}"
    if "table" in body:
        path = f"/tables/{quote(sink_address(body.pop('table'), sink or ''), safe='')}{path}"
    text, code = control.send(target, path, {"id": id, **body}, as_document=as_json)
    write(text)
    raise typer.Exit(code)


def _request(action: str) -> Callable[[Callable[..., None]], None]:
    """Register a command that sends a request: its own parameters, then those of `_send`. `action` is the end of the request's path."""
    shared = list(inspect.signature(_send).parameters.values())[2:]

    def register(command: Callable[..., None]) -> None:
        own = list(inspect.signature(command).parameters.values())

        @wraps(command)
        def send(**values: Any) -> None:
            body = {each.name: values.pop(each.name) for each in own}
            _send(action, body, **values)

        # Typer reads the parameters of a command from its signature.
        parameters = [*own, *shared]
        vars(send)["__signature__"] = inspect.Signature(parameters)
        send.__annotations__ = {each.name: each.annotation for each in parameters}
        ctl.command()(send)

    return register


@_request("pause")
def pause(table: NAME) -> None:
    """Stop delivering a table, until it is resumed."""


@_request("resume")
def resume(table: NAME) -> None:
    """Continue to deliver a paused table."""


@_request("snapshot")
def snapshot(
    table: NAME,
    where: Annotated[
        str | None,
        typer.Option(metavar="CONDITION", help="Only files that may have such rows: \"day >= '2026-01-01'\"."),
    ] = None,
) -> None:
    """Publish the live rows of a table again, among its changes."""


@_request("snapshot/stop")
def stop_snapshot(table: NAME) -> None:
    """End an incremental snapshot early."""


@_request("move")
def move(
    table: NAME,
    version: Annotated[int, typer.Argument(min=0, help="The version that counts as the last delivered one.")],
) -> None:
    """Continue a table after VERSION."""


@_request("log-level")
def log_level(
    level: Annotated[str, typer.Argument(metavar="LEVEL", help="debug, info, warning or error.")],
) -> None:
    """Change the lowest level of the daemon's logs."""
