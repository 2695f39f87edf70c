"""Tests of reading and writing run with the kernels in machine code, and without them."""

import os
from collections.abc import Iterator

import pytest

from cdfd import native

BOTH = ("test_specification", "test_tables", "test_properties")
"""Modules whose tests run twice."""


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if metafunc.module.__name__.rpartition(".")[2] in BOTH:
        metafunc.fixturenames.append("kernels")
        metafunc.parametrize("kernels", ["native", "numpy"], scope="module", indirect=True)


@pytest.fixture(scope="module")
def kernels(request: pytest.FixtureRequest) -> Iterator[None]:
    if request.param == "native" and not native.built:
        assert "CI" not in os.environ, "the kernels are not built: `pip install --editable .` builds them"
        pytest.skip("the kernels are not built")
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "numpy":
            patch.setattr(native, "built", False)
        yield
