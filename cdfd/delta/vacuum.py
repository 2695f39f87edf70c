"""The files of a table that VACUUM may remove. Pure.

Source: specification, "Data Files" and "Add File and Remove File", and the folders that deployed writers leave alone. A file may go if it is
older than the retention and no version in the retention has it:

    cutoff = now - retention; kept = live files, files removed after the cutoff, and the deletion vectors of both
"""

from collections.abc import Iterable, Iterator, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from cdfd.delta import paths
from cdfd.delta.actions import Add, Cdc, Remove
from cdfd.delta.deletion_vector import path_of
from cdfd.delta.files import TEXT, PackedFiles
from cdfd.delta.protocol import writer_features
from cdfd.delta.schema import TableSchema
from cdfd.delta.snapshot import Snapshot
from cdfd.errors import PathError

_SPECIAL = r"^/|//|:|(^|/)\.\.?(/|$)"
"""In all paths that are not relative to the table in their one canonical spelling. Others have it too, and are resolved in vain."""
_SEEN = ("_change_data", "_delta_index")
"""Folders that a name with an underscore does not hide."""


def hides(folder: str, state: Snapshot) -> bool:
    """Whether VACUUM leaves a folder alone, and all below it.

    Args:
        folder: its path in the table.
        state: of the table.
    """
    name = folder.rpartition("/")[2]
    if name.startswith(_SEEN) or any(name.startswith(f"{each}=") for each in _partition_names(state.header.schema)):
        return False
    iceberg = any(feature.startswith("iceberg") for feature in writer_features(state.protocol))
    return is_hidden(name) or (iceberg and folder == "metadata")


def is_hidden(name: str) -> bool:
    """Whether VACUUM leaves a file of this name alone."""
    return name.startswith(("_", "."))


def _partition_names(schema: TableSchema) -> list[str]:
    return [name for child in schema.partition_fields for name in (child.name, schema.physical_name(child))]


def kept(state: Snapshot, cutoff_ms: int, root: str) -> pa.Array:
    """The paths that the versions since the cutoff have, relative to the table's root.

    Args:
        state: the newest one, with tombstones.
        cutoff_ms: the time.
        root: of the table, as a URI or a path.

    Raises:
        DataError: a deletion vector has no readable path.
    """
    removed = state.tombstones().table
    since = removed.filter(pc.greater(pc.fill_null(removed.column("time"), 0), cutoff_ms))
    found: list[PackedFiles[Add] | PackedFiles[Remove]] = [state.live(), PackedFiles(Remove, since)]
    columns = [chunk for files in found for chunk in files.paths.chunks]
    vectors = [path for files in found for path in _vector_paths(_with_vectors(files))]
    return relative(pa.concat_arrays([*columns, pa.array(vectors, TEXT)]), root)


def relative(files: pa.Array, root: str) -> pa.Array:
    """The paths of files in the table; those of other files are left out. `files`: as actions have them."""
    special = pc.match_substring_regex(files, _SPECIAL)
    plain = files.filter(pc.invert(special))
    return pa.concat_arrays([plain, pa.array(_resolved(files.filter(special).to_pylist(), root), TEXT)])


def _resolved(files: Sequence[str], root: str) -> Iterator[str]:
    for path in files:
        try:
            yield paths.resolve(root, path).path
        except PathError:
            continue  # a file outside of the table, which is not listed


def _with_vectors(files: PackedFiles[Add] | PackedFiles[Remove]) -> Iterator[Add | Remove]:
    vectors = files.table.column("deletion_vector")
    yield from PackedFiles(files.kind, files.table.filter(pc.is_valid(vectors)))


def _vector_paths(actions: Iterable[Add | Remove | Cdc]) -> Iterator[str]:
    for action in actions:
        vector = None if isinstance(action, Cdc) else action.deletion_vector
        if vector is not None and (path := path_of(vector)) is not None:
            yield path


def named(actions: Sequence[Add] | Sequence[Remove] | Sequence[Cdc], root: str) -> pa.Array:
    """The paths that actions of a log entry name, relative to the table's root."""
    found = [action.path for action in actions]
    return relative(pa.array([*found, *_vector_paths(actions)], TEXT), root)
