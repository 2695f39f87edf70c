"""Commands that read one table: tail, diff, inspect and vacuum."""

from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from cdfd.cli.parameters import (
    AS_JSON,
    CATALOG_OPTIONS,
    LOG_LINE,
    PREFIXES,
    ROOTS,
    TABLE,
    catalog_options,
    choose_allocator,
    column_names,
    parse_pairs,
)
from cdfd.errors import ConfigError
from cdfd.runtime.output import write


def tail(
    table: TABLE,
    from_: Annotated[
        str | None,
        typer.Option(
            "--from",
            metavar="VERSION",
            help="First version; `after VERSION` excludes it. "
            "Default: latest; with --net, earliest; with --until, earliest or only the snapshot.",
        ),
    ] = None,
    until: Annotated[
        str | None, typer.Option(metavar="VERSION", help="Last version, or now. Default: follow forever.")
    ] = None,
    snapshot: Annotated[
        bool, typer.Option("--snapshot", help="First print the live rows at the first version, as inserts.")
    ] = False,
    changes: Annotated[Literal["auto", "cdf", "files"], typer.Option(help="Source of change rows.")] = "auto",
    refine: Annotated[
        Literal["off", "rows", "key", "auto"],
        typer.Option(help="How updates are found in versions without change data files."),
    ] = "auto",
    key: Annotated[str | None, typer.Option(metavar="A,B", help="The columns that identify a row.")] = None,
    drop_unchanged: Annotated[
        bool, typer.Option("--drop-unchanged", help="Leave out updates that change nothing.")
    ] = False,
    net: Annotated[
        bool, typer.Option("--net", help="Print only the net changes of each key until now, or --until. Needs --key.")
    ] = False,
    where: Annotated[
        str | None,
        typer.Option(metavar="FILTER", help="Print only rows that match, such as: region = 'de' AND amount > 10."),
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
    format: Annotated[Literal["flat", "debezium", "trevni"], typer.Option("--format", help="Format of rows.")] = "flat",
    pretty: Annotated[bool, typer.Option("--pretty", help="Print aligned rows for people instead of JSON.")] = False,
    no_meta: Annotated[
        bool, typer.Option("--no-meta", help="Leave out _change_type, _commit_version and the like.")
    ] = False,
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

    VERSION is a number (-1 is the newest, -2 the one before), earliest, latest, now, or a time: 2026-01-31, 2026-01-31T12:00:00Z,
    "1 hour ago", or milliseconds since the Unix epoch (13 digits). Times without a zone are UTC.
    """
    choose_allocator()
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
                changes,
                refine,
                column_names(key) or (),
                _shape(where, columns, mask, exclude_change_types),
                drop_unchanged,
            ),
            net=net,
            format=format,
            pretty=pretty,
            meta=not no_meta,
            output=output,
            existing="append" if append else "overwrite" if overwrite else "refuse",
            access=_access(allowed_root, path_prefix, max_log_line, catalog_option),
        )
    )


def _access(
    roots: list[str] | None, path_prefixes: list[str] | None, max_log_line: int | None, options: list[str] | None
) -> dict[str, Any]:
    """The arguments of `Table.open` besides the table."""
    return {
        "allowed_roots": tuple(roots or ()),
        "path_prefixes": parse_pairs("--path-prefix", path_prefixes, "PREFIX=URI, such as dbfs:/mnt/lake=s3://lake"),
        "max_log_line": max_log_line,
        "storage_options": catalog_options(options),
    }


def diff(
    table: TABLE,
    from_: Annotated[
        str | None, typer.Option("--from", metavar="VERSION", help="The version before. Default: the newest.")
    ] = None,
    to: Annotated[str | None, typer.Option(metavar="VERSION", help="The version after. Default: the newest.")] = None,
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
    """Print the rows that differ between two versions, or two tables.

    They are change rows. Without --key, a row that differs is a delete and an insert. VERSION is as for `cdfd tail`.
    """
    choose_allocator()
    from cdfd.cli.commands.diff import run

    run(
        table,
        from_,
        to,
        other,
        key=column_names(key) or (),
        columns=column_names(columns),
        only_summary=summary,
        output=output,
        access=_access(allowed_root, path_prefix, max_log_line, catalog_option),
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
        column = column.strip()
        if not separator or column in options:
            raise ConfigError(f"--mask {mask!r:.100}", hint="Give each column once, such as --mask email=truncate:2")
        options[column] = method
    chosen = None if columns is None else [Chosen.parse(each) for each in columns.split(",")]
    return shape_of(where, chosen, options, column_names(excluded) or ())


def inspect(
    table: TABLE,
    version: Annotated[
        str | None, typer.Option(metavar="VERSION", help="Describe this version or time. Default: the newest version.")
    ] = None,
    as_json: AS_JSON = False,
    allowed_root: ROOTS = None,
    path_prefix: PREFIXES = None,
    max_log_line: LOG_LINE = None,
    catalog_option: CATALOG_OPTIONS = None,
) -> None:
    """Describe a table, its features and the source of its changes."""
    from cdfd.cli.commands import inspect as inspection

    access = _access(allowed_root, path_prefix, max_log_line, catalog_option)
    write(inspection.report(table, version, as_json=as_json, **access))


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
    """List or remove files that no version within the retention needs."""
    from cdfd.cli.commands.vacuum import run

    write(run(table, retention, delete=delete, unsafe=unsafe, as_json=as_json))
