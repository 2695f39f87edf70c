"""The files of a table that VACUUM may remove. Pure.

Source: specification, "Data Files" and "Add File and Remove File", and the folders that deployed writers leave alone. A file may go if it is
older than the retention and no version in the retention has it:

    cutoff = now - retention
    kept = live files, files removed after the cutoff, files that log entries since the cutoff name, and the deletion vectors of all

Deleting cannot be undone, so a doubtful name keeps a file. Names are compared without regard to case, Unicode normalisation and
percent-encoding, because file systems, tools that copy tables, and writers differ in these. A name that may mean a file of the table,
but not which one, is an error.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from urllib.parse import unquote

import pyarrow as pa

from cdfd.delta import paths
from cdfd.delta.actions import Add, Cdc, Remove
from cdfd.delta.commit import Commit
from cdfd.delta.deletion_vector import path_of
from cdfd.delta.files import TEXT, PackedFiles
from cdfd.delta.protocol import writer_features
from cdfd.delta.snapshot import Snapshot
from cdfd.errors import PathError, Within
from cdfd.runtime import compute as pc
from cdfd.runtime.arrays import array_of

_SPECIAL = r"^$|^/|/$|//|:|(^|/)\.\.?(/|$)"
"""In all paths that are not relative to the table in their one canonical spelling. Others have it too, and are located in vain."""
HINT = "Nothing was removed. Open the table by the path or URI that its log has, or run VACUUM in the engine that wrote the log"
_SEEN = ("_change_data", "_delta_index")
"""Folders that a name with an underscore does not hide."""


def hides(folder: str, state: Snapshot) -> bool:
    """Whether VACUUM leaves a folder alone, and all below it.

    Args:
        folder: its path in the table.
        state: of the table.
    """
    name, schema = folder.rpartition("/")[2], state.header.schema
    columns = [column for child in schema.partition_fields for column in (child.name, schema.physical_name(child))]
    if name.startswith(_SEEN) or any(name.startswith(f"{column}=") for column in columns):
        return False
    iceberg = any(feature.startswith("iceberg") for feature in writer_features(state.protocol))
    return is_hidden(name) or (iceberg and folder == "metadata")


def is_hidden(name: str) -> bool:
    """Whether VACUUM leaves a file of this name alone."""
    return name.startswith(("_", "."))


@dataclass(frozen=True, slots=True)
class NamedFiles:
    """The files that versions name.

    Attributes:
        inside: paths relative to the table's root.
        outside: absolute paths of local files that are not below the root as it is spelled, each with a version that names it. They may
            be files of the table nevertheless, by another name.
    """

    inside: pa.Array
    outside: Mapping[str, int]


def kept(state: Snapshot, cutoff_ms: int, root: str) -> NamedFiles:
    """The live files, those removed since the cutoff, and their deletion vectors.

    Args:
        state: the newest one, with tombstones.
        cutoff_ms: the time.
        root: of the table, as a URI or a path.

    Raises:
        DataError, UnsupportedError: a deletion vector has no readable path.
        PathError: a name may mean a file of the table, but not which one.
    """
    removed = state.tombstones().table
    since = removed.filter(pc.greater(pc.fill_null(removed.column("time"), 0), cutoff_ms))
    columns, vectors = list[pa.Array](), list[str]()
    with Within(root, state.version):
        for files in (state.live(), PackedFiles(Remove, since)):
            columns += files.paths.chunks
            has_vector = pc.is_valid(files.table.column("deletion_vector"))
            vectors += _vector_paths(PackedFiles(files.kind, files.table.filter(has_vector)))
        return _locate(pa.concat_arrays([*columns, array_of(vectors, TEXT)]), root, state.version)


def files_named(commit: Commit, root: str) -> NamedFiles:
    """The files that a log entry adds, removes or has as change data files, and their deletion vectors.

    Raises:
        DataError, UnsupportedError, PathError: as `kept` does.
    """
    actions: tuple[Add | Remove | Cdc, ...] = (*commit.adds, *commit.removes, *commit.cdcs)
    with Within(root, commit.version):
        files = [*(action.path for action in actions), *_vector_paths(actions)]
        return _locate(array_of(files, TEXT), root, commit.version)


def are_unnamed(listed: Sequence[str], inside: pa.Array) -> list[bool]:
    """Of each path in a listing, whether no file of `NamedFiles.inside` may be it, as far as names tell."""
    files_named: list[bool] = pc.is_in(
        _one_spelling(array_of(listed, TEXT)), value_set=_one_spelling(inside)
    ).to_pylist()
    return [not each for each in files_named]


def _one_spelling(names: pa.Array) -> pa.Array:
    """One spelling for all names that may be of one file."""
    doubtful = pc.or_(pc.match_substring(names, "%"), pc.invert(pc.string_is_ascii(names)))
    folded = pc.ascii_lower(names)
    if pc.any(doubtful).as_py():
        return pc.replace_with_mask(folded, doubtful, array_of(map(_fold, names.filter(doubtful).to_pylist()), TEXT))
    return folded


def _fold(name: str) -> str:
    while (decoded := unquote(name)) != name:
        name = decoded
    return unicodedata.normalize("NFC", unicodedata.normalize("NFD", name).casefold())


def _locate(files: pa.Array, root: str, version: int) -> NamedFiles:
    special = pc.match_substring_regex(files, _SPECIAL)
    inside, outside = [], {}
    for path in files.filter(special).to_pylist():
        try:
            location = paths.locate(root, path)
        except PathError as error:
            error.hint = HINT
            raise
        if location.root == root:
            inside.append(location.path)
        elif location.root == "/":
            outside[f"/{location.path}"] = version
        # An object outside of the prefix has no other name in the table: object stores have no links.
    return NamedFiles(pa.concat_arrays([files.filter(pc.invert(special)), array_of(inside, TEXT)]), outside)


def _vector_paths(actions: Iterable[Add | Remove | Cdc]) -> Iterator[str]:
    for action in actions:
        vector = None if isinstance(action, Cdc) else action.deletion_vector
        if vector is not None and (path := path_of(vector)) is not None:
            yield path
