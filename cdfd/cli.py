"""The command line. Thin: options in, one call each, errors out on one line. What takes long to import is imported by the command."""

from __future__ import annotations

import os
import signal
import sys
from copy import copy
from enum import StrEnum
from io import TextIOWrapper
from pathlib import Path
from types import TracebackType
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from cdfd import __version__
from cdfd.errors import CdfdError, ConfigError, LogError, StorageError


class _Group(TyperGroup):
    """Commands that take the options of all commands, too: `cdfd --debug run` and `cdfd run --debug` are the same."""

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        command = super().get_command(ctx, cmd_name)
        if command is not None and not any(option.name in _Options.names for option in command.params):
            own = (option for option in ctx.find_root().command.params if option.name in _Options.names)
            command.params += [_again(option) for option in own]
        return command


def _again(option: Any) -> Any:
    """The same option for after the command's name, where it wins over one before the name."""
    after = copy(option)
    after.default, after.expose_value, after.callback = None, False, _Options.set
    return after


class _Commands(_Group):
    """The commands, and how they end: quietly where nobody reads on, and with our exit codes rather than Typer's."""

    def invoke(self, ctx: Any) -> Any:
        try:
            result = super().invoke(ctx)
            _print("")
        except BrokenPipeError:
            _drop_output()
            raise typer.Exit(0) from None
        except KeyboardInterrupt:
            raise typer.Exit(130) from None
        return result


def _print(text: str) -> None:
    """Write to standard output, at once: what goes wrong with it must not wait until Python ends."""
    if sys.stdout is None:
        raise StorageError("standard output is closed")
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        _drop_output()
        raise StorageError(f"cannot write: {error.strerror or error}", path="standard output") from error


