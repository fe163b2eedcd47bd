"""assay explore: protocols under adversarial schedules, mutants, schedules that replay."""

import json
import resource
import shlex
import unittest

from cli_testing import Command, MISMATCH, SAMPLE, limits_memory, run


class Explore(Command):
    SMALL = ("--case", "rounds=1")

    def test_both_protocols_come_through_their_searches(self):
        for protocol in ("fence", "sentinel"):
            result = self.json("explore", protocol)
            self.assertEqual(result["verdict"], "CONFORMS")
            self.assertEqual([row["search"] for row in result["searches"]],
                             ["a", "d", "b", "b1", "c", "g", "h"])
            for row in result["searches"]:
                self.assertTrue(row["exhausted"])
                self.assertTrue(row["control"], "a search that catches no mutant proves nothing")

    def test_text_and_json_have_the_same_fields(self):
        def without_times(value):
            del value["searches"][0]["seconds"]
            return value
        arguments = ("explore", "fence", *self.SMALL)
        self.assert_same_fields(self.succeed(*arguments), without_times(self.json(*arguments)))

    def test_every_scheduler_and_boundary(self):
        for scheduler in ("random", "pct", "bounded", "exhaustive"):
            for boundary in ("ptx", "flush", "pdl"):
                result = run("explore", "fence", *self.SMALL, "--scheduler", scheduler,
                             "--boundary", boundary, "--budget", "50", "--json")
                found = json.loads(result.stdout)
                # Fifty executions are not all with two preemptions, and the verdict says so.
                verdict = "MISTRUSTED" if scheduler == "bounded" else "CONFORMS"
                self.assertEqual((found["verdict"], found["scheduler"], found["boundary"]),
                                 (verdict, scheduler, boundary))

    def test_a_mutant_is_found_and_its_repro_line_finds_it_again(self):
        for mutant in ("DispatchRelease.drop", "CombineAcquire.gpu", "order_no_acquire"):
            result = self.json("explore", "fence", "--mutant", mutant, code=MISMATCH)
            found = result["counterexample"]
            self.assertEqual(found["check"], "explore.complete")
            words = shlex.split(found["repro"])
            self.assertEqual(words[:3], ["assay", "explore", "fence"])
            again = self.json(*words[1:], code=MISMATCH)
            self.assertEqual(again["finding"], found["finding"])
            self.assertEqual(again["schedule"], found["schedule"])

    def test_one_generation_fewer_fails(self):
        result = self.json("explore", "sentinel", "--mutant", "one_generation", code=MISMATCH)
        self.assertEqual(result["verdict"], "MISMATCH")

    def test_a_counterexample_opens_in_perfetto(self):
        path = self.dir / "trace.json"
        self.succeed("explore", "fence", "--mutant", "DispatchRelease.drop", "--perfetto", path,
                     code=MISMATCH)
        self.assertTrue(json.loads(path.read_text())["traceEvents"])

    def test_a_captured_step_under_1000_random_weak_schedules(self):
        for protocol in ("fence", "sentinel"):
            result = self.json("explore", protocol, "--routing", SAMPLE, "--ep", 4, "--hidden", 8,
                               "--steps", "0:1", "--layers", "0:1", "--scheduler", "random",
                               "--budget", 1000, "--jobs", 2)
            self.assertEqual(result["verdict"], "CONFORMS")
            self.assertEqual(result["searches"][0]["executions"], 1000)

    def test_the_table_of_mutants(self):
        table = self.json("explore", "fence", "--mutants")
        self.assertEqual(table["verdict"], "CONFORMS")
        self.assertGreaterEqual(table["fence"]["killed"], 25)
        self.assertEqual(table["fence"]["survived"], 0)
        for row in table["fence"]["mutants"]:
            shown = row["schedule"] if row["fate"] == "killed" else row["remark"]
            self.assertTrue(shown, row)

    def test_a_search_that_misses_every_missing_order_is_mistrusted(self):
        result = self.json("explore", "fence", "--case", "ep=1 experts=1 top_k=1 rounds=1 tokens=0",
                           code=MISMATCH)
        self.assertEqual(result["verdict"], "MISTRUSTED")
        self.assertIn("catches no ordering mutant", result["reasons"][0])

    def test_bad_options(self):
        for arguments, says in (
                ([], ["PROTOCOL", "fence, sentinel"]),
                (["barrier"], ['"barrier"', "fence, sentinel"]),
                (["fence", "--scheduler", "lucky"], ['"lucky"', "random, pct, bounded"]),
                (["fence", "--boundary", "none"], ['"none"', "ptx, flush, pdl"]),
                (["fence", "--budget", "0"], ['"0"', "60s"]),
                (["fence", "--budget", "soon"], ['"soon"', "10000"]),
                (["fence", "--mutant", "DispatchRelease.up"], ['"DispatchRelease.up"', "drop"]),
                (["fence", "--mutant", "Nowhere.drop"], ['"Nowhere.drop"', "--mutants"]),
                (["fence", "--mutant", "one_generation"], ["one_generation", "sentinel"]),
                (["fence", "--schedule", "t0"], ["--schedule", "--case"]),
                (["fence", *self.SMALL, "--schedule", "q9"], ["schedule", "q9"]),
                (["fence", "--case", "hidden=3"], ["hidden is 3", "even"]),
                (["fence", "--case", "ep=0"], ["ep is 0"]),
                (["fence", "--lanes", 0], ["--lanes is 0"]),
                (["fence", "--jobs", 0], ["--jobs is 0"]),
                (["fence", "--seed", -1], ["--seed"]),
                (["--mutants", "--case", "ep=2"], ["--mutants", "--case"]),
                (["--mutants", "--lanes", 7], ["--mutants", "--budget"]),
                (["--mutants", "--statistics", 2], ["--mutants", "--budget"]),
                (["sentinel", "--statistics", 2], ["--statistics", "fence", "KER-1.8"]),
                (["--mutants", "--budget", 1], ['"1"', "seconds"]),
                (["fence", "--ep", 4], ["--ep", "--routing"]),
                (["sentinel", "--mutant", "DispatchRelease.drop"], ["DispatchRelease.drop"]),
                (["fence", "--mutant", "DispatchTakeSlot.drop"], ["DispatchTakeSlot.drop"]),
                (["fence", "--case", "tokens=1", "--schedule", "33t0.9t7"], ["schedule", "step"]),
                (["fence", "--json=x.json", "--perfetto", "./x.json"], ["twice"]),
                (["fence", "--routing", "/nonexistent"], ["/nonexistent"]),
                (["fence", "--routing", SAMPLE, *self.SMALL], ["--routing", "--case"])):
            with self.subTest(arguments):
                self.refuse("explore", *arguments, says=says)

    def test_a_schedule_with_a_tail_is_refused(self):
        found = self.json("explore", "fence", *self.SMALL, "--mutant", "DispatchRelease.drop",
                          code=MISMATCH)["counterexample"]
        again = ("explore", "fence", *self.SMALL, "--mutant", "DispatchRelease.drop", "--schedule")
        self.succeed(*again, found["schedule"], code=MISMATCH)
        self.refuse(*again, found["schedule"] + ".500t77", says="schedule")

    def test_a_mutant_that_nothing_notices_is_no_success(self):
        result = self.json("explore", "fence", *self.SMALL, "--mutant", "CombinePull.weak",
                           code=MISMATCH)
        self.assertEqual(result["verdict"], "MISTRUSTED")
        self.assertIn("does not notice", result["reasons"][0])

    @limits_memory
    def test_too_little_memory_or_too_few_threads_are_a_sentence(self):
        def limit():
            resource.setrlimit(resource.RLIMIT_AS, (400 << 20, 400 << 20))
        result = run("explore", "fence", "--scheduler", "random", "--budget", 50, "--jobs", 64,
                     preexec_fn=limit)
        self.assertIn(result.returncode, (0, 3, 127), result.stderr)

    def test_a_rank_that_stops_is_explored_and_its_counterexample_replays(self):
        case = ("--case", "ep=2 experts=2 top_k=2 hidden=2 max_tokens=2 tokens=1,2 rounds=2",
                "--stops", "combine", "--ctas", 2)
        self.succeed("explore", "fence", *case)
        found = self.json("explore", "fence", *case, "--mutant", "order_pulls_after_failure",
                          code=MISMATCH)["counterexample"]
        self.assertIn("--stops combine", found["repro"])
        self.succeed(*shlex.split(found["repro"])[1:], code=MISMATCH)
        self.refuse("explore", "fence", "--stops", "later", says=('"later"', "start", "combine"))
        self.refuse("explore", "fence", *case, "--mutant", "two_handles", says="--stops")

    def test_what_is_not_compiled_is_unsupported(self):
        self.refuse("explore", "fence", "--case", "experts=8 top_k=8", says="top_k is 8", code=3)


if __name__ == "__main__":
    unittest.main()
