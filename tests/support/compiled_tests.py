"""Modules whose asserts pytest has rewritten, kept for all clones: rewriting those of `make test` takes ten seconds of each worker.

pytest knows a compiled module by the hash of its source. It keeps them beside the module, so a new clone has none.
"""

import importlib.util
import marshal
import os
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from types import CodeType

from _pytest.assertion import rewrite

from tests.support.cache import CACHE, ROOT

KEPT = CACHE / "compiled-tests"
_HEADER = 16
"""Bytes of a compiled module before its code."""


def restore() -> None:
    """Put the compiled modules of `make test` where pytest looks for them. Those that are not kept yet are compiled."""
    KEPT.mkdir(parents=True, exist_ok=True)
    modules = [path for tier in ("quick", "standard") for path in (ROOT / "tests" / tier).rglob("*.py")]
    with ProcessPoolExecutor() as pool:
        list(pool.map(restore_module, modules, chunksize=8))


def restore_module(module: Path) -> None:
    """Put one module there."""
    compiled = rewrite.get_cache_dir(module) / f"{module.stem}{rewrite.PYC_TAIL}"
    if rewrite._read_pyc(module, compiled) is not None:
        return
    digest = importlib.util.source_hash(module.read_bytes())
    kept = KEPT / f"{digest.hex()}{rewrite.PYC_TAIL}"
    if not kept.exists():
        _write(kept, *rewrite._rewrite_test(module, None))
    compiled.parent.mkdir(exist_ok=True)
    _write(compiled, digest, _relocate(marshal.loads(kept.read_bytes()[_HEADER:]), str(module)))


def _write(compiled: Path, digest: bytes, code: CodeType) -> None:
    part = compiled.with_name(f"{compiled.name}.{os.getpid()}")
    with part.open("wb") as file:
        rewrite._write_pyc_fp(file, digest, code)
    part.replace(compiled)


def _relocate(code: CodeType, path: str) -> CodeType:
    """Code of another clone, for tracebacks of this one."""
    inner = (_relocate(each, path) if isinstance(each, CodeType) else each for each in code.co_consts)
    return code.replace(co_filename=path, co_consts=tuple(inner))
