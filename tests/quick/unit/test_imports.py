"""The imports between cdfd's modules, in any form: at the top, in functions, and for types alone."""

import itertools
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
