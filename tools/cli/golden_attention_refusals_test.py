"""assay golden attention and assay check attention of what is inconsistent."""

import struct
import unittest

from attention_testing import (B, D, FACTOR, HKV, HQ, LAYOUTS, LK, LQ, OURS, Attention, tensor)
from cli_testing import UNSUPPORTED
from golden_testing import read


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
                ("mask=diagonal", ['"diagonal"', "window:N"]),
                ("mask=window:0", ["N of mask=window:N is 0", "to"]),
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


if __name__ == "__main__":
    unittest.main()
