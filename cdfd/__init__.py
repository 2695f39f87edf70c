"""cdfd: every row-level change of a Delta Lake table, in order and exactly once."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cdfd.api import changes, follow, snapshot

__version__ = "0.2.0"
__all__ = ["__version__", "changes", "follow", "snapshot"]


def __getattr__(name: str) -> Any:
    # Arrow and the rest take a third of a second to import; `cdfd --help` and a config check should not wait for them.
    if name in ("changes", "snapshot", "follow"):
        import cdfd.api

        return getattr(cdfd.api, name)
    if name in ("errors", "trevni"):  # `import cdfd` is enough for `except cdfd.errors.CdfdError`
        return import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({name for name in globals() if name.startswith("__")} | set(__all__))
