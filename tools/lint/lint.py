"""What every lint of this folder shares: which files there are, how they are read, and the self
test.

A lint is a module with CLEAN (files that must pass), PLANTED (name of a violation -> (files, text
that the finding must contain)) and check(tree) -> list of findings; it ends in run(...). Called
with --root it checks the project and exits 1 if it finds anything; with --self-test it checks
that CLEAN passes and that every planted violation is found, because a lint that cannot fail
proves nothing.
"""

import argparse
import pathlib
import re
import sys
import tempfile

CODE = {".hpp", ".cpp", ".h", ".cu", ".cuh", ".inc", ".def", ".py"}
CXX = {".hpp", ".cpp", ".h", ".cu", ".cuh", ".inc", ".def"}
TEXT = CODE | {".md", ".build", ".txt", ".sh", ".json", ".toml", ".yml", ".yaml"}
SKIPPED_FOLDERS = re.compile(r"^(build.*|\.git|\.cache|__pycache__)$")


class Tree:
    """The project's files by path from the top, read once."""

    def __init__(self, root):
        self.root = pathlib.Path(root)
        self._text = {}
        self.paths = sorted(self._walk(self.root))

    def _walk(self, folder):
        for entry in folder.iterdir():
            if SKIPPED_FOLDERS.match(entry.name) or (entry / "meson-private").is_dir():
                continue  # a build directory may have any name
            if entry.is_dir() and not entry.is_symlink():
                yield from self._walk(entry)
            elif entry.is_file():
                yield entry.relative_to(self.root).as_posix()

    def text(self, path):
        if path not in self._text:
            self._text[path] = (self.root / path).read_text(encoding="utf-8", errors="replace")
        return self._text[path]

    def lines(self, path):
        return self.text(path).split("\n")

    def with_suffix(self, suffixes, under=""):
        return [p for p in self.paths
                if p.startswith(under) and pathlib.PurePosixPath(p).suffix in suffixes]

    def scripts(self):
        """Files without a suffix that begin with #!."""
        return [p for p in self.paths if "." not in pathlib.PurePosixPath(p).name.lstrip(".")
                and self.text(p).startswith("#!")]


def is_test(path):
    name = pathlib.PurePosixPath(path).name
    return bool(re.search(r"_test\.(cpp|cu|py)$", name)) or name.startswith("test_")


# One token of C++ that comments and literals can hide in. Raw strings come first, because they may
# contain anything.
_CXX_TOKEN = re.compile(
    r'R"(?P<delimiter>[^(\s]*)\(.*?\)(?P=delimiter)"'
    r'|//(?:[^\n\\]|\\.)*'
    r'|/\*.*?\*/'
    r'|"(?:[^"\\\n]|\\.)*"'
    r"|(?<![0-9a-zA-Z_])'(?:[^'\\\n]|\\.)*'",
    re.DOTALL)


def strip_cxx(text, keep_strings=False):
    """The text with comments (and literals, unless kept) blanked; line numbers do not change."""

    def blank(match):
        token = match.group(0)
        if keep_strings and not token.startswith("/"):
            return token
        return re.sub(r"[^\n]", " ", token)

    return _CXX_TOKEN.sub(blank, text)


def numbered_code(tree, path):
    """(line number, code without comments and literals) of a C++ file."""
    return enumerate(strip_cxx(tree.text(path)).split("\n"), start=1)


def run(check, clean, planted, description):
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--root", help="top of the source tree")
    parser.add_argument("--self-test", action="store_true",
                        help="check this lint on planted violations")
    arguments = parser.parse_args()
    if arguments.self_test:
        sys.exit(_self_test(check, clean, planted))
    if not arguments.root:
        parser.error("--root or --self-test is needed")
    findings = check(Tree(arguments.root))
    for finding in findings:
        print(finding)
    print(f"{len(findings)} findings")
    sys.exit(1 if findings else 0)


def _check_files(check, files):
    with tempfile.TemporaryDirectory(prefix="assay-lint-") as folder:
        for path, text in files.items():
            target = pathlib.Path(folder) / path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(text, encoding="utf-8")
        return check(Tree(folder))


def _self_test(check, clean, planted):
    failures = 0
    findings = _check_files(check, clean)
    if findings:
        failures += 1
        print("FAIL: the clean tree has findings:", *findings, sep="\n  ")
    for name, (files, expected) in planted.items():
        findings = _check_files(check, {**clean, **files})
        if any(expected in finding for finding in findings):
            print(f"found: {name}")
        else:
            failures += 1
            print(f"FAIL: not found: {name} (expected {expected!r}, got {findings})")
    print(f"{len(planted)} planted violations, {failures} failures")
    return 1 if failures else 0
