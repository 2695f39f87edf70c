"""Opens the store of a table's URI."""

import os
import re
from collections.abc import Mapping, Sequence
from urllib.parse import unquote_to_bytes

from cdfd.errors import ConfigError, UnsupportedError
from cdfd.runtime.registry import STORES
from cdfd.storage import credentials
from cdfd.storage.base import Storage
from cdfd.storage.home import check_home
from cdfd.storage.local import LocalStorage

Options = Mapping[str, object]

# `file:/x` is how Hadoop writes local URIs. A plain path may contain a colon: only `scheme://` is taken for a URI.
_URI = re.compile(r"(?:(file):(?=/)|([A-Za-z][A-Za-z0-9+.-]*)://)")


def open_storage(uri: str, options: Options | None = None) -> Storage:
    """The store whose root is `uri`: a plain path, or a URI with a known scheme. It accesses nothing yet.

    `options` are those of the scheme (`storage.<scheme>` of the configuration). `UnsupportedError` for an unknown scheme, `ConfigError` for a
    malformed URI, and for a path that begins with `~`.
    """
    if not uri:
        raise ConfigError("the location of a table is empty", hint="Give a path or a URI such as file:///data/orders")
    matched = _URI.match(uri)
    if matched is None:
        check_home(uri)
        return LocalStorage(uri)
    scheme = (matched[1] or matched[2]).lower()
    if not scheme.startswith("s3") and credentials.in_address(uri):  # S3 has a more specific error
        hint = "Provide credentials through the environment, or a configuration file of the store's own libraries"
        raise ConfigError(f"the {scheme}:// location of a table has credentials in it", hint=hint)
    if scheme not in STORES:
        schemes = ", ".join(f"{name}://" for name in sorted(STORES.names()))
        raise UnsupportedError(
            f"cdfd has no storage for {scheme}:// locations", path=uri, hint=f"Use a plain path or one of: {schemes}"
        )
    for name in options or {}:
        if not isinstance(name, str):
            raise ConfigError(f"the storage options have the name {name!r:.100}", hint="Names of options are text")
    storage: Storage = STORES.load(scheme)(uri, options or {})
    return storage


def open_table(
    uri: str, options: Options | None = None, allowed_roots: Sequence[str] = (), found_below: str | None = None
) -> Storage:
    """The store of a table, under its absolute path, so that absolute paths in the log can be recognised as the table's own.

    Links in it may lead to the local folders of `allowed_roots`. With `found_below`, the folder in which a search found the table, links on
    the way from there to the table may lead nowhere else, either. Raises what `open_storage` does.
    """
    storage = open_storage(uri, options)
    if not isinstance(storage, LocalStorage):
        return storage
    within = None if found_below is None else _local_root(found_below)
    return LocalStorage(storage.root, allowed=list(filter(None, map(_local_root, allowed_roots))), within=within)


def _local_root(uri: str) -> str | None:
    """The absolute path of a local folder; None if the location is another one."""
    storage = open_storage(uri) if is_local(uri) else None
    return storage.root if isinstance(storage, LocalStorage) else None


def open_private(uri: str, options: Options | None) -> Storage:
    """A store whose new files only cdfd's own user may read. Raises what `open_storage` does."""
    storage = open_storage(uri, options)
    return LocalStorage(storage.uri, mode=0o600) if isinstance(storage, LocalStorage) else storage


def is_local(uri: str) -> bool:
    """Whether a location is a path, or a `file:` URI."""
    matched = _URI.match(uri)
    return bool(uri) and (matched is None or (matched[1] or matched[2]).lower() == "file")


def open_file(uri: str, options: Options) -> Storage:
    """The store of a `file:` URI. Raises what `open_storage` does."""
    path = uri.partition(":")[2]
    if path.startswith("//"):
        host, slash, name = path[2:].partition("/")
        if host not in ("", "localhost"):
            hint = f"Write file:///{host}/{name} for a local path"
            raise ConfigError(f"a file URI names the host {host!r}", path=uri, hint=hint)
        path = slash + name
    if not path:
        raise ConfigError("a file URI names no path", path=uri, hint="Write file:///data/orders, with three slashes")
    try:
        return LocalStorage(unquote_to_bytes(path).decode())
    except UnicodeDecodeError as error:
        raise ConfigError("the escapes of a file URI are not UTF-8", path=uri) from error


def open_by_fsspec(uri: str, options: Options) -> Storage:
    """A store that fsspec knows. Raises what `open_storage` does."""
    scheme = uri.partition(":")[0].lower()
    try:
        from cdfd.storage.fsspec_storage import open_fsspec
    except ImportError:
        hint = f"Run: pip install 'cdfd[fsspec]' {_PACKAGES[scheme]}"
        raise UnsupportedError(
            f"{scheme}:// locations need fsspec, which is not installed", path=uri, hint=hint
        ) from None
    return open_fsspec(uri, options, _PACKAGES[scheme])


_PACKAGES = {"gs": "gcsfs", "gcs": "gcsfs", "abfs": "adlfs", "abfss": "adlfs", "az": "adlfs"}
"""The package with fsspec's implementation of a scheme."""


def describe_non_table(place: str) -> str | None:
    """Describes for users a local path that should be a table and has no log. None if nothing exists there."""
    if os.path.isfile(place):
        return "it is a file, and a Delta table is a folder"
    try:
        names = os.listdir(place)
    except OSError:
        return None  # missing or not accessible: reading the log reports that
    if not names:
        return None
    tables = sorted(name for name in names if os.path.isdir(os.path.join(place, name, "_delta_log")))
    inside = f", but its folder {tables[0]!r:.100} has one" if tables else ""
    return f"the folder has no log entry in _delta_log{inside}"
