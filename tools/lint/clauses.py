"""The specification and the tree cite each other: every clause is defined once, cited by code
that implements it and by a test that would notice its loss, and nobody cites a clause that does
not exist.

A clause is a paragraph of model/SPEC.md that begins with its id in bold (**MOE-2.4**). Code cites
it in a comment or a string, a test by a tag ([MOE-2.4]) or in its text. A withdrawn clause (its
text begins with "Withdrawn") keeps its number and needs no citation. With --list the coverage is
printed.
"""

import re
import sys

import lint

SPEC = "model/SPEC.md"
DEFINITION = re.compile(r"^\*\*([A-Z]{3}-\d+\.\d+)\*\*[ \t]*(.*)$", re.MULTILINE)
PREFIX_ROW = re.compile(r"^\| ([A-Z]{3}) \|", re.MULTILINE)
SECTION = re.compile(r"^### ([A-Z]{3}-\d+)\b", re.MULTILINE)


def check(tree):
    if SPEC not in tree.paths:
        return [f"{SPEC}: there is no specification"]
    spec = tree.text(SPEC)
    findings = []
    clauses, withdrawn = {}, set()
    prefixes = PREFIX_ROW.findall(spec)
    for match in DEFINITION.finditer(spec):
        clause, line = match.group(1), spec.count("\n", 0, match.start()) + 1
        if clause in clauses:
            findings.append(f"{SPEC}:{line}: {clause} is defined twice "
                            f"(first in line {clauses[clause]})")
        if clause.split("-")[0] not in prefixes:
            findings.append(f"{SPEC}:{line}: {clause}: no row of the table has this prefix")
        clauses.setdefault(clause, line)
        if match.group(2).startswith("Withdrawn"):
            withdrawn.add(clause)
    if not prefixes or not clauses:
        return findings + [f"{SPEC}: no prefixes or no clauses found"]
    sections = set(SECTION.findall(spec)) | {c.split(".")[0] for c in clauses}

    code, tests = citations(tree, prefixes)
    for clause, line in sorted(clauses.items(), key=lambda item: item[1]):
        if clause in withdrawn:
            continue
        if clause not in code:
            findings.append(f"{SPEC}:{line}: {clause} is cited by no code")
        if clause not in tests:
            findings.append(f"{SPEC}:{line}: {clause} is cited by no test")
    for cited in (code, tests, citations_in_texts(tree, prefixes)):
        for clause, places in cited.items():
            known = clause in clauses if "." in clause else clause in sections
            if not known:
                findings += [f"{place}: {clause} is not defined in {SPEC}" for place in places]
    return findings


def citation_pattern(prefixes):
    return re.compile(r"(?<![\w-])((?:" + "|".join(prefixes) + r")-\d+(?:\.\d+)?)(?![\w.]*\d)")


def cited_in(tree, path, pattern, into):
    for number, line in enumerate(tree.lines(path), start=1):
        for clause in pattern.findall(line):
            into.setdefault(clause, []).append(f"{path}:{number}")


def citations(tree, prefixes):
    """Clause -> places, in code and in tests. The lints cite made-up clauses and do not count."""
    pattern = citation_pattern(prefixes)
    code, tests = {}, {}
    for path in tree.with_suffix(lint.CODE | {".build"}) + tree.scripts():
        if not path.startswith("tools/lint/"):
            cited_in(tree, path, pattern, tests if lint.is_test(path) else code)
    return code, tests


def citations_in_texts(tree, prefixes):
    """README, CONTRACT and the specification itself: they may not cite what is not there."""
    pattern, cited = citation_pattern(prefixes), {}
    for path in tree.with_suffix({".md"}):
        cited_in(tree, path, pattern, cited)
    return cited


CLEAN = {
    SPEC: "| prefix | decides |\n|---|---|\n| MOE | routing |\n\n### MOE-1 Slots\n\n"
          "**MOE-1.1** A slot is taken once (see MOE-1).\n\n"
          "**MOE-1.2** Withdrawn: was about colours.\n",
    "model/moe/slots.hpp": "// A slot is taken once (SPEC MOE-1.1).\n// ABC-1.9, XMOE-1.7.\n",
    "model/moe/slots_test.cpp": 'TEST_CASE("once", "[MOE-1.1]") {}\n',
    "README.md": "Slots: MOE-1.1.\n",
}
PLANTED = {
    "a clause that no code cites": (
        {"model/moe/slots.hpp": "// Nothing.\n"}, "MOE-1.1 is cited by no code"),
    "a clause that no test cites": (
        {"model/moe/slots_test.cpp": 'TEST_CASE("once") {}\n'}, "MOE-1.1 is cited by no test"),
    "a clause that only a test cites": (
        {"model/moe/slots.hpp": "", "model/moe/more_test.cpp": "// MOE-1.1\n"},
        "MOE-1.1 is cited by no code"),
    "a citation of an undefined clause": (
        {"model/moe/bad.cpp": "// (SPEC MOE-1.3)\n"},
        "model/moe/bad.cpp:1: MOE-1.3 is not defined"),
    "a citation of an undefined section": (
        {"model/moe/bad.cpp": "// (SPEC MOE-2)\n"}, "MOE-2 is not defined"),
    "a test tag of an undefined clause": (
        {"model/moe/bad_test.cpp": 'TEST_CASE("x", "[MOE-7.1]") {}\n'}, "MOE-7.1 is not defined"),
    "a README that cites an undefined clause": (
        {"README.md": "See MOE-9.9.\n"}, "README.md:1: MOE-9.9 is not defined"),
    "a clause defined twice": (
        {SPEC: CLEAN[SPEC] + "\n**MOE-1.1** Again.\n"}, "MOE-1.1 is defined twice"),
    "a clause with an unknown prefix": (
        {SPEC: CLEAN[SPEC] + "\n**FOO-1.1** What?\n"}, "FOO-1.1: no row of the table"),
    "a specification without clauses": ({SPEC: "Nothing.\n"}, "no prefixes or no clauses"),
}


def print_coverage(root):
    tree = lint.Tree(root)
    spec = tree.text(SPEC)
    code, tests = citations(tree, PREFIX_ROW.findall(spec))
    for match in DEFINITION.finditer(spec):
        clause = match.group(1)
        in_code, in_tests = len(code.get(clause, [])), len(tests.get(clause, []))
        print(f"{clause:10} code {in_code:3}  tests {in_tests:3}")


if __name__ == "__main__":
    if "--list" in sys.argv:
        sys.argv.remove("--list")
        print_coverage(sys.argv[sys.argv.index("--root") + 1])
    sys.exit(lint.run(check, CLEAN, PLANTED, __doc__))
