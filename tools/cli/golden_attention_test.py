"""assay golden attention and assay check attention: layouts, changed bits, profiles, refusals."""

import json
import random
import struct
import unittest

from cli_testing import OK, UNSUPPORTED, run
from golden_test import Golden, read

OURS, FMHA, TRITON = "assay-prefill-sm90", "trtllm-fmha_v2-sm90", "modelopt-triton"
CODE = {"F32": "f", "I32": "i", "U8": "B"}


def bf16(x):
    return struct.unpack("<I", struct.pack("<f", x))[0] >> 16


def tensor(dtype, shape, values):
    if dtype == "BF16":
        return dtype, shape, struct.pack(f"<{len(values)}H", *map(bf16, values))
    return dtype, shape, struct.pack(f"<{len(values)}{CODE[dtype]}", *values)


def rows(count, heads, dim, at, seed):
    """Normal numbers, the first element of each row by at(row)."""
    rng = random.Random(seed)
    values = []
    for row in range(count):
        for _ in range(heads):
            values += [at(row)] + [rng.gauss(0, 0.5) for _ in range(dim - 1)]
    return values


B, LQ, LK, HQ, HKV, D, Q_LEN, KV_LEN = 2, 70, 400, 2, 1, 64, [70, 33], [400, 290]


def low_blocks(row):
    """Every second block of 128 keys is 8 nats below."""
    return -16.0 if row % LK // 128 % 2 else 0.0


def padded():
    return {"q": tensor("BF16", [B, LQ, HQ, D], rows(B * LQ, HQ, D, lambda _: 4.0, 1)),
            "k": tensor("BF16", [B, LK, HKV, D], rows(B * LK, HKV, D, low_blocks, 2)),
            "v": tensor("BF16", [B, LK, HKV, D], rows(B * LK, HKV, D, lambda _: 1.0, 3)),
            "q_len": tensor("I32", [B], Q_LEN), "kv_len": tensor("I32", [B], KV_LEN)}


def take(source, lengths, longest):
    """The rows of a padded tensor that are within their lengths."""
    dtype, shape, data = source
    row = shape[2] * shape[3] * 2
    kept = b"".join(data[i * longest * row:][:n * row] for i, n in enumerate(lengths))
    return dtype, [sum(lengths), *shape[2:]], kept


def packed():
    p = padded()
    return {"q": take(p["q"], Q_LEN, LQ), "k": take(p["k"], KV_LEN, LK),
            "v": take(p["v"], KV_LEN, LK),
            "cu_seqlens_q": tensor("I32", [B + 1], [0, 70, 103]),
            "cu_seqlens_kv": tensor("I32", [B + 1], [0, 400, 690])}


