"""The differences between the schemas of two versions, described for the readers of the rows.

Columns are paired by physical name, which survives a rename (specification, "Column Mapping"), and what is left by its
own name: an overwrite gives a column that looks the same a new physical name, and to a reader of rows it is still the
same column.
"""

from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, field, replace

from cdfd.delta.types.datatypes import (
    ArrayType,
    DataType,
    Decimal,
    MapType,
    Primitive,
    StructField,
    StructType,
    fields_in,
)
from cdfd.delta.types.schema import ID, PHYSICAL_NAME, RETURNING, ColumnMappingMode, TableSchema, physical_name

Path = tuple[str, ...]
"""Names from the top: a column, fields of structs; `element`, `key`, `value` inside arrays and maps."""


@dataclass(frozen=True, slots=True)
class Rename:
    """A column that has another name. Both paths are whole; parts above may have been renamed as well."""

    old: Path
    new: Path


@dataclass(frozen=True, slots=True)
class TypeChange:
    """A column of another type; `widening` says that every old value is also a value of the new type."""

    path: Path
    old: str
    new: str
    widening: bool


@dataclass(frozen=True, slots=True)
class NullabilityChange:
    """A column, element or map value that from now on may be null, or may not."""

    path: Path
    nullable: bool


@dataclass(frozen=True, slots=True)
class CommentChange:
    """A column whose comment is another one; None is no comment."""

    path: Path
    old: str | None
    new: str | None


@dataclass(frozen=True, slots=True)
class SchemaChange:
    """All differences, each kind in the order of the new schema; `dropped` has paths and order of the old one.

    `reordered_structs` has the paths of structs whose fields are in another order; that of the columns is `()`. `replaced` says that
    columns have other physical names, as an overwrite gives them. Readers of rows see no difference.
    """

    added: tuple[Path, ...] = ()
    dropped: tuple[Path, ...] = ()
    renamed: tuple[Rename, ...] = ()
    type_changed: tuple[TypeChange, ...] = ()
    nullability: tuple[NullabilityChange, ...] = ()
    comment: tuple[CommentChange, ...] = ()
    reordered_structs: tuple[Path, ...] = ()
    repartitioned: bool = False
    replaced: bool = field(default=False, compare=False)

    def __bool__(self) -> bool:
        return self != _NOTHING

    @property
    def reordered(self) -> bool:
        """Whether columns or fields are in another order."""
        return bool(self.reordered_structs)

    @property
    def additive(self) -> bool:
        """Whether a reader of the old columns finds them all, by the same names and of the same types."""
        return not (self.dropped or self.renamed or self.type_changed)

    def lost(self, columns: Collection[str] | None) -> tuple[Path, ...]:
        """The columns and fields, of some columns or of all with None, that are dropped, renamed, or of a type that is not wider."""
        names = None if columns is None else {name.lower() for name in columns}
        paths: list[tuple[Path, ...]] = [(path,) for path in self.dropped]
        # Another column may get the name of one that is read.
        paths += [(each.old, each.new) for each in self.renamed]
        paths += [(each.path,) for each in self.type_changed if not each.widening]
        return tuple(each[0] for each in paths if names is None or any(path[0].lower() in names for path in each))

    def describe(self) -> tuple[str, ...]:
        """One line for each difference, for logs and events."""
        lines = [f"added {'.'.join(path)}" for path in self.added]
        lines += [f"dropped {'.'.join(path)}" for path in self.dropped]
        lines += [f"renamed {'.'.join(each.old)} to {'.'.join(each.new)}" for each in self.renamed]
        for each in self.type_changed:
            verb = "widened" if each.widening else "changed"
            lines.append(f"{verb} {'.'.join(each.path)} from {each.old} to {each.new}")
        for relaxed in self.nullability:
            lines.append(f"{'.'.join(relaxed.path)} {'may be null' if relaxed.nullable else 'may no longer be null'}")
        lines += [f"changed the comment of {'.'.join(each.path)}" for each in self.comment]
        if self.reordered:
            lines.append("reordered columns")
        if self.repartitioned:
            lines.append("changed the partition columns")
        return tuple(lines)


_NOTHING = SchemaChange()


