"""Catalog-managed tables of Delta Kernel for Java, made through a server for Unity Catalog, and read as the kernel reads them."""

from tests.support.catalogs.fixtures import java_kernel, server
from tests.support.catalogs.kernel import Kernel
from tests.support.catalogs.unity_server import UnityServer
from tests.support.catalogs.workloads import run_workload
from tests.support.sampling import sample

__all__ = ["java_kernel", "server"]


def test_random_workloads_are_read_as_the_kernel_reads_them(server: UnityServer, java_kernel: Kernel) -> None:
    """Its commits and publishing also show that the stand-in server is one for a real client."""
    seeds = sample(range(5), 1)
    for seed in seeds:
        run_workload(server, java_kernel, seed)
    assert server.count("POST .*/staging-tables$") == len(seeds)
    assert server.count("POST .*/tables/t[0-9]+$") >= 2 * len(seeds)
