"""tools/gpu-check without a GPU: stand-ins for the programs that it runs, and what it makes of what
they say."""

import json
import os
import pathlib
import stat
import subprocess
import sys
import tempfile
import unittest

SOURCE = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(SOURCE / "verify" / "mutants"))
from make_cuda_mutant import mutants_on_cuda  # noqa: E402

SKIP = "launcher,suites,mutants,random,stress,replay,probe,bench"
ONE_SIDED = SKIP.replace("mutants", "attention,attention-bench")

# Answers as assay does: JSON by --json=FILE or on standard output, an exit code.
ASSAY = r'''#!@PYTHON@ -ISE
import json, sys
words = sys.argv[1:]
document, code = {"verdict": "CONFORMS"}, 0
if "bench" in words:
    row = {"dtype": "BF16", "tflops": 612.25}
    document = {"repro": "assay bench attention", "ceilings": [row], "rows": [row], "peers": [row],
                "peers_missing": [{"peer": "flashinfer", "reason": "cannot be imported"}],
                "peer_notes": []}
if "--mutant" in words:
    name = words[words.index("--mutant") + 1]
    profile = "assay-decode-sm90" if name.startswith("decode_") else "assay-prefill-sm90"
    if name in @CHECKS@:  # one suite: its verdict is the report's
        document, code = {"report": {"verdict": "MISMATCH", "mismatches": [
            {"check": "memory.bounds", "what": "wrong by 3"},
            {"check": @CHECKS@[name], "what": "wrong by 2"}]}}, 1
        if name == "@MISSED@":
            document["report"]["mismatches"].pop()
    elif name != "@MISSED@" and profile in words:
        document = {"verdict": "MISMATCH", "report": {"mismatches": [{"what": "wrong by 1"}]}}
        code = 1
elif "@SPOILT@" and all(word in words for word in "@SPOILT@".split()):
    document, code = {"verdict": "MISMATCH", "report": {"mismatches": [{"what": "wrong"}]}}, 1
for word in words:
    if word.startswith("--json="):
        open(word[7:], "w").write(json.dumps(document))
if "--json" in words:
    print(json.dumps(document))
print("ran", " ".join(words), file=sys.stderr)
sys.exit(code)
'''


PASSING = "#!/bin/sh\necho 'All tests passed (9 assertions in 2 test cases)'\n"