def compare(old: TableSchema, new: TableSchema) -> SchemaChange:
    """The changes of the columns between two versions.

    Raises:
        LogError: a physical name that is not a string.
    """
    comparison = _Comparison(old.mapping, new.mapping)
    comparison.structs(old.struct, new.struct, (), ())
    old_partitions, new_partitions = (
        [schema.physical_name(child) for child in schema.partition_fields] for schema in (old, new)
    )
    return SchemaChange(
        tuple(comparison.added),
        tuple(comparison.dropped),
        tuple(comparison.renamed),
        tuple(comparison.type_changed),
        tuple(comparison.nullability),
        tuple(comparison.comment),
        tuple(comparison.reordered_structs),
        old_partitions != new_partitions,
        comparison.replaced,
    )


@dataclass(slots=True)
class _Comparison:
    """Collects differences on one walk through both schemas."""

    old_mode: ColumnMappingMode
    new_mode: ColumnMappingMode
    added: list[Path] = field(default_factory=list)
    dropped: list[Path] = field(default_factory=list)
    renamed: list[Rename] = field(default_factory=list)
    type_changed: list[TypeChange] = field(default_factory=list)
    nullability: list[NullabilityChange] = field(default_factory=list)
    comment: list[CommentChange] = field(default_factory=list)
    reordered_structs: list[Path] = field(default_factory=list)
    replaced: bool = False

    def structs(self, old: StructType, new: StructType, old_path: Path, new_path: Path) -> None:
        pairs = pair_fields(old, self.old_mode, new, self.new_mode)
        for child in new:
            before = pairs.get(child.name)
            child_path = (*new_path, child.name)
            if before is None:
                self.added.append(child_path)
                continue
            self.replaced |= physical_name(before, self.old_mode) != physical_name(child, self.new_mode)
            if before.name != child.name:
                self.renamed.append(Rename((*old_path, before.name), child_path))
            if before.nullable != child.nullable:
                self.nullability.append(NullabilityChange(child_path, child.nullable))
            if (old_comment := _comment(before)) != (new_comment := _comment(child)):
                self.comment.append(CommentChange(child_path, old_comment, new_comment))
            self._types(before.type, child.type, (*old_path, before.name), child_path)
        kept = [before.name for child in new if (before := pairs.get(child.name))]
        survivors = set(kept)
        self.dropped.extend((*old_path, child.name) for child in old if child.name not in survivors)
        if kept != [child.name for child in old if child.name in survivors]:
            self.reordered_structs.append(new_path)

    def _types(self, old: DataType, new: DataType, old_path: Path, new_path: Path) -> None:
        match old, new:
            case StructType(), StructType():
                self.structs(old, new, old_path, new_path)
            case ArrayType(), ArrayType():
                self._inside(old.contains_null, new.contains_null, (*new_path, "element"))
                self._types(old.element, new.element, (*old_path, "element"), (*new_path, "element"))
            case MapType(), MapType():
                self._inside(old.value_contains_null, new.value_contains_null, (*new_path, "value"))
                self._types(old.key, new.key, (*old_path, "key"), (*new_path, "key"))
                self._types(old.value, new.value, (*old_path, "value"), (*new_path, "value"))
            case _ if old != new:
                self.type_changed.append(TypeChange(new_path, str(old), str(new), widens(old, new)))

    def _inside(self, old: bool, new: bool, path: Path) -> None:
        if old != new:
            self.nullability.append(NullabilityChange(path, new))


def pair_fields(
    old: StructType, old_mode: ColumnMappingMode, new: StructType, new_mode: ColumnMappingMode
) -> dict[str, StructField]:
    """Name in the new struct -> the field that it was in the old one: by physical names, and the others by their own.

    By their own names first if the mapping is off: its files were written again, and a physical name may be that of another column.
    """
    keys: list[Callable[[StructField, ColumnMappingMode], str]] = [physical_name, lambda child, _: child.name.lower()]
    if new_mode is ColumnMappingMode.NONE:
        keys.reverse()
    pairs: dict[str, StructField] = {}
    for key in keys:
        taken = {child.name for child in pairs.values()}
        left = {key(child, old_mode): child for child in old if child.name not in taken}
        for child in new:
            if child.name not in pairs and (name := key(child, new_mode)) in left:
                pairs[child.name] = left[name]
    return pairs


