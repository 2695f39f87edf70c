"""The allocator that cdfd's commands choose for Arrow."""

import os
import subprocess
import sys

import pytest

from cdfd.runtime import native

CHOOSE = "from cdfd.runtime import allocator; allocator.choose(); import os, pyarrow; "
VERBOSE = {"MIMALLOC_VERBOSE": "1"}
SHOW = "print(pyarrow.default_memory_pool().backend_name, 'ARROW_DEFAULT_MEMORY_POOL' in os.environ)"


def printed(code: str, **variables: str) -> str:
    environment = {name: value for name, value in os.environ.items() if name != "ARROW_DEFAULT_MEMORY_POOL"}
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment | variables, timeout=60)
    assert not done.stderr or variables.keys() >= VERBOSE.keys()
    return (done.stdout + done.stderr).strip()


@pytest.mark.skipif(not (sys.platform == "linux" and os.confstr("CS_GNU_LIBC_VERSION")), reason="needs glibc")
def test_commands_use_malloc_and_their_children_choose_for_themselves() -> None:
    assert printed(CHOOSE + SHOW) == "system False"


def test_your_choice_counts() -> None:
    assert printed(CHOOSE + SHOW, ARROW_DEFAULT_MEMORY_POOL="mimalloc") == "mimalloc True"


@pytest.mark.skipif(not native.built, reason="needs cdfd-native")
@pytest.mark.parametrize(("said", "delay"), [({}, 10), ({"MIMALLOC_PURGE_DELAY": "77"}, 77)])
def test_native_code_returns_memory_soon_unless_you_say_otherwise(said: dict[str, str], delay: int) -> None:
    shown = printed(CHOOSE + "print('left', os.environ.get('MIMALLOC_PURGE_DELAY'))", **VERBOSE, **said)
    # Arrow has an allocator of the same name, which reads the same variable.
    delays = [line for line in shown.splitlines() if "option 'purge_delay'" in line]
    assert [int(line.rpartition(":")[2]) for line in delays] == [delay, delay]
    assert f"left {said.get('MIMALLOC_PURGE_DELAY')}" in shown


def test_memory_that_is_not_in_use_can_be_returned() -> None:
    code = "pools = [pyarrow.allocate_buffer(1 << 20) for _ in range(9)]; del pools; allocator.release(); print('done')"
    assert printed(CHOOSE + code) == "done"