def paged():
    """Pages of 100 keys, in reverse order."""
    p = padded()
    row = HKV * D * 2
    pages = []
    for page in reversed(range(B * LK // 100)):
        for name in ("k", "v"):
            pages.append(p[name][2][page * 100 * row:(page + 1) * 100 * row])
    table = [7 - page for page in range(8)]
    table[7] = -1  # beyond kv_len
    return {"q": p["q"], "q_len": p["q_len"], "kv_len": p["kv_len"],
            "kv_pages": ("BF16", [8, 2, 100, HKV, D], b"".join(pages)),
            "block_table": tensor("I32", [B, 4], table)}


def mla():
    """The last 16 of 64 elements of each key are kpe's."""
    p = padded()
    keys = [p["k"][2][i:i + 2 * D] for i in range(0, len(p["k"][2]), 2 * D)]
    return {"q": p["q"], "q_len": p["q_len"], "kv_len": p["kv_len"],
            "ckv": ("BF16", [B, LK, 48], b"".join(k[:96] for k in keys)),
            "kpe": ("BF16", [B, LK, 16], b"".join(k[96:] for k in keys))}


LAYOUTS = {"padded": padded(), "packed": packed(), "paged": paged(), "mla": mla()}
FACTOR = ["--set", "threshold_scale_factor=8"]


class Attention(Golden):
    def make(self, tensors, profile, *settings, name="golden.safetensors", metadata=None):
        source = self.write("in.safetensors", tensors, metadata)
        self.succeed("golden", "attention", "--in", source, "--out", self.dir / name, "--profile",
                     profile, *settings)
        return self.dir / name

    def part(self, path, *names):
        """Only these tensors, without metadata."""
        tensors = read(path)[0]
        return self.write("part.safetensors", {n: tensors[n] for n in names})

    def refuse_both(self, tensors, says, *settings, code=2, profile=OURS, metadata=None):
        good = self.make(LAYOUTS["padded"], OURS, name="good.safetensors")
        source = self.write("bad.safetensors", tensors, metadata)
        for verb in (("golden", "--out", self.dir / "new"), ("check", "--got", good)):
            self.refuse(verb[0], "attention", "--in", source, *verb[1:], "--profile", profile,
                        *settings, says=says, code=code)


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
        for part in ("CONFORMS", f"{103 * HQ * D} out", "verdict: bit-equal", "bits-claimed",
                     "REPRO: assay check attention --in"):
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
        self.assertIn(f"profile {FMHA} fits instead", self.diagnoses(
            "attention", self.make(LAYOUTS["packed"], OURS, *FACTOR),
            self.part(self.make(LAYOUTS["packed"], FMHA, *FACTOR, name="f.safetensors"), "out")))

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
        dense = self.make(LAYOUTS["packed"], OURS)
        self.check("attention", dense, dense, code=OK)
        empty = dict(LAYOUTS["packed"], cu_seqlens_q=tensor("I32", [3], [0, 0, 0]))
        golden = self.make(empty, OURS)
        self.assertEqual(self.check("attention", golden, golden)["verdict"], "MISTRUSTED")


class Refusals(Attention):
    """Everything inconsistent is a sentence with the value and what is allowed [VER-21.7]."""

    def test_layouts(self):
        p, k, g, m = (LAYOUTS[name] for name in ("padded", "packed", "paged", "mla"))

        def lengths(*values):
            return tensor("I32", [len(values)], values)

        table = list(struct.unpack("<8i", g["block_table"][2]))
        for base, change, says in (
                (p, {"q": ("F32", [1], bytes(4))}, ["q", "F32", "BF16"]),
                (p, {"q": ("BF16", [B * LQ, HQ, D], p["q"][2])}, ["q", "[140, 2, 64]"]),
                (p, {"k": None}, ["no k", "kv_pages"]),
                (p, {"v": None}, ["v"]),
                (p, {"kv_pages": g["kv_pages"]}, ["k, kv_pages", "one of"]),
                (p, {"k": ("F16", *p["k"][1:])}, ["k", "F16", "BF16"]),
                (p, {"v": ("BF16", [B, LK // 2, 2, D], p["v"][2])}, ["v", "[2, 200, 2, 64]"]),
                (p, {"q_len": lengths(70, 71)}, ["q_len[1] is 71", "0 to 70"]),
                (p, {"q_len": lengths(70)}, ["q_len", "[1]"]),
                (p, {"kv_len": lengths(-1, 2)}, ["kv_len[0] is -1", "0 to 400"]),
                (p, {"kv_len": ("I64", [2], bytes(16))}, ["kv_len", "I64", "I32"]),
                (p, {"k": ("BF16", [1, 2 * LK, HKV, D], p["k"][2]),
                     "v": ("BF16", [1, 2 * LK, HKV, D], p["v"][2]), "kv_len": lengths(9)},
                 ["1 requests", "2"]),
                (p, {"k": ("BF16", [B, 0, 3, D], b""), "v": ("BF16", [B, 0, 3, D], b""),
                     "kv_len": None}, ["2 query heads and 3 key heads"]),
                (p, {"v": ("BF16", [B, LK, HKV, 0], b"")}, ["v_dim 0"]),
                (k, {"q_len": lengths(70, 33)}, ["cu_seqlens_q and q_len"]),
                (k, {"cu_seqlens_q": lengths(1, 70, 103)}, ["cu_seqlens_q[0] is 1", "0"]),
                (k, {"cu_seqlens_q": lengths(0, 70, 69)}, ["cu_seqlens_q[2] is 69", "70", "103"]),
                (k, {"cu_seqlens_kv": lengths(0, 400, 691)}, ["cu_seqlens_kv[2] is 691", "690"]),
                (k, {"cu_seqlens_kv": lengths(0, 690)}, ["1 requests", "2"]),
                (k, {"cu_seqlens_q": lengths()}, ["cu_seqlens_q is empty"]),
                (g, {"kv_len": None}, ["kv_len is missing"]),
                (g, {"kv_len": lengths(400, 401)}, ["kv_len[1] is 401", "0 to 400"]),
                (g, {"block_table": None}, ["block_table"]),
                (g, {"block_table": tensor("I32", [B, 4], [8] + table[1:])},
                 ["block_table[0, 0] is 8", "0 to 7"]),
                (g, {"block_table": tensor("I32", [B, 4], table[:6] + [-1, -1])},
                 ["block_table[1, 2] is -1", "0 to 7"]),
                (g, {"block_table": tensor("I32", [1, 8], table)}, ["block_table", "[1, 8]"]),
                (g, {"kv_pages": ("BF16", [8, 1, 200, HKV, D], g["kv_pages"][2])}, ["[8, 1, 200"]),
                (m, {"kpe": None}, ["kpe"]),
                (m, {"kpe": ("BF16", [B, LK // 2, 32], m["kpe"][2])}, ["kpe", "[2, 200, 32]"]),
                (m, {"ckv": ("BF16", [B, LK // 2, 96], m["ckv"][2])}, ["96", "64"])):
            with self.subTest(says):
                tensors = {n: t for n, t in {**base, **change}.items() if t is not None}
                self.refuse_both(tensors, says)

    def test_huge_axes_are_refused_before_anything_is_allocated(self):
        p = LAYOUTS["padded"]
        huge = 1 << 40
        for change, says in (
                ({"q": ("BF16", [huge, 0, HQ, D], b"")}, [str(huge), "65535"]),
                ({"q": ("BF16", [B, huge, 0, D], b"")}, [str(huge), "16777216"]),
                ({"q": ("BF16", [B, 0, huge, D], b"")}, [str(huge), "65535"]),
                ({"q": ("BF16", [B, 0, HQ, huge], b"")}, [str(huge), "65535"]),
                ({"v": ("BF16", [B, LK, HKV, 0], b""), "k": ("BF16", [B, huge, 0, D], b"")},
                 ["[2, 400, 1, 0]"]),
                ({"k": ("BF16", [B, huge, 0, D], b""), "v": ("BF16", [B, huge, 0, D], b"")},
                 [str(huge), "16777216"]),
                ({"k": ("BF16", [B, 0, HKV, D], b""), "v": ("BF16", [B, 0, HKV, huge], b"")},
                 [str(huge), "65535"])):
            with self.subTest(says):
                self.refuse_both({n: t for n, t in {**p, **change}.items() if "len" not in n}, says)

    def test_small_tensors(self):
        p = LAYOUTS["padded"]
        mask = [1] * (B * LQ * LK)
        mask[LK + 3] = 7
        custom = ("--set", "mask=custom")
        for change, settings, says in (
                ({"k_scale": tensor("F32", [2], [1, 1])}, (), ["k_scale", "[2]"]),
                ({"q_scale": tensor("F32", [1], [float("nan")])}, (), ["q_scale is nan"]),
                ({"v_scale": tensor("F32", [], [0])}, (), ["v_scale is 0"]),
                ({"v_scale": tensor("F32", [], [-1])}, (), ["v_scale is -1", "positive"]),
                ({"sinks": tensor("F32", [3], [1, 1, 1])}, (), ["sinks", "[3]"]),
                ({"sinks": tensor("F32", [2], [1, float("inf")])}, (), ["sinks[1] is inf"]),
                ({"alibi_slopes": tensor("BF16", [2], [1, 1])}, (), ["alibi_slopes", "BF16"]),
                ({}, custom, ["no tensor mask", "custom"]),
                ({"mask": tensor("U8", [B, LQ, LK], [1] * len(mask))}, (), ["tensor mask", "full"]),
                ({"mask": tensor("U8", [B, LQ, LK], mask)}, custom, ["mask[0, 1, 3] is 7"]),
                ({"mask": tensor("U8", [B, 9, LK], [1] * (B * 9 * LK))}, custom, ["70 rows"]),
                ({"threshold_scale_factor": tensor("F32", [B], [1, -2])}, (),
                 ["threshold_scale_factor[1] is -2"]),
                ({"threshold_scale_factor": tensor("F32", [B], [1, float("nan")])}, (),
                 ["threshold_scale_factor[1] is nan"]),
                ({"threshold_scale_factor": tensor("F32", [3], [1, 1, 1])}, (), ["[3]"]),
                ({"threshold_scale_factor": tensor("F32", [B], [1, 1])}, FACTOR, ["one of them"])):
            with self.subTest(says):
                self.refuse_both({**p, **change}, says, *settings)
        self.refuse_both({**p, "o_scale": tensor("F32", [1], [2])}, ["o_scale is 2"],
                         code=UNSUPPORTED)

    def test_parameters(self):
        for setting, says in (
                ("threshold_scale_factor=nan", ['"nan"', "0, positive numbers and inf"]),
                ("threshold_scale_factor=-1", ['"-1"', "0, positive numbers and inf"]),
                ("threshold_scale_factor=x", ['"x"', "0, positive numbers and inf"]),
                ("threshold_scale_factor=1e60", ['"1e60"']),
                ("scale=0", ['scale is "0"', "positive"]), ("scale=inf", ['"inf"']),
                ("softcap=-2", ['"-2"']), ("splits=0", ["splits is 0", "1 to 65535"]),
                ("q_offset=1.5", ["q_offset", '"1.5"']),
                ("q_offset=99999999", ["q_offset", "16777216"]),
                ("out_dtype=f32", ['"f32"', "bf16 and f16"]),
                ("mask=diagonal", ['"diagonal"', "window:N"]), ("mask=window:0", ["N is 0", "to"]),
                ("mask=chunked:", ['""', "1 to"]), ("causal=1", ['"causal"', "mask"])):
            with self.subTest(setting):
                self.refuse_both(LAYOUTS["padded"], says, "--set", setting)
        # What a file may not say without quotes, or says twice.
        for params, says in (('{"splits": true}', ['splits is "true"', "whole numbers"]),
                             ('{"scale": 1, "scale": 2}', ['key "scale" appears twice']),
                             ('{"scale": "0x1"}', ['scale is "0x1"', "positive numbers"]),
                             ('{"scale": 0}', ['scale is "0"', "positive numbers"]),
                             ('{"mask": 1}', ['mask is "1"', "text in quotes"])):
            with self.subTest(params):
                self.refuse_both(LAYOUTS["padded"], says, metadata={"assay.params": params})
        self.refuse_both(LAYOUTS["padded"], ['"nobody"', OURS], profile="nobody")
        source = self.write("in.safetensors", LAYOUTS["padded"])
        self.refuse("golden", "attention", "--in", source, "--out", self.dir / "new",
                    says=["profile", "--profile", OURS])
        self.refuse("golden", "attention", "--in", source, "--out", self.dir / "new", "--profile",
                    "fa3-dense-sm90", *FACTOR, says="never skips", code=UNSUPPORTED)

    def test_got_files(self):
        golden = self.make(LAYOUTS["padded"], OURS, *FACTOR)
        good, metadata = read(golden)
        outputs = {n: good[n] for n in ("out", "lse_log2", "decision")}
        cells = good["decision"][2]
        for change, says in (
                ({"out": None}, ["out"]),
                ({"out": ("F16", *good["out"][1:])}, ["out", "F16", "BF16"]),
                ({"out": (good["out"][0], [B * LQ, HQ, D], good["out"][2])}, ["[140, 2, 64]"]),
                ({"lse_log2": ("F32", [B, HQ, LQ], good["lse_log2"][2])}, ["lse_log2", "[2, 2,"]),
                ({"decision": ("U8", [B, 1, 4, 4], cells)}, ["[2, 1, 4, 4]", "64 rows"]),
                ({"decision": ("I32", [B, HQ, 2, 1], cells)}, ["decision", "I32"])):
            with self.subTest(says):
                got = {n: t for n, t in {**outputs, **change}.items() if t is not None}
                self.refuse("check", "attention", "--in", golden, "--got",
                            self.write("got.safetensors", got), says=says)
        other = {**metadata, "assay.kv_tile": "64"}
        got = self.write("got.safetensors", good, other)
        self.refuse("check", "attention", "--in", golden, "--got", got,
                    says=["assay.kv_tile", '"64"', "128"])


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
