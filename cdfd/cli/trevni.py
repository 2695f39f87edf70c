"""`cdfd trevni`: shows and converts Trevni files."""

from typing import Annotated

import typer

from cdfd.cli.parameters import AS_JSON, Group, column_names
from cdfd.runtime.output import write

trevni = typer.Typer(cls=Group, help="Show and convert Trevni files.", no_args_is_help=True, rich_markup_mode=None)
FILE = Annotated[str, typer.Argument(metavar="FILE", help="Path or URI of a Trevni file.")]


COLUMNS = Annotated[str | None, typer.Option("--columns", metavar="A,B", help="Read only these columns.")]
FORMAT = "trevni, parquet, jsonl, arrow or avro. Default: by the ending of the name."


@trevni.command()
def schema(
    file: FILE, avro: Annotated[bool, typer.Option("--avro", help="Print the Avro schema in the file.")] = False
) -> None:
    """Print the columns of the rows, and their types."""
    from cdfd.cli.commands import trevni as command

    write(command.schema(file, avro=avro))


@trevni.command()
def head(
    file: FILE,
    rows: Annotated[int, typer.Option("--rows", "-n", metavar="NUMBER", min=0, help="Number of rows.")] = 10,
    columns: COLUMNS = None,
) -> None:
    """Print the first rows as JSON lines."""
    from cdfd.cli.commands import trevni as command

    for lines in command.rows(file, column_names(columns), f":{rows}"):
        write(lines)


@trevni.command()
def cat(
    file: FILE,
    columns: COLUMNS = None,
    rows: Annotated[
        str | None,
        typer.Option("--rows", metavar="FROM:TO", help="Only these rows; the first is 0, and TO is left out."),
    ] = None,
) -> None:
    """Print rows as JSON lines."""
    from cdfd.cli.commands import trevni as command

    for lines in command.rows(file, column_names(columns), rows):
        write(lines)


@trevni.command()
def stats(file: FILE, as_json: AS_JSON = False) -> None:
    """Print blocks, sizes and compression of the physical columns."""
    from cdfd.cli.commands import trevni as command

    write(command.stats(file, as_json=as_json))


@trevni.command("columns")
def physical_columns(file: FILE) -> None:
    """Print the physical columns as JSON.

    It is one document, with the lengths and the values of each column.
    """
    from cdfd.cli.commands import trevni as command

    for part in command.columns(file):
        write(part)


@trevni.command()
def convert(
    source: Annotated[str, typer.Argument(metavar="SOURCE", help="File to read.")],
    target: Annotated[str, typer.Argument(metavar="TARGET", help="File to write.")],
    from_: Annotated[str | None, typer.Option("--from", metavar="FORMAT", help=FORMAT)] = None,
    to: Annotated[str | None, typer.Option("--to", metavar="FORMAT", help=FORMAT)] = None,
    codec: Annotated[
        str, typer.Option(metavar="NAME", help="Codec of a Trevni target: null, snappy, deflate or bzip2.")
    ] = "snappy",
    checksum: Annotated[
        str, typer.Option(metavar="NAME", help="Checksum of a Trevni target: null or crc32.")
    ] = "crc32",
    columns: COLUMNS = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an existing TARGET.")] = False,
) -> None:
    """Convert a Trevni file to another format, or back.

    The other formats are Parquet, JSON lines, Arrow IPC and Avro.
    """
    from cdfd.cli.commands.trevni_convert import run

    write(run(source, target, from_, to, codec, checksum, column_names(columns), overwrite=overwrite))
