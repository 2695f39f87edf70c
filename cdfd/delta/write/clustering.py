"""The columns by which a table is clustered, when its columns change. Pure.

Source: the table feature `clustering` as deployed writers have it. The domain `delta.clustering` names the columns by their physical names:

    {"clusteringColumns": [["day"], ["address", "city"]]}

Other writers refuse a table that is clustered by a column that it does not have.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import orjson

from cdfd.delta.actions import DomainMetadata
from cdfd.delta.types.datatypes import DataType, Primitive, StructField, StructType, is_nested
from cdfd.delta.types.schema import ColumnMappingMode, physical_name
from cdfd.delta.write.writing import Action

CLUSTERING = "delta.clustering"
_COLUMNS = "clusteringColumns"
_NOT_ORDERED = ("boolean", "binary", "variant", "void")
"""Types by which no writer clusters."""


def clustering_changes(
    domains: Mapping[str, DomainMetadata],
    before: tuple[StructType, ColumnMappingMode],
    after: tuple[StructType, ColumnMappingMode],
    *,
    replaces: bool,
) -> list[Action]:
    """The action that leaves clustering columns out that the table loses; none if it keeps them all.

    Args:
        domains: of the table.
        before, after: its columns, with the mapping.
        replaces: whether all rows are replaced. Then a column that has the name of the one before takes its place. Otherwise the files that
            stay have no statistics of it, as those of a clustering column must be there.
    """
    domain = domains.get(CLUSTERING)
    try:
        document = {} if domain is None else orjson.loads(domain.configuration)
        columns = [tuple(map(str, path)) for path in document[_COLUMNS]] if _COLUMNS in document else []
    except (orjson.JSONDecodeError, TypeError):
        return []
    names = {physical: name for physical, name, _ in _paths(*before)}
    paths = [
        (physical, name)
        for physical, name, kind in _paths(*after)
        if not is_nested(kind) and not (isinstance(kind, Primitive) and kind.name in _NOT_ORDERED)
    ]
    present, by_name = {physical for physical, _ in paths}, {name: physical for physical, name in paths}
    kept = [
        path if path in present else by_name[names[path]]
        for path in columns
        if path in present or (replaces and names.get(path) in by_name)
    ]
    if kept == columns:
        return []
    configuration = orjson.dumps({**document, _COLUMNS: kept}).decode()
    return [("domainMetadata", {"domain": CLUSTERING, "configuration": configuration, "removed": False})]


Path = tuple[str, ...]


def _paths(struct: StructType, mapping: ColumnMappingMode) -> Iterator[tuple[Path, Path, DataType]]:
    """Columns and fields of structs: by physical names, by their own in lower case, and the type."""

    def fields_of(child: StructField, physical: Path, name: Path) -> Iterator[tuple[Path, Path, DataType]]:
        physical, name = (*physical, physical_name(child, mapping)), (*name, child.name.lower())
        yield physical, name, child.type
        if isinstance(child.type, StructType):
            for inner in child.type:
                yield from fields_of(inner, physical, name)

    for child in struct:
        yield from fields_of(child, (), ())
