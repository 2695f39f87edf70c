"""The command line: parses options, calls one function per command, and prints errors on one line. Commands import slow modules."""

import gc
import os
import signal
import sys
from enum import StrEnum
from io import TextIOWrapper
from pathlib import Path
from types import TracebackType
from typing import Annotated, Any

import typer

from cdfd import __version__
from cdfd.cli.ctl import ctl
from cdfd.cli.parameters import (
    AS_JSON,
    CATALOG_OPTIONS,
    CONFIG,
    LOG_LINE,
    NAME,
    PREFIXES,
    ROOTS,
    SHARD,
    TABLE,
    GlobalOptions,
    Group,
    catalog_options,
    column_names,
    drop_output,
    prefixes,
    write,
)
from cdfd.cli.trevni import trevni
from cdfd.errors import CdfdError, ConfigError, LogError


class _Commands(Group):
    """The commands. A closed pipe ends them without an error, and exit codes are ours instead of Typer's."""

    def invoke(self, ctx: Any) -> Any:
        try:
            result = super().invoke(ctx)
            write("")
        except BrokenPipeError:
            drop_output()
            raise typer.Exit(0) from None
        except KeyboardInterrupt:
            raise typer.Exit(130) from None
        return result


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
        LogFormat, typer.Option(help="Format of log lines on stderr; auto: text on a terminal, otherwise JSON.")
    ] = LogFormat.auto,
    log_level: Annotated[str, typer.Option(metavar="LEVEL", help="debug, info, warning or error.")] = "info",
    _version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    GlobalOptions.debug, GlobalOptions.log_format, GlobalOptions.log_level = debug, log_format.value, log_level
    GlobalOptions.apply()


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
    ] = Refine.auto,
    key: Annotated[str | None, typer.Option(metavar="A,B", help="The columns that identify a row.")] = None,
    drop_unchanged: Annotated[
        bool, typer.Option("--drop-unchanged", help="Leave out updates that change nothing.")
    ] = False,
    net: Annotated[
        bool, typer.Option("--net", help="Print only the net changes of each key until now, or --until. Needs --key.")
    ] = False,
    where: Annotated[
        str | None, typer.Option(metavar="FILTER", help="Print only rows such as: region = 'de' AND amount > 10.")
    ] = None,
    columns: Annotated[
        str | None, typer.Option(metavar="A,B", help="Print only these columns; `A as C` renames.")
    ] = None,
    mask: Annotated[
        list[str] | None,
        typer.Option(
            metavar="A=MASK", help="Hide a column: nullify, constant:VALUE, truncate:2, hmac_sha256:FILE. Repeatable."
        ),
    ] = None,
    exclude_change_types: Annotated[
        str | None, typer.Option(metavar="A,B", help="Leave out rows of these change types.")
    ] = None,
    format: Annotated[RowFormat, typer.Option("--format", help="Format of rows.")] = RowFormat.flat,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="FILE", help="Write to this file instead of standard output."),
    ] = None,
    append: Annotated[bool, typer.Option("--append", help="With -o: append to an existing FILE.")] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="With -o: replace an existing FILE.")] = False,
    allowed_root: ROOTS = None,
    path_prefix: PREFIXES = None,
    max_log_line: LOG_LINE = None,
    catalog_option: CATALOG_OPTIONS = None,
) -> None:
    """Print change rows, one JSON object per line.

    WHERE is a version (-1 is the newest, -2 the one before), earliest, latest, now, or a time: 2026-01-31, 2026-01-31T12:00:00Z,
    "1 hour ago", or milliseconds since the Unix epoch (13 digits). Times without a zone are UTC.
    """
    _choose_allocator()
    from cdfd.cli.commands import tail as tailing
    from cdfd.plan.row_options import RowOptions

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
            rows=RowOptions(
                changes.value,
                refine.value,
                column_names(key) or (),
                _shape(where, columns, mask, exclude_change_types),
                drop_unchanged,
            ),
            net=net,
            format=format.value,
            output=output,
            existing="append" if append else "overwrite" if overwrite else "refuse",
            allowed_roots=tuple(allowed_root or ()),
            path_prefixes=prefixes(path_prefix),
            max_log_line=max_log_line,
            storage_options=catalog_options(catalog_option),
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
    path_prefix: PREFIXES = None,
    max_log_line: LOG_LINE = None,
    catalog_option: CATALOG_OPTIONS = None,
) -> None:
    """Print the rows that differ between two versions of a table, or between two tables, as change rows.

    Without --key, a row that differs is a delete and an insert. WHERE is as for `cdfd tail`.
    """
    _choose_allocator()
    from cdfd.cli.commands import diff as comparing

    comparing.run(
        comparing.Request(
            uri=table,
            start=from_,
            end=to,
            other=other,
            key=column_names(key) or (),
            columns=column_names(columns),
            only_summary=summary,
            output=output,
            allowed_roots=tuple(allowed_root or ()),
            path_prefixes=prefixes(path_prefix),
            max_log_line=max_log_line,
            storage_options=catalog_options(catalog_option),
        )
    )


