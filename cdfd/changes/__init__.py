"""One commit -> change rows: what to read (`plan`), how it is read (`read`, `execute`), in one schema (`conform`).

The package has the name of the public function `cdfd.changes`, and importing a package binds its name in its parent: so the package can be
called, and is the function.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any


class _Callable(ModuleType):
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        from cdfd import api

        return api.changes(*args, **kwargs)


sys.modules[__name__].__class__ = _Callable
