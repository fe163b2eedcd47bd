"""assay golden attention and assay check attention: layouts, changed bits, profiles, scales."""

import json
import unittest

from attention_testing import (B, D, FACTOR, FMHA, HQ, LAYOUTS, LQ, OURS, Q_LEN, TRITON, Attention,
                               low_blocks, rows, take, tensor)
from cli_testing import OK, UNSUPPORTED, run
from golden_testing import read

class RoundTrips(Attention):
    """[VER-21.6][VER-21.8]"""

    def test_every_layout_checks_itself_and_gives_the_same_bits(self):
        outs = {}
        for layout, tensors in LAYOUTS.items():
            with self.subTest(layout):
                golden = self.make(tensors, OURS, *FACTOR, "--set", "mask=causal")
                told = self.check("attention", golden, golden, code=OK)
                self.assertEqual(told["verdict"], "CONFORMS")
                self.assertEqual(told["provenance"]["verdict"], "bit-equal")
                self.assertRegex(told["provenance"]["tiles"], r"[1-9]\d* skipped")
                self.assertEqual(set(told["compared"]), {"out", "lse", "decision"})
                written, metadata = read(golden)
                shape = [103, HQ] if layout == "packed" else [B, LQ, HQ]
                dim = 48 if layout == "mla" else D
                self.assertEqual(written["out"][:2], ("BF16", [*shape, dim]))
                self.assertEqual(written["lse_log2"][:2], ("F32", shape))
                self.assertEqual(written["decision"][:2], ("U8", [B, HQ, 2, 4]))
                self.assertEqual(written["margin"][:2], ("F32", [B, HQ, 2, 4]))
                self.assertEqual(metadata["assay.lse"], "pruned")
                self.assertEqual((metadata["assay.unit_rows"], metadata["assay.kv_tile"],
                                  metadata["assay.unit_packing"]), ("64", "128", "head_rows"))
                out = written["out"]
                outs[layout] = (take(out, Q_LEN, LQ) if len(out[1]) == 4 else out,
                                written["decision"])
        self.assertEqual(outs["padded"], outs["packed"])
        self.assertEqual(outs["padded"], outs["paged"])

    def test_the_two_renderings_say_the_same(self):
        golden = self.make(LAYOUTS["packed"], OURS, *FACTOR)
        text = " ".join(self.succeed("check", "attention", "--in", golden, "--got", golden).split())
        for part in ("CONFORMS", f"{103 * HQ * D} out", "verdict: bit-equal",
                     "reproduced on hardware", "REPRO: assay check attention --in"):
            self.assertIn(part, text)

    def test_parameters_may_be_numbers_in_a_file(self):
        metadata = {"assay.params": json.dumps({"profile": OURS, "scale": 0.3, "softcap": "0",
                                                "threshold_scale_factor": 8, "splits": 2})}
        source = self.write("in.safetensors", LAYOUTS["packed"], metadata)
        self.succeed("golden", "attention", "--in", source, "--out", self.dir / "a.safetensors")
        golden = self.dir / "a.safetensors"
        other = self.make(LAYOUTS["packed"], OURS, *FACTOR, "--set", "scale=0.3", name="b.st")
        self.assertEqual(read(golden)[0]["out"], read(other)[0]["out"])

    def test_a_threshold_for_each_request_is_a_tensor(self):
        tensors = {**LAYOUTS["packed"],
                   "threshold_scale_factor": tensor("F32", [B], [8.0, 0.0])}
        golden = self.make(tensors, OURS)
        self.check("attention", golden, golden, code=OK)
        decisions = read(golden)[0]["decision"][2]
        self.assertTrue(2 in decisions[:len(decisions) // 2])
        self.assertFalse(2 in decisions[len(decisions) // 2:])


class Verdicts(Attention):
    """[VER-21.1] to [VER-21.5], through the command."""

    def test_a_changed_bit_is_found_at_its_place(self):
        golden = self.make(LAYOUTS["padded"], OURS, *FACTOR)
        row = 1 * LQ + 7  # request 1, row 7
        for name, byte, mask, place in (
                ("out", ((row * HQ + 1) * D + 9) * 2, 1,
                 {"request": 1, "row": 7, "head": 1, "element": 9}),
                ("lse_log2", (row * HQ + 1) * 4 + 2, 8, {"request": 1, "row": 7, "head": 1}),
                ("decision", ((1 * HQ + 1) * 2 + 0) * 4 + 2, 2,
                 {"request": 1, "head": 1, "unit": 0, "tile": 2})):
            with self.subTest(name):
                told = self.check("attention", golden, self.changed(golden, name, byte, mask))
                self.assertEqual(told["verdict"], "MISMATCH")
                mismatch, = told["mismatches"]
                self.assertEqual(mismatch["first"], place)
                self.assertEqual((mismatch["wrong"], mismatch["diagnosis"]), (1, []))

    def test_what_went_wrong_is_told(self):
        golden = self.make(LAYOUTS["packed"], OURS, *FACTOR)
        dense = self.make(LAYOUTS["packed"], OURS, name="dense.safetensors")
        got = self.part(dense, "out", "lse_log2")
        self.assertIn("fits instead: the dense result: nothing is skipped",
                      self.diagnoses("attention", golden, got))
        mixed = read(golden)[0]
        mixed["lse_log2"] = read(dense)[0]["lse_log2"]
        got = self.write("mixed.safetensors", {n: mixed[n] for n in ("out", "lse_log2")})
        self.assertEqual(self.diagnoses("attention", golden, got),
                         ["fits instead: the LSE is that of the dense sum"])

    def test_any_names_the_profile_that_fits(self):
        for profile, words in ((OURS, "profiles that fit: " + OURS),
                               (FMHA, "profiles that fit: " + FMHA),
                               (TRITON, TRITON + " (decisions")):
            golden = self.make(LAYOUTS["packed"], profile, *FACTOR)
            told = self.check("attention", golden, golden, "--profile", "any", "--allow-vacuous",
                              code=OK)
            self.assertIn(words, "; ".join(told["reasons"]))
            others = [p for p in (OURS, FMHA) if p != profile]
            fits = [r for r in told["reasons"] if r.startswith("profiles that fit")]
            self.assertFalse([p for p in others for r in fits if p in r])
            # Who was not compared, and why: these decide for other units.
            units = [r for r in told["reasons"] if "its decision is for assay.unit_rows" in r]
            self.assertTrue(units)
            for reason in units:
                self.assertRegex(reason, r"not compared with .*: .*; the profile decides for \d+")
        self.assertIn(f"profile {FMHA} fits instead", self.diagnoses(
            "attention", self.make(LAYOUTS["packed"], OURS, *FACTOR),
            self.part(self.make(LAYOUTS["packed"], FMHA, *FACTOR, name="f.safetensors"), "out")))

    def test_what_any_says_is_not_cut(self):
        golden = self.make(LAYOUTS["packed"], OURS, *FACTOR)
        told = self.check("attention", golden, golden, "--profile", "any", code=OK)
        text = self.succeed("check", "attention", "--in", golden, "--got", golden, "--profile",
                            "any")
        self.assertNotIn("...", text)
        self.assertLessEqual(max(map(len, text.splitlines()[:-1])), 160)
        words = " ".join(text.split())
        for reason in told["reasons"]:
            self.assertIn(" ".join(reason.split()), words)

    def test_no_verdict_about_bits_above_the_grade(self):
        golden = self.make(LAYOUTS["packed"], TRITON, *FACTOR)
        told = self.check("attention", golden, golden, code=OK)
        self.assertEqual(told["provenance"]["verdict"],
                         "decisions equal, outputs within the bound")
        told = self.check("attention", golden, self.part(golden, "out"), code=UNSUPPORTED)
        self.assertIn("no decision is given", " ".join(told["reasons"]))
        cells = read(golden)[0]["decision"][2]
        told = self.check("attention", golden,
                          self.changed(golden, "decision", cells.index(2), 3))
        self.assertEqual(told["mismatches"][0]["check"], "attention.decision")

    def test_a_check_that_proves_nothing_is_not_trusted(self):
        nothing = self.make(LAYOUTS["packed"], OURS, "--set", "threshold_scale_factor=1e-30")
        told = self.check("attention", nothing, nothing)
        self.assertEqual(told["verdict"], "MISTRUSTED")
        self.assertIn("none of", " ".join(told["reasons"]))
        self.check("attention", nothing, nothing, "--allow-vacuous", code=OK)
        zero = self.make(LAYOUTS["packed"], OURS, "--set", "threshold_scale_factor=0")
        told = self.check("attention", zero, zero)
        self.assertEqual(told["verdict"], "MISTRUSTED")
        self.assertIn("the threshold is 0, at which none of", " ".join(told["reasons"]))
        dense = self.make(LAYOUTS["packed"], OURS)
        self.check("attention", dense, dense, code=OK)
        empty = dict(LAYOUTS["packed"], cu_seqlens_q=tensor("I32", [3], [0, 0, 0]))
        golden = self.make(empty, OURS)
        self.assertEqual(self.check("attention", golden, golden)["verdict"], "MISTRUSTED")


class ChecksItself(Attention):
    """What golden writes is judged by check, and not contradicted [VER-7.2][ATT-2.1]."""

    def test_scales_whose_products_are_no_normal_numbers(self):
        def scales(q, k):
            return {"q_scale": tensor("F32", [1], [q]), "k_scale": tensor("F32", [1], [k])}
        limits = "1.18e-38 to 8.51e+37"
        for change, settings, says in (
                ({}, ["scale=1e-40"], ["scale is 1e-40", limits]),
                ({}, ["scale=3e38"], ["scale is 3e+38", limits]),
                ({}, ["scale=7e37"], ["scale * q_scale * k_scale * log2(e) (7e+37, 1, 1)", limits]),
                ({}, ["softcap=1e-40"], ["softcap is 1e-40", limits]),
                ({}, ["softcap=1e-37", "scale=1e10"], ["/ softcap 1e-37", "is inf", limits]),
                (scales(1e-40, 1), [], ["q_scale is 1e-40", limits]),
                (scales(1, 3e38), [], ["k_scale is 3e+38", limits]),
                (scales(1e-20, 1e-20), [], ["scale * q_scale * k_scale (0.125, 1e-20, 1e-20)",
                                            "is 1.25e-41", limits]),
                (scales(1e20, 1e20), [], ["scale * q_scale * k_scale (0.125, 1e+20, 1e+20)",
                                          "is inf", limits]),
                ({"v_scale": tensor("F32", [1], [1e-45])}, [], ["v_scale is 1e-45", limits])):
            with self.subTest(says):
                words = [w for setting in settings for w in ("--set", setting)]
                self.refuse_both({**LAYOUTS["padded"], **change}, says, *words)

    def test_scores_of_which_no_check_could_judge_an_output(self):
        source = self.write("in.safetensors", LAYOUTS["packed"])
        command = ("golden", "attention", "--in", source, "--out", self.dir / "new.safetensors",
                   "--profile")
        told = self.refuse(*command, TRITON, "--set", "scale=1e10",
                           says=["scale is 1e+10", "decisions", "scales up to about"])
        largest = float(told.rsplit(" ", 1)[1])
        self.succeed(*command, TRITON, "--set", f"scale={largest * 0.9}")
        golden = self.dir / "new.safetensors"
        self.check("attention", golden, golden, code=OK)
        # Where bits are known there is something to judge.
        self.succeed(*command, OURS, "--set", "scale=1e10")
        self.check("attention", golden, golden, code=OK)

    def test_every_profile_at_every_scale(self):
        small = {"q": tensor("BF16", [1, 4, 2, 16], rows(4, 2, 16, lambda _: 4.0, 1)),
                 "k": tensor("BF16", [1, 300, 1, 16], rows(300, 1, 16, low_blocks, 2)),
                 "v": tensor("BF16", [1, 300, 1, 16], rows(300, 1, 16, lambda _: 1.0, 3))}
        source, out = self.write("in.safetensors", small), self.dir / "out.safetensors"
        written = 0
        for profile in self.json("profiles")["attention"]:
            for scale in ("1.18e-38", "1e-20", "3", "1e10", "5.8e37"):
                with self.subTest(profile=profile["name"], scale=scale):
                    out.unlink(missing_ok=True)
                    made = run("golden", "attention", "--in", source, "--out", out, "--profile",
                               profile["name"], "--set", f"scale={scale}")
                    self.assertIn(made.returncode, (0, 2), made.stderr)
                    self.assertEqual(out.exists(), made.returncode == 0)
                    if made.returncode == 0:
                        written += 1
                        self.check("attention", out, out, code=OK)
        self.assertGreater(written, 45)


class Profiles(Attention):
    """assay profiles knows both kinds [VER-21.11]."""

    def test_both_tables_and_one_profile_of_each(self):
        told = self.json("profiles")
        self.assertEqual(len(told["attention"]), 15)
        self.assertEqual(len(told["fields"]), len(told["attention"]) + len(told["combine"]))
        for profile in told["attention"]:
            self.assertEqual(set(profile), {"name", "grade", "evidence", "covers"})
            fields = told["fields"][profile["name"]]
            self.assertTrue(fields and all(field["source"] for field in fields))
        for name, table, other in ((FMHA, "attention", "combine"),
                                   ("assay-oneside", "combine", "attention")):
            one = self.json("profiles", "--profile", name)
            self.assertEqual([p["name"] for p in one[table]], [name])
            self.assertNotIn(other, one)
            self.assertEqual(list(one["fields"]), [name])
        self.refuse("profiles", "--profile", "nobody", says=['"nobody"', FMHA, "assay-oneside"])


if __name__ == "__main__":
    unittest.main()
