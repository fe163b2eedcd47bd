"""assay golden and assay check: round trips, recorded hardware, rules that fit instead."""

import array
import json
import lzma
import pathlib
import random
import struct
import unittest

from cli_testing import OK, SAMPLE
from golden_testing import CASES, Golden, bf16, combine_inputs, read, tensor

NUMERICS = pathlib.Path(__file__).resolve().parents[2] / "model" / "numerics"
class Files(Golden):
    """An output never destroys an input; a key that two readers could read differently is refused
    [COR-2.1][VER-7.1]."""

    def test_an_output_that_is_an_input_is_refused(self):
        golden = self.golden("mufu")
        link = self.dir / "link.safetensors"
        link.symlink_to("in.safetensors")
        source = self.dir / "in.safetensors"
        for out in (source, link, self.dir / "." / "in.safetensors"):
            self.refuse("golden", "mufu", "--in", source, "--out", out, says="cannot write")
        self.refuse("golden", "mufu", "--in", source, "--out", self.dir / "new",
                    f"--json={self.dir}/new", says="twice")
        for other in (source, golden):
            self.refuse("check", "mufu", "--in", source, "--got", golden, f"--json={other}",
                        says="cannot write")

    def test_a_parameter_given_twice_in_the_file_is_refused(self):
        source = self.write("in.safetensors", CASES["mufu"][0],
                            {"assay.params": '{"function": "ex2", "function": "rcp"}'})
        self.refuse("golden", "mufu", "--in", source, "--out", self.dir / "out",
                    says='key "function" appears twice')


class RoundTrips(Golden):
    """A golden file checks itself, and a changed bit is found at its place [VER-7.2][VER-7.4]."""

    def test_every_golden_file_checks_itself(self):
        for op in CASES:
            with self.subTest(op):
                golden = self.golden(op)
                told = self.check(op, golden, golden, code=OK)
                self.assertEqual(told["verdict"], "CONFORMS")
                self.assertEqual(set(told["compared"]), set(CASES[op][2]))
                self.assertTrue(all(n > 0 for n in told["compared"].values()), told["compared"])
                self.assertRegex(told["provenance"]["grade"], r"^bits(-claimed)?: ")
                metadata = read(golden)[1]
                self.assertEqual((metadata["schema"], metadata["version"], metadata["assay.op"]),
                                 ("assay.golden", "1", op))
                self.assertIsInstance(json.loads(metadata["assay.params"]), dict)

    def test_golden_says_the_same_in_text_and_json(self):
        source = self.write("in.safetensors", CASES["mma"][0])
        command = ("golden", "mma", "--in", source, "--out", self.dir / "out", *CASES["mma"][1])
        told = self.json(*command)
        self.assert_same_fields(self.succeed(*command), told)
        self.assertEqual((told["grade"], told["tensors"]), ("bits", ["d F32 [2, 4, 3]"]))
        text = self.succeed("check", "mma", "--in", self.dir / "out", "--got", self.dir / "out")
        for part in ("CONFORMS", "COMPARED", "24 d", "grade: bits: reproduced on hardware",
                     "REPRO: assay check mma --in"):
            self.assertIn(part, " ".join(text.split()))

    def test_a_recorded_capture_is_read_as_it_is(self):  # SPEC VER-21.12
        capture = SAMPLE.with_name("assay-attention-sample-layer0.safetensors")
        golden = self.dir / "golden.safetensors"
        self.succeed("golden", "attention", "--in", capture, "--out", golden, "--profile",
                     "assay-prefill-sm90", "--set", "threshold_scale_factor=100")
        told = self.check("attention", golden, golden, code=OK)
        self.assertRegex(told["provenance"]["tiles"], r"[1-9]\d* skipped")
        tensors, metadata = read(capture)
        metadata["version"] = "2"
        other = self.write("later.safetensors", tensors, metadata)
        self.refuse("golden", "attention", "--in", other, "--out", self.dir / "no.safetensors",
                    "--profile", "assay-prefill-sm90", says=('"2"', "assay.capture"))
        metadata["schema"] = "assay.trace"
        other = self.write("trace.safetensors", tensors, metadata)
        self.refuse("golden", "attention", "--in", other, "--out", self.dir / "no.safetensors",
                    "--profile", "assay-prefill-sm90", says=('"assay.trace"', "assay.golden"))

    def test_set_is_stronger_than_the_file(self):
        golden = self.golden("mufu")
        told = self.check("mufu", golden, golden, "--set", "function=rcp")
        self.assertIn("function ex2 fits instead", told["mismatches"][0]["diagnosis"])

    def test_every_changed_bit_is_found_at_its_place(self):
        # A bit in every part of every output that is compared; (operation, tensor) -> byte, place
        places = {("mma", "d"): (4 * 17, {"tile": 1, "row": 1, "column": 2}),
                  ("mufu", "y"): (4 * 83 + 3, {"row": 2, "column": 3}),
                  ("convert", "y"): (77, {"element": 77}),
                  ("quantize", "y"): (128 * 3 + 5, {"row": 3, "column": 5}),
                  ("quantize", "scale"): (4 * 2 + 1, {"row": 2, "block": 1}),
                  ("combine", "out"): (2 * (64 * 4 + 9), {"token": 4, "hidden": 9})}
        for (op, name), (byte, place) in places.items():
            with self.subTest(op=op, tensor=name):
                golden = self.golden(op)
                got = self.changed(golden, name, byte)
                mismatch, = self.check(op, golden, got)["mismatches"]
                self.assertEqual(mismatch["first"], place)
                self.assertEqual((mismatch["check"], mismatch["wrong"]), (f"{op}.{name}", 1))
                self.assertEqual(mismatch["diagnosis"], [])
                bits = [int(mismatch["values"][side], 16) for side in ("got_bits", "expected_bits")]
                self.assertEqual(bin(bits[0] ^ bits[1]).count("1"), 1)

    def test_the_check_reads_what_kernels_return_without_names(self):
        golden = self.golden("mufu")
        y = read(golden)[0]["y"]
        got = self.write("got.safetensors", {"y": y})
        self.check("mufu", golden, got, code=OK)


