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
SKIP = "launcher,suites,random,stress,replay,probe,bench"

# Answers as assay does: JSON by --json=FILE or on standard output, an exit code.
ASSAY = r'''#!@PYTHON@
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
    if name != "@MISSED@":
        document = {"verdict": "MISMATCH", "report": {"mismatches": [{"what": "wrong by 1"}]}}
        code = 1
for word in words:
    if word.startswith("--json="):
        open(word[7:], "w").write(json.dumps(document))
if "--json" in words:
    print(json.dumps(document))
print("ran", " ".join(words), file=sys.stderr)
sys.exit(code)
'''


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

    def check(self, missed="", mutants=True):
        self.program("bin/nvidia-smi", "#!/bin/sh\necho 'NVIDIA H200, 580.1'\n")
        text = ASSAY.replace("@PYTHON@", sys.executable).replace("@MISSED@", missed)
        self.program("build/tools/assay", text)
        if mutants:
            self.program("build/tools/assay_cuda_mutants", text)
        for name in ("attention_gpu_tests", "cuda_emulator_gpu_tests"):
            self.program("build/cuda/" + name, "#!/bin/sh\nexit 0\n")
        done = subprocess.run(
            [sys.executable, SOURCE / "tools/gpu-check", "--build", self.dir / "build", "--out",
             self.dir / "out", "--skip", SKIP, "--quick"],
            env={**os.environ, "PATH": "%s:%s" % (self.dir / "bin", os.environ["PATH"])},
            capture_output=True, text=True, timeout=120)
        return (done.returncode, json.loads((self.dir / "out/gpu-check.json").read_text()),
                done.stdout)

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
        self.assertIn("| vote_not_strict | tie | yes | wrong by 1 |", page)
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

    def test_without_the_mutants_program_the_step_is_left_out(self):
        code, document, _ = self.check(mutants=False)
        self.assertEqual(code, 0)
        self.assertNotIn("attention mutants", document["results"])


if __name__ == "__main__":
    unittest.main()
