"""assay calibrate: sweeps, curves, configurations (SPEC ATT-8.11), plots; what it refuses and what
it mistrusts (SPEC ATT-8.10)."""

import json
import math
import random
import struct
import unittest
import xml.etree.ElementTree as ElementTree

from cli_testing import Command, MISMATCH, UNSUPPORTED, run, safetensors

HOPPER = "trtllm-fmha_v2-sm90,trtllm-xqa-sm90"
LINE = "heads=4 kv_heads=2 kv=1024 dim=64 spread=1.5 sinks=4 sink_gain=7 seed=3"


def bf16(values):
    return b"".join(struct.pack("<f", v)[2:] for v in values)


def normals(count, scale, seed):
    generator = random.Random(seed)
    return bf16(scale * generator.gauss(0, 1) for _ in range(count))


def golden_bytes(batch=1, rows=320, heads=2, dim=32, extra=None, metadata=None):
    shape = [batch, rows, heads, dim]
    tensors = {"q": ("BF16", shape, normals(math.prod(shape), 3, 1)),
               "k": ("BF16", shape, normals(math.prod(shape), 1, 2))}
    tensors.update(extra or {})
    return safetensors(tensors, metadata)


def capture_bytes(prompt=512, steps=24, heads=2, dim=32, scale="0.25"):
    rows = prompt + steps
    shape = [rows, heads, dim]
    count = math.prod(shape)
    step = [0] * prompt + list(range(1, steps + 1))
    info = {"schema": "assay.capture", "version": "1", "model": "m", "licence": "CC0-1.0",
            "source": "test", "layer": "0", "num_layers": "1",
            "assay.params": json.dumps({"mask": "causal", "scale": scale})}
    return safetensors({
        "q": ("BF16", shape, normals(count, 2, 4)), "k": ("BF16", shape, normals(count, 1, 5)),
        "v": ("BF16", shape, normals(count, 1, 6)),
        "cu_seqlens_q": ("I32", [2], struct.pack("<2i", 0, rows)),
        "cu_seqlens_kv": ("I32", [2], struct.pack("<2i", 0, rows)),
        "step": ("I32", [rows], struct.pack(f"<{rows}i", *step))}, info)


