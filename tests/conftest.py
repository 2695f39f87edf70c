"""Fixtures and hooks that all tests share."""

import asyncio
import inspect
import logging
import os
import signal
from collections.abc import Generator, Iterator
from typing import Any

import pytest
from hypothesis import settings

from cdfd.runtime import native
from tests.support.axes import under_test
from tests.support.kafka.node import thread_dump

# How long an example takes says how busy the machine is: benchmarks measure time, tests do not. In CI, Hypothesis sets that itself.
if settings.get_current_profile_name() == "default":
    settings.register_profile("untimed", deadline=None)
    settings.load_profile("untimed")

_LOG_CHARACTERS = 4000
_WITHIN = 300
"""Seconds until a test of coroutines gives up, unless its module has another `WITHIN`."""


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """A test that is a coroutine has an event loop of its own."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    arguments = {name: pyfuncitem.funcargs[name] for name in pyfuncitem._fixtureinfo.argnames}

    async def bounded() -> None:
        async with asyncio.timeout(getattr(pyfuncitem.module, "WITHIN", _WITHIN)):
            await pyfuncitem.obj(**arguments)

    asyncio.run(bounded())
    return True


def pytest_configure(config: pytest.Config) -> None:
    """Prepare the process."""
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        # A shell's background job ignores SIGINT, and so would all processes that tests start and interrupt.
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if config.pluginmanager.hasplugin("xdist"):
        from tests.support.distribution import Recorder, has_whole_units

        if has_whole_units(config):
            config.pluginmanager.register(Recorder())


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """A test of Kafka that fails says the end of its brokers' logs, and what brokers do that it waited for in vain."""
    report = yield
    if report.failed:
        for name, value in getattr(item, "funcargs", {}).items():
            if type(value).__name__ in ("Broker", "SharedBroker"):
                report.sections.append((f"log of {name}", value.log()[-_LOG_CHARACTERS:]))
                if call.excinfo is not None and call.excinfo.errisinstance(TimeoutError):
                    report.sections.append((f"threads of {name}", thread_dump(value.folder)))
    return report


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> object:
    """Workers get tests by units, whatever `--dist` says."""
    from tests.support.distribution import Units  # pytest calls this only if xdist is installed

    return Units(config, log)


@pytest.fixture(scope="module", params=under_test("numpy", ["native", "numpy"]))
def kernels(request: pytest.FixtureRequest) -> Iterator[str]:
    """Tests that use this run with `cdfd-native`, and without it."""
    if request.param == "native" and not native.built:
        assert "CI" not in os.environ, "cdfd-native is missing: `make` builds it"
        pytest.skip("cdfd-native is missing")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(native, "built", request.param == "native")
        yield request.param


@pytest.fixture(autouse=True)
def logs_as_they_were() -> Iterator[None]:
    """A command that runs in this process sets logs up, and code that finds JSON logs behaves differently."""
    loggers = [logging.getLogger(name) for name in (None, "cdfd", "kafka")]
    handlers, levels = list(loggers[0].handlers), [logger.level for logger in loggers]
    yield
    loggers[0].handlers[:] = handlers
    for logger, level in zip(loggers, levels, strict=True):
        logger.setLevel(level)
    logging.captureWarnings(False)
