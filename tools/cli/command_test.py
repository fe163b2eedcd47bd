"""assay without a trace: usage, output, size, profiles."""

import pathlib
import subprocess
import unittest

from cli_testing import ASSAY, BAD_INPUT, PLUGIN, UNSUPPORTED, Command, run

FAULTY = str(pathlib.Path(PLUGIN).with_name("faulty_kernels.so"))


class Usage(Command):
    def test_every_wrong_command_line_gets_a_sentence(self):
        for arguments, says in (
                ([], ["no verb", "verify", "replay"]),
                (["frobnicate"], ['"frobnicate"', "replay"]),
                (["trace"], ["info", "convert"]),
                (["trace", "frobnicate"], ['"frobnicate"', "info, convert"]),
                (["--frobnicate", "size"], ['"--frobnicate"']),
                (["size", "--frobnicate"], ['"--frobnicate"', "--case", "--recipe"]),
                (["size", "-x"], ['"-x"']),
                (["size", "surplus"], ['"surplus"']),
                (["size", "--case"], ["--case"]),
                (["size", "--case", "ep=2", "--case", "ep=4"], ["--case"]),
                (["replay"], ["FILE is missing"]),
                (["trace", "info"], ["FILE is missing"]),
                (["trace", "convert", "in.csv"], ["OUT is missing"])):
            with self.subTest(arguments):
                self.refuse(*arguments, says=says)

    def test_help_names_every_verb_and_the_exit_codes(self):
        text = self.succeed("--help")
        for word in ("verify", "replay", "size", "profiles", "trace", "exit codes"):
            self.assertIn(word, text)
        for verb in (["verify"], ["replay"], ["size"], ["profiles"], ["trace", "info"],
                     ["trace", "convert"]):
            self.assertIn("--json", self.succeed(*verb, "--help"))

    def test_version(self):
        self.assertRegex(self.succeed("--version"), r"\Aassay \d+\.\d+\.\d+\n\Z")

    def test_a_full_standard_output_is_noticed(self):
        with open("/dev/full", "w") as full:
            for words in (["size"], ["--help"], ["--version"], ["size", "--help"]):
                result = subprocess.run([ASSAY, *words], stdout=full, stderr=subprocess.PIPE,
                                        text=True)
                self.assertEqual(result.returncode, BAD_INPUT, words)
                self.assertIn("standard output", result.stderr)

    def test_the_exit_code_stands_when_standard_error_is_full(self):
        with open("/dev/full", "w") as full:
            result = subprocess.run([ASSAY, "frobnicate"], stdout=subprocess.PIPE, stderr=full)
        self.assertEqual(result.returncode, BAD_INPUT)

    def test_a_bad_option_of_a_subject_is_no_mismatch(self):
        verify = ("verify", "--suite", "dispatch", "--budget", 0, "--options")
        self.refuse(*verify, "resident_ctas=0", says=["resident_ctas is 0", "1 to"])
        self.assertIn('"ctas"', self.succeed(*verify, "ctas=1", code=UNSUPPORTED))


class Output(Command):
    def test_a_bare_json_flag_does_not_eat_the_word_behind_it(self):
        trace = self.dir / "trace.csv"
        trace.write_text("not a trace\n")
        self.refuse("replay", "--json", trace, "--ep", 2, says="trace.csv")

    def test_json_file_holds_what_json_prints_and_text_is_printed_as_well(self):
        target = self.dir / "size.json"
        text = self.succeed("size", f"--json={target}")
        self.assertEqual(text, self.succeed("size"))
        self.assertEqual(target.read_text(), self.succeed("size", "--json"))
        self.assertEqual(list(self.dir.iterdir()), [target], "no temporary file stays")

    def test_unwritable_output_is_refused_before_the_work(self):
        (self.dir / "file").write_text("")
        (self.dir / "directory").mkdir()
        for target, says in (("missing/x.json", "No such file or directory"),
                             ("file/x.json", "Not a directory"), ("directory", "directory"),
                             ("directory/", "directory"), ("/dev/null", "not a regular file")):
            with self.subTest(target):
                path = target if target.startswith("/") else f"{self.dir}/{target}"
                self.refuse("size", f"--json={path}", says=[path, says])
                # The trace does not exist either: the output is what is looked at first.
                self.refuse("replay", "missing.csv", f"--json={path}", says=[path, says])
                if target != "/dev/null":
                    self.refuse("trace", "convert", "missing.csv", path, says=[path, says])
        self.refuse("size", "--json=", says="--json")


