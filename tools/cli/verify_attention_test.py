"""assay verify --suite attention: the table, mutants, a plugin, cases and refusals."""

import pathlib
import re
import shlex
import unittest

from cli_testing import MISMATCH, OK, PLUGIN, UNSUPPORTED, Command

ATTENTION_PLUGIN = pathlib.Path(PLUGIN).with_name("example_attention_plugin.so")
SUITE = ("verify", "--budget", 0, "--suite")


class Table(Command):
    def test_one_column_and_one_row(self):
        table = self.json(*SUITE, "attention.tie")
        self.assertEqual(table["verdict"], "CONFORMS")
        states = {cell["profile"]: cell["state"] for cell in table["table"]}
        self.assertEqual(states["modelopt-pytorch"], "violated")
        self.assertEqual(states["assay-prefill-sm90"], "holds")
        self.assertEqual(states["fa3-dense-sm90"], "not_applicable")
        for cell in table["table"]:
            if cell["state"] != "not_applicable":
                self.assertTrue(cell["turned_by"], cell)
        text = self.succeed(*SUITE, "attention.tie")
        self.assertIn("skip.strict = false (ATT-4.3)", text)
        self.assertRegex(text, r"(?m)^tie +(\+ +){10}- +(\+ +){3}\. ")

    def test_a_profile_alone(self):
        table = self.json(*SUITE, "attention.padding_vote", "--profile", "trtllm-fmha_v2-sm90")
        self.assertEqual([cell["state"] for cell in table["table"]], ["violated"])
        self.assertEqual(table["violated_by_design"], 1)

    def test_refusals(self):
        for arguments, says in (
                (["attention.unity"], ['"unity"', "one_hot"]),
                (["attention", "--profile", "x"], ['"x"', "paper"]),
                (["attention", "--mutant", "x"], ['"x"', "not_strict"]),
                (["attention", "--subject", "gpu"], ['"gpu"', "plugin:FILE"]),
                (["attention", "--case", "q=1 kv=1"], ["attention.ones"]),
                (["attention.ones", "--case", "tokens=1"], ['"tokens"', "kv"]),
                (["attention.ones", "--case", "q=1,2 kv=1"], ["equally many"]),
                (["attention", "--recipe", "bf16"], ["--recipe"]),
                (["attention", "--options", "a=1"], ["--options"]),
                (["attention", "--subject", f"plugin:{PLUGIN}", "--profile", "paper"],
                 ["assay_attention_subject_v1"]),
                (["attention", "--subject", f"plugin:{ATTENTION_PLUGIN}"], ["--profile"]),
                (["attention", "--mutant", "not_strict", "--subject", "plugin:x"],
                 ["not_strict", "plugin:x"])):
            with self.subTest(arguments):
                self.refuse(*SUITE, *arguments, says=says)


    def test_help_has_the_keys_of_a_case_and_their_defaults(self):
        text = " ".join(self.succeed("verify", "--help").split())
        for part in ("kv (keys of each request)", "window:N or chunked:N", "factor",
                     "dtype=BF16 heads=1/1 dim=96/32 q=128 kv=512 mask=full", "kernel=prefill"):
            self.assertIn(part, text)


class Mutants(Command):
    def test_a_mutant_is_caught_and_its_repro_line_repeats_it(self):
        text = self.succeed(*SUITE, "attention.tie", "--mutant", "not_strict", code=MISMATCH)
        self.assertIn("MISMATCH   attention.tie (ATT-4.3)", text)
        self.assertIn("lambda = 1: tile 2 equals the maximum and was left out", text)
        repro = re.search(r"(?m)^REPRO: +assay (.*)$", text).group(1)
        words = shlex.split(repro)
        self.assertIn("--case", words)
        again = self.succeed(*words, code=MISMATCH)
        self.assertIn("lambda = 1: tile 2 equals the maximum and was left out", again)

    def test_bits_alone_are_told_too(self):
        report = self.json(*SUITE, "attention.truth", "--mutant", "rz_for_rn",
                           code=MISMATCH)["report"]
        first = report["mismatches"][0]
        self.assertIn("row", first["first"])
        self.assertIn("got_bits", first["values"])


class Plugin(Command):
    SUBJECT = ("--subject", f"plugin:{ATTENTION_PLUGIN}", "--profile")

    def test_the_example_conforms_to_its_profile_and_no_other(self):
        table = self.json(*SUITE, "attention.trace", *self.SUBJECT, "modelopt-triton")
        self.assertEqual((table["verdict"], table["holds"]), ("CONFORMS", 1))
        self.succeed(*SUITE, "attention.trace", *self.SUBJECT, "assay-prefill-sm90",
                     code=UNSUPPORTED)
        text = self.succeed(*SUITE, "attention.truth", *self.SUBJECT, "aiter-triton-mi300",
                            code=MISMATCH)
        self.assertIn(f"--subject plugin:{ATTENTION_PLUGIN}", text)

    def test_a_case_of_a_line(self):
        self.succeed("verify", "--suite", "attention.ones", *self.SUBJECT, "modelopt-triton",
                     "--case", "q=64,1 kv=300,17 heads=4/2 dim=64 mask=causal lambda=0.02 "
                     "contrast=8 seed=7 dtype=BF16", code=OK)

    def test_a_case_that_shows_nothing_says_so(self):
        line = "q=1 kv=1 lambda=0.5"
        for subject in (self.SUBJECT, ("--profile",)):
            command = (*SUITE, "attention.trace", *subject, "modelopt-triton", "--case", line)
            told = self.json(*command, code=MISMATCH)
            self.assertEqual((told["verdict"], told["mistrusted"]), ("MISTRUSTED", 1))
            self.assertEqual(told["report"]["reasons"], ["no tile was skipped"])
            self.assertIn("--case", told["report"]["repro"])
            self.json(*command, "--allow-vacuous")

    def test_what_a_profile_does_not_promise_is_not_run(self):
        table = self.json(*SUITE, "attention.nan_seen", *self.SUBJECT, "modelopt-triton",
                          code=UNSUPPORTED)
        self.assertEqual(table["table"][0]["state"], "not_promised")
        self.assertEqual(table["table"][0]["cases"], 0)


if __name__ == "__main__":
    unittest.main()
