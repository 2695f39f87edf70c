"""A table's files, in its store and those of allowed roots, and how errors of reading them are named."""

from __future__ import annotations

import contextlib
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import pyarrow as pa

from cdfd.delta import deletion_vector, paths
from cdfd.delta.actions import DeletionVectorDescriptor
from cdfd.delta.deletion_vector import RowSet
from cdfd.errors import CdfdError, DataError, MissingFileError, NotFoundError, PathError, StorageError
from cdfd.model.file_scan import FileScan
from cdfd.scan.data_files import DataFile, has_ability, is_parquet, open_data_file
from cdfd.scan.projection import Projections
from cdfd.scan.row_selection import DAMAGED_HINT
from cdfd.storage.base import Storage, WholeFiles, root_of
from cdfd.storage.durable import is_transient

ERRORS_OF_FILES = (pa.ArrowException, OSError, ValueError, OverflowError, MemoryError)
"""Errors of reading a damaged file. ValueError includes UnicodeDecodeError, for column names that are not text. MemoryError is Python's:
Arrow's is an ArrowException."""
READ_ERRORS = (CdfdError, *ERRORS_OF_FILES)
"""The same, with those of cdfd."""

MISSING_HINT = "VACUUM may have removed it: start from a newer version or a snapshot"
LIVE_HINT = "VACUUM removes files of older versions: choose a newer one. If this is the newest, the table is damaged: restore the file"
"""For live rows. A reader of a version does not know the newest one, and to ask for it here could fail."""


@dataclass(frozen=True, slots=True)
class TableFiles:
    """A table's files, in its store and those of allowed roots.

    Attributes:
        storage: the table's root.
        open_root: opens the store of an allowed root.
        allowed_roots: roots outside the table in which absolute paths may lie.
        path_prefixes: places of absolute paths that begin with a prefix; see `paths.resolve`.
        projections: of the files that were read last.
    """

    storage: Storage
    open_root: Callable[[str], Storage]
    allowed_roots: tuple[str, ...] = ()
    path_prefixes: paths.Prefixes = ()
    projections: Projections = field(default_factory=Projections, compare=False, repr=False)

    def locate(self, path: str) -> tuple[Storage, str]:
        """The store of a path from the log, and the path in that store.

        Raises:
            PathError: the path leads out of the table and of all allowed roots.
        """
        root = root_of(self.storage)
        location = paths.resolve(root, path, self.allowed_roots, self.path_prefixes)
        inside = location.root == root
        return self.storage if inside else self.open_root(location.root), location.path

    @contextlib.contextmanager
    def open(self, path: str, size: int | None = None) -> Iterator[Any]:
        """A file for random access. MissingFileError if it is gone."""
        storage, inside = self.locate(path)
        try:
            with storage.open_input_file(inside, size if is_parquet(path) else None) as file:
                yield file
        except NotFoundError:
            # Perhaps while it was read: an object store does not keep an object for its readers. Or a prefix is mapped to a wrong place.
            what = "the file is gone" if storage is self.storage else f"the file is gone from {storage.uri}"
            raise MissingFileError(what, path=path, hint=MISSING_HINT) from None

    @contextlib.contextmanager
    def open_scan(self, scan: FileScan, dictionaries: Collection[str] = ()) -> Iterator[tuple[Any, DataFile]]:
        """The bytes of a scan's data file, and the file itself; see `open_data_file`. Errors name it."""
        with (
            naming_file(scan.path),
            self.open(scan.path, scan.size or None) as source,
            open_data_file(scan.path, source, dictionaries) as file,
        ):
            yield source, file

    def read_whole(self, paths: Sequence[str], sizes: Sequence[int]) -> Sequence[bytes] | None:
        """All bytes of files. None if their store does not read files together.

        Raises:
            StorageError: a file is gone, cannot be read, or is larger than its size in `sizes`.
            PathError: a file lies outside the table.
        """
        places = [self.locate(path) for path in paths]
        storage = places[0][0]
        if any(other is not storage for other, _ in places) or not has_ability(storage.__class__, WholeFiles):
            return None
        return cast(WholeFiles, storage).read_whole([inside for _, inside in places], sizes)

    def prefetch(self, path: str, size: int, *, whole: bool = False) -> None:
        """Prefetch a file that will be opened soon; `whole` if all its columns will be read. Errors are left to `open`."""
        with contextlib.suppress(PathError):
            storage, inside = self.locate(path)
            storage.prefetch(inside, (size or None) if is_parquet(path) else None, whole=whole)

    def vector_rows(self, descriptor: DeletionVectorDescriptor | None, file_rows: int) -> RowSet | None:
        """The rows in a deletion vector of a file of `file_rows` rows; None for no vector.

        Raises:
            DataError: the vector is missing, damaged, or does not match its descriptor.
        """
        if descriptor is None:
            return None
        if descriptor.cardinality > file_rows:
            raise DataError(f"the deletion vector hides {descriptor.cardinality} rows of a file of {file_rows} rows")
        path, span = deletion_vector.path_of(descriptor), deletion_vector.range_of(descriptor)
        if path is None or span is None:
            return deletion_vector.decode_inline(descriptor)
        start, length = span
        with naming_file(path), self.open(path) as file:
            file.seek(0, 2)
            # The length comes from the log. It is limited by the file's size, so a hostile length allocates nothing.
            length = max(0, min(length, file.tell() - start))
            file.seek(start)
            return deletion_vector.decode_stored(descriptor, file.read(length))


@dataclass(frozen=True, slots=True)
class SharedFiles(TableFiles):
    """The files of a table that several readers read at about the same time: each file is prefetched once.

    Attributes:
        announced: the paths that were prefetched last.
    """

    announced: OrderedDict[str, None] = field(default_factory=OrderedDict, compare=False, repr=False)

    @classmethod
    def of(cls, files: TableFiles) -> SharedFiles:
        """The same files."""
        return cls(files.storage, files.open_root, files.allowed_roots, files.path_prefixes, files.projections)

    def prefetch(self, path: str, size: int, *, whole: bool = False) -> None:
        """See `TableFiles`. A file that another reader announced is not fetched again, because its rows are shared too."""
        if path in self.announced:
            return
        self.announced[path] = None
        if len(self.announced) > MOST_ANNOUNCED:
            self.announced.popitem(last=False)
        TableFiles.prefetch(self, path, size, whole=whole)


MOST_ANNOUNCED = 1024
"""Paths that `SharedFiles` remembers."""


@contextlib.contextmanager
def naming_file(path: str) -> Iterator[None]:
    """Turn errors of reading a data file into errors of cdfd that name the file."""
    try:
        yield
    except CdfdError as error:
        raise error.within(path=path) from None
    except ERRORS_OF_FILES as error:
        if is_transient(error):
            raise StorageError(f"the file cannot be read: {error}", path=path, retriable=True) from error
        raise DataError(f"the file cannot be read: {error}", path=path, hint=DAMAGED_HINT) from error
