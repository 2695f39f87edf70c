"""Wheels of cdfd and cdfd-native: what is in them, and what pip makes of them in a clean environment."""

import os
import shutil
import subprocess
import sys
import tomllib
import zipfile
from email.parser import Parser
from pathlib import Path

import pytest

from cdfd import __version__
from tests.support.pythons import python

ROOT = Path(__file__).parents[3]
WITHIN = 1200.0
BUILDS = {"cdfd": ROOT, "cdfd_native": ROOT / "native"}
BOTH = f"cdfd {__version__} (cdfd-native {__version__})\n"
OTHER_PYTHONS = ["3.13", "3.14"]


def run(*command: str | Path, cwd: Path, **environ: str) -> subprocess.CompletedProcess[str]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "CDFD_"))}
    return subprocess.run(command, env=clean | environ, cwd=cwd, capture_output=True, text=True, timeout=WITHIN)


def environment(place: Path, python: str = sys.executable) -> list[str]:
    """pip for an environment without packages."""
    subprocess.run([python, "-m", "venv", "--without-pip", str(place)], check=True, timeout=WITHIN)
    return [sys.executable, "-m", "pip", "--python", str(place / "bin" / "python")]


@pytest.fixture(scope="module")
def tools(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """pip for an environment that has what builds need, and nothing else."""
    pip = environment(tmp_path_factory.mktemp("tools"))
    requirements = [
        requirement
        for source in BUILDS.values()
        for requirement in tomllib.loads((source / "pyproject.toml").read_text())["build-system"]["requires"]
    ]
    subprocess.run([*pip, "install", "--quiet", *requirements], check=True, timeout=WITHIN)
    return pip


def build(tools: list[str], source: Path, target: Path, **environ: str) -> subprocess.CompletedProcess[str]:
    """Ask pip for a wheel. The backends' programs are those of the environment."""
    path = f"{Path(tools[-1]).parent}{os.pathsep}{environ.pop('PATH', os.environ['PATH'])}"
    command = [*tools, "wheel", "--no-build-isolation", "--no-deps", "--wheel-dir", str(target), str(source)]
    return run(*command, cwd=target, PATH=path, **environ)


@pytest.fixture(scope="module")
def wheels(tools: list[str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with both wheels."""
    if shutil.which("cargo") is None:
        assert "CI" not in os.environ, "there is no cargo"
        pytest.skip("there is no cargo")
    folder = tmp_path_factory.mktemp("wheels")
    for source in BUILDS.values():
        done = build(tools, source, folder)
        assert done.returncode == 0, done.stdout + done.stderr
    return folder


@pytest.fixture(scope="module")
def source(tools: list[str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The source distribution of cdfd-native, as the index has it."""
    folder = tmp_path_factory.mktemp("source")
    maturin = Path(tools[-1]).with_name("maturin")
    manifest = ROOT / "native" / "Cargo.toml"
    done = run(maturin, "sdist", "--manifest-path", manifest, "--out", folder, cwd=folder)
    assert done.returncode == 0, done.stderr
    [archive] = folder.iterdir()
    return archive


def named(wheels: Path, distribution: str) -> Path:
    [wheel] = wheels.glob(f"{distribution}-{__version__}-*.whl")
    return wheel


def libraries(wheel: Path) -> list[str]:
    with zipfile.ZipFile(wheel) as archive:
        return [name for name in archive.namelist() if name.endswith((".so", ".pyd", ".dylib"))]


def test_wheel_of_cdfd_is_for_all_platforms_and_needs_cdfd_native(wheels: Path) -> None:
    wheel = named(wheels, "cdfd")
    assert wheel.name.endswith("-py3-none-any.whl")
    assert libraries(wheel) == []
    with zipfile.ZipFile(wheel) as archive:
        assert "cdfd/py.typed" in archive.namelist()
        assert not [name for name in archive.namelist() if name.startswith(("native/", "tests/"))]
        metadata = Parser().parsestr(archive.read(f"cdfd-{__version__}.dist-info/METADATA").decode())
    assert f"cdfd-native=={__version__}" in metadata.get_all("Requires-Dist", [])


def test_wheel_of_cdfd_native_is_for_all_pythons(wheels: Path) -> None:
    wheel = named(wheels, "cdfd_native")
    assert "-cp311-abi3-" in wheel.name
    assert len(libraries(wheel)) == 1
    with zipfile.ZipFile(wheel) as archive:
        assert {"cdfd_native/py.typed", "cdfd_native/__init__.pyi"} <= set(archive.namelist())


@pytest.mark.parametrize("version", [f"{sys.version_info[0]}.{sys.version_info[1]}", *OTHER_PYTHONS])
def test_pip_installs_both_from_a_folder(wheels: Path, version: str, tmp_path: Path) -> None:
    """Dependencies come from the index, with the image's pins. Both wheels come from the folder alone."""
    interpreter = python(version)
    if interpreter is None:
        pytest.skip(f"there is no Python {version}")
    pip = environment(tmp_path / "environment", interpreter)
    locked = ROOT / "docker" / "requirements" / "base.txt"
    done = run(*pip, "install", "--quiet", "--require-hashes", "--requirement", locked, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    done = run(*pip, "install", "--quiet", "--no-index", "--find-links", wheels, "cdfd", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    command = tmp_path / "environment" / "bin" / "cdfd"
    assert run(command, "--version", cwd=tmp_path).stdout == BOTH
    demo = run(command, "demo", tmp_path / "shop", cwd=tmp_path)
    assert demo.returncode == 0, demo.stderr
    assert "equal to the table's" in demo.stdout


def test_pip_refuses_cdfd_where_no_wheel_of_cdfd_native_fits(wheels: Path, tmp_path: Path) -> None:
    """It does not install cdfd alone, which would be slow without a word."""
    folder = tmp_path / "folder"
    folder.mkdir()
    shutil.copy(named(wheels, "cdfd"), folder)
    shutil.copy(named(wheels, "cdfd_native"), folder / f"cdfd_native-{__version__}-cp311-abi3-win_arm64.whl")
    pip = environment(tmp_path / "environment")
    done = run(*pip, "install", "--no-index", "--find-links", folder, f"cdfd-native=={__version__}", cwd=tmp_path)
    assert done.returncode == 1
    assert f"No matching distribution found for cdfd-native=={__version__}" in done.stderr


def test_pip_builds_the_source_with_cargo(tools: list[str], source: Path, tmp_path: Path, wheels: Path) -> None:
    done = build(tools, source, tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert libraries(named(tmp_path, "cdfd_native")) == libraries(named(wheels, "cdfd_native"))


def test_pip_names_cargo_where_it_is_missing(tools: list[str], source: Path, tmp_path: Path) -> None:
    done = build(tools, source, tmp_path, PATH="/usr/bin:/bin", MATURIN_NO_INSTALL_RUST="1")
    assert done.returncode == 1
    assert "Cargo, the Rust package manager, is not installed" in done.stderr
    assert not list(tmp_path.glob("*.whl"))
