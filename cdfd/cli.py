"""The command line: parses options, calls one function per command, and prints errors on one line. Commands import slow modules."""

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
    """Commands that also take the global options: `cdfd --debug run` and `cdfd run --debug` are the same."""

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        command = super().get_command(ctx, cmd_name)
        if command is not None and not any(option.name in _Options.names for option in command.params):
            own = (option for option in ctx.find_root().command.params if option.name in _Options.names)
            command.params += [_again(option) for option in own]
        return command


def _again(option: Any) -> Any:
    """A copy of a global option for use after the command's name, where it overrides the one before the name."""
    after = copy(option)
    after.default, after.expose_value, after.callback = None, False, _Options.set
    return after


class _Commands(_Group):
    """The commands. A closed pipe ends them without an error, and exit codes are ours instead of Typer's."""

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
    """Write to standard output and flush it, so that an error is reported here and not when Python exits."""
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
    """Redirect standard output to the null device, because Python flushes it at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


app = typer.Typer(
    name="cdfd",
    cls=_Commands,
    help="Publish every row-level change of Delta Lake tables, in order and exactly once.",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)


class LogFormat(StrEnum):
    """Format of log lines."""

    auto = "auto"
    text = "text"
    json = "json"


class Changes(StrEnum):
    """Source of change rows."""

    auto = "auto"
    cdf = "cdf"
    files = "files"


class Refine(StrEnum):
    """How updates are found."""

    off = "off"
    rows = "rows"
    key = "key"
    auto = "auto"


class RowFormat(StrEnum):
    """JSON format of change rows."""

    flat = "flat"
    debezium = "debezium"
    trevni = "trevni"


class Engine(StrEnum):
    """Engine that executes plans."""

    embedded = "embedded"
    spark = "spark"


class _Options:
    """The global options."""

    names = ("debug", "log_format", "log_level")
    debug = False
    log_format = "auto"
    log_level = "info"

    @classmethod
    def set(cls, _: Any, option: Any, value: Any) -> None:
        """Set a given option, and apply it to the logs."""
        if value:
            setattr(cls, option.name, getattr(value, "value", value))
            cls.apply()

    @classmethod
    def apply(cls) -> None:
        from cdfd.console import logs

        logs.set_up(cls.log_format, "debug" if cls.debug else cls.log_level)


TABLE = Annotated[str, typer.Argument(metavar="TABLE", help="Path or URI of a Delta table.")]
CONFIG = Annotated[Path, typer.Option("--config", "-c", metavar="FILE", help="The configuration file.")]
AS_JSON = Annotated[bool, typer.Option("--json", help="Print JSON.")]
SHARD = Annotated[
    str | None,
    typer.Option(
        "--shard",
        envvar="CDFD_SHARD",
        metavar="N/COUNT",
        help="Only the tables of this shard: 0/5 is the first of five. A pod's name may stand for N.",
    ),
]
ROOTS = Annotated[
    list[str] | None,
    typer.Option(
        "--allowed-root",
        metavar="URI",
        help="Allow absolute file paths (clones) and symbolic links to lead here; repeatable.",
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
        LogFormat, typer.Option(help="Format of log lines on stderr; auto: text on a terminal, otherwise JSON.")
    ] = LogFormat.auto,
    log_level: Annotated[str, typer.Option(metavar="LEVEL", help="debug, info, warning or error.")] = "info",
    _version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version and exit.")
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
        str | None, typer.Option(metavar="HOST:PORT", help="Deliver to this Kafka cluster. Default: a local folder.")
    ] = None,
) -> None:
    """Run a demo: a writer changes a table, and a daemon delivers every change."""
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
        typer.Option(
            "--from",
            metavar="WHERE",
            help="First version; `after WHERE` excludes it. Default: latest; with --until, earliest or only the snapshot.",
        ),
    ] = None,
    until: Annotated[
        str | None, typer.Option(metavar="WHERE", help="Last version, or now. Default: follow forever.")
    ] = None,
    snapshot: Annotated[
        bool, typer.Option("--snapshot", help="First print the live rows at the first version, as inserts.")
    ] = False,
    changes: Annotated[Changes, typer.Option(help="Source of change rows.")] = Changes.auto,
    refine: Annotated[
        Refine, typer.Option(help="How updates are found in versions without change data files.")
    ] = Refine.off,
    key: Annotated[str | None, typer.Option(metavar="A,B", help="The columns that identify a row.")] = None,
    drop_unchanged: Annotated[
        bool, typer.Option("--drop-unchanged", help="Leave out updates that change nothing.")
    ] = False,
    net: Annotated[
        bool, typer.Option("--net", help="Print only the net changes of each key. Needs --key and --until.")
    ] = False,
    columns: Annotated[str | None, typer.Option(metavar="A,B", help="Print only these columns.")] = None,
    format: Annotated[RowFormat, typer.Option("--format", help="Format of rows.")] = RowFormat.flat,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="FILE", help="Write to this file instead of standard output."),
    ] = None,
    append: Annotated[bool, typer.Option("--append", help="With -o: append to an existing FILE.")] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="With -o: replace an existing FILE.")] = False,
    allowed_root: ROOTS = None,
) -> None:
    """Print change rows, one JSON object per line.

    WHERE is a version (-1 is the newest, -2 the one before), earliest, latest, now, or a time: 2026-01-31, 2026-01-31T12:00:00Z,
    "1 hour ago", or milliseconds since the Unix epoch (13 digits). Times without a zone are UTC.
    """
    from cdfd.commands import tail as tailing

    if (append and overwrite) or ((append or overwrite) and output is None):
        raise ConfigError(
            "--append and --overwrite need -o, and exclude each other", hint="Give -o FILE and one of them"
        )
    tailing.run(
        tailing.Request(
            uri=table,
            start=from_,
            until=until,
            snapshot=snapshot,
            changes=changes.value,
            refine=refine.value,
            key=_names(key) or (),
            drop_unchanged=drop_unchanged,
            net=net,
            columns=_names(columns),
            format=format.value,
            output=output,
            existing="append" if append else "overwrite" if overwrite else "refuse",
            allowed_roots=tuple(allowed_root or ()),
        )
    )


@app.command()
def diff(
    table: TABLE,
    from_: Annotated[
        str | None, typer.Option("--from", metavar="WHERE", help="The version before. Default: the newest.")
    ] = None,
    to: Annotated[str | None, typer.Option(metavar="WHERE", help="The version after. Default: the newest.")] = None,
    other: Annotated[str | None, typer.Option(metavar="TABLE", help="Another table, which is the state after.")] = None,
    key: Annotated[str | None, typer.Option(metavar="A,B", help="The columns that identify a row.")] = None,
    columns: Annotated[str | None, typer.Option(metavar="A,B", help="Compare only these columns.")] = None,
    summary: Annotated[bool, typer.Option("--summary", help="Print only the counts, as JSON.")] = False,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="FILE", help="Write to this file instead of standard output."),
    ] = None,
    allowed_root: ROOTS = None,
) -> None:
    """Print the rows that differ between two versions of a table, or between two tables, as change rows.

    Without --key, a row that differs is a delete and an insert. WHERE is as for `cdfd tail`.
    """
    from cdfd.commands import diff as comparing

    comparing.run(
        comparing.Request(
            uri=table,
            start=from_,
            end=to,
            other=other,
            key=_names(key) or (),
            columns=_names(columns),
            only_summary=summary,
            output=output,
            allowed_roots=tuple(allowed_root or ()),
        )
    )


def _names(text: str | None) -> tuple[str, ...] | None:
    """Names with commas between them."""
    return None if text is None else tuple(name.strip() for name in text.split(","))


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
) -> None:
    """Run the daemon."""
    from cdfd.console import logs
    from cdfd.daemon.supervision import process
    from cdfd.tables.shard import Shard

    if logs.writes_json():
        sys.excepthook = logs.unexpected
    try:
        part = None if not shard else Shard.parse(shard)
        code = process.run(config, recover_from_ledger=recover_from_ledger, shard=part)
    except CdfdError as error:
        if not logs.writes_json():
            raise
        logs.fatal(error, with_traceback=_Options.debug)
        code = error.exit_code
    raise typer.Exit(code)


@app.command()
def check(config: CONFIG, as_json: AS_JSON = False, shard: SHARD = None) -> None:
    """Validate a configuration, open every table and connect to the sink. Writes nothing."""
    from cdfd.commands import check as checking
    from cdfd.tables.shard import Shard

    report, code = checking.run(config, as_json=as_json, shard=None if not shard else Shard.parse(shard))
    _print(report)
    raise typer.Exit(code)


@app.command()
def backfill(
    config: CONFIG,
    table: Annotated[str, typer.Argument(metavar="TABLE", help="Name of a table in the configuration.")],
    from_: Annotated[
        str | None, typer.Option("--from", metavar="WHERE", help="First version, as in `cdfd tail`.")
    ] = None,
    until: Annotated[
        str | None,
        typer.Option(metavar="WHERE", help="Last version. Default: now, or only the snapshot."),
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
    engine: Annotated[Engine, typer.Option(help="Run in this process, or on Spark.")] = Engine.embedded,
) -> None:
    """Publish a range of versions or a snapshot again, while the daemon runs."""
    from cdfd.commands import backfill as command
    from cdfd.commands.backfill_job import Request

    told, code = command.run(config, Request(table, from_, until, snapshot, id, restart, engine.value))
    _print(told)
    raise typer.Exit(code)


progress = typer.Typer(
    cls=_Group, help="Show and set the positions of tables.", no_args_is_help=True, rich_markup_mode=None
)
app.add_typer(progress, name="progress")
NAME = Annotated[str, typer.Argument(metavar="NAME", help="Name of a table in the configuration.")]


@progress.command()
def show(config: CONFIG, as_json: AS_JSON = False) -> None:
    """Show the positions in sink, ledger and table."""
    from cdfd.commands import progress as progress_command

    report, code = progress_command.show(config, as_json=as_json)
    _print(report)
    raise typer.Exit(code)


@progress.command("set")
def set_(
    config: CONFIG,
    table: NAME,
    version: Annotated[int, typer.Argument(min=0, help="The last delivered version.")],
) -> None:
    """Set the position in sink and ledger to the version after VERSION."""
    from cdfd.commands import progress as progress_command

    _print(progress_command.set_position(config, table, version))


@progress.command()
def reset(config: CONFIG, table: NAME) -> None:
    """Delete a table's position in sink and ledger."""
    from cdfd.commands import progress as progress_command

    _print(progress_command.reset(config, table))


