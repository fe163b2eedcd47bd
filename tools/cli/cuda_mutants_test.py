"""Mutants of the one-sided kernels on a GPU, as far as that can be seen without one: every mutant
is compiled for CUDA or has a reason, its source can be made, and on the simulated machine its case
tells it from the right kernel. And what a program without wrong CUDA kernels says of them."""

import json
import pathlib
import re
import sys
import tempfile
import unittest

from cli_testing import ASSAY, MISMATCH, OK, Command, run

SOURCE = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(SOURCE / "verify" / "mutants"))
import make_cuda_mutant as cuda  # noqa: E402
from make_mutant import MutantError, parse  # noqa: E402

# Elements of all rows of a case. A few cases need large rows, so that sending one lasts: half a
# minute on the simulated machine.
ELEMENTS_MAX = 1_000_000


def elements(case):
    key = {k: int(v) for k, v in re.findall(r"\b(ep|top_k|hidden|tokens|rounds)=(\d+)", case)}
    return key["ep"] * key["tokens"] * key["top_k"] * key["hidden"] * key["rounds"]


class CudaMutants(Command):
    """The part of SPEC VER-4.4 that is about GPUs."""

    def test_every_mutant_is_on_cuda_or_has_a_reason(self):
        rows = cuda.mutants_on_cuda()
        files = {path.stem for path in (SOURCE / "verify/mutants").glob("*.mutant")}
        self.assertEqual(set(rows), files)
        built = set(re.findall(r"^  '(\w+)',$",
                               (SOURCE / "verify/mutants/meson.build").read_text(), re.M))
        self.assertEqual(built, {name for name, row in rows.items() if not row.not_built})
        for row in rows.values():
            self.assertTrue(row.not_built or row.check, row)

    def test_a_table_that_leaves_one_out_is_refused(self):
        mutant = "title: t\nclause: KER-1.1\ncaught-by: progress\nkernels: dispatch\n---\n@@ a\n" \
                 "<<<<\nb\n====\nc\n>>>>\n"
        case = "suite: dispatch\ncase: ep=1 top_k=1\n"
        for table, says in (("mutants: other\n" + case, "'other' is no mutant"),
                            ("", "nothing is said of ['one']"),
                            ("mutants: one one\n" + case, "comes twice"),
                            ("mutants: one\nsuite: dispatch\n", "needs suite and case"),
                            ("mutants: one\n" + case + "gpus: 2\n", "no why"),
                            ("mutants: one\n" + case + "profile: paper\n", "'paper'"),
                            ("mutants: one\nspeed: 3\n" + case, "'speed: 3'")):
            with self.subTest(says), tempfile.TemporaryDirectory() as directory:
                folder = pathlib.Path(directory)
                (folder / "one.mutant").write_text(mutant)
                (folder / cuda.TABLE).write_text(table)
                with self.assertRaises(MutantError) as refused:
                    cuda.mutants_on_cuda(folder)
                self.assertIn(says, str(refused.exception))

    def test_sources_can_be_made(self):
        out = self.dir / "mutant.cu"
        for name, row in cuda.mutants_on_cuda().items():
            if row.not_built:
                continue
            with self.subTest(name):
                cuda.write_body(SOURCE / f"verify/mutants/{name}.mutant", SOURCE, out)
                text = out.read_text()
                self.assertIn(f"inline namespace mutant_{name} {{", text)
                self.assertIn(f"kCudaMutant_{name}{{", text)
                self.assertEqual(text.count("return {pointer<"), 1)
        cuda.write_table(SOURCE, out)
        self.assertIn("&kCudaMutant_dedup_missing", out.read_text())
        self.assertIn('{"order_no_release", "', out.read_text())

    def test_profiles_mean_the_sums_that_are_compiled(self):
        profiles = {row["name"]: row["variant"]
                    for row in json.loads(self.succeed("profiles", "--json"))["combine"]}
        for name, variant in cuda.PROFILE_VARIANTS.items():
            self.assertEqual(profiles[name], variant)

    def test_on_the_simulated_machine_each_case_tells_its_mutant_from_the_right_kernel(self):
        judged, checked = {}, 0
        for name, row in cuda.mutants_on_cuda().items():
            if row.not_built or elements(row.case) > ELEMENTS_MAX:
                continue
            head, _ = parse(SOURCE / f"verify/mutants/{name}.mutant")
            command = row.command(ASSAY, "sim", "")[1:]
            with self.subTest(name):
                words = tuple(command)
                if words not in judged:
                    judged[words] = run(*command).returncode
                self.assertEqual(judged[words], OK)
                wrong = run(*command, "--mutant", name)
                self.assertEqual(wrong.returncode, MISMATCH, wrong.stdout + wrong.stderr)
                report = json.loads(wrong.stdout)["report"]
                self.assertIn(head["caught-by"], {m["check"] for m in report["mismatches"]})
                checked += 1
        self.assertGreaterEqual(checked, 54)

    def test_this_program_holds_none(self):
        self.refuse("verify", "--suite", "dispatch", "--subject", "cuda", "--mutant",
                    "dedup_missing",
                    says=['"dedup_missing"', "no wrong CUDA kernel", "assay_cuda_mutants"])
        self.refuse("verify", "--suite", "dispatch", "--subject", "plugin:x.so", "--mutant",
                    "dedup_missing", says=['"dedup_missing"', "plugin:x.so"])


if __name__ == "__main__":
    unittest.main()