def _shape(where: str | None, columns: str | None, masks: list[str] | None, excluded: str | None) -> Any:
    from cdfd.plan.shape.shape import AS_IT_IS

    if where is None and columns is None and not masks and excluded is None:
        return AS_IT_IS  # without the modules of settings
    from cdfd.config.shapes import shape_of
    from cdfd.plan.shape.chosen import Chosen

    options = dict[str, object]()
    for mask in masks or ():
        column, separator, method = mask.partition("=")
        if not separator or column in options:
            raise ConfigError(f"--mask {mask!r:.100}", hint="Give each column once, such as --mask email=truncate:2")
        options[column.strip()] = method
    chosen = None if columns is None else [Chosen.parse(each) for each in columns.split(",")]
    return shape_of(where, chosen, options, column_names(excluded) or ())


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
    _choose_allocator()
    from cdfd.daemon.membership.shard import Shard
    from cdfd.daemon.supervision import process
    from cdfd.runtime import logs

    if logs.writes_json():
        logs.take_standard_error()
    try:
        part = None if not shard else Shard.parse(shard)
        code = process.run(config, recover_from_ledger=recover_from_ledger, shard=part)
    except CdfdError as error:
        if not logs.writes_json():
            raise
        logs.fatal(error, with_traceback=GlobalOptions.debug)
        code = error.exit_code
    raise typer.Exit(code)


@app.command()
def check(config: CONFIG, as_json: AS_JSON = False, shard: SHARD = None) -> None:
    """Validate a configuration, open every table and connect to the sink. Writes nothing."""
    from cdfd.cli.commands import check as checking
    from cdfd.daemon.membership.shard import Shard

    report, code = checking.run(config, as_json=as_json, shard=None if not shard else Shard.parse(shard))
    write(report)
    raise typer.Exit(code)


@app.command()
def sample(
    config: CONFIG,
    table: Annotated[str, typer.Argument(metavar="TABLE", help="Name of a table in the configuration.")],
    from_: Annotated[
        str | None,
        typer.Option("--from", metavar="WHERE", help="A version or a time. Default: the newest version with changes."),
    ] = None,
    rows: Annotated[int, typer.Option(min=1, max=1000, help="Change rows at most.")] = 2,
    as_json: AS_JSON = False,
) -> None:
    """Print records as they would be sent: key, headers, value, size and schema. Sends and registers nothing."""
    from cdfd.cli.commands import sample as sampling

    write(sampling.run(config, table, start=from_, rows=rows, as_json=as_json))


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
    _choose_allocator()
    from cdfd.cli.commands import backfill as command
    from cdfd.cli.commands.backfill_job import Request

    told, code = command.run(config, Request(table, from_, until, snapshot, id, restart, engine.value))
    write(told)
    raise typer.Exit(code)


progress = typer.Typer(
    cls=Group, help="Show and set the positions of tables.", no_args_is_help=True, rich_markup_mode=None
)
app.add_typer(progress, name="progress")
app.add_typer(ctl, name="ctl")
app.add_typer(trevni, name="trevni")


