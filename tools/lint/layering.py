"""Who may include whom: folders in the order of DESIGN's arrow, and the two routes to every
answer.

A folder includes only itself and what stands left of it. Inside model, the rooms have an order of
their own. The kernel bodies may not reach the specification they are compared with, not even
through other headers; a test may, because comparing is its job.
"""

import posixpath
import re
import sys

import lint

TOP_ORDER = ["model", "cuda", "verify", "traces", "tools"]

# Room of model -> rooms that it may include, beside itself.
MODEL_ROOMS = {
    "core": set(),
    "numerics": {"core"},
    "moe": {"core", "numerics"},
    "attention": {"core", "numerics"},
    "machine": {"core", "numerics"},
}

# The kernel route may not reach the spec route: folder -> folders that it may not reach.
TWO_ROUTES = {"cuda/kernels/": ("model/moe/", "model/attention/")}
# Headers that both routes share on purpose, with the reason.
SHARED_BY_BOTH_ROUTES = {
    "model/attention/tile_schedule.hpp": "the schedule of tiles is part of the question",
}

INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]+"([^"]+)"', re.MULTILINE)


def includes(tree, path):
    """(line, included path) of every quoted include."""
    text = lint.strip_cxx(tree.text(path), keep_strings=True)
    return [(text.count("\n", 0, match.start(1)) + 1, match.group(1))
            for match in INCLUDE.finditer(text)]


def check(tree):
    findings = []
    files = tree.with_suffix(lint.CXX)
    graph = {path: includes(tree, path) for path in files}
    for path in files:
        for line, target in graph[path]:
            problem = edge_problem(tree, path, target, graph)
            if problem:
                findings.append(f"{path}:{line}: includes {target}: {problem}")
    for path in files:
        findings += route_findings(path, graph)
    return findings


def is_generated(tree, path):
    """Written by the build: the folder's meson.build names it as an output."""
    folder, name = posixpath.split(path)
    build = posixpath.join(folder, "meson.build")
    return build in tree.paths and f"'{name}'" in tree.text(build)


def edge_problem(tree, path, target, graph):
    top, target_top = path.split("/")[0], target.split("/")[0]
    if target not in graph and not is_generated(tree, target):
        beside = posixpath.normpath(posixpath.join(posixpath.dirname(path), target))
        if target.startswith(".") or beside in graph:
            return "write it from the top of the tree"
        return "there is no such file in the tree"
    if top not in TOP_ORDER:
        return f"{top} is not one of the folders {', '.join(TOP_ORDER)}"
    if TOP_ORDER.index(target_top) > TOP_ORDER.index(top):
        return f"{top} stands left of {target_top}"
    if top == "model" == target_top and path.count("/") > 1 and target.count("/") > 1:
        room, target_room = path.split("/")[1], target.split("/")[1]
        if room != target_room and target_room not in MODEL_ROOMS.get(room, set()):
            return f"model/{room} may not know model/{target_room}"
    return None


def route_findings(path, graph):
    for folder, forbidden in TWO_ROUTES.items():
        if not path.startswith(folder) or lint.is_test(path):
            continue
        for chain in chains(path, graph):
            reached = chain[-1]
            if reached.startswith(forbidden) and reached not in SHARED_BY_BOTH_ROUTES:
                return [f"{path}: reaches {reached} ({' -> '.join(chain)}): the two routes to an "
                        "answer must not share it"]
    return []


def chains(path, graph):
    """Every file that `path` reaches, each with one shortest chain of includes."""
    queue, seen = [[path]], {path}
    while queue:
        chain = queue.pop(0)
        for _, target in graph.get(chain[-1], []):
            if target not in seen and target in graph:
                seen.add(target)
                queue.append(chain + [target])
                yield chain + [target]


CLEAN = {
    "model/core/id.hpp": "// Ids.\n#include <cstdint>\n",
    "model/numerics/add.hpp": '#include "model/core/id.hpp"\n',
    "model/moe/moe.hpp": '#include "model/numerics/add.hpp"\n',
    "model/attention/tile_schedule.hpp": '#include "model/core/id.hpp"\n',
    "cuda/kernels/body.hpp": '#include "model/core/id.hpp"\n'
                             '#include "model/attention/tile_schedule.hpp"\n'
                             '// #include "model/moe/moe.hpp"\n',
    "cuda/kernels/body_test.cpp": '#include "cuda/kernels/body.hpp"\n'
                                  '#include "model/moe/moe.hpp"\n',
    "verify/check.hpp": '#include "cuda/kernels/body.hpp"\n#include "model/moe/moe.hpp"\n',
    "tools/assay.cpp": '#include "verify/check.hpp"\n#include "tools/made.hpp"\n',
    "tools/meson.build": "configure_file(output: 'made.hpp')\n",
}
PLANTED = {
    "an upward include": ({"model/moe/bad.hpp": '#include "verify/check.hpp"\n'},
                          "model stands left of verify"),
    "an upward include with blanks": ({"cuda/bad.cu": '  #  include "tools/assay.cpp"\n'},
                                      "cuda stands left of tools"),
    "core knows numerics": ({"model/core/bad.hpp": '#include "model/numerics/add.hpp"\n'},
                            "model/core may not know model/numerics"),
    "the spec knows the machine": ({"model/machine/m.hpp": "// M.\n",
                                    "model/moe/bad.cpp": '#include "model/machine/m.hpp"\n'},
                                   "model/moe may not know model/machine"),
    "a body includes the spec": ({"cuda/kernels/bad.hpp": '#include "model/moe/moe.hpp"\n'},
                                 "cuda/kernels/bad.hpp: reaches model/moe/moe.hpp"),
    "a body reaches the spec through another header": (
        {"cuda/helper.hpp": '#include "model/moe/moe.hpp"\n',
         "cuda/kernels/bad.hpp": '#include "cuda/helper.hpp"\n'},
        "cuda/kernels/bad.hpp -> cuda/helper.hpp -> model/moe/moe.hpp"),
    "the spec includes a kernel": ({"model/moe/bad.hpp": '#include "cuda/kernels/body.hpp"\n'},
                                   "model stands left of cuda"),
    "a relative include": ({"model/moe/bad.hpp": '#include "../core/id.hpp"\n'}, "from the top"),
    "an include of a neighbour by its bare name": ({"model/moe/bad.hpp": '#include "moe.hpp"\n'},
                                                   "from the top"),
    "an include of nothing": ({"model/moe/bad.hpp": '#include "model/moe/gone.hpp"\n'},
                              "no such file"),
}

if __name__ == "__main__":
    sys.exit(lint.run(check, CLEAN, PLANTED, __doc__))
