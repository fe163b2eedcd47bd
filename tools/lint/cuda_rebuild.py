"""Touching a header that host and device share must make the CUDA objects out of date.

nvcc's objects once lost their header dependencies (mesonbuild/meson#11969, for Meson's own cuda
language): host and device then silently disagreed about a struct. This test asks ninja: for every
CUDA object of the build it sets a shared header's time to now, lets `ninja -n` (which builds
nothing) say what it would run, and puts the time back. It fails if an object would not be
compiled again, or if ninja has no recorded dependencies for it.

With --self-test it proves that it can fail, on two small builds of its own: one whose rule has a
depfile, and one whose rule has none. Exit code 77 (skipped) if the objects are not built yet.
"""

import argparse
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time

NINJA = shutil.which("ninja") or shutil.which("ninja-build") or "ninja"
SKIPPED = 77


def ninja(build, *arguments):
    done = subprocess.run([NINJA, "-C", str(build), *arguments], stdin=subprocess.DEVNULL,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=300)
    if done.returncode != 0:
        sys.exit(f"ninja {' '.join(arguments)} failed:\n{done.stdout[-2000:]}")
    return done.stdout


def would_run(build, target):
    """True if ninja would do anything to bring `target` up to date."""
    return "no work to do" not in ninja(build, "-n", target)


def cuda_objects(build):
    """Targets whose name ends as nvcc's objects do (cuda/meson.build)."""
    lines = ninja(build, "-t", "targets", "all").splitlines()
    return sorted(line.split(":")[0] for line in lines if line.split(":")[0].endswith(".cu.o"))


def problems_of(build, target, header):
    """What is wrong with the dependency of `target` on `header` (an absolute path)."""
    recorded = ninja(build, "-t", "deps", target)
    found = [] if header.name in recorded else [f"{target}: no recorded dependency on {header}"]
    before = header.stat()
    try:
        # A second ahead: ninja compares times, and the object may be younger than a clock tick.
        now = time.time_ns() + 1_000_000_000
        os.utime(header, ns=(before.st_atime_ns, now))
        if not would_run(build, target):
            found.append(f"{target}: stays up to date when {header} changes")
    finally:
        os.utime(header, ns=(before.st_atime_ns, before.st_mtime_ns))
    return found


def check(build, headers):
    objects = cuda_objects(build)
    if not objects:
        print("no CUDA objects in this build")
        return SKIPPED
    stale = [target for target in objects if would_run(build, target)]
    if stale:
        print("not built or out of date before the test:", *stale)
        return SKIPPED
    found = [p for target in objects for header in headers
             for p in problems_of(build, target, header)]
    for problem in found:
        print(problem)
    print(f"{len(objects)} objects, {len(headers)} headers, {len(found)} problems")
    return 1 if found else 0


BUILD_WITH_DEPFILE = """
rule nvcc
  command = cp $in $out && echo "$out: $in shared.hpp" > $out.d
  depfile = $out.d
  deps = gcc
build kernel.cu.o: nvcc kernel.cu
"""
BUILD_WITHOUT_DEPFILE = BUILD_WITH_DEPFILE.replace("  depfile = $out.d\n  deps = gcc\n", "")


def self_test():
    results = {}
    for name, text in (("depfile", BUILD_WITH_DEPFILE), ("no depfile", BUILD_WITHOUT_DEPFILE)):
        with tempfile.TemporaryDirectory(prefix="assay-rebuild-") as folder:
            build = pathlib.Path(folder)
            (build / "build.ninja").write_text(text)
            (build / "kernel.cu").write_text("kernel\n")
            (build / "shared.hpp").write_text("shared\n")
            past = time.time_ns() - 10_000_000_000
            for source in ("kernel.cu", "shared.hpp"):
                os.utime(build / source, ns=(past, past))
            before_build = check(build, [build / "shared.hpp"])
            ninja(build)
            results[name] = (before_build, check(build, [build / "shared.hpp"]))
    expected = {"depfile": (SKIPPED, 0), "no depfile": (SKIPPED, 1)}
    print("results:", results, "expected:", expected)
    return 0 if results == expected else 1


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--build", type=pathlib.Path, help="build directory")
    parser.add_argument("--root", type=pathlib.Path, help="top of the source tree")
    parser.add_argument("--header", action="append", default=[], help="shared header, from the top")
    parser.add_argument("--self-test", action="store_true")
    arguments = parser.parse_args()
    if arguments.self_test:
        return self_test()
    headers = [arguments.root.resolve() / header for header in arguments.header]
    return check(arguments.build, headers)


if __name__ == "__main__":
    sys.exit(main())