ctl = typer.Typer(cls=_Group, help="Send a request to the running daemon.", no_args_is_help=True, rich_markup_mode=None)
app.add_typer(ctl, name="ctl")
OF_CONFIG = Annotated[
    Path | None, typer.Option("--config", "-c", metavar="FILE", help="The daemon's configuration file.")
]
SOCKET = Annotated[str | None, typer.Option(metavar="PATH", help="Instead of a configuration: the daemon's socket.")]
URL = Annotated[str | None, typer.Option(metavar="URL", help="Instead of a configuration: the daemon's HTTP server.")]
TOKEN_FILE = Annotated[Path | None, typer.Option(metavar="FILE", help="With --url: the file that has the token.")]
REQUEST_ID = Annotated[
    str | None, typer.Option("--id", metavar="ID", help="Id of the request, which is carried out once.")
]


def _send(target: Any, path: str, as_json: bool, **body: Any) -> None:
    from cdfd.commands import ctl as control

    text, code = control.send(target, path, body, as_document=as_json)
    _print(text)
    raise typer.Exit(code)


def _target(config: Path | None, socket: str | None, url: str | None, token_file: Path | None) -> Any:
    from cdfd.commands import ctl as control

    return control.Target.of(config, socket, url, token_file)


def _of_table(table: str, action: str) -> str:
    from cdfd.commands import ctl as control

    return control.table_path(table, action)