class Calibrate(Command):
    def calibrate(self, *arguments, code=0):
        return self.json("calibrate", *arguments, code=code)

    def synthetic(self, *arguments, profile=HOPPER, line=LINE, code=0):
        return self.calibrate("--synthetic", line, "--profile", profile, *arguments, code=code)

    def write(self, name, data):
        path = self.dir / name
        path.write_bytes(data)
        return path

    def test_both_phases_by_their_own_profiles(self):
        found = self.synthetic()
        self.assertEqual(found["verdict"], "CALIBRATED")
        for phase, profile in (("prefill", "trtllm-fmha_v2-sm90"), ("decode", "trtllm-xqa-sm90")):
            got = found[phase]
            self.assertEqual(got["profile"], profile)
            self.assertEqual([s["kv_len"] for s in got["samples"]], [256, 512, 1024])
            self.assertEqual([t["sparsity"] for t in got["targets"]], [0.5, 0.6, 0.7, 0.8, 0.9])
            curve, older = got["fits"]
            self.assertEqual(curve["factor"], "a * exp(b * S)")
            self.assertEqual(older["factor"], "a / (1 - S)^b")
            for target in got["targets"]:
                factor = curve["a"] * math.exp(curve["b"] * target["sparsity"])
                self.assertAlmostEqual(target["factor"] / factor, 1, places=9)
                self.assertAlmostEqual(target["achieved"] - target["sparsity"], target["error"])
                self.assertLessEqual(target["lambda_one_at_kv_len"], target["factor"])
                self.assertGreaterEqual(target["of_asked"], target["achieved"])
                self.assertAlmostEqual(target["speedup_bound"], 2 / (2 - target["achieved"]))
        # A token of XQA's tile is 64 keys, of fmha_v2's at head size 64 it is 256.
        self.assertEqual(found["decode"]["samples"][2]["tiles"], 2 * 16 * 16)
        self.assertEqual(found["prefill"]["samples"][0]["tiles"], 4 * 4)

    def test_a_target_is_run_again_as_an_exact_sweep_point_is(self):
        found = self.synthetic("--points", "--target", "0.55")
        for phase in ("prefill", "decode"):
            points = found[phase]["points"]
            self.assertEqual([t["sparsity"] for t in found[phase]["targets"]],
                             [0.5, 0.55, 0.6, 0.7, 0.8, 0.9])
            for target in found[phase]["targets"]:
                if target["extrapolated"]:
                    continue
                # Between the sweep's neighbours of that factor, sample by sample.
                low = high = 0
                for sample in found[phase]["samples"]:
                    mine = [p for p in points if p["kv_len"] == sample["kv_len"]]
                    low += max((p["skipped"] for p in mine if p["factor"] <= target["factor"]),
                               default=0)
                    high += max(p["skipped"] for p in mine)
                tiles = sum(s["tiles"] for s in found[phase]["samples"])
                self.assertLessEqual(low / tiles - 0.05, target["achieved"])
                self.assertLessEqual(target["achieved"], high / tiles)

    def test_text_and_json_have_the_same_fields(self):
        arguments = ("calibrate", "--synthetic", LINE, "--profile", HOPPER)
        text, value = self.succeed(*arguments), self.json(*arguments)
        del value["config"]  # printed as JSON in both
        self.assert_same_fields(text, value)

    def test_jobs_decide_nothing(self):
        self.assertEqual(self.synthetic("--jobs", 1), self.synthetic("--jobs", 3))

    def test_configurations_have_tensorrt_llms_keys(self):
        out, checkpoint = self.dir / "serve.json", self.dir / "config.json"
        found = self.synthetic("--out", out, "--checkpoint", checkpoint, "--target", "0.5,0.7")
        serve = json.loads(out.read_text())
        self.assertEqual(serve, found["config"])
        self.assertEqual(list(serve), ["sparse_attention_config"])
        config = serve["sparse_attention_config"]
        self.assertEqual(list(config), ["algorithm", "threshold_scale_factor"])
        self.assertEqual(config["algorithm"], "skip_softmax")
        group = json.loads(checkpoint.read_text())["sparse_attention_config"]["config_groups"]
        self.assertEqual(list(group), ["group_0"])
        group = group["group_0"]
        self.assertEqual(list(group), ["algorithm", "threshold_scale_factor", "target_sparsity"])
        self.assertEqual(group["target_sparsity"], {"prefill": 0.5, "decode": 0.7})
        self.assertEqual(group["threshold_scale_factor"]["formula"], "a * exp(b * target_sparsity)")
        for phase, wanted in (("prefill", 0.5), ("decode", 0.7)):
            factor = config["threshold_scale_factor"][phase]
            target = next(t for t in found[phase]["targets"] if t["sparsity"] == wanted)
            self.assertAlmostEqual(factor / target["factor"], 1, places=5)
            curve = group["threshold_scale_factor"][phase]
            self.assertAlmostEqual(curve["a"] * math.exp(curve["b"] * wanted) / factor, 1, places=3)

    def test_one_profile_does_both_phases_and_a_dash_none(self):
        both = self.synthetic(profile="modelopt-triton")
        self.assertEqual(both["prefill"]["profile"], both["decode"]["profile"])
        decode = self.synthetic(profile="-,trtllm-xqa-sm90")
        self.assertNotIn("prefill", decode)
        factors = decode["config"]["sparse_attention_config"]["threshold_scale_factor"]
        self.assertEqual(factors["prefill"], 0)
        self.assertGreater(factors["decode"], 0)

    def test_lengths_at_which_lambda_is_one_are_warned_of(self):
        def warnings_of(profile):
            found = self.synthetic("--target", "0.9", profile=profile)
            rows = found["decode"]["targets"] if "decode" in found else found["prefill"]["targets"]
            return found["warnings"], rows
        for profile, says in (("trtllm-fmha_v2-sm90,-", "and the running maximum stays"),
                              ("-,trtllm-xqa-sm90", "raise the running maximum"),
                              ("-,trtllm-xqa-sm90@nofix", "nothing is skipped"),
                              ("assay-prefill-sm90,-", "lambda counts as 1")):
            warnings, targets = warnings_of(profile)
            largest = targets[-1]
            self.assertTrue(any(f"up to a kv_len of {largest['lambda_one_at_kv_len']}" in
                                w["warning"] and says in w["warning"] for w in warnings),
                            (profile, warnings))

    def test_a_sparsity_out_of_reach_is_warned_of(self):
        for target, times in (("0.9", 1), ("0.3", 0)):  # decode keeps every chunk's first tile
            found = self.synthetic("--target", target, profile="-,assay-decode-sm90", line="kv=512")
            self.assertEqual(str(found["warnings"]).count("out of reach"), times)

    def test_splits_change_what_xqa_skips(self):
        one = self.synthetic(profile="-,trtllm-xqa-sm90")["decode"]
        four = self.synthetic("--splits", 4, profile="-,trtllm-xqa-sm90")["decode"]
        self.assertGreater(one["samples"][2]["asked"], four["samples"][2]["asked"])
        ours = self.synthetic("--splits", 4, profile="-,assay-decode-sm90")["decode"]
        self.assertEqual(ours, self.synthetic(profile="-,assay-decode-sm90")["decode"])

    def test_the_plot_is_well_formed_and_stands_alone(self):
        first, second = self.dir / "a.svg", self.dir / "b.svg"
        self.synthetic("--svg", first)
        self.synthetic("--svg", second, "--jobs", 1)
        self.assertEqual(first.read_bytes(), second.read_bytes())
        root = ElementTree.fromstring(first.read_bytes())
        tag = "{http://www.w3.org/2000/svg}"
        self.assertEqual(root.tag, tag + "svg")
        width, height = float(root.get("width")), float(root.get("height"))
        self.assertEqual(root.get("viewBox"), f"0 0 {width:g} {height:g}")
        kinds = {element.tag for element in root.iter()}
        self.assertEqual(kinds, {tag + k for k in ("svg", "title", "rect", "text", "g", "path",
                                                   "circle")})
        self.assertNotIn("href", first.read_text())
        words = " ".join(t.text for t in root.iter(tag + "text"))
        for part in ("prefill: trtllm-fmha_v2-sm90", "decode: trtllm-xqa-sm90", "kv_len 1024",
                     "threshold scale factor", "* exp("):
            self.assertIn(part, words)
        panels = [g for g in root if g.tag == tag + "g"]
        self.assertEqual(len(panels), 2)
        for panel in panels:
            circles = list(panel.iter(tag + "circle"))
            self.assertGreater(len(circles), 100)
            for circle in circles:
                self.assertTrue(0 < float(circle.get("cx")) < width / 2)
                self.assertTrue(0 < float(circle.get("cy")) < height)

    def test_golden_inputs(self):
        path = self.write("in.safetensors", golden_bytes())
        found = self.calibrate("--in", path, "--profile", "modelopt-triton,assay-decode-sm90",
                               "--decode-rows", 5)
        sample = found["prefill"]["samples"][0]
        self.assertGreater(sample.pop("sparsity_max"), 0.5)
        # Of two heads, units of 128 rows see 128, 256 and 320 keys in tiles of 32.
        self.assertEqual(sample, {"sample": "request 0", "kv_len": 320, "calls": 1, "rows": 320,
                                  "tiles": 2 * (4 + 8 + 10), "asked": 44, "hidden": 0})
        self.assertEqual(found["decode"]["samples"][0]["calls"], 5)
        several = self.calibrate("--in", path, "--in", path, "--profile", "modelopt-triton",
                                 "--lengths", "128,320")
        self.assertEqual([s["kv_len"] for s in several["prefill"]["samples"]], [128, 320] * 2)
        self.assertEqual(several["prefill"]["samples"][0]["sample"], "request 0 of in.safetensors")

    def test_the_scale_decides_and_can_be_set(self):
        path = self.write("in.safetensors", golden_bytes())
        sharp = self.write("sharp.safetensors", golden_bytes(
            metadata={"assay.params": json.dumps({"scale": "0.5"})}))
        arguments = ("--profile", "modelopt-triton,-", "--points")
        by_file = self.calibrate("--in", sharp, *arguments)["prefill"]
        by_flag = self.calibrate("--in", path, "--scale", "0.5", *arguments)["prefill"]
        default = self.calibrate("--in", path, *arguments)["prefill"]
        self.assertEqual(by_file, by_flag)
        self.assertNotEqual(by_file["points"], default["points"])

    def test_a_capture_with_decode_steps(self):
        path = self.write("capture.safetensors", capture_bytes())
        found = self.calibrate("--in", path, "--profile", "modelopt-triton")
        prefill, decode = found["prefill"]["samples"], found["decode"]["samples"]
        self.assertEqual([(s["kv_len"], s["rows"]) for s in prefill], [(512, 512)])
        self.assertEqual([(s["kv_len"], s["calls"]) for s in decode], [(536, 24)])

    def test_a_run_that_decides_nothing_is_mistrusted_and_writes_no_configuration(self):
        out, plot, line = self.dir / "serve.json", self.dir / "plot.svg", "heads=1 kv=64 dim=32"
        arguments = ("--out", out, "--svg", plot)
        found = self.synthetic(*arguments, line=line, profile="assay-prefill-sm90,-", code=MISMATCH)
        self.assertEqual(found["verdict"], "MISTRUSTED")
        self.assertIn("no tile was skipped", found["reasons"][0])
        self.assertEqual(self.snapshot(), {})
        allowed = self.synthetic(*arguments, "--allow-vacuous", line=line,
                                 profile="assay-prefill-sm90,-")
        self.assertEqual(allowed["verdict"], "MISTRUSTED")
        factors = json.loads(out.read_text())["sparse_attention_config"]["threshold_scale_factor"]
        self.assertEqual(factors, {"prefill": 0, "decode": 0})
        ElementTree.fromstring(plot.read_bytes())
        out.unlink(), plot.unlink()
        # One phase is enough for mistrust.
        half, = self.synthetic(*arguments, line="heads=1 kv=128 dim=32 spread=3", code=MISMATCH,
                               profile="assay-prefill-sm90,modelopt-triton")["reasons"]
        self.assertIn("prefill", half)
        self.assertEqual(self.snapshot(), {})

    def test_a_mistrusted_run_leaves_nothing_that_looks_like_a_result(self):  # SPEC ATT-8.10
        """The document is there, with its verdict first, and holds no configuration; a file that
        an earlier run left is not touched."""
        names = ("serve.json", "config.json", "plot.svg")
        for name in names:
            (self.dir / name).write_text("old")
        document = self.dir / "document.json"
        command = ("calibrate", "--synthetic", "heads=1 kv=64 dim=32", "--profile",
                   "assay-prefill-sm90,-", "--out", self.dir / names[0], "--checkpoint",
                   self.dir / names[1], "--svg", self.dir / names[2], f"--json={document}")
        text = self.succeed(*command, code=MISMATCH)
        self.assertTrue(text.startswith("verdict"), text)
        self.assertNotIn("sparse_attention_config", text)
        self.assertEqual({(self.dir / name).read_text() for name in names}, {"old"})
        value = json.loads(document.read_text())
        self.assertEqual(list(value)[:2], ["verdict", "reasons"])
        self.assertEqual(value["verdict"], "MISTRUSTED")
        self.assertNotIn("config", value)
        self.succeed(*command, "--allow-vacuous")
        self.assertIn("config", json.loads(document.read_text()))
        self.assertNotIn("old", [(self.dir / name).read_text() for name in names])

    def test_a_factor_that_achieves_nothing_is_mistrusted(self):
        """Queries of zero: every score is 0, and sparsity is a step of the factor."""
        rows, heads, dim = 600, 2, 64
        path = self.write("zeros.safetensors", safetensors({
            "q": ("BF16", [1, rows, heads, dim], bytes(2 * rows * heads * dim)),
            "k": ("BF16", [1, rows, 1, dim], normals(rows * dim, 1, 2))}))
        out = self.dir / "serve.json"
        for profile in ("-,trtllm-fmha_v2-sm90", "modelopt-triton", "-,trtllm-xqa-sm90"):
            for lengths in ((), ("--lengths", "150,300,600")):
                with self.subTest(profile=profile, lengths=lengths):
                    found = self.calibrate("--in", path, "--profile", profile, "--out", out,
                                           *lengths, code=MISMATCH)
                    self.assertEqual(found["verdict"], "MISTRUSTED")
                    self.assertFalse(out.exists())

    def test_parameters_and_tensors_are_read_as_golden_reads_them(self):
        """What golden attention refuses of a file, calibrate refuses with the same words."""
        for params, says in (('{"scale": 1, "scale": 2}', 'key "scale" appears twice'),
                             ('{"scale": "0x1"}', 'scale is "0x1"; allowed are positive numbers'),
                             ('{"scale": 0}', 'scale is "0"; allowed are positive numbers'),
                             ('{"scale": "1e-46"}', "positive numbers, as F32 has them"),
                             ('{"scale": "1e-40"}', "scale is 1e-40; allowed are 1.18e-38 to"),
                             ('{"scal": 3}', '"scal" is no parameter of attention'),
                             ('{"splits": true}', 'splits is "true"; allowed are whole numbers'),
                             ('{"softcap": -1}', 'softcap is "-1"; allowed are 0 and positive'),
                             ('[1]', "allowed is a JSON object"),
                             ('{"threshold_scale_factor": "x"}', '"x"; allowed are 0, positive')):
            with self.subTest(params):
                extra = {"v": ("BF16", [1, 40, 2, 32], normals(40 * 64, 1, 3))}
                path = self.write("in.safetensors", golden_bytes(
                    rows=40, extra=extra, metadata={"assay.params": params}))
                for command in (("calibrate", "--in", path, "--profile", "modelopt-triton"),
                                ("golden", "attention", "--in", path, "--out", self.dir / "new",
                                 "--profile", "modelopt-triton")):
                    told = self.refuse(*command, says=says)
                    self.assertEqual(told.count("in.safetensors"), 1, told)
        path = self.write("in.safetensors", golden_bytes(
            rows=40, extra={"kv_lens": ("I32", [1], struct.pack("<i", 9))}))
        self.refuse("calibrate", "--in", path, "--profile", "modelopt-triton",
                    says=['tensor "kv_lens" is unknown', "kv_len"])

    def test_a_length_is_never_dropped_silently(self):
        short = self.write("short.safetensors", golden_bytes(rows=200))
        long = self.write("long.safetensors", golden_bytes(rows=320))
        ours = ("--profile", "modelopt-triton", "--lengths")
        self.refuse("calibrate", "--in", long, *ours, "320,321",
                    says=["length 321", "allowed are 1 to 320", "long.safetensors"])
        self.refuse("calibrate", "--synthetic", "kv=64", *ours, "64,65", says=["--lengths", "h 65"])
        found = self.calibrate("--in", short, "--in", long, *ours, "160,320")
        self.assertEqual(found["left_out"], [{
            "sample": "request 0 of short.safetensors", "length": 320, "kv_len": 200,
            "first_query_row": 0}])
        self.assertEqual([s["kv_len"] for s in found["prefill"]["samples"]], [160, 160, 320])
        self.assertEqual(self.calibrate("--in", long, *ours[:2])["left_out"], [])

    def test_bad_options(self):
        path = self.write("in.safetensors", golden_bytes(rows=4))
        bad = self.write("bad.safetensors", safetensors({"k": ("BF16", [1, 1, 1, 1], b"\0\0")}))
        ours = ("--profile", "assay-prefill-sm90")
        for arguments, says in (
                ([], ["--profile", "NAME,NAME"]),
                ([*ours], ["--in", "--synthetic"]),
                (["--in", path, "--synthetic", LINE, *ours], ["--in", "--synthetic", "both"]),
                (["--in", path, "--profile", "mine"], ["mine", "assay-prefill-sm90"]),
                (["--in", path, "--profile", "-"], ["--profile", '"-"']),
                (["--in", path, "--profile", "a,b,c"], ["--profile", '"a,b,c"']),
                (["--in", path, *ours, "--target", "1.5"], ["--target", '"1.5"', "below 1"]),
                (["--in", path, *ours, "--target", ".1,.2,.3"], ["--target", "decode"]),
                (["--in", path, *ours, "--lengths", "9,x"], ["--lengths", '"x"']),
                (["--in", path, *ours, "--lengths", "100"], ["100", "in.safetensors"]),
                (["--in", path, *ours, "--jobs", 0], ["--jobs is 0"]),
                (["--in", path, *ours, "--splits", 0], ["--splits is 0"]),
                (["--in", path, *ours, "--scale", "-1"], ["--scale", '"-1"']),
                (["--in", path, *ours, "--decode-rows", "0"], ["--decode-rows is 0"]),
                (["--in", path, *ours, "--out", path], ["in.safetensors", "also uses"]),
                (["--in", path, *ours, "--out", self.dir], ["directory"]),
                (["--in", path, *ours, "--out", self.dir / "x", "--svg", self.dir / "x"],
                 ["twice"]),
                (["--in", path, *ours, f"--json={path}"], ["also uses"]),
                (["--in", bad, *ours], ["bad.safetensors", '"q"']),
                (["--in", "/nonexistent", *ours], ["/nonexistent"]),
                (["--synthetic", "heads=x", *ours], ["heads", '"x"']),
                (["--synthetic", "depth=1", *ours], ['"depth"', "spread"]),
                (["--synthetic", "kv=64", "--profile", "-,assay-decode-sm90", "--lengths", "65"],
                 ["65", "64"])):
            with self.subTest(arguments):
                self.refuse("calibrate", *arguments, says=says)

    def test_a_phase_that_is_not_there_is_named(self):
        path = self.write("one.safetensors", safetensors({
            "q": ("BF16", [1, 1, 1, 32], normals(32, 1, 1)),
            "k": ("BF16", [1, 9, 1, 32], normals(9 * 32, 1, 2))}))
        self.refuse("calibrate", "--in", path, "--profile", "modelopt-triton,-",
                    says=["decode calls only", "--profile names none for it"])
        path = self.write("rows.safetensors", safetensors({
            "q": ("BF16", [200, 1, 32], normals(200 * 32, 4, 1)),
            "k": ("BF16", [400, 1, 32], normals(400 * 32, 1, 2)),
            "cu_seqlens_q": ("I32", [2], struct.pack("<2i", 0, 200)),
            "cu_seqlens_kv": ("I32", [2], struct.pack("<2i", 0, 400)),
            "step": ("I32", [200], struct.pack("<200i", *range(200)))}))
        found = self.calibrate("--in", path, "--profile", "modelopt-triton")
        factors = found["config"]["sparse_attention_config"]["threshold_scale_factor"]
        self.assertEqual(factors["prefill"], 0)
        told = [w["phase"] for w in found["warnings"] if "holds no such call" in w["warning"]]
        self.assertEqual(told, ["prefill"])

    def test_what_a_kernel_cannot_do_is_unsupported(self):
        self.refuse("calibrate", "--synthetic", "heads=1 kv=64", "--profile", "fa3-dense-sm90",
                    says=["fa3-dense-sm90", "cannot skip"], code=UNSUPPORTED)
        path = self.write("in.safetensors", golden_bytes(
            rows=4, metadata={"assay.params": json.dumps({"mask": "window:4"})}))
        self.refuse("calibrate", "--in", path, "--profile", "assay-prefill-sm90",
                    says=['"window:4"', "causal"], code=UNSUPPORTED)

    def test_a_mutated_file_is_a_sentence_or_an_answer(self):
        generator, good = random.Random(9), golden_bytes(rows=40)
        path = self.dir / "mutant.safetensors"
        for _ in range(40):
            data = bytearray(good)
            for _ in range(generator.randrange(1, 4)):
                data[generator.randrange(min(len(data), 300))] = generator.randrange(256)
            path.write_bytes(data)
            result = run("calibrate", "--in", path, "--profile", "modelopt-triton")
            self.assertIn(result.returncode, (0, 1, 2, 3), result.stderr)


if __name__ == "__main__":
    unittest.main()