class Size(Command):
    def test_the_published_configuration(self):
        arguments = ("size", "--case", "ep=8 experts=256 top_k=6 hidden=5120 max_tokens=4096",
                     "--recipe", "mxfp8")
        size = self.json(*arguments)
        self.assertEqual(size["per_token"]["dispatch_per_target"], 5328)
        self.assertEqual(size["per_token"]["dispatch_max"], 31968)
        self.assertEqual(size["per_token"]["combine_max"], 61440)
        self.assertEqual(size["per_rank"]["recv_hidden"], 160 << 20)
        self.assertEqual(size["hidden_traffic"]["all_gather"], 8 * 4096 * 5120)
        self.assertEqual(size["hidden_traffic"]["top_k_copies"], 6 * 4096 * 5120)
        text = self.succeed(*arguments)
        self.assertIn("160 MiB", text)
        self.assert_same_fields(text, size)

    def test_nvfp4_is_about_28_percent_of_bf16(self):
        size = self.json("size", "--case", "ep=8 experts=256 top_k=6 hidden=5120 max_tokens=4096",
                         "--recipe", "nvfp4")
        self.assertAlmostEqual(size["per_token"]["dispatch_over_bf16"], 0.28, delta=0.01)

    def test_a_missing_key_takes_the_printed_default(self):
        printed = self.json("size")["case"]
        self.assertEqual(self.json("size", "--case", printed), self.json("size"))
        self.assertIn(printed, self.succeed("size", "--help"))

    def test_bad_sizes(self):
        for case, says in (("ep=0", ["ep is 0", "256"]), ("ep=-1", ["-1", "256"]),
                           ("ep=257", ["257", "256"]), ("ep=two", ['"two"', "256"]),
                           ("ep=8 ep=8", ["ep"]), ("ranks=8", ['"ranks"', "ep"]),
                           ("ep", ["ep"]), ("experts=40000", ["40000", "1 to 3276"]),
                           ("experts=4 ep=8", ["4", "8"]), ("experts=4 top_k=8 ep=2", ["8", "4"]),
                           ("max_tokens=4 tokens=5", ["5", "4"]),
                           ("tokens=1,2,3 ep=2", ["3", "2"]),
                           ("hidden=99999999999999999999", ["99999999999999999999"])):
            with self.subTest(case):
                self.refuse("size", "--case", case, says=says)
        self.refuse("size", "--recipe", "fp4", says=['"fp4"', "nvfp4"])


class Kernels(Command):
    """Somebody's GPU kernels (VER-1.8, VER-20.7): what is wrong is told with or without a GPU."""

    def test_a_benchmark_with_bad_options_begins_nothing(self):
        bench = ("bench", "moe", f"--json={self.dir / 'bench.json'}")
        missing = self.dir / "missing.so"
        for arguments, says in (
                (["--emulated", "--ep", "4", "--batches", "129"], ["129", "--emulated", "256"]),
                (["--kernels", missing], [str(missing), "does not load", "No such file"]),
                (["--kernels", PLUGIN], ["does not export assay_kernels_v1"]),
                (["--kernels", FAULTY, "--kernels-profile", "nope"], ['"nope"', "assay-oneside"]),
                (["--kernels-profile", "assay-oneside"], ["--kernels", "missing"]),
                (["--kernels-options", "pdl=1"], ["--kernels", "missing"])):
            with self.subTest(arguments):
                self.refuse(*bench, *arguments, says=says)

    def test_a_report_does_not_replace_the_library(self):
        library = self.dir / "kernels.so"
        library.write_bytes(pathlib.Path(FAULTY).read_bytes())
        self.refuse("bench", "moe", "--kernels", library, f"--json={library}", says=[str(library)])
        self.refuse("verify", "--subject", f"kernels:{library}", f"--json={library}",
                    says=[str(library)])

    def test_as_a_subject_they_need_a_build_with_cuda(self):
        result = run("verify", "--suite", "rounds", "--subject", "kernels:missing.so")
        self.assertEqual(result.stdout, "")
        if result.returncode == UNSUPPORTED:
            self.assertIn("needs a build with nvcc and NCCL", result.stderr)
        else:
            self.assertEqual(result.returncode, BAD_INPUT)
            self.assertIn("does not load", result.stderr)

    def test_the_help_names_the_spelling(self):
        for verb in (["verify"], ["replay"]):
            self.assertIn("kernels:FILE", self.succeed(*verb, "--help"))


class Profiles(Command):
    def test_text_and_json_have_the_same_fields(self):
        self.assert_same_fields(self.succeed("profiles"), self.json("profiles"))

    def test_one_profile(self):
        names = [profile["name"] for profile in self.json("profiles")["combine"]]
        self.assertGreaterEqual(len(names), 4)
        for name in names:
            chosen = self.json("profiles", "--profile", name)
            self.assertEqual([p["name"] for p in chosen["combine"]], [name])
            self.assertEqual(list(chosen["fields"]), [name])

    def test_an_unknown_profile_is_answered_with_the_names(self):
        for verb in (["profiles"], ["replay", "x.csv"], ["verify"]):
            self.refuse(*verb, "--profile", "flashinfer", says=['"flashinfer"', "assay-oneside"])


if __name__ == "__main__":
    unittest.main()