class Recorded(Golden):
    """What an H200 computed, as bits, through the command."""

    def test_matrix_instructions(self):
        files = sorted((NUMERICS / "tensor_core" / "vectors").rglob("*.safetensors"))
        self.assertGreater(len(files), 30)
        for path in files:
            with self.subTest(path.name):
                instruction = read(path)[1]["instruction"]
                told = self.check("mma", path, path, "--set", f"instruction={instruction}",
                                  "--set", "arch=sm_90a", code=OK)
                self.assertEqual(told["verdict"], "CONFORMS")
                self.assertRegex(told["provenance"]["grade"], "^bits: ")

    def test_special_functions(self):
        vectors = NUMERICS / "special" / "vectors"
        for name, first, function in (("ex2_1to2", 0x3F800000, "ex2"),
                                      ("rcp_1to2", 0x3F800000, "rcp"),
                                      ("rsqrt_2to4", 0x40000000, "rsqrt"),
                                      ("lg2_2to4", 0x40000000, "lg2"),
                                      ("tanh_e-1", 0x3F000000, "tanh")):
            with self.subTest(name):
                deltas = array.array("i", lzma.decompress(
                    (vectors / f"mufu_{name}.i32delta.xz").read_bytes())[:4 << 16])
                bits, total = [], 0
                for delta in deltas:
                    total = total + delta & 0xFFFFFFFF
                    bits.append(total)
                count = len(bits)
                x = ("F32", [count], array.array("I", range(first, first + count)).tobytes())
                y = ("F32", [count], array.array("I", bits).tobytes())
                source = self.write("x.safetensors", {"x": x, "y": y})
                self.check("mufu", source, source, "--set", f"function={function}", code=OK)
                got = self.changed(source, "y", 4 * 1000)
                told = self.check("mufu", source, got, "--set", f"function={function}")
                self.assertEqual(told["mismatches"][0]["first"], {"element": 1000})


