"""cdfd: every row-level change of a Delta Lake table, in order and exactly once."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cdfd.api import changes, follow, snapshot

__version__ = "0.1.0"
__all__ = ["__version__", "changes", "follow", "snapshot"]


def __getattr__(name: str) -> Any:
    # Arrow and the rest take a third of a second to import; `cdfd --help` and a config check should not wait for them.
    if name in ("snapshot", "follow"):
        import cdfd.api

        return getattr(cdfd.api, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({name for name in globals() if name.startswith("__")} | set(__all__))


class _Package(ModuleType):
    """`cdfd.changes` is the function, although there is a package of that name, and importing a package binds its name in its parent.

    Modules of the package that are imported are attributes of the function, so that `import cdfd.changes.plan` works, too.
    """

    @property
    def changes(self) -> Any:
        import cdfd.api

        package = vars(sys.modules["cdfd.changes"])
        vars(cdfd.api.changes).update({name: found for name, found in package.items() if isinstance(found, ModuleType)})
        return cdfd.api.changes

    @changes.setter
    def changes(self, package: ModuleType) -> None:
        """Ignore the submodules that the import system binds."""


sys.modules[__name__].__class__ = _Package
