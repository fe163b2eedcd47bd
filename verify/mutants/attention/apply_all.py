#!/usr/bin/env python3
"""Every attention mutant still applies: make_mutant.py writes its source, which nvcc is not asked
to compile. A head names a kernel and a property that exist; a change that matches nowhere, or
twice, fails.

    apply_all.py MAKE_MUTANT SOURCE_ROOT NAME.mutant...
"""
import pathlib
import re
import subprocess
import sys
import tempfile


def main(arguments):
    make, root, mutants = arguments[0], pathlib.Path(arguments[1]), arguments[2:]
    properties = set()
    for path in (root / "verify/attention").glob("*.cpp"):
        properties.update(re.findall(r'^ +\{"(\w+)",$', path.read_text(), re.M))
    wrong = []
    with tempfile.TemporaryDirectory() as directory:
        out = pathlib.Path(directory) / "mutant.cu"
        for mutant in mutants:
            done = subprocess.run([sys.executable, make, "attention", mutant, str(root), str(out)],
                                  capture_output=True, text=True)
            caught_by = re.search(r"(?m)^caught-by: (\w+)$", pathlib.Path(mutant).read_text())
            if done.returncode != 0:
                wrong.append(done.stderr.strip())
            elif caught_by is None or caught_by.group(1) not in properties:
                wrong.append(f"{mutant}: caught-by names no property of attention")
    print("\n".join(wrong) if wrong else f"{len(mutants)} attention mutants apply")
    return 1 if wrong or not mutants else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
