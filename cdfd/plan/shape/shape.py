"""The shape of published rows: which columns, by which names, with which masks; and which rows. Pure."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

from cdfd.delta.types.datatypes import ByName, StructField, StructType
from cdfd.delta.types.schema import TableSchema
from cdfd.delta.types.schema_change import compare
from cdfd.errors import ConfigError, MissingColumnError
from cdfd.escaping import UNICODE_HINT, is_unicode
from cdfd.model.columns import CHANGE_NAMES, CHANGE_TYPES
from cdfd.plan.shape.chosen import Chosen

if TYPE_CHECKING:
    from cdfd.plan.shape.masks import Mask
    from cdfd.plan.shape.predicate import Predicate


@dataclass(frozen=True, slots=True)
class Shape:
    """A description of the change rows that readers get. A value; it pickles, with the keys of masks.

    Attributes:
        columns: the columns, in that order; None: all, by their own names.
        where: which rows. An update that enters or leaves the filter becomes an insert or a delete.
        masks: by column of the table.
        excluded: change types of rows that are left out, after `where` has changed them.
    """

    columns: tuple[Chosen, ...] | None = None
    where: Predicate | None = None
    masks: tuple[tuple[str, Mask], ...] = ()
    excluded: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.columns is not None and len({each.published.lower() for each in self.columns}) < len(self.columns):
            raise ConfigError("two columns are published by the same name", hint="Correct `columns`")
        for column in self.columns or ():
            if column.published.lower() in CHANGE_NAMES:
                what = f"a column cannot be published as {column.published}, the name of a change column"
                raise ConfigError(what, hint="Case does not count: Delta and Spark have one column of such a name")
            if not is_unicode(column.published):
                raise ConfigError(
                    f"the name {column.published!r:.100} of a column is not Unicode text", hint=UNICODE_HINT
                )
        if len({name.lower() for name, _ in self.masks}) < len(self.masks):
            raise ConfigError("a column has two masks")
        kinds = CHANGE_TYPES.to_pylist()
        for each in self.excluded:
            if each not in kinds:
                raise ConfigError(f"there is no change type {each!r:.100}", hint=f"One of: {', '.join(kinds)}")
        if set(self.excluded) == set(kinds):
            raise ConfigError("all change types are excluded", hint="Leave one out of `exclude_change_types`")

    @property
    def is_plain(self) -> bool:
        """Whether rows stay as they are, but for a choice of columns."""
        return (
            self.where is None
            and not self.masks
            and not self.excluded
            and all(each.alias is None for each in self.columns or ())
        )

    @property
    def digest(self) -> str:
        """A hash of what decides which rows there are, and their values. Mirrors store it, so it has to stay the same in later releases.

        The keys of masks count, and cannot be read from it.
        """
        columns = None if self.columns is None else sorted((each.published, each.name) for each in self.columns)
        where = None if self.where is None else self.where.text
        masks = sorted(
            (name, mask.method, mask.value, mask.length, None if mask.key is None else mask.key.hex())
            for name, mask in self.masks
        )
        return blake2b(json.dumps([columns, where, masks]).encode(), digest_size=16).hexdigest()

    @property
    def names(self) -> tuple[str, ...] | None:
        """The names of the columns to publish, in the table; None: all."""
        return None if self.columns is None else tuple(each.name for each in self.columns)

    def select(self, schema: TableSchema) -> TableSchema:
        """The columns of a version to read: those to publish that it has, then those of the filter.

        Raises:
            MissingColumnError: the version has none of the columns to publish.
        """
        return self._to_read(schema, schema.present)

    def target(self, schema: TableSchema) -> TableSchema:
        """The columns to read of the schema that rows are brought into. All of them have to be there.

        Raises:
            ConfigError: a column is missing.
        """
        return self._to_read(schema, schema.select)

    def _to_read(self, schema: TableSchema, choose: Callable[[Sequence[str]], TableSchema]) -> TableSchema:
        if self.names is None:
            return schema
        # Readers may want the change columns alone.
        nothing = replace(schema, struct=StructType(()), partition_columns=())
        chosen = choose(self.names) if self.names else nothing
        if self.where is None:
            return chosen
        find, names = ByName({child.name: child for child in schema.struct}), set(chosen.names)
        extra = [child.name for name in self.where.names for child in find(name)[:1] if child.name not in names]
        return schema.select([*chosen.names, *dict.fromkeys(extra)]) if extra else chosen

    def columns_of(self, schema: TableSchema) -> list[tuple[StructField, str, Mask | None]]:
        """The columns to publish of rows that were read in a schema: with the published name and the mask of each."""
        masks = dict(self.masks)
        by_name = ByName(masks)
        if self.columns is None:
            return [(child, child.name, next(iter(by_name(child.name)), None)) for child in schema.struct]
        find = ByName({child.name: child for child in schema.struct})
        return [
            (child, child.name if each.alias is None else each.alias, next(iter(by_name(child.name)), None))
            for each in self.columns
            for child in find(each.name)[:1]
        ]

    def published(self, schema: TableSchema) -> TableSchema:
        """The schema of published rows that were read in a schema."""
        if self.is_plain:
            return schema
        fields = [
            replace(child if mask is None else mask.field(child), name=name)
            for child, name, mask in self.columns_of(schema)
        ]
        return TableSchema(StructType(tuple(fields)))

    def constants(self, schema: TableSchema) -> Mapping[str, Any]:
        """The values of constant masks, by published name. Rows of versions that do not have the column yet have them too."""
        columns = self.columns_of(schema)
        return {name: mask.constant(child) for child, name, mask in columns if mask and mask.method == "constant"}

    def published_key(self, key: Sequence[str]) -> tuple[str, ...]:
        """The published names of a key's columns."""
        aliases = ByName({each.name: each.published for each in self.columns or ()})
        return tuple(next(iter(aliases(name)), name) for name in key)

    def check(self, schema: TableSchema, key: Sequence[str] = (), *others: TableSchema) -> None:
        """Check that a table has all that is named, and that types fit. `others` are as in `check_rows`.

        Raises:
            ConfigError: a column is missing, a filter does not fit, or a mask hides the key or a type that it cannot hide.
        """
        if self.names:
            schema.select(self.names)
        self.check_rows(schema, key, *others)
        twice = self.published(self.select(schema)).names
        if len({name.lower() for name in twice}) < len(twice):
            raise ConfigError("two columns are published by the same name", hint="Correct `columns`")

    def check_rows(self, schema: TableSchema, key: Sequence[str], *others: TableSchema) -> None:
        """Check the filter and the masks alone. Raises what `check` does.

        `others` are schemas of other versions to read. A mask may name a column of any of them, so both names of a renamed one have masks.
        """
        if self.where is not None:
            from cdfd.plan.shape.compiler import check_filter

            check_filter(self.where, _with_columns(self.where.names, schema, *others))
        check_key_masks(dict(self.masks), key)
        for name, mask in self.masks:
            columns = ByName({child.name: child for child in _with_columns([name], schema, *others).struct})(name)
            if not columns:
                try:
                    schema.select([name])
                except ConfigError as error:
                    raise ConfigError(f"{error.what}, which `mask` names", hint=error.hint) from None
            mask.applied(columns[0])

    def missing(self, schema: TableSchema) -> tuple[str, ...]:
        """The columns of the filter and of masks that a version does not have: a later one may add them."""
        names = [*(self.where.names if self.where is not None else ()), *(name for name, _ in self.masks)]
        find = ByName({child.name: child for child in schema.struct})
        return tuple(name for name in names if not find(name))

    def check_change(self, before: TableSchema, after: TableSchema) -> None:
        """Check that a version keeps the columns of the filter and of masks. Another column may have the name of one from then on.

        Raises:
            MissingColumnError: it renames or drops one. Its rows would be filtered wrongly, or not masked.
        """
        change = compare(before, after)
        masked = {name.lower() for name, _ in self.masks}
        stays_masked = {each.old[0]: each.new[0].lower() in masked for each in change.renamed if len(each.old) == 1}
        gone = [name for name, stays in stays_masked.items() if name.lower() in masked and not stays]
        # A mask may name both the old and the new name.
        masked_anew = {name.lower() for name, stays in stays_masked.items() if stays}
        was_missing = self.missing(before)
        gone += [name for name in self.missing(after) if name not in was_missing and name.lower() not in masked_anew]
        lost = {tuple(map(str.lower, path)) for path in change.dropped}
        # Case does not count: another spelling is the same column.
        renamed = ((tuple(map(str.lower, each.old)), tuple(map(str.lower, each.new))) for each in change.renamed)
        lost |= {old for old, new in renamed if old != new}
        for column in () if self.where is None else self.where.columns:
            path = tuple(map(str.lower, column.path))
            if any(path[:length] in lost for length in range(1, len(path) + 1)):
                gone.append(".".join(column.path))
        if gone:
            raise MissingColumnError(
                f"column {gone[0]!r:.200} is gone, which `where` or `mask` names",
                hint="A writer renamed or dropped it; change `where` and `mask`. Everything before this version is delivered",
            )

    def check_names(self, schema: TableSchema, later: TableSchema) -> None:
        """Check that no column of the filter or of a mask has another name in rows that are read in an earlier schema.

        Args:
            schema: of the rows.
            later: a schema that has the columns of the filter and of masks.

        Raises:
            MissingColumnError: one has another name. Its rows would be filtered wrongly, or not masked.
        """
        if not self.masks and self.where is None:
            return
        masked = {name.lower() for name, _ in self.masks}
        filtered = () if self.where is None else [tuple(map(str.lower, column.path)) for column in self.where.columns]
        for each in compare(schema, later).renamed:
            old, new = ".".join(each.old), ".".join(each.new)
            what = f"column {new!r:.200} has the name {old!r:.200} before a later version"
            if len(each.old) == 1 and new.lower() in masked and old.lower() not in masked:
                raise MissingColumnError(
                    f"{what}, so it would not be masked",
                    hint=f"Give {old!r:.200} the same mask in `mask`, next to {new!r:.200}, until that version is delivered",
                )
            path = tuple(map(str.lower, each.new))
            if schema.find(each.new) is None and any(column[: len(path)] == path for column in filtered):
                raise MissingColumnError(
                    f"{what}, so its rows would be filtered wrongly",
                    hint=f"Write {old!r:.200} in `where` for these versions, or start after them",
                )


def _with_columns(names: Sequence[str], *schemas: TableSchema) -> TableSchema:
    """The first schema that has all these columns; without one, the first schema."""
    for schema in schemas:
        find = ByName({child.name: child for child in schema.struct})
        if all(map(find, names)):
            return schema
    return schemas[0]


AS_IT_IS = Shape()
"""All rows and columns, unchanged."""


def check_key_masks(masks: Mapping[str, Mask], key: Sequence[str]) -> None:
    """Check that the values of a key stay different.

    Raises:
        ConfigError: a mask gives several rows the same key.
    """
    keys = {name.lower() for name in key}
    for name, mask in masks.items():
        if name.lower() in keys and mask.method != "hmac_sha256":
            raise ConfigError(
                f"the mask {mask.method} of column {name!r:.100} gives different rows the same key",
                hint="Only hmac_sha256 can hide a column of the key",
            )