def common_mapping(old: TableSchema, new: TableSchema) -> ColumnMappingMode:
    """The mapping by which columns of an earlier version are found among those of a later one.

    NONE, so that only names count, if the files were written again by their names since: the mapping is off, or was off meanwhile and began
    again with other ids. While it is on, an id and a physical name belong together.
    """
    if ColumnMappingMode.NONE not in (old.mapping, new.mapping):
        of_ids = dict(_ids(fields_in(old.struct)))
        of_names = {name: number for number, name in _ids(old.struct)}
        if any(of_ids.get(number, name) != name for number, name in _ids(fields_in(new.struct))) or any(
            of_names.get(name, number) != number for number, name in _ids(new.struct)
        ):
            return ColumnMappingMode.NONE
    return new.mapping


def _ids(fields: Iterable[StructField]) -> Iterator[tuple[int, str]]:
    """The ids and physical names of fields that have both."""
    for child in fields:
        number, name = child.metadata.get(ID), child.metadata.get(PHYSICAL_NAME)
        if isinstance(number, int) and isinstance(name, str):
            yield number, name


def with_returning(old: TableSchema, new: TableSchema) -> TableSchema:
    """The old schema, and after its columns those of the new one that it lacks: RESTORE brings dropped columns back.

    The values of a dropped column are still in the data files, under its physical name. A row that is deleted by the version that
    brings the column back has been published with its value, so its delete has the value too. Fields of structs are treated alike.
    Columns that come back have the metadata `RETURNING`: files may have them in a wider type that the column had meanwhile.

    Only where both versions map columns by name or id: without a mapping, columns cannot be dropped without rewriting the files.
    """
    if old.mapping is ColumnMappingMode.NONE or old.mapping != new.mapping:
        return old
    own = frozenset(new.partition_columns)
    fields = StructType(tuple(child for child in new.struct if child.name not in own))
    struct = _with_returning(old.struct, fields, old.mapping)
    assert isinstance(struct, StructType)
    return TableSchema(struct, old.partition_columns, old.mapping)


def as_returning(child: StructField) -> StructField:
    """A column of a later version that an earlier version does not have, for rows of the earlier version."""
    return replace(child, metadata={**child.metadata, RETURNING: True})


def _with_returning(old: DataType, new: DataType, mode: ColumnMappingMode) -> DataType:
    match old, new:
        case StructType(), StructType():
            by_name = {physical_name(child, mode): child for child in new}
            kept = tuple(
                replace(child, type=_with_returning(child.type, by_name[key].type, mode))
                if (key := physical_name(child, mode)) in by_name
                else child
                for child in old
            )
            names = {child.name.lower() for child in old}
            physical = {physical_name(child, mode) for child in old}
            back = (
                as_returning(child)
                for key, child in by_name.items()
                if key not in physical and child.name.lower() not in names
            )
            return StructType((*kept, *back))
        case ArrayType(), ArrayType():
            return replace(old, element=_with_returning(old.element, new.element, mode))
        case MapType(), MapType():
            keys, values = _with_returning(old.key, new.key, mode), _with_returning(old.value, new.value, mode)
            return replace(old, key=keys, value=values)
    return old


_WHOLE_NUMBERS = {"byte": 3, "short": 5, "integer": 10, "long": 20}
"""Digits that a decimal needs for them, left of the point, in the protocol's count."""


def widens(old: DataType, new: DataType) -> bool:
    """Whether every value of the old type is one of the new type (the protocol's table feature `typeWidening`)."""
    match old, new:
        case Decimal(), Decimal():
            return new.scale >= old.scale and new.precision - new.scale >= old.precision - old.scale
        case Primitive(small), Decimal(precision, scale) if small in _WHOLE_NUMBERS:
            return precision - scale >= _WHOLE_NUMBERS[small]
        case Primitive(small), Primitive(large):
            if small in _WHOLE_NUMBERS and large in _WHOLE_NUMBERS:
                return _WHOLE_NUMBERS[small] <= _WHOLE_NUMBERS[large]
            return (small, large) in _WIDER
    return False


_WIDER = {
    ("byte", "double"),
    ("short", "double"),
    ("integer", "double"),
    ("float", "double"),
    ("date", "timestamp_ntz"),
}


def _comment(child: StructField) -> str | None:
    comment = child.metadata.get("comment")
    return comment if isinstance(comment, str) else None
