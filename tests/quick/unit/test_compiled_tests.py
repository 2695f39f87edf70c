"""Modules of tests that another clone has compiled."""

from pathlib import Path

import pytest
from _pytest.assertion import rewrite

from tests.support import compiled_tests


def test_second_clone_has_the_module_of_the_first_with_its_own_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compiled_tests, "KEPT", tmp_path)
    modules = [tmp_path / clone / "test_it.py" for clone in ("first", "second")]
    for module in modules:
        module.parent.mkdir()
        module.write_text("def test_it():\n    assert 1 == 2\n")
    compiled_tests.restore_module(modules[0])
    monkeypatch.setattr(rewrite, "_rewrite_test", None)
    compiled_tests.restore_module(modules[1])
    for module in modules:
        code = rewrite._read_pyc(module, rewrite.get_cache_dir(module) / f"test_it{rewrite.PYC_TAIL}")
        assert code is not None
        actual: dict[str, object] = {}
        exec(code, actual)
        with pytest.raises(AssertionError, match="assert 1 == 2") as caught:
            actual["test_it"]()  # type: ignore[operator]
        assert caught.traceback[-1].path == module
