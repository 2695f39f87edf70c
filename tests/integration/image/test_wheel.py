"""Wheels: with kernels in machine code where there is a compiler, and without them where there is none.

One kernel is enough here, and takes a sixth of the time: `test_image.py` builds all of them.
"""

import os
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
KERNEL = "parquet_joining"
PARTS = ("cdfd", "pyproject.toml", "hatch_build.py", "README.md", "LICENSE")


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The source with one kernel, and a module of an editable installation of another Python in it."""
    folder = tmp_path_factory.mktemp("source")
    ignored = shutil.ignore_patterns("__pycache__", "*.so")
    for part in PARTS:
        if (ROOT / part).is_dir():
            shutil.copytree(ROOT / part, folder / part, ignore=ignored)
        else:
            shutil.copy(ROOT / part, folder)
    for kernel in (folder / "cdfd" / "native").glob("*.pyx"):
        if kernel.stem != KERNEL:
            kernel.unlink()
    (folder / "cdfd" / "native" / "json_rows.cpython-30-x86_64-linux-gnu.so").write_bytes(b"old")
    return folder


@pytest.fixture(scope="module")
def pip(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """pip for an environment that has what builds need, and nothing else."""
    place = tmp_path_factory.mktemp("tools")
    requirements = tomllib.loads((ROOT / "pyproject.toml").read_text())["build-system"]["requires"]
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(place)], check=True, timeout=600)
    command = [sys.executable, "-m", "pip", "--python", str(place / "bin" / "python")]
    subprocess.run([*command, "install", "--quiet", *requirements], check=True, timeout=600)
    return command


def built(pip: list[str], source: Path, target: Path, **environ: str) -> subprocess.CompletedProcess[str]:
    command = [*pip, "wheel", "--no-build-isolation", "--no-deps", "--wheel-dir", str(target), str(source)]
    return subprocess.run(command, env=os.environ | environ, capture_output=True, text=True, timeout=600)


def kernels(wheel: Path) -> set[str]:
    with zipfile.ZipFile(wheel) as archive:
        return {
            name.split(".")[0]
            for name in archive.namelist()
            if name.startswith("cdfd/native/") and name.endswith((".so", ".pyd"))
        }


def test_a_wheel_with_kernels_is_for_this_platform(pip: list[str], source: Path, tmp_path: Path) -> None:
    done = built(pip, source, tmp_path, CDFD_NATIVE="1")
    assert done.returncode == 0, done.stdout + done.stderr
    [wheel] = tmp_path.glob("*.whl")
    tag = f"cp{sys.version_info.major}{sys.version_info.minor}"
    assert f"-{tag}-{tag}-" in wheel.name
    assert kernels(wheel) == {f"cdfd/native/{KERNEL}"}
    with zipfile.ZipFile(wheel) as archive:
        assert not any("cpython-30" in name for name in archive.namelist())


def test_a_wheel_without_a_compiler_is_for_all_platforms(pip: list[str], source: Path, tmp_path: Path) -> None:
    done = built(pip, source, tmp_path, CC="/none")
    assert done.returncode == 0, done.stdout + done.stderr
    [wheel] = tmp_path.glob("*.whl")
    assert wheel.name.endswith("-py3-none-any.whl")
    assert kernels(wheel) == set()


def test_a_missing_compiler_is_an_error_where_kernels_are_wanted(pip: list[str], source: Path, tmp_path: Path) -> None:
    done = built(pip, source, tmp_path, CC="/none", CDFD_NATIVE="1")
    assert done.returncode != 0
    assert "NotBuiltError" in done.stdout + done.stderr