class GpuCheck(unittest.TestCase):
    def setUp(self):
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.dir = pathlib.Path(directory.name)

    def program(self, name, text):
        path = self.dir / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        path.chmod(path.stat().st_mode | stat.S_IXUSR)

    # `tests`: what attention's own tests do; `spoilt`: a property that a kernel itself breaks, and
    # its profile, as words of a command.
    def check(self, missed="", mutants=True, tests=PASSING, skip=SKIP, spoilt="", gpus=1):
        self.program("bin/nvidia-smi", "#!/bin/sh\n" + "echo 'NVIDIA H200, 580.1'\n" * gpus)
        checks = {name: row.check for name, row in mutants_on_cuda().items() if row.check}
        text = (ASSAY.replace("@PYTHON@", sys.executable).replace("@MISSED@", missed)
                .replace("@SPOILT@", spoilt).replace("@CHECKS@", repr(checks)))
        self.program("build/tools/assay", text)
        if mutants:
            self.program("build/tools/assay_cuda_mutants", text)
        for name in ("attention_gpu_tests", "cuda_emulator_gpu_tests"):
            self.program("build/cuda/" + name, tests)
        done = subprocess.run(
            [sys.executable, SOURCE / "tools/gpu-check", "--build", self.dir / "build", "--out",
             self.dir / "out", "--skip", skip, "--quick"],
            env={**os.environ, "PATH": "%s:%s" % (self.dir / "bin", os.environ["PATH"])},
            capture_output=True, text=True, timeout=120)
        file = self.dir / "out/gpu-check.json"
        text = file.read_text() if file.exists() else ""
        return done.returncode, json.loads(text or "null"), done.stdout + done.stderr

    def test_attention_steps(self):
        code, document, page = self.check()
        self.assertEqual(code, 0, page)
        steps = {step["name"]: step["verdict"] for step in document["steps"]}
        mutants = list((SOURCE / "verify/mutants/attention").glob("*.mutant"))
        for name in ("attention kernels", "attention suites", "attention long", "bench attention",
                     "attention mutants (%d)" % len(mutants)):
            self.assertEqual(steps.get(name), "passed", steps)
        rows = document["results"]["attention mutants"]
        self.assertEqual({row["found"] for row in rows}, {"yes"})
        self.assertEqual(len(rows), len(mutants))
        for name, kernel in (("", "prefill"), ("decode_", "decode")):
            self.assertIn("| %svote_not_strict | assay-%s-sm90 | tie | MISMATCH | yes | wrong by 1"
                          % (name, kernel), page)
        self.assertIn("612.2", page)
        self.assertIn("cannot be imported", page)
        commands = " ".join(step["command"] for step in document["steps"])
        self.assertIn("--suite attention.long --subject cuda --case heads=8/1", commands)
        self.assertIn("--peers", commands)

    def test_a_mutant_that_nobody_finds_fails_the_run(self):
        code, document, page = self.check(missed="sum_order")
        self.assertEqual(code, 1)
        self.assertIn("not found: sum_order", page)
        row = next(r for r in document["results"]["attention mutants"] if r["found"] == "no")
        self.assertEqual(row["what"], "CONFORMS")

    def test_a_property_that_the_kernel_itself_breaks_finds_no_mutant(self):
        code, document, _ = self.check(spoilt="attention.tie assay-decode-sm90")
        self.assertEqual(code, 1)
        rows = {row["mutant"]: row for row in document["results"]["attention mutants"]}
        row = rows["decode_vote_not_strict"]
        self.assertEqual((row["found"], row["what"]), ("no", "without a mutant: wrong"))
        self.assertEqual(rows["vote_not_strict"]["found"], "yes")  # another kernel's control

    def test_mutants_of_dispatch_and_combine(self):
        code, document, page = self.check(skip=ONE_SIDED, gpus=2)
        self.assertEqual(code, 0, page)
        files = {path.stem for path in (SOURCE / "verify/mutants").glob("*.mutant")}
        rows = {row["mutant"]: row for row in document["results"]["mutants"]}
        self.assertEqual(set(rows), files)
        for name, where in mutants_on_cuda().items():
            with self.subTest(name):
                row = rows[name]
                if where.not_built:
                    self.assertEqual((row["verdict"], row["found"]), ("not run", ""))
                    self.assertIn(where.not_built, row["what"])
                else:
                    self.assertEqual((row["verdict"], row["found"], row["what"]),
                                     ("MISMATCH", "yes", "wrong by 2"))
                    self.assertGreaterEqual(row["seconds"], 0)
        self.assertIn("| dedup_missing | duplicates | dispatch.targets | MISMATCH | yes |", page)
        self.assertEqual(document["steps"][-1]["verdict"], "passed")

    def test_mutants_that_are_not_found_or_do_not_run(self):
        code, document, page = self.check(missed="slot_off_by_one", spoilt="combine_fp8",
                                          skip=ONE_SIDED)
        self.assertEqual(code, 1)
        self.assertIn("not found: slot_off_by_one, stage_truncates", page)
        rows = {row["mutant"]: row for row in document["results"]["mutants"]}
        missed = {name: row["what"] for name, row in rows.items() if row["found"] == "no"}
        self.assertEqual(missed, {"slot_off_by_one": "by another check: wrong by 3",
                                  "stage_truncates": "without a mutant: wrong"})
        self.assertEqual(rows["dispatch_does_not_wait"]["what"], "needs 2 GPUs")
        ran = [row for row in rows.values() if row["found"]]
        self.assertIn("mutants (%d of %d)" % (len(ran), len(rows)), page)

    def test_one_process_that_fails_among_others_without_a_device_fails_the_step(self):
        tests = ("#!/bin/sh\ncase $ASSAY_ATTENTION_CASES in 0:*) echo wrong bits; exit 1;; "
                 "*) exit 77;; esac\n")
        code, document, _ = self.check(tests=tests, mutants=False)
        self.assertEqual(code, 1)
        step = next(s for s in document["steps"] if "random problems" in s["name"])
        self.assertEqual(step["verdict"], "FAILED")
        self.assertIn("wrong bits", step["output"])

    def test_tests_that_did_not_run_have_not_passed(self):
        code, document, _ = self.check(tests="#!/bin/sh\necho 'No test cases matched'\n",
                                       mutants=False)
        self.assertEqual(code, 1)

    def test_names_of_steps_are_checked_and_nothing_is_no_success(self):
        code, _, said = self.check(skip="atention")
        self.assertEqual(code, 2)
        self.assertIn("'atention'", said)
        code, _, said = self.check(skip=ONE_SIDED + ",mutants")
        self.assertEqual(code, 3)
        self.assertIn("nothing ran", said)

    def test_without_the_mutants_program_the_step_is_left_out(self):
        code, document, _ = self.check(mutants=False)
        self.assertEqual(code, 0)
        self.assertNotIn("attention mutants", document["results"])
        code, document, _ = self.check(mutants=False, skip=ONE_SIDED + ",attention")
        self.assertEqual(code, 3)  # nothing else was asked


if __name__ == "__main__":
    unittest.main()
