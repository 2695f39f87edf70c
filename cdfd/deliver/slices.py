"""Slices of a version (`cdfd.scan.splits`), measured and read: in threads, or by the executors of a cluster.

    for each in slices:
        read_slice(each, execution)          # together: the rows of execution.batches([plan])

To be measured, a slice is not read: only footers, and the change types of change data files.
"""

from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence

from cdfd.errors import CdfdError, DataError, MissingFileError
from cdfd.model.batch import ChangeBatch
from cdfd.model.plan import LiveScans
from cdfd.model.position import Position
from cdfd.scan.execute import Execution
from cdfd.scan.image_order import ImageCounts
from cdfd.scan.read import count_images, count_rows
from cdfd.scan.scans import raise_missing
from cdfd.scan.splits import Measured, Slice


def measure(part: Slice, execution: Execution) -> Measured:
    """The contents of a slice without its rows, for `placed`. Live files whose row counts are in the log are not opened.

    Raises:
        CdfdError: as `read` says; it names table, version and file. A file that is gone is for `execution.on_missing`.
    """
    if isinstance(part.plan.scans, LiveScans) and (noted := part.plan.scans.rows()) is not None:
        return Measured(noted)
    rows, images = 0, dict[str, ImageCounts]()
    uri, version = execution.files.storage.uri, part.plan.version
    for scan in part.looks or part.plan.scans:
        try:
            if scan.change_type is not None:
                rows += count_rows(scan, execution.files)
            elif part.looks:
                images[scan.path] = ImageCounts()
                images[scan.path] = count_images(scan, execution.files, part.plan.key_schema)
        except MissingFileError as error:
            execution.on_missing(error.within(table=uri, version=version))
        except CdfdError as error:
            raise error.within(table=uri, version=version, path=scan.path) from None
    return Measured(rows, images)


def read_slice(part: Slice, execution: Execution) -> Generator[ChangeBatch, None, None]:
    """The change rows of a slice, as `execution.batches` gives them for the version; their ordinals count from 0 where it is not placed.

    Raises:
        CdfdError: as `read` says; it names table, version and file.
        DataError: after its last row, a slice that has other rows than was measured.
    """
    return read_slices((part,), execution)


def read_slices(parts: Sequence[Slice], execution: Execution) -> Generator[ChangeBatch, None, None]:
    """The change rows of several slices, one after the other. Raises what `read_slice` does."""
    for run in _runs(parts):
        first = run[0]
        start = Position("", first.plan.version, ordinal=first.ordinal or 0)
        ends = {part.plan.version: part.ordinal or 0 for part in run}
        for batch in execution.batches([part.plan for part in run], start):
            ends[batch.plan.version] = batch.following
            yield batch
        if execution.on_missing is raise_missing:
            _check_ends(run, ends, execution.files.storage.uri)


def _check_ends(parts: Iterable[Slice], ends: Mapping[int, int], uri: str) -> None:
    """Refuse rows that are fewer or more than was measured: those of other slices have numbers by it."""
    for part in parts:
        version = part.plan.version
        if part.following is not None and ends[version] != part.following:
            raise DataError(
                f"rows up to number {ends[version]} were read, but the log or the files' footers promise {part.following}",
                table=uri,
                version=version,
                hint="The statistics of a file are wrong. Write them again, or read without `_change_ordinal`",
            )


def _runs(parts: Sequence[Slice]) -> Iterator[list[Slice]]:
    """Slices that can be read as if they were whole versions: ordinals begin at 0 in each version after the first."""
    run: list[Slice] = []
    for part in parts:
        if run and (part.ordinal != 0 or part.plan.version == run[-1].plan.version):
            yield run
            run = []
        run.append(part)
    if run:
        yield run
