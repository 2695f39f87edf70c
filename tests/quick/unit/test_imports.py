"""The imports between cdfd's modules, in any form: at the top, in functions, and for types alone."""

import itertools
import subprocess
import sys
from collections import Counter
from graphlib import CycleError, TopologicalSorter

import grimp
import pytest


@pytest.fixture(scope="module")
def imports() -> grimp.ImportGraph:
    return grimp.build_graph("cdfd", cache_dir=None)


def test_no_imports_form_a_circle(imports: grimp.ImportGraph) -> None:
    modules = {module: imports.find_modules_directly_imported_by(module) for module in imports.modules}
    try:
        TopologicalSorter(modules).prepare()
    except CycleError as error:
        circle = error.args[1][::-1]
        edges = itertools.pairwise(circle)
        lines = [detail for one, other in edges for detail in imports.get_import_details(importer=one, imported=other)]
        pytest.fail("\n".join(f"{each['importer']}:{each['line_number']}: {each['line_contents']}" for each in lines))


def test_the_port_of_sinks_imports_few_modules() -> None:
    """A sink of another package imports all that the port does, and depends on it. Folders do not count."""
    script = "import sys, cdfd.sinks.base; print(*(name for name, each in sys.modules.items() if not hasattr(each, '__path__')))"
    imported = subprocess.run([sys.executable, "-c", script], capture_output=True, check=True, text=True, timeout=60)
    modules = sorted(name for name in imported.stdout.split() if name.startswith("cdfd."))
    assert len(modules) < 25, "\n".join(modules)


def test_a_daemon_imports_no_http_that_it_does_not_use() -> None:
    """aiohttp, urllib3 and Arrow's file systems take 20 MB and a quarter of the processor time of a start."""
    script = "import sys, cdfd.daemon.supervision.process, cdfd.sinks.kafka.connector; print(*sys.modules)"
    imported = subprocess.run([sys.executable, "-c", script], capture_output=True, check=True, text=True, timeout=60)
    assert {"aiohttp", "urllib3", "pyarrow.fs", "pyarrow.parquet"}.isdisjoint(imported.stdout.split())


def test_the_package_alone_has_errors_and_trevni() -> None:
    script = "import cdfd; print(cdfd.errors.CdfdError.__name__, cdfd.trevni.TrevniError.__name__)"
    imported = subprocess.run([sys.executable, "-c", script], capture_output=True, check=True, text=True, timeout=60)
    assert imported.stdout == "CdfdError TrevniError\n"


def test_a_folder_has_at_most_twenty_modules(imports: grimp.ImportGraph) -> None:
    """You read all names of a folder to find a module. Folders within it do not count."""
    names = Counter(module.rpartition(".")[0] for module in imports.modules if not imports.find_children(module))
    assert {folder: count for folder, count in names.items() if count > 20} == {}
