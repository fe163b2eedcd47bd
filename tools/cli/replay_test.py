"""assay replay and assay verify, with right and wrong subjects."""

import os
import pty
import resource
import shlex
import subprocess
import unittest

from cli_testing import (ASSAY, Command, MISMATCH, OK, PLUGIN, SAMPLE, UNSUPPORTED, limits_memory,
                         run, trace_bytes)


class Replay(Command):
    STEPS = ("--steps", "0:4", "--layers", "0:3")

    def test_the_sample_conforms_at_any_number_of_ranks(self):
        for ep in (1, 2, 5, 8, 32):
            result = self.json("replay", SAMPLE, "--ep", ep, *self.STEPS)
            self.assertEqual((result["rounds"], result["mismatches"]), (12, 0))
            self.assertEqual(result["report"]["verdict"], "CONFORMS")
            self.assertLessEqual(result["ranks_per_token"], min(ep, 4))
            for fraction in ("empty_pairs", "empty_ranks"):
                self.assertTrue(0 <= result[fraction] <= 1)

    def test_text_and_json_have_the_same_fields(self):
        def without_times(value):
            return {k: v for k, v in value.items() if k not in ("seconds", "report")}
        for more in ([], ["--mutant", "dedup_keeps_last"]):
            arguments = ("replay", SAMPLE, "--ep", 8, *self.STEPS, *more)
            code = MISMATCH if more else OK
            self.assert_same_fields(self.succeed(*arguments, code=code),
                                    without_times(self.json(*arguments, code=code)))

    def test_results_do_not_depend_on_the_number_of_jobs(self):
        def result(jobs):
            found = self.json("replay", SAMPLE, *self.STEPS, "--jobs", jobs)
            del found["seconds"]
            return found
        self.assertEqual(result(1), result(3))

    def test_a_mutant_is_found_and_its_repro_line_finds_it_again(self):
        text = self.succeed("replay", SAMPLE, *self.STEPS, "--mutant", "dedup_keeps_last",
                            code=MISMATCH)
        self.assertTrue(text.startswith("MISMATCH"))
        repro = next(l for l in text.splitlines() if l.startswith("REPRO"))
        words = shlex.split(repro)[1:]
        self.assertEqual(words[:2], ["assay", "replay"])
        again = self.succeed(*words[1:], code=MISMATCH)
        first = next(l for l in text.splitlines() if l.startswith("FIRST"))
        self.assertIn(first, again)

    def test_a_plugin(self):
        result = self.json("replay", SAMPLE, *self.STEPS, "--subject", f"plugin:{PLUGIN}")
        self.assertEqual((result["rounds"], result["mismatches"]), (12, 0))

    def test_what_no_subject_serves_is_unsupported_and_says_why(self):
        result = run("replay", SAMPLE, *self.STEPS, "--subject", f"plugin:{PLUGIN}",
                     "--profile", "flashinfer-oneside@0.6.0")
        self.assertEqual(result.returncode, UNSUPPORTED, result.stdout + result.stderr)
        self.assertIn("UNSUPPORTED", result.stdout)

    def test_a_trace_without_a_pick_is_mistrusted(self):
        path = self.dir / "none.safetensors"
        path.write_bytes(trace_bytes(ids=(-1, -1, -1, -1), weights=(0, 0),
                                     metadata={"padding": "-1"}))
        text = self.succeed("replay", path, "--ep", 2, code=MISMATCH)
        self.assertTrue(text.startswith("MISTRUSTED"), text)
        self.succeed("replay", path, "--ep", 2, "--allow-vacuous")

    def test_bad_options(self):
        for arguments, says in (
                (["--ep", 0], ["--ep is 0", "1 to 256"]),
                (["--ep", -1], ["--ep is", "-1", "1 to 256"]),
                (["--ep", 257], ["--ep is 257", "256"]),
                (["--ep", "many"], ['"many"', "256"]),
                (["--ep", 33], ["33", "32"]),
                (["--recipe", "int4"], ['"int4"', "mxfp8"]),
                (["--subject", "gpu"], ['"gpu"', "sim"]),
                (["--subject", "plugin:/nonexistent.so"], ["/nonexistent.so"]),
                (["--mutant", "none"], ['"none"', "dedup_keeps_last"]),
                (["--mutant", ""], ['""', "dedup_keeps_last"]),
                (["--placement", "random"], ['"random"', "round_robin"]),
                (["--steps", "3"], ["--steps", '"3"', "a:b"]),
                (["--steps", "4:4"], ["--steps", "a < b"]),
                (["--steps", "900:"], ["900", "127"]),
                (["--layers", "0:13"], ["13", "11"]),
                (["--hidden", 0], ["--hidden is 0"]),
                (["--hidden", 2000000], ["2000000", "1048576"]),
                (["--max-tokens", 3], ["max_tokens is 3", "8 tokens"]),
                (["--jobs", 0], ["--jobs is 0"]),
                (["--seed", -1], ["--seed"])):
            with self.subTest(arguments):
                self.refuse("replay", SAMPLE, *arguments, says=says)

    def test_progress_is_shown_on_a_terminal_and_wiped(self):
        try:
            controller, terminal = pty.openpty()
        except OSError as error:  # as in a container without /dev/pts
            self.skipTest("no terminal can be made: %s" % error)
        result = subprocess.run([ASSAY, "replay", SAMPLE, *self.STEPS], stdout=subprocess.PIPE,
                                stderr=terminal, text=True, timeout=300)
        os.close(terminal)
        shown = os.read(controller, 1 << 16).decode()
        os.close(controller)
        self.assertEqual(result.returncode, OK)
        self.assertIn("of 12 rounds", shown)
        self.assertTrue(shown.endswith("\r\x1b[K"))


class Verify(Command):
    def test_one_suite_conforms(self):
        suite = self.json("verify", "--suite", "dispatch", "--budget", 0)
        self.assertEqual(suite["report"]["verdict"], "CONFORMS")

    def test_a_mutant_is_found_and_its_repro_line_finds_it_again(self):
        text = self.succeed("verify", "--suite", "dispatch", "--budget", 0,
                            "--mutant", "slot_off_by_one", code=MISMATCH)
        repro = next(l for l in text.splitlines() if l.startswith("REPRO"))
        again = self.succeed(*shlex.split(repro)[2:], code=MISMATCH)
        first = next(l for l in text.splitlines() if l.startswith("FIRST"))
        self.assertIn(first, again)

    def test_bad_options(self):
        for arguments, says in (
                (["--suite", "everything"], ['"everything"', "dispatch"]),
                (["--case", "ep=0"], ["ep is 0"]),
                (["--case", "max_tokens=4 tokens=5"], ["5", "4"]),
                (["--budget", -1], ["--budget"]),
                (["--mutant", "slot_off_by_one", "--subject", f"plugin:{PLUGIN}"], ["mutant"])):
            with self.subTest(arguments):
                self.refuse("verify", *arguments, says=says)


class Memory(Command):
    @limits_memory
    def test_too_little_memory_is_a_sentence_and_never_a_crash(self):
        codes = set()
        for megabytes in (60, 120, 180, 240, 300, 400, 600):
            limit = megabytes << 20
            result = run("replay", SAMPLE, "--ep", 32, "--jobs", 32,
                         preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (limit, limit)))
            if result.returncode == 127:  # not even its libraries fit
                continue
            codes.add(result.returncode)
            self.assertIn(result.returncode, (OK, UNSUPPORTED), (megabytes, result.stderr))
        self.assertIn(UNSUPPORTED, codes)


if __name__ == "__main__":
    unittest.main()