@ctl.command()
def pause(
    table: NAME,
    config: OF_CONFIG = None,
    socket: SOCKET = None,
    url: URL = None,
    token_file: TOKEN_FILE = None,
    id: REQUEST_ID = None,
    as_json: AS_JSON = False,
) -> None:
    """Stop delivering a table, until it is resumed."""
    _send(_target(config, socket, url, token_file), _of_table(table, "pause"), as_json, id=id)


@ctl.command()
def resume(
    table: NAME,
    config: OF_CONFIG = None,
    socket: SOCKET = None,
    url: URL = None,
    token_file: TOKEN_FILE = None,
    id: REQUEST_ID = None,
    as_json: AS_JSON = False,
) -> None:
    """Continue to deliver a paused table."""
    _send(_target(config, socket, url, token_file), _of_table(table, "resume"), as_json, id=id)


@ctl.command()
def snapshot(
    table: NAME,
    where: Annotated[
        str | None,
        typer.Option(metavar="CONDITION", help="Only files that may have such rows: \"day >= '2026-01-01'\"."),
    ] = None,
    config: OF_CONFIG = None,
    socket: SOCKET = None,
    url: URL = None,
    token_file: TOKEN_FILE = None,
    id: REQUEST_ID = None,
    as_json: AS_JSON = False,
) -> None:
    """Publish the live rows of a table again, between its changes."""
    _send(_target(config, socket, url, token_file), _of_table(table, "snapshot"), as_json, id=id, where=where)