@progress.command()
def show(config: CONFIG, as_json: AS_JSON = False) -> None:
    """Show the positions in sink, ledger and table."""
    from cdfd.cli.commands import progress as progress_command

    report, code = progress_command.show(config, as_json=as_json)
    write(report)
    raise typer.Exit(code)


@progress.command("set")
def set_(
    config: CONFIG,
    table: NAME,
    version: Annotated[int, typer.Argument(min=0, help="The last delivered version.")],
) -> None:
    """Set the position in sink and ledger to the version after VERSION."""
    from cdfd.cli.commands import progress as progress_command

    write(progress_command.set_position(config, table, version))


@progress.command()
def reset(config: CONFIG, table: NAME) -> None:
    """Delete a table's position in sink and ledger."""
    from cdfd.cli.commands import progress as progress_command

    write(progress_command.reset(config, table))


@app.command()
def inspect(
    table: TABLE,
    version: Annotated[
        str | None, typer.Option(metavar="WHERE", help="Describe this version or time. Default: the newest version.")
    ] = None,
    as_json: AS_JSON = False,
    allowed_root: ROOTS = None,
    path_prefix: PREFIXES = None,
    max_log_line: LOG_LINE = None,
    catalog_option: CATALOG_OPTIONS = None,
) -> None:
    """Describe a table, its unsupported features, and the source of its changes."""
    from cdfd.cli.commands import inspect as inspection

    report = inspection.report(
        table,
        version,
        as_json=as_json,
        allowed_roots=tuple(allowed_root or ()),
        path_prefixes=prefixes(path_prefix),
        max_log_line=max_log_line,
        storage_options=catalog_options(catalog_option),
    )
    write(report)


@app.command()
def vacuum(
    table: TABLE,
    retention: Annotated[
        str | None,
        typer.Option(
            metavar="TIME", help="Keep files for this time after their removal, such as 7d. Default: the table's."
        ),
    ] = None,
    delete: Annotated[bool, typer.Option("--delete", help="Remove the files. Default: only list them.")] = False,
    unsafe: Annotated[
        bool, typer.Option("--unsafe", help="Allow a retention that is shorter than the table's.")
    ] = False,
    as_json: AS_JSON = False,
) -> None:
    """List the files that no version of a table in its retention has, or remove them."""
    from cdfd.cli.commands import vacuum as vacuuming

    write(vacuuming.run(vacuuming.Request(table, retention, delete=delete, unsafe=unsafe, as_json=as_json)))


@app.command()
def version() -> None:
    """Print the versions of cdfd and its main libraries."""
    from importlib.metadata import version as installed

    libraries = " ".join(
        f"{name} {installed(name)}" for name in ("pyarrow", "numpy", "pyroaring", "orjson", "watchdog")
    )
    write(f"{_own_version()}\npython {sys.version.split()[0]} {libraries}\n")


def _unexpected(kind: type[BaseException], error: BaseException, traceback: TracebackType | None) -> None:
    """Print the traceback of an unexpected error, which is a bug in cdfd. Its text may come from a table, so it is escaped."""
    from cdfd.runtime import logs

    sys.stderr.write(f"{logs.indented(logs.traceback_of(error))}\n")


def _choose_allocator() -> None:
    """For a command that reads rows. It comes before the imports of the command."""
    from cdfd.runtime import allocator

    allocator.choose()


def main() -> None:
    """Entry point: runs a command. An error becomes one line on stderr and an exit code."""
    # Imports make many objects and no garbage. Looking for it took a fifth of their time.
    gc.set_threshold(_IMPORTING)
    # Plugins of pydantic could only slow down the reading of settings, and looking for them reads files of all installed packages.
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
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
            from cdfd.cli.commands import inspect as inspection

            inspection.add_location_hint(error)
        if GlobalOptions.debug:
            from cdfd.runtime import logs

            sys.stderr.write(f"{logs.indented(logs.traceback_of(error))}\n")
        else:
            sys.stderr.write("cdfd: " + "\n".join(error.lines()) + "\n")
        sys.exit(error.exit_code)
