"""The long form of `tests/standard/oracle/test_kernel.py`."""

import os

import pytest

from tests.support.catalogs.fixtures import java_kernel, server
from tests.support.catalogs.kernel import Kernel
from tests.support.catalogs.unity_server import UnityServer
from tests.support.catalogs.workloads import run_workload

__all__ = ["java_kernel", "server"]

WORKLOADS = int(os.environ.get("CDFD_KERNEL", "100"))


@pytest.mark.parametrize("first", range(5, 5 + WORKLOADS, 20))
def test_random_workloads_are_read_as_the_kernel_reads_them(
    server: UnityServer, java_kernel: Kernel, first: int
) -> None:
    for seed in range(first, min(first + 20, 5 + WORKLOADS)):
        run_workload(server, java_kernel, seed)