@ctl.command("stop-snapshot")
def stop_snapshot(
    table: NAME,
    config: OF_CONFIG = None,
    socket: SOCKET = None,
    url: URL = None,
    token_file: TOKEN_FILE = None,
    id: REQUEST_ID = None,
    as_json: AS_JSON = False,
) -> None:
    """End a re-snapshot early."""
    _send(_target(config, socket, url, token_file), _of_table(table, "snapshot/stop"), as_json, id=id)


@ctl.command()
def move(
    table: NAME,
    version: Annotated[int, typer.Argument(min=0, help="The version that counts as the last delivered one.")],
    config: OF_CONFIG = None,
    socket: SOCKET = None,
    url: URL = None,
    token_file: TOKEN_FILE = None,
    id: REQUEST_ID = None,
    as_json: AS_JSON = False,
) -> None:
    """Continue a table after VERSION."""
    _send(_target(config, socket, url, token_file), _of_table(table, "move"), as_json, id=id, version=version)


@ctl.command("log-level")
def log_level(
    level: Annotated[str, typer.Argument(metavar="LEVEL", help="debug, info, warning or error.")],
    config: OF_CONFIG = None,
    socket: SOCKET = None,
    url: URL = None,
    token_file: TOKEN_FILE = None,
    id: REQUEST_ID = None,
    as_json: AS_JSON = False,
) -> None:
    """Change the lowest level of the daemon's logs."""
    _send(_target(config, socket, url, token_file), "/log-level", as_json, id=id, level=level)


@app.command()
def inspect(
    table: TABLE,
    version: Annotated[
        str | None, typer.Option(metavar="WHERE", help="Describe this version or time. Default: the newest version.")
    ] = None,
    as_json: AS_JSON = False,
    allowed_root: ROOTS = None,
) -> None:
    """Describe a table, its unsupported features, and the source of its changes."""
    from cdfd.commands import inspect as inspection

    _print(inspection.report(table, version, as_json=as_json, allowed_roots=tuple(allowed_root or ())))


trevni = typer.Typer(cls=_Group, help="Show and convert Trevni files.", no_args_is_help=True, rich_markup_mode=None)
app.add_typer(trevni, name="trevni")
TREVNI_FILE = Annotated[str, typer.Argument(metavar="FILE", help="Path or URI of a Trevni file.")]


TREVNI_COLUMNS = Annotated[str | None, typer.Option("--columns", metavar="A,B", help="Read only these columns.")]
TREVNI_FORMAT = "trevni, parquet, jsonl, arrow or avro. Default: by the ending of the name."


@trevni.command("schema")
def trevni_schema(
    file: TREVNI_FILE, avro: Annotated[bool, typer.Option("--avro", help="Print the Avro schema in the file.")] = False
) -> None:
    """Print the columns of the rows, and their types."""
    from cdfd.commands import trevni as command

    _print(command.schema(file, avro=avro))


