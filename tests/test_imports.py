"""No circle among modules, in functions and under TYPE_CHECKING neither, and nothing imports the package's own root."""

from graphlib import TopologicalSorter

import grimp


def test_no_module_imports_itself_through_others() -> None:
    graph = grimp.build_graph("toposcope", cache_dir=None)
    # raises CycleError, which lists the circle
    TopologicalSorter({name: graph.find_modules_directly_imported_by(name) for name in graph.modules}).prepare()
