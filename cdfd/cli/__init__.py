"""The command line: parses options, calls one function per command, and prints errors on one line. Commands import slow modules."""

import gc
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from io import TextIOWrapper
from types import TracebackType
from typing import Annotated, Any, Literal

import typer

from cdfd import __version__
from cdfd.cli import tables
from cdfd.cli.configuration import configuration, init
from cdfd.cli.ctl import ctl
from cdfd.cli.parameters import (
    AS_JSON,
    CONFIG,
    SHARD,
    SINK,
    GlobalOptions,
    Group,
    choose_allocator,
)
from cdfd.cli.progress import progress
from cdfd.cli.trevni import trevni
from cdfd.errors import CdfdError, NotATableError, StorageError
from cdfd.runtime.output import NAME, drop_output, write


@contextmanager
def _own_ends() -> Iterator[None]:
    """End a block without an error if its pipe is closed, and leave pydantic's prefix out of messages about parameters."""
    try:
        yield
    except BrokenPipeError:
        drop_output()
        raise typer.Exit(0) from None
    except typer.BadParameter as error:
        error.message = error.message.removeprefix("Value error, ")  # of pydantic, which Typer uses
        raise


class _Commands(Group):
    """The commands. A closed pipe ends them without an error, and exit codes are ours instead of Typer's."""

    def make_context(self, *args: Any, **extra: Any) -> Any:
        try:
            with _own_ends():
                return super().make_context(*args, **extra)  # options such as --version write here
        except OSError as error:  # of Typer's own --show-completion and --install-completion
            if error.filename is None:
                drop_output()
            raise StorageError(f"cannot write: {error.strerror or error}", path=error.filename or NAME) from error

    def invoke(self, ctx: Any) -> Any:
        try:
            with _own_ends():
                result = super().invoke(ctx)
                if sys.stdout is not None:  # a command may write to a file only
                    write("")
                return result
        except KeyboardInterrupt:
            raise typer.Exit(130) from None


_IMPORTING = 50_000
"""Objects after which the garbage collector runs, while modules are imported."""

app = typer.Typer(
    name="cdfd",
    cls=_Commands,
    help="Publish every row-level change of Delta Lake tables, in order and exactly once.",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)


def _show_version(wanted: bool) -> None:
    if wanted:
        write(f"{_own_version()}\n")
        raise typer.Exit


def _own_version() -> str:
    from cdfd.runtime import native

    beside = f"cdfd-native {native.VERSION}" if native.built else f"without cdfd-native: {native.missing}; slower"
    return f"cdfd {__version__} ({beside})"


@app.callback()
def _main(
    debug: Annotated[bool, typer.Option("--debug", help="Show tracebacks and debug log lines.")] = False,
    log_format: Annotated[
        Literal["auto", "text", "json"],
        typer.Option(help="Format of log lines on stderr; auto: text on a terminal, otherwise JSON."),
    ] = "auto",
    log_level: Annotated[str, typer.Option(metavar="LEVEL", help="debug, info, warning or error.")] = "info",
    _version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    GlobalOptions.debug, GlobalOptions.log_format, GlobalOptions.log_level = debug, log_format, log_level
    GlobalOptions.apply()


@app.command()
def demo(
    where: Annotated[
        str | None,
        typer.Argument(help="Place of the table: a folder, or s3://bucket/prefix. Default: a temporary folder."),
    ] = None,
    kafka: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="Deliver to this Kafka cluster. Default: a local folder.")
    ] = None,
) -> None:
    """Run a demo: a daemon delivers the changes of a table."""
    if kafka is None:
        from cdfd.demo import show

        show.run(where)
    else:
        from cdfd.demo import topic

        topic.run(kafka, where)


app.command()(tables.tail)
app.command()(tables.diff)
app.command()(init)


@app.command()
def run(
    config: CONFIG,
    recover_from_ledger: Annotated[
        bool,
        typer.Option(
            "--recover-from-ledger",
            help="If the sink has lost its position, resume at the position in the ledger.",
        ),
    ] = False,
    shard: SHARD = None,
    standby: Annotated[
        bool,
        typer.Option(
            "--standby",
            help="Wait until no other process of the pipeline delivers, then take over. Start all its processes like this.",
        ),
    ] = False,
) -> None:
    """Run the daemon."""
    choose_allocator()
    import asyncio

    from cdfd.daemon.membership.shard import Shard
    from cdfd.daemon.supervision import process
    from cdfd.runtime import logs

    if logs.writes_json():
        logs.take_standard_error()
    try:
        part = None if not shard else Shard.parse(shard)
        code = asyncio.run(process.run(config, recover_from_ledger=recover_from_ledger, shard=part, standby=standby))
    except CdfdError as error:
        if not logs.writes_json():
            raise
        logs.fatal(error, with_traceback=GlobalOptions.debug)
        code = error.exit_code
    raise typer.Exit(code)


@app.command()
def check(config: CONFIG, as_json: AS_JSON = False, shard: SHARD = None, sink: SINK = None) -> None:
    """Check a configuration, its tables and its sinks. Writes nothing."""
    from cdfd.cli.commands import check as checking
    from cdfd.daemon.membership.shard import Shard

    part = None if not shard else Shard.parse(shard)
    report, code = checking.run(config, as_json=as_json, shard=part, sink=sink)
    write(report)
    raise typer.Exit(code)


