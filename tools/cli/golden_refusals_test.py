"""assay golden and assay check of wrong requests, files and values."""

import unittest

from cli_testing import OK, UNSUPPORTED
from golden_testing import CASES, Golden, combine_inputs, read, tensor


class Refusals(Golden):
    """Wrong requests, files and values each get a sentence, and nothing is written [VER-7.1]."""

    def refuse_both(self, op, tensors, arguments, says, metadata=None):
        """golden and check refuse the same input; nothing is written."""
        source = self.write("in.safetensors", tensors, metadata)
        for command in (("golden", op, "--in", source, "--out", self.dir / "out.safetensors"),
                        ("check", op, "--in", source, "--got", source)):
            self.refuse(*command, *arguments, says=says)

    def test_sizes_that_wrap_or_vanish(self):
        self.refuse_both("combine", {"expert_out": tensor("BF16", [0, 0, 0, 4], []),
                                     "target_rank": tensor("I32", [0, 1, 2], []),
                                     "target_slot": tensor("I32", [0, 1, 2], [])},
                         ["--profile", "assay-oneside"], ["0 ranks", "1 to 256"])
        source = self.write("large.safetensors", {
            "topk_ids": tensor("I32", [256, 1, 1], [0] * 256),
            "num_tokens": tensor("I32", [256], [1] * 256),
            "payload.x": tensor("U8", [256, 1, 65536], [0] * (256 * 65536))})
        self.refuse("golden", "dispatch", "--in", source, "--out", self.dir / "out.safetensors",
                    "--set", "num_experts=256", "--set", "max_tokens_per_rank=16777216",
                    says=["recv.x", "65536 bytes", "at most"], code=UNSUPPORTED)

    def test_wrong_command_lines(self):
        source = self.write("in.safetensors", CASES["mufu"][0])
        out = self.dir / "out.safetensors"
        for verb, target in (("golden", "--out"), ("check", "--got")):
            where = out if verb == "golden" else source
            self.refuse(verb, says="OP is missing")
            self.refuse(verb, "mufu", target, where, says="--in is missing")
            self.refuse(verb, "mufu", "--in", source, says=f"{target} is missing")
            self.refuse(verb, "sum", "--in", source, target, where,
                        says=['"sum"', "mma, mufu, convert, quantize, dispatch, combine"])
            common = (verb, "mufu", "--in", source, target, where)
            self.refuse(*common, says=["function", "--set", "ex2, rcp"])
            self.refuse(*common, "--set", "function=sin", says=["'sin'", "rsqrt"])
            self.refuse(*common, "--set", "funktion=ex2", says=['"funktion"', "function"])
            self.refuse(*common, "--set", "function", says=['"function"', "key=value"])
            self.refuse(*common, "--set", "function=ex2", "--set", "function=rcp", says="twice")
            self.refuse(*common, "--set", "function=ex2", "--profile", "p", says="takes none")
            self.refuse(verb, "mufu", "--in", self.dir / "rank{rank}.safetensors", target, where,
                        says="per rank", code=UNSUPPORTED)
            self.refuse(verb, "mufu", "--in", self.dir / "none", target, where, says="No such file")
        self.refuse("golden", "mufu", "--in", source, "--out", self.dir / "no" / "out", "--set",
                    "function=ex2", says="cannot write")

    def test_profiles_must_be_named(self):
        for op, key in (("combine", "assay-oneside"), ("quantize", "te-mxfp8")):
            self.refuse_both(op, CASES[op][0], [], ["--profile", key])
            self.refuse_both(op, CASES[op][0], ["--profile", "nobody"], ['"nobody"', key])
        source = self.write("in.safetensors", CASES["combine"][0])
        self.refuse("golden", "combine", "--in", source, "--out", self.dir / "out", "--profile",
                    "any", says="golden computes by one")
        self.refuse_both("combine", CASES["combine"][0],
                         ["--profile", "assay-oneside", "--set", "profile=assay-oneside"],
                         "the same thing")

    def test_tensors_that_are_missing_or_wrong(self):
        for op, name in (("mma", "a"), ("mma", "c"), ("mufu", "x"), ("convert", "x"),
                         ("quantize", "x"), ("dispatch", "topk_ids"), ("dispatch", "num_tokens"),
                         ("combine", "rows"), ("combine", "target_rank")):
            with self.subTest(op=op, tensor=name):
                tensors = dict(CASES[op][0])
                dtype, shape, data = tensors.pop(name)
                self.refuse_both(op, {"other": ("U8", [1], b"x"), **tensors}, CASES[op][1], name)
                wrong = {**tensors, name: ("I64", [1], bytes(8))}
                self.refuse_both(op, wrong, CASES[op][1], [name, "I64"])
        shapes = (("mma", "b", ("BF16", [2, 3, 16], bytes(192)), "[2, 3, 16]"),
                  ("quantize", "x", ("BF16", [2, 33], bytes(132)), "33 columns"),
                  ("combine", "target_rank", tensor("I32", [6, 8], [9] * 47 + [300]), "300"),
                  ("combine", "rows", tensor("BF16", [6, 3, 64]), "target_rank"),
                  ("dispatch", "num_tokens", tensor("I32", [3], [2, 5, 0]), "num_tokens[1] is 5"),
                  ("dispatch", "payload.hidden", tensor("BF16", [2, 4, 8]), "payload.hidden"))
        for op, name, replacement, says in shapes:
            with self.subTest(op=op, tensor=name):
                self.refuse_both(op, {**CASES[op][0], name: replacement}, CASES[op][1], says)

    def test_values_of_parameters(self):
        for op, setting, says in (
                ("mma", "arch=sm_70", ["sm_70", "sm_90a"]),
                ("mma", "instruction=wgmma.m64n8k16.f32.bf16.f16", ["allowed are", "wgmma.k16"]),
                ("convert", "to=e3m4", ['"e3m4"', "e4m3"]),
                ("convert", "rounding=up", ['"up"', "rz"]),
                ("convert", "satfinite=2", ["satfinite", "2"]),
                ("quantize", "scale_layout=64x4", ['"64x4"', "128x4"]),
                ("dispatch", "slot_rule=random", ["random", "prefix"]),
                ("dispatch", "num_experts=2", ["2"]),
                ("dispatch", "num_experts=x", ["num_experts", '"x"']),
                ("dispatch", "invalid_id=3", ["3"]),
                ("dispatch", "max_tokens_per_rank=1", ["1"]),
                ("combine", "low_precision=2", ["low_precision", "2"]),
                ("combine", "ep_size=0", ["ep_size", "0"]),
                ("combine", "out_dtype=f32", ['"f32"', "bf16"])):
            key = setting.split("=")[0]
            others = [a for a in CASES[op][1] if not a.startswith(key + "=")]
            arguments = [a for i, a in enumerate(others)
                         if not (a == "--set" and (i + 1 == len(others) or
                                                   others[i + 1] == "--set"))]
            with self.subTest(setting):
                self.refuse_both(op, CASES[op][0], [*arguments, "--set", setting], says)

    def test_metadata(self):
        for metadata, says in (({"assay.params": "{"}, "is a JSON object"),
                               ({"assay.params": "[1]"}, "is a JSON object"),
                               ({"assay.params": '{"function": [1]}'}, "text in quotes"),
                               ({"assay.params": '{"x": 1}'}, ['"x"', "function"]),
                               ({"assay.op": "mma"}, ['"mma"', "mufu"]),
                               ({"schema": "assay.trace", "version": "1"}, "assay.golden"),
                               ({"schema": "assay.golden", "version": "2"}, "2")):
            with self.subTest(metadata):
                self.refuse_both("mufu", CASES["mufu"][0], CASES["mufu"][1] if "assay.op" in
                                 metadata else [], says, metadata)

    def test_got_files(self):
        golden = self.golden("mma")
        tensors, metadata = read(golden)
        d = tensors.pop("d")
        for got, says in ((tensors, "d"), ({**tensors, "d": ("F16", d[1], d[2][:48])}, "F16"),
                          ({**tensors, "d": ("F32", [24], d[2])}, "[24]")):
            self.refuse("check", "mma", "--in", golden, "--got",
                        self.write("got.safetensors", got, metadata), says=says)

    def test_what_no_profile_computes_is_unsupported(self):
        weights = tensor("F32", [6, 8], [1.0] * 48)
        source = self.write("in.safetensors", {**CASES["combine"][0], "weights": weights})
        self.refuse("golden", "combine", "--in", source, "--out", self.dir / "out",
                    *CASES["combine"][1], says="weights", code=UNSUPPORTED)

    def test_a_comparison_that_cannot_fail_is_not_trusted(self):
        rows, ranks = combine_inputs()["rows"], tensor("I32", [6, 8], [-1] * 48)
        golden = self.golden("combine", {"rows": rows, "target_rank": ranks})
        told = self.check("combine", golden, golden)
        self.assertEqual(told["verdict"], "MISTRUSTED")
        self.check("combine", golden, golden, "--allow-vacuous", code=OK)


if __name__ == "__main__":
    unittest.main()