class OtherRules(Golden):
    """A file that another rule wrote is told which rule that is [VER-7.7]."""

    def test_matrix_instructions(self):
        for written, asked, arch, dtype, k in (
                ("mma.sync.m16n8k8.f32.bf16.bf16", "wgmma.m64n8k16.f32.bf16.bf16", "sm_90a",
                 "BF16", 32),
                ("mma.sync.m16n8k16.f32.f16.f16", "wgmma.m64n8k16.f32.f16.f16", "sm_80", "F16", 32),
                ("mma.sync.m16n8k32.f32.e4m3.e4m3", "wgmma.m64n8k32.f32.e4m3.e4m3", "sm_90a",
                 "F8_E4M3", 32)):
            with self.subTest(written):
                rng = random.Random(11)
                narrow = {"F16": lambda: rng.getrandbits(1) << 15 | rng.randint(10, 20) << 10 |
                          rng.getrandbits(10), "F8_E4M3": lambda: rng.getrandbits(1) << 7 |
                          rng.randint(30, 90), "BF16": lambda: bf16(1, rng.random())[0]}[dtype]
                size = "B" if dtype == "F8_E4M3" else "H"
                operand = [(dtype, [2, rows, k], struct.pack(f"<{2 * rows * k}{size}", *(
                    narrow() for _ in range(2 * rows * k)))) for rows in (8, 8)]
                c = tensor("F32", [2, 8, 8], [rng.gauss(0, 3) for _ in range(128)])
                inputs = {"a": operand[0], "b": operand[1], "c": c}
                golden = self.golden("mma", inputs, ["--set", f"instruction={written}", "--set",
                                                     f"arch={arch}"])
                told = self.diagnoses("mma", golden, golden, "--set", f"instruction={asked}",
                                      "--set", "arch=sm_90a")
                self.assertTrue(any(written.split(".m16")[0] in d and "fits instead" in d
                                    for d in told), told)

    def test_conversions(self):
        for setting, name in (("rounding=rz", "cvt.rz.satfinite"), ("rounding=rp", "cvt.rp"),
                              ("satfinite=0", "cvt.rn ")):
            golden = self.golden("convert", None, ["--set", "to=e4m3", "--set", setting])
            arguments = {"rounding=rz": "rounding=rn", "rounding=rp": "rounding=rn",
                         "satfinite=0": "satfinite=1"}[setting]
            told = self.diagnoses("convert", golden, golden, "--set", arguments)
            self.assertTrue(any(d.startswith(name) for d in told), told)

    def test_recipes(self):
        golden = self.golden("quantize")
        told = self.diagnoses("quantize", golden, golden, "--profile", "ocp-mxfp8")
        self.assertIn("recipe te-mxfp8 fits instead", told)
        told = self.check("quantize", golden, golden, "--profile", "any", code=OK)
        self.assertTrue(any("te-mxfp8" in reason for reason in told["reasons"]), told["reasons"])

    def test_profiles_of_combine(self):
        for profile in ("flashinfer-oneside@0.6.0", "assay-oneside"):
            golden = self.golden("combine", None, ["--profile", profile])
            other = ({"flashinfer-oneside@0.6.0", "assay-oneside"} - {profile}).pop()
            told = self.check("combine", golden, golden, "--profile", other)["mismatches"][0]
            self.assertTrue(any(d.startswith(f"profile {profile} (") for d in told["diagnosis"]),
                            told["diagnosis"])
            self.assertEqual(len(told["terms"]), 8)
            self.assertNotEqual(told["order"], "")
            fits = self.check("combine", golden, golden, "--profile", "any", code=OK)["reasons"]
            self.assertIn(profile, fits[0])
            self.assertNotIn(other, fits[0])

    def test_swapped_terms_of_combine(self):
        # f32 rows: bf16 outputs hide the order of most f32 additions.
        rng = random.Random(12)
        inputs = {"rows": tensor("F32", [6, 8, 32], [rng.gauss(0, 1) for _ in range(6 * 8 * 32)]),
                  "target_rank": combine_inputs()["target_rank"]}
        dtype, shape, data = inputs["rows"]
        row, token = 32 * 4, 32 * 4 * 8
        order = [0, 1, 2, 6, 4, 5, 3, 7]
        swapped = b"".join(data[t + k * row:t + (k + 1) * row]
                           for t in range(0, len(data), token) for k in order)
        plain = self.golden("combine", inputs)
        wrong = self.golden("combine", {**inputs, "rows": (dtype, shape, swapped)},
                            name="wrong.safetensors")
        told = self.diagnoses("combine", plain, wrong)
        self.assertTrue(any("terms 3 and 6 of every token swapped" in d for d in told), told)

    def test_slot_rules(self):
        golden = self.golden("dispatch", None, CASES["dispatch"][1] + ["--set",
                                                                       "slot_rule=token_index"])
        told = self.diagnoses("dispatch", golden, golden, "--set", "slot_rule=prefix")
        self.assertIn("slot_rule=token_index fits instead", told)


class Blackwell(Golden):
    def test_block_scales_are_read_and_nothing_measured_is_claimed(self):
        # 1.0 * 1.0 over k 64, scales 2^1 and 2^0 on the blocks of a: 32 * 2 + 32 * 1.
        ones = bytes([0x22] * 32)
        inputs = {"a": ("F4", [1, 1, 64], ones), "b": ("F4", [1, 1, 64], ones),
                  "c": tensor("F32", [1, 1, 1], [0.5]),
                  "scale_a": ("F8_E8M0", [1, 1, 2], bytes([128, 127])),
                  "scale_b": ("U8", [1, 1, 2], bytes([127, 127]))}
        arguments = ["--set", "arch=sm_100a", "--set",
                     "instruction=tcgen05.kind::mxf4.block32.f32.e2m1.e2m1.ue8m0"]
        golden = self.golden("mma", inputs, arguments)
        self.assertEqual(struct.unpack("<f", read(golden)[0]["d"][2])[0], 96.5)
        told = self.check("mma", golden, golden, code=OK)
        self.assertRegex(told["provenance"]["grade"], "^bits-claimed: ")
        for change, says in (({"scale_a": ("F8_E8M0", [1, 1, 4], bytes(4))}, "scale_a"),
                             ({"a": ("F4", [1, 1, 32], ones[:16]),
                               "b": ("F4", [1, 1, 32], ones[:16])}, "multiples of 64")):
            source = self.write("bad.safetensors", {**inputs, **change})
            self.refuse("golden", "mma", "--in", source, "--out", self.dir / "x", *arguments,
                        says=says)


if __name__ == "__main__":
    unittest.main()
