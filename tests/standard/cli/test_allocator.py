"""The allocator that cdfd's commands choose for Arrow, and numpy's threads."""

import os
import re
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
@pytest.mark.parametrize("said", [{}, {"MIMALLOC_PURGE_DELAY": "77", "MIMALLOC_ALLOW_THP": "1"}])
def test_native_code_keeps_little_memory_unless_you_say_otherwise(said: dict[str, str]) -> None:
    shown = printed(CHOOSE + "print('left', os.environ.get('MIMALLOC_PURGE_DELAY'))", **VERBOSE, **said)
    # Arrow has an allocator of the same name, which reads the same variables.
    options = re.findall(r"option '(purge_delay|allow_thp)': (\d+)", shown)
    expected = {
        "purge_delay": said.get("MIMALLOC_PURGE_DELAY", "100"),
        "allow_thp": said.get("MIMALLOC_ALLOW_THP", "0"),
    }
    assert len(options) == 4
    assert set(options) == set(expected.items())
    assert f"left {said.get('MIMALLOC_PURGE_DELAY')}" in shown


@pytest.mark.skipif(not native.built, reason="needs cdfd-native")
@pytest.mark.parametrize("said", [None, "77"])
def test_native_code_keeps_memory_between_reads_in_programs_of_yours(said: str | None) -> None:
    variables = {} if said is None else {"MIMALLOC_PURGE_DELAY": said}
    shown = printed(
        "import os, cdfd.api; print('left', os.environ.get('MIMALLOC_PURGE_DELAY'))", **VERBOSE, **variables
    )
    arrows, ours = re.findall(r"option 'purge_delay': (\d+)", shown)
    assert ours == (said or "10000")
    assert arrows != "10000"
    assert f"left {said}" in shown


@pytest.mark.skipif(sys.platform != "linux" or os.cpu_count() == 1, reason="counts threads by /proc")
def test_numpy_starts_no_threads_unless_you_say_otherwise() -> None:
    """They would turn for a while before they sleep."""
    threads = CHOOSE + "import numpy; print(len(os.listdir('/proc/self/task')), os.environ.get('OPENBLAS_NUM_THREADS'))"
    count, left = printed(threads).split()
    assert left == "None"
    assert printed(threads, OPENBLAS_NUM_THREADS="2").split() == [str(int(count) + 1), "2"]


def test_memory_that_is_not_in_use_can_be_returned() -> None:
    code = "pools = [pyarrow.allocate_buffer(1 << 20) for _ in range(9)]; del pools; allocator.release(); print('done')"
    assert printed(CHOOSE + code) == "done"