def _drop_output() -> None:
    """What Python would still flush at its end has nowhere to go."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


app = typer.Typer(
    name="cdfd",
    cls=_Commands,
    help="Every row-level change of a Delta Lake table, in order and exactly once.",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)


class LogFormat(StrEnum):
    """How log lines look."""

    auto = "auto"
    text = "text"
    json = "json"


class Changes(StrEnum):
    """Where change rows may come from."""

    auto = "auto"
    cdf = "cdf"
    files = "files"


class RowFormat(StrEnum):
    """How a change row looks as JSON."""

    flat = "flat"
    debezium = "debezium"


class Engine(StrEnum):
    """What executes plans."""

    embedded = "embedded"
    spark = "spark"


class _Options:
    """What applies to every command."""

    names = ("debug", "log_format", "log_level")
    debug = False
    log_format = "auto"
    log_level = "info"

    @classmethod
    def set(cls, _: Any, option: Any, value: Any) -> None:
        """Take the value of an option that was given, and write logs by it from now on."""
        if value:
            setattr(cls, option.name, getattr(value, "value", value))
            cls.apply()

    @classmethod
    def apply(cls) -> None:
        from cdfd.console import logs

        logs.set_up(cls.log_format, "debug" if cls.debug else cls.log_level)


TABLE = Annotated[str, typer.Argument(metavar="TABLE", help="Path or URI of a Delta table.")]
CONFIG = Annotated[Path, typer.Option("--config", "-c", metavar="FILE", help="The configuration file.")]
AS_JSON = Annotated[bool, typer.Option("--json", help="As JSON.")]
ROOTS = Annotated[
    list[str] | None,
    typer.Option(
        "--allowed-root",
        metavar="URI",
        help="Where absolute file paths (clones) and symbolic links may lead; repeatable.",
    ),
]


def _print_version(wanted: bool) -> None:
    if wanted:
        _print(f"cdfd {__version__}\n")
        raise typer.Exit


@app.callback()
def _main(
    debug: Annotated[bool, typer.Option("--debug", help="Show tracebacks and debug log lines.")] = False,
    log_format: Annotated[
        LogFormat, typer.Option(help="Log lines on stderr; auto: text on a terminal, else JSON.")
    ] = LogFormat.auto,
    log_level: Annotated[str, typer.Option(metavar="LEVEL", help="debug, info, warning or error.")] = "info",
    _version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Show our version and exit.")
    ] = False,
) -> None:
    _Options.debug, _Options.log_format, _Options.log_level = debug, log_format.value, log_level
    _Options.apply()


@app.command()
def demo(
    where: Annotated[
        str | None, typer.Argument(help="Where to leave the table: a folder, s3://bucket/prefix. Default: temporary.")
    ] = None,
    kafka: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="Deliver to this Kafka cluster; a folder if not given.")
    ] = None,
) -> None:
    """Show the main job: a writer changes a table, a daemon delivers every change."""
    if kafka is None:
        from cdfd.demo import show

        show.run(where)
    else:
        from cdfd.demo import topic

        topic.run(kafka, where)


@app.command()
def tail(
    table: TABLE,
    from_: Annotated[
        str | None,
        typer.Option("--from", metavar="WHERE", help="Default: latest; with --until, earliest (or only the snapshot)."),
    ] = None,
    until: Annotated[
        str | None, typer.Option(metavar="WHERE", help="The last version, or now. Default: follow for ever.")
    ] = None,
    snapshot: Annotated[
        bool, typer.Option("--snapshot", help="First the live rows at the starting version, as inserts.")
    ] = False,
    changes: Annotated[Changes, typer.Option(help="Where change rows may come from.")] = Changes.auto,
    columns: Annotated[str | None, typer.Option(metavar="A,B", help="Only these columns.")] = None,
    format: Annotated[RowFormat, typer.Option("--format", help="How rows look.")] = RowFormat.flat,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE", help="Write here, not to standard output.")
    ] = None,
    append: Annotated[bool, typer.Option("--append", help="With -o: write after what FILE holds.")] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="With -o: drop what FILE holds.")] = False,
    allowed_root: ROOTS = None,
) -> None:
    """Print change rows, one JSON object a line.

    WHERE is a version (-1 is the newest, -2 the one before), earliest, latest, now, or a time: 2026-01-31, 2026-01-31T12:00:00Z,
    "1 hour ago", or milliseconds since the Unix epoch (13 digits). Times without a zone are UTC.
    """
    from cdfd.commands import tail as tailing

    if (append and overwrite) or ((append or overwrite) and output is None):
        raise ConfigError(
            "--append and --overwrite say what to do with the file of -o", hint="Give -o FILE and one of them"
        )
    tailing.run(
        tailing.Request(
            uri=table,
            start=from_,
            until=until,
            snapshot=snapshot,
            changes=changes.value,
            columns=None if columns is None else tuple(name.strip() for name in columns.split(",")),
            format=format.value,
            output=output,
            existing="append" if append else "overwrite" if overwrite else "refuse",
            allowed_roots=tuple(allowed_root or ()),
        )
    )


@app.command()
def run(
    config: CONFIG,
    recover_from_ledger: Annotated[
        bool,
        typer.Option(
            "--recover-from-ledger",
            help="Where a sink has lost its position and the ledger has one, go on there.",
        ),
    ] = False,
) -> None:
    """Run the daemon."""
    from cdfd.console import logs
    from cdfd.daemon.supervision import process

    if logs.writes_json():
        sys.excepthook = logs.unexpected
    try:
        code = process.run(config, recover_from_ledger=recover_from_ledger)
    except CdfdError as error:
        if not logs.writes_json():
            raise
        logs.fatal(error, with_traceback=_Options.debug)
        code = error.exit_code
    raise typer.Exit(code)


@app.command()
def check(config: CONFIG, as_json: AS_JSON = False) -> None:
    """Validate a configuration, open every table, connect to the sink. Writes nothing."""
    from cdfd.commands import check as checking

    report, code = checking.run(config, as_json=as_json)
    _print(report)
    raise typer.Exit(code)


@app.command()
def backfill(
    config: CONFIG,
    table: Annotated[str, typer.Argument(metavar="TABLE", help="Name of a table of the configuration.")],
    from_: Annotated[
        str | None, typer.Option("--from", metavar="WHERE", help="The first version, as `cdfd tail` takes it.")
    ] = None,
    until: Annotated[
        str | None,
        typer.Option(metavar="WHERE", help="The last version. Default: now, or only the snapshot."),
    ] = None,
    snapshot: Annotated[
        bool,
        typer.Option("--snapshot", help="First the live rows at the starting version, by default the newest."),
    ] = False,
    id: Annotated[
        str | None, typer.Option("--id", metavar="NAME", help="Publish once, however often this is run.")
    ] = None,
    restart: Annotated[
        bool, typer.Option("--restart", help="Begin anew where a backfill that was interrupted would go on.")
    ] = False,
    engine: Annotated[Engine, typer.Option(help="What reads and delivers: this process, or Spark.")] = Engine.embedded,
) -> None:
    """Publish a range of versions, or a snapshot, again, while the daemon does what it does."""
    from cdfd.commands import backfill as command
    from cdfd.commands.backfill_job import Request

    told, code = command.run(config, Request(table, from_, until, snapshot, id, restart, engine.value))
    _print(told)
    raise typer.Exit(code)


progress = typer.Typer(
    cls=_Group, help="Positions per table: sink, ledger, table, lag.", no_args_is_help=True, rich_markup_mode=None
)
app.add_typer(progress, name="progress")
NAME = Annotated[str, typer.Argument(metavar="NAME", help="Name of a table of the configuration.")]


@progress.command()
def show(config: CONFIG, as_json: AS_JSON = False) -> None:
    """Show where sink, ledger and table stand."""
    from cdfd.commands import progress as progress_command

    report, code = progress_command.show(config, as_json=as_json)
    _print(report)
    raise typer.Exit(code)


@progress.command("set")
def set_(
    config: CONFIG,
    table: NAME,
    version: Annotated[int, typer.Argument(min=0, help="The last version that counts as delivered.")],
) -> None:
    """Make sink and ledger say that a version and all before it are delivered."""
    from cdfd.commands import progress as progress_command

    _print(progress_command.set_position(config, table, version))


@progress.command()
def reset(config: CONFIG, table: NAME) -> None:
    """Forget a table's position."""
    from cdfd.commands import progress as progress_command

    _print(progress_command.reset(config, table))


