"""The kinds of each port by name: one line registers one of them, as `docs/extending.md` shows.

Other packages register theirs as entry points of the port's group. No kind is imported before it is asked for. Installed packages are looked
through only for a name that is none of cdfd's: it takes 10 ms of processor time for 150 packages.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any

from cdfd.errors import ConfigError

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint


@dataclass(eq=False)
class Registry:
    """The kinds of one port.

    Attributes:
        group: of entry points of other packages.
        own: names, and where each kind is: `module:attribute`.
    """

    group: str
    own: Mapping[str, str]
    _loaded: dict[str, Any] = field(default_factory=dict, init=False)

    @cached_property
    def _others(self) -> dict[str, EntryPoint]:
        # Imported here: it takes 10 ms of a process's start, and few processes have kinds of other packages.
        from importlib.metadata import entry_points

        return {each.name: each for each in entry_points(group=self.group)}

    def names(self) -> list[str]:
        """All names, those of other packages last."""
        return list(dict.fromkeys([*self.own, *sorted(self._others), *self._loaded]))

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and (name in self.own or name in self._loaded or name in self._others)

    def load(self, name: str) -> Any:
        """The implementation with a name, imported now.

        Raises:
            KeyError: nothing is.
            ConfigError: another package's cannot be imported.
        """
        if name in self._loaded:
            return self._loaded[name]
        if (own := self.own.get(name)) is not None:
            loaded = resolve_name(own)
        else:
            entry = self._others[name]
            try:
                loaded = entry.load()
            except (ImportError, AttributeError) as error:
                what = f"{name} of {self.group}, which is {entry.value}, cannot be imported: {error}"
                raise ConfigError(what, hint="Repair or remove the package that registers it") from error
        self._loaded[name] = loaded
        return loaded

    def add(self, name: str, value: Any) -> None:
        """Register something in this process alone."""
        self._loaded[name] = value


SINKS = Registry(
    "cdfd.sinks",
    {
        "kafka": "cdfd.sinks.kafka.settings:KafkaSettings",
        "files": "cdfd.sinks.files.settings:FilesSettings",
        "delta": "cdfd.sinks.delta.settings:DeltaSettings",
    },
)
"""The `SinkSettings` of each `sink.kind`."""

CONNECTORS = Registry(
    "cdfd.connectors",
    {
        "kafka": "cdfd.sinks.kafka.connector:KafkaConnector",
        "files": "cdfd.sinks.files.connector:FilesConnector",
        "delta": "cdfd.sinks.delta.connector:DeltaConnector",
    },
)
"""The `cdfd.sinks.base.Connector` of each `sink.kind`, a class that takes the settings and their section `sink`. Settings that make their
own connector need none here.
"""

RECORD_FORMATS = Registry(
    "cdfd.record_formats",
    {
        "flat": "cdfd.encode.formats:FLAT",
        "debezium": "cdfd.encode.formats:DEBEZIUM",
        "avro": "cdfd.encode.formats:AVRO",
        "arrow": "cdfd.encode.formats:ARROW",
        "cloudevents": "cdfd.encode.formats:CLOUDEVENTS",
    },
)
"""The `cdfd.encode.formats.RecordFormat` of each `sink.format` of records."""

FILE_FORMATS = Registry(
    "cdfd.file_formats",
    {
        "jsonl": "cdfd.sinks.files.formats:JsonLines",
        "parquet": "cdfd.sinks.files.formats:Parquet",
        "trevni": "cdfd.sinks.files.trevni:Trevni",
    },
)
"""The `cdfd.sinks.files.formats.RowsFormat` of each `sink.format` of files, a class that needs no arguments."""

ENGINES = Registry(
    "cdfd.engines",
    {
        "embedded": "cdfd.daemon.engines:Embedded",
        "spark": "cdfd.daemon.engines:OnSpark",
        "auto": "cdfd.daemon.engines:Auto",
    },
)
"""The `cdfd.daemon.engines.Embedded`, or a subclass, of each `engine.kind`."""

DATA_FILES = Registry(
    "cdfd.data_files",
    {
        "parquet": "cdfd.scan.parquet.reader:open_parquet",
        "trv": "cdfd.trevni.files.data_file:open_trevni",
    },
)
"""Functions that open a table's data files as `cdfd.scan.data_files.DataFile`, by the end of their names."""

STORES = Registry(
    "cdfd.stores",
    {
        "file": "cdfd.storage.location:open_file",
        "s3": "cdfd.storage.s3.storage:open_s3",
        "s3a": "cdfd.storage.s3.storage:open_s3",
        **dict.fromkeys(("gs", "gcs", "abfs", "abfss", "az"), "cdfd.storage.location:open_by_fsspec"),
        **dict.fromkeys(("uc", "glue"), "cdfd.catalogs.opening:open_by_catalog"),
    },
)
"""Functions that open a `cdfd.storage.base.Storage`, by the scheme of its URI."""

CATALOGS = Registry(
    "cdfd.catalogs",
    {
        "uc": "cdfd.catalogs.uc.catalog:UnityCatalog",
        "glue": "cdfd.catalogs.glue:GlueCatalog",
    },
)
"""Functions that open a `cdfd.catalogs.base.Catalog` with options, by the scheme of its tables' names. `STORES` has the same schemes."""
