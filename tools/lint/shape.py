"""What a reader meets when opening a file: a first paragraph that says what it decides, lines
that fit a window, and a length that fits a head.
"""

import re
import sys

import lint

LINES_MAX = 400
COLUMNS_MAX = 100

FIRST_COMMENT = re.compile(
    r'^(?:#![^\n]*\n)?\s*(//|/\*|#(?!!|\s*(include|pragma|define|ifndef))|r?""")')


def check(tree):
    findings = []
    for path in tree.with_suffix(lint.CODE) + tree.scripts():
        text = tree.text(path)
        if not text.strip():
            continue
        lines = text.split("\n")
        length = len(lines) - (lines[-1] == "")
        if length > LINES_MAX:
            findings.append(f"{path}: {length} lines; at most {LINES_MAX}")
        for number, line in enumerate(lines, start=1):
            if len(line) > COLUMNS_MAX:
                findings.append(f"{path}:{number}: {len(line)} columns; at most {COLUMNS_MAX}")
        if not FIRST_COMMENT.match(text):
            findings.append(f"{path}:1: no first paragraph that says what the file decides")
    return findings


CLEAN = {
    "model/core/a.hpp": "// Decides a.\n#pragma once\n",
    "model/core/a.h": "/* Decides a. */\n",
    "tools/a.py": '"""Does a."""\n',
    "tools/run": "#!/bin/sh\n# Runs.\n",
    "model/core/empty.py": "",
    "model/core/wide.cpp": "// " + "x" * 97 + "\n" + "int x;\n" * 399,
    "model/core/umlaut.cpp": "// " + "\u00e4" * 97 + "\n",
}
PLANTED = {
    "a header without a first paragraph": (
        {"model/core/bad.hpp": "#pragma once\n// Too late.\n"},
        "model/core/bad.hpp:1: no first paragraph"),
    "a source that begins with an include": (
        {"model/core/bad.cpp": '#include "x.hpp"\n'}, "no first paragraph"),
    "a script without a first paragraph": (
        {"tools/bad": "#!/bin/sh\nset -e\n"}, "tools/bad:1: no first paragraph"),
    "a Python file without a docstring": ({"tools/bad.py": "import sys\n"}, "no first paragraph"),
    "a line of 101 columns": ({"model/core/bad.cpp": "// " + "x" * 98 + "\n"}, "101 columns"),
    "a file of 401 lines": ({"model/core/bad.cpp": "// x\n" * 401}, "401 lines"),
}

if __name__ == "__main__":
    sys.exit(lint.run(check, CLEAN, PLANTED, __doc__))