@trevni.command("head")
def trevni_head(
    file: TREVNI_FILE,
    rows: Annotated[int, typer.Option("--rows", "-n", min=0, help="Number of rows.")] = 10,
    columns: TREVNI_COLUMNS = None,
) -> None:
    """Print the first rows as JSON lines."""
    from cdfd.commands import trevni as command

    for lines in command.rows(file, command.names(columns), f":{rows}"):
        _print(lines)


@trevni.command("cat")
def trevni_cat(
    file: TREVNI_FILE,
    columns: TREVNI_COLUMNS = None,
    rows: Annotated[
        str | None,
        typer.Option("--rows", metavar="FROM:TO", help="Only these rows; the first is 0, and TO is left out."),
    ] = None,
) -> None:
    """Print rows as JSON lines."""
    from cdfd.commands import trevni as command

    for lines in command.rows(file, command.names(columns), rows):
        _print(lines)


@trevni.command("stats")
def trevni_stats(file: TREVNI_FILE, as_json: AS_JSON = False) -> None:
    """Print blocks, sizes, codecs and compression ratios of the physical columns."""
    from cdfd.commands import trevni as command

    _print(command.stats(file, as_json=as_json))


@trevni.command("columns")
def trevni_columns(file: TREVNI_FILE) -> None:
    """Print the physical columns with their lengths and values, as one JSON document."""
    from cdfd.commands import trevni as command

    for part in command.columns(file):
        _print(part)


@trevni.command("convert")
def trevni_convert(
    source: Annotated[str, typer.Argument(metavar="SOURCE", help="File to read.")],
    target: Annotated[str, typer.Argument(metavar="TARGET", help="File to write.")],
    from_: Annotated[str | None, typer.Option("--from", metavar="FORMAT", help=TREVNI_FORMAT)] = None,
    to: Annotated[str | None, typer.Option("--to", metavar="FORMAT", help=TREVNI_FORMAT)] = None,
    codec: Annotated[
        str, typer.Option(metavar="NAME", help="Of a Trevni target: null, snappy, deflate or bzip2.")
    ] = "snappy",
    checksum: Annotated[str, typer.Option(metavar="NAME", help="Of a Trevni target: null or crc32.")] = "crc32",
    columns: TREVNI_COLUMNS = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an existing TARGET.")] = False,
) -> None:
    """Convert a Trevni file to Parquet, JSON lines, Arrow IPC or Avro, or one of them to Trevni."""
    from cdfd.commands import trevni_convert as command

    _print(
        command.run(
            command.Request(source, target, from_, to, codec, checksum, command.names(columns), overwrite=overwrite)
        )
    )


@app.command()
def version() -> None:
    """Print the versions of cdfd and its main libraries."""
    from importlib.metadata import version as installed

    libraries = " ".join(
        f"{name} {installed(name)}" for name in ("pyarrow", "numpy", "pyroaring", "orjson", "watchdog")
    )
    _print(f"cdfd {__version__}\npython {sys.version.split()[0]} {libraries}\n")


def _unexpected(kind: type[BaseException], error: BaseException, traceback: TracebackType | None) -> None:
    """Print the traceback of an unexpected error, which is a bug in cdfd. Its text may come from a table, so it is escaped."""
    from cdfd.console import logs

    sys.stderr.write(f"{logs.indented(logs.traceback_of(error))}\n")


def main() -> None:
    """Entry point: runs a command. An error becomes one line on stderr and an exit code."""
    sys.excepthook = _unexpected
    if os.getpid() == 1:
        # The kernel drops signals that process 1 does not handle. A container must stop, also before a command handles SIGTERM itself.
        signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # for names that the terminal's encoding cannot represent
    try:
        app(prog_name="cdfd")
    except CdfdError as error:
        if isinstance(error, LogError):
            from cdfd.commands import inspect as inspection

            inspection.add_location_hint(error)
        if _Options.debug:
            from cdfd.console import logs

            sys.stderr.write(f"{logs.indented(logs.traceback_of(error))}\n")
        else:
            sys.stderr.write("cdfd: " + "\n".join(error.lines()) + "\n")
        sys.exit(error.exit_code)