@app.command()
def plan(
    config: CONFIG,
    days: Annotated[float, typer.Option(metavar="NUMBER", min=0.01, max=3650, help="Days of commits to read.")] = 7.0,
    keep_days: Annotated[
        float, typer.Option(metavar="NUMBER", min=0.01, max=3650, help="Days for which topics keep rows.")
    ] = 7.0,
    price: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=USD", help="Another price, such as core_hour=0.03. Repeatable."),
    ] = None,
    as_json: AS_JSON = False,
    shard: SHARD = None,
    sink: SINK = None,
) -> None:
    """Estimate what a pipeline needs, from the logs of its tables.

    Prints processor, memory, disk, requests and money. Reads no data, and connects to no sink.
    """
    from cdfd.cli.commands.plan import run
    from cdfd.daemon.membership.shard import Shard

    part = Shard.parse(shard) if shard else None
    report, code = run(config, days, keep_days, price or (), shard=part, sink=sink, as_json=as_json)
    write(report)
    raise typer.Exit(code)


@app.command()
def sample(
    config: CONFIG,
    table: Annotated[str, typer.Argument(metavar="TABLE", help="Name of a table in the configuration.")],
    from_: Annotated[
        str | None,
        typer.Option(
            "--from",
            metavar="VERSION",
            help="A version or a time, as in `cdfd tail`: the first version with changes from there on. "
            "Default: the newest version with changes.",
        ),
    ] = None,
    rows: Annotated[
        int,
        typer.Option(
            metavar="NUMBER",
            min=1,
            max=1000,
            help="Number of change rows, at most. There is one more if an update would lose its new image.",
        ),
    ] = 2,
    as_json: AS_JSON = False,
    sink: SINK = None,
) -> None:
    """Print records as they would be sent. Sends nothing.

    Shows key, headers, value, size and schema of each. Registers nothing.
    """
    from cdfd.cli.commands import sample as sampling

    write(sampling.run(config, table, start=from_, rows=rows, as_json=as_json, sink=sink))


@app.command()
def backfill(
    config: CONFIG,
    table: Annotated[str, typer.Argument(metavar="TABLE", help="Name of a table in the configuration.")],
    from_: Annotated[
        str | None, typer.Option("--from", metavar="VERSION", help="First version, as in `cdfd tail`.")
    ] = None,
    until: Annotated[
        str | None,
        typer.Option(metavar="VERSION", help="Last version. Default: now, or only the snapshot."),
    ] = None,
    snapshot: Annotated[
        bool,
        typer.Option("--snapshot", help="First publish the live rows at the first version, by default the newest."),
    ] = False,
    id: Annotated[
        str | None, typer.Option("--id", metavar="NAME", help="Name of the backfill, which then runs only once.")
    ] = None,
    restart: Annotated[
        bool, typer.Option("--restart", help="Start over instead of resuming an interrupted backfill.")
    ] = False,
    engine: Annotated[
        Literal["embedded", "spark"], typer.Option(help="Run in this process, or on Spark.")
    ] = "embedded",
    sink: SINK = None,
) -> None:
    """Publish versions or a snapshot again, while the daemon runs."""
    choose_allocator()
    from cdfd.cli.commands import backfill as command

    told, code = command.run(config, command.Request(table, from_, until, snapshot, id, restart, engine, sink))
    write(told)
    raise typer.Exit(code)


app.add_typer(configuration, name="config")
app.add_typer(progress, name="progress")
app.add_typer(ctl, name="ctl")
app.add_typer(trevni, name="trevni")
app.command()(tables.inspect)
app.command()(tables.vacuum)


@app.command()
def version() -> None:
    """Print the versions of cdfd and its main libraries."""
    from importlib.metadata import version as installed

    libraries = " ".join(
        f"{name} {installed(name)}" for name in ("pyarrow", "numpy", "pyroaring", "orjson", "watchdog")
    )
    write(f"{_own_version()}\npython {sys.version.split()[0]} {libraries}\n")


def _print_traceback(kind: type[BaseException], error: BaseException, traceback: TracebackType | None) -> None:
    """Print the traceback of an error. Its text may come from a table, so it is escaped. An unexpected one is a bug in cdfd."""
    from cdfd.runtime import logs

    sys.stderr.write(f"{logs.indent(logs.traceback_of(error))}\n")


def main() -> None:
    """Runs a command. An error becomes one line on stderr and an exit code."""
    # Imports make many objects and no garbage. Looking for it took a fifth of their time.
    gc.set_threshold(_IMPORTING)
    # Plugins of pydantic could only slow down the reading of settings, and looking for them reads files of all installed packages.
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
    sys.excepthook = _print_traceback
    if sys.stderr is None:  # closed by the caller. No file that is opened later must get its descriptor
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
        sys.stderr = os.fdopen(2, "w", closefd=False)
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # for names that the terminal's encoding cannot represent
    try:
        app(prog_name="cdfd")
    except CdfdError as error:
        if isinstance(error, NotATableError) and error.table:
            from cdfd.storage.location import describe_non_table

            # Often the path of a local folder lacks its last part.
            if (what := describe_non_table(error.table)) is not None:
                error.hint = what[0].upper() + what[1:]
        if GlobalOptions.debug:
            _print_traceback(type(error), error, None)
        else:
            sys.stderr.write("cdfd: " + "\n".join(error.lines()) + "\n")
        sys.exit(error.exit_code)
    finally:
        # At its end, the interpreter would look for garbage among all modules.
        gc.freeze()
