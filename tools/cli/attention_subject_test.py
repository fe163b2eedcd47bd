"""Subjects of attention beside sim: check --subject, the CUDA subject, long problems and the
benchmark; arguments, refusals, and what a machine without a GPU says."""

import pathlib
import unittest

from attention_testing import FACTOR, OURS, TRITON, Attention, padded
from cli_testing import MISMATCH, PLUGIN, UNSUPPORTED, Command, run

SUITE = ("verify", "--budget", 0, "--suite")


def no_gpu():
    """What the CUDA subject says where it cannot run; None on a machine with such a GPU."""
    result = run(*SUITE, "attention.ones", "--subject", "cuda")
    return result.stderr if result.returncode == UNSUPPORTED and not result.stdout else None


class Subjects(Attention):
    """Outputs of a subject that is run on the inputs (VER-25.7)."""

    PLUGIN = f"plugin:{pathlib.Path(PLUGIN).with_name('example_attention_plugin.so')}"

    def test_a_plugin_is_run_on_the_inputs_and_judged(self):
        made = self.write("in.safetensors", padded())
        common = ("check", "attention", "--in", made, "--subject", self.PLUGIN, *FACTOR,
                  "--profile")
        text = self.succeed(*common, TRITON)
        self.assertIn("CONFORMS", text)
        self.assertIn(f"--subject {self.PLUGIN}", text)
        report = self.json(*common, "aiter-triton-mi300", code=MISMATCH)["report"]
        self.assertTrue(report["mismatches"])
        # It declines what it does not serve.
        self.succeed(*common, OURS, code=UNSUPPORTED)

    def test_refusals(self):
        made = self.write("in.safetensors", padded())
        common = ("check", "attention", "--in", made, "--profile", OURS)
        for name in ("sim", "gpu"):
            self.refuse(*common, "--subject", name,
                        says=[f'"{name}"', "allowed are cuda and plugin:FILE"])
        self.refuse(*common, "--subject", self.PLUGIN, "--got", made, says=["--got", "--subject"])
        if no_gpu() is not None:
            told = self.refuse(*common, "--subject", "cuda", code=UNSUPPORTED,
                               says=['"cuda" needs', "allowed here is plugin:FILE"])
            self.assertNotIn("sim", told)  # which it refuses
        self.refuse(*common, says="--got is missing")
        self.refuse(*common[:-1], "any", "--subject", self.PLUGIN, says="any")
        self.refuse("check", "mufu", "--in", made, "--subject", self.PLUGIN, says="--subject")


class Bench(Command):
    def test_refusals(self):
        for arguments, says in (
                (["--lengths", "1"], ["--lengths", "128"]),
                (["--lengths", "16384,x"], ["--lengths"]),
                (["--dtypes", "bf16,int8"], ['"int8"', "fp8"]),
                (["--head-dim", "96"], ["--head-dim is 96", "64, 128 and 256"]),
                (["--head-dim", "64", "--dtypes", "bf16,fp8"], ["fp8", "--head-dim 64"]),
                (["--variants", "--dtypes", "fp16,fp8"], ["--variants", "bf16"]),
                (["--variants", "--head-dim", "256"], ["--variants", "--head-dim 128"]),
                (["--repeats", "0"], ["--repeats"]),
                (["--peer-time", "0"], ["--peer-time"]),
                (["--model", "x"], ["--model"])):
            with self.subTest(arguments):
                self.refuse("bench", "attention", *arguments, says=says)

    @unittest.skipIf(no_gpu() is None, "there is a GPU")
    def test_without_a_gpu(self):
        result = run("bench", "attention", "--quick")
        self.assertEqual((result.returncode, result.stdout), (UNSUPPORTED, ""))
        self.assertRegex(result.stderr, r"GPU|nvcc")


class Cuda(Command):
    @unittest.skipIf(no_gpu() is None, "there is a GPU")
    def test_without_a_gpu(self):
        self.assertRegex(no_gpu(), r'\Aassay: subject "cuda" needs [^\n]+\n\Z')
        self.assertIn("allowed here are sim and plugin:FILE", no_gpu())
        told = self.refuse(*SUITE, "attention.long", "--subject", "cuda", says='"cuda" needs',
                           code=UNSUPPORTED)
        self.assertNotRegex(told, "sim|plugin")  # which it refuses

    def test_refusals(self):
        """What is spelled wrong is told whether or not there is a GPU."""
        for suite, arguments, says in (
                ("nope", [], ['"nope"', "one_hot"]),
                ("longer", [], ['"longer"', "one_hot"]),
                ("ones", ["--profile", "nope"], ['"nope"', "paper"]),
                ("ones", ["--mutant", "nope"], ['"nope"', "CUDA"]),
                ("ones", ["--case", "tokens=1"], ['"tokens"']),
                ("ones", ["--budget", "xyz"], ["--budget", '"xyz"']),
                ("long", ["--case", "length=1"], ["length"]),
                ("long", ["--profile", "paper"], ["paper"]),
                ("long", ["--recipe", "bf16"], ["--recipe"]),
                ("long", ["--budget", "xyz", "--seed", "-4"], ["--budget", '"xyz"']),
                ("long", ["--seed", "-4"], ["--seed", '"-4"']),
                ("long", ["--profile", "assay-decode-sm90", "--case", "kernel=prefill"],
                 ["assay-decode-sm90", "kernel=prefill"]),
                ("long", ["--profile", "assay-prefill-sm90", "--case", "kernel=decode"],
                 ["assay-prefill-sm90", "kernel=decode"]),
                ("long", ["--mutant", "nope"], ['"nope"', "CUDA"])):
            with self.subTest(suite, arguments=arguments):
                self.refuse("verify", "--suite", f"attention.{suite}", "--subject", "cuda",
                            *arguments, says=says)
        self.refuse(*SUITE, "attention.long", says=["--subject cuda", '"sim"'])


if __name__ == "__main__":
    unittest.main()