@app.command()
def inspect(
    table: TABLE,
    version: Annotated[
        str | None, typer.Option(metavar="WHERE", help="As of this version or time. Default: the newest.")
    ] = None,
    as_json: AS_JSON = False,
    allowed_root: ROOTS = None,
) -> None:
    """Show what a table is, what stops us from reading it, and where its changes will come from."""
    from cdfd.commands import inspect as inspection

    _print(inspection.report(table, version, as_json=as_json, allowed_roots=tuple(allowed_root or ())))


@app.command()
def version() -> None:
    """Print our version and those of the libraries that matter."""
    from importlib.metadata import version as installed

    libraries = " ".join(
        f"{name} {installed(name)}" for name in ("pyarrow", "numpy", "pyroaring", "orjson", "watchdog")
    )
    _print(f"cdfd {__version__}\npython {sys.version.split()[0]} {libraries}\n")


def _unexpected(kind: type[BaseException], error: BaseException, traceback: TracebackType | None) -> None:
    """The traceback of an error that is none of ours: a mistake in cdfd, with text that may come from a table."""
    from cdfd.console import logs

    sys.stderr.write(f"{logs.indented(logs.traceback_of(error))}\n")


def main() -> None:
    """Entry point: runs a command, and turns what goes wrong into a line on stderr and an exit code."""
    sys.excepthook = _unexpected
    if os.getpid() == 1:
        # The kernel drops signals that process 1 does not handle. A container must stop, also before a command handles SIGTERM itself.
        signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # names that the terminal's encoding does not have
    try:
        app(prog_name="cdfd")
    except CdfdError as error:
        if isinstance(error, LogError):
            from cdfd.commands import inspect as inspection

            inspection.look_around(error)
        if _Options.debug:
            from cdfd.console import logs

            sys.stderr.write(f"{logs.indented(logs.traceback_of(error))}\n")
        else:
            sys.stderr.write("cdfd: " + "\n".join(error.lines()) + "\n")
        sys.exit(error.exit_code)
