"""Builds the kernels of `cdfd/native`: into a wheel, and in place for an editable installation.

Where that fails, as without a compiler, cdfd is built without them. It then does the same, more slowly. The environment variable
`CDFD_NATIVE` decides otherwise: `0` builds no kernels, and `1` makes a failure an error.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

FOLDER = "cdfd/native"
FLAGS = ["/O2"] if os.name == "nt" else ["-O3", "-g0"]


class NotBuiltError(Exception):
    """The kernels cannot be built here, and why."""


class NativeHook(BuildHookInterface):
    """Adds the kernels to a wheel, whose tag then names Python's version and the platform."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile, before the wheel is packed."""
        choice = os.environ.get("CDFD_NATIVE", "")
        if self.target_name != "wheel" or choice == "0":
            return
        in_place = version == "editable"
        try:
            modules = compiled(Path(self.root), in_place=in_place)
        except NotBuiltError as error:
            if choice == "1":
                raise
            self.app.display_warning(f"cdfd is built without its kernels in machine code: {error}")
            return
        build_data["pure_python"] = False
        build_data["infer_tag"] = True
        if not in_place:
            build_data["force_include"] |= {str(path): f"{FOLDER}/{path.name}" for path in modules}


def compiled(root: Path, *, in_place: bool) -> list[Path]:
    """The compiled modules: beside their sources, or in a folder of their own.

    Raises:
        NotBuiltError: there is no Cython, no compiler, or no header of Python.
    """
    try:
        from Cython.Build import cythonize
        from Cython.Compiler.Errors import CompileError
        from setuptools import Distribution, Extension
        from setuptools.errors import BaseError, CCompilerError
    except ImportError as error:
        raise NotBuiltError(str(error)) from error
    work = Path(tempfile.mkdtemp(prefix="cdfd-native-"))
    before = Path.cwd()
    os.chdir(root)
    try:
        extensions = [
            Extension(".".join(path.with_suffix("").parts), [str(path)], extra_compile_args=FLAGS)
            for path in sorted(Path(FOLDER).glob("*.pyx"))
        ]
        extensions = cythonize(extensions, build_dir=str(work / "c"), quiet=True, force=True)
        command = Distribution({"name": "cdfd", "ext_modules": extensions}).get_command_obj("build_ext")
        command.parallel = os.cpu_count()
        command.build_temp = str(work / "objects")
        command.build_lib = str(root if in_place else work / "modules")
        command.ensure_finalized()
        command.run()
    except (BaseError, CCompilerError, CompileError, OSError) as error:
        raise NotBuiltError(str(error)) from error
    finally:
        os.chdir(before)
    return [Path(path) for path in command.get_outputs()]
