"""assay golden and assay check: round trips, recorded hardware, wrong bits, refusals."""

import array
import json
import lzma
import pathlib
import random
import struct
import unittest

from cli_testing import Command, MISMATCH, OK, SAMPLE, UNSUPPORTED, safetensors

NUMERICS = pathlib.Path(__file__).resolve().parents[2] / "model" / "numerics"
WIDTH = {"F32": 4, "I32": 4, "U64": 8, "BF16": 2, "F16": 2, "F8_E4M3": 1, "F8_E5M2": 1,
         "F8_E8M0": 1, "U8": 1, "F4": 0.5}


def read(path):
    """name -> (dtype, shape, bytes), and the metadata."""
    data = pathlib.Path(path).read_bytes()
    size, = struct.unpack("<Q", data[:8])
    header = json.loads(data[8:8 + size])
    metadata = header.pop("__metadata__", {})
    body = data[8 + size:]
    return ({name: (t["dtype"], t["shape"], body[slice(*t["data_offsets"])])
             for name, t in header.items()}, metadata)


def tensor(dtype, shape, values=None, seed=0):
    """Packed little-endian numbers, or random bits."""
    count = 1
    for size in shape:
        count *= size
    if values is None:
        return dtype, shape, random.Random(seed).randbytes(int(count * WIDTH[dtype]))
    code = {"F32": "f", "I32": "i", "U64": "Q", "BF16": "H", "U8": "B"}[dtype]
    return dtype, shape, struct.pack(f"<{count}{code}", *values)


def bf16(count, seed, binades=4):
    """bf16 numbers of either sign, 2^-binades to 2^binades."""
    rng = random.Random(seed)
    return [rng.getrandbits(1) << 15 | rng.randint(127 - binades, 127 + binades) << 7 |
            rng.getrandbits(7) for _ in range(count)]


def mma_inputs(k=32):
    return {"a": tensor("BF16", [2, 4, k], bf16(8 * k, 1)),
            "b": tensor("BF16", [2, 3, k], bf16(6 * k, 2)),
            "c": tensor("F32", [2, 4, 3], [v / 7 for v in range(24)])}


def dispatch_inputs():
    """3 ranks of 2, 0 and 4 tokens, 6 experts; duplicates and a pick without a target."""
    rng = random.Random(5)
    ids = [rng.randint(0, 5) for _ in range(3 * 4 * 2)]
    ids[3] = -1
    return {"topk_ids": tensor("I32", [3, 4, 2], ids), "num_tokens": tensor("I32", [3], [2, 0, 4]),
            "payload.hidden": tensor("BF16", [3, 4, 8], seed=6),
            "payload.scales": tensor("U8", [3, 4, 3], seed=7)}


def combine_inputs(hidden=64, top_k=8, tokens=6):
    ranks = [0, 3, -1, 1, 2, -1, 4, 5][:top_k] * tokens
    return {"rows": tensor("BF16", [tokens, top_k, hidden], bf16(tokens * top_k * hidden, 3, 20)),
            "target_rank": tensor("I32", [tokens, top_k], ranks)}


# operation -> inputs, arguments that the file needs, outputs that are compared
CASES = {
    "mma": (mma_inputs(), ["--set", "instruction=wgmma.m64n8k16.f32.bf16.bf16", "--set",
                           "arch=sm_90a"], ["d"]),
    "mufu": ({"x": tensor("F32", [5, 40], seed=8)}, ["--set", "function=ex2"], ["y"]),
    "convert": ({"x": tensor("F32", [200], seed=9)}, ["--set", "to=e4m3"], ["y"]),
    "quantize": ({"x": tensor("BF16", [5, 128], bf16(640, 4))}, ["--profile", "te-mxfp8"],
                 ["y", "scale"]),
    "dispatch": (dispatch_inputs(), ["--set", "num_experts=6", "--set", "max_tokens_per_rank=4"],
                 ["recv.hidden", "recv.scales", "recv_counters", "target_rank", "target_slot"]),
    "combine": (combine_inputs(), ["--profile", "assay-oneside"], ["out"]),
}


class Golden(Command):
    def write(self, name, tensors, metadata=None):
        path = self.dir / name
        path.write_bytes(safetensors(tensors, metadata))
        return path

    def golden(self, op, tensors=None, arguments=None, name="golden.safetensors"):
        """The golden file of an operation's case."""
        source = self.write("in.safetensors", CASES[op][0] if tensors is None else tensors)
        self.succeed("golden", op, "--in", source, "--out", self.dir / name,
                     *(CASES[op][1] if arguments is None else arguments))
        return self.dir / name

    def changed(self, golden, name, byte, mask=1):
        """A copy of a file with one byte of one tensor changed."""
        tensors, metadata = read(golden)
        dtype, shape, data = tensors[name]
        data = bytearray(data)
        data[byte] ^= mask
        tensors[name] = (dtype, shape, bytes(data))
        return self.write("changed.safetensors", tensors, metadata)

    def check(self, op, source, got, *arguments, code=MISMATCH):
        return self.json("check", op, "--in", source, "--got", got, *arguments,
                         code=code)["report"]

    def diagnoses(self, op, source, got, *arguments):
        return self.check(op, source, got, *arguments)["mismatches"][0]["diagnosis"]


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


class Dispatch(Golden):
    """Slots that a kernel may choose, and rows that it may not change [VER-7.3][VER-7.6]."""

    def permuted(self, golden, fix_slots):
        """The first block with two rows has its rows 0 and 1 swapped, and their slots if asked."""
        tensors, metadata = read(golden)
        counters = struct.unpack("<9i", tensors["recv_counters"][2])
        pair = next(i for i, count in enumerate(counters) if count >= 2)
        for name in ("recv.hidden", "recv.scales"):
            dtype, shape, data = tensors[name]
            size = len(data) // 36
            first = pair * 4 * size
            data = bytearray(data)
            data[first:first + 2 * size] = (data[first + size:first + 2 * size] +
                                            data[first:first + size])
            tensors[name] = (dtype, shape, bytes(data))
        if fix_slots:
            dtype, shape, data = tensors["target_slot"]
            slots = list(struct.unpack("<24i", data))
            ranks = struct.unpack("<24i", tensors["target_rank"][2])
            for i in range(8 * (pair % 3), 8 * (pair % 3) + 8):
                if ranks[i] == pair // 3 and slots[i] in (0, 1):
                    slots[i] = 1 - slots[i]
            tensors["target_slot"] = (dtype, shape, struct.pack("<24i", *slots))
        return tensors, metadata

    def test_another_slot_order_conforms_if_it_is_the_recorded_one(self):
        golden = self.golden("dispatch")
        tensors, metadata = self.permuted(golden, fix_slots=True)
        told = self.check("dispatch", golden, self.write("got.safetensors", tensors, metadata),
                          code=OK)
        self.assertEqual(told["provenance"]["join"], "by the recorded slots")
        tensors, metadata = self.permuted(golden, fix_slots=False)
        told = self.check("dispatch", golden, self.write("got.safetensors", tensors, metadata))
        self.assertEqual(told["mismatches"][0]["check"], "dispatch.recv.hidden")

    def test_rows_are_joined_by_content_where_no_slots_are_recorded(self):
        golden = self.golden("dispatch")
        tensors, metadata = self.permuted(golden, fix_slots=False)
        del tensors["target_rank"], tensors["target_slot"]
        got = self.write("got.safetensors", tensors, metadata)
        told = self.check("dispatch", golden, got, code=OK)
        self.assertIn("whole rows", told["provenance"]["join"])
        # A row that is there twice has lost the other: each legal row is matched once.
        counters = struct.unpack("<9i", tensors["recv_counters"][2])
        pair = next(i for i, count in enumerate(counters) if count >= 2)
        twice = dict(tensors)
        for name in ("recv.hidden", "recv.scales"):
            dtype, shape, data = tensors[name]
            size = len(data) // 36
            first = pair * 4 * size
            twice[name] = dtype, shape, (data[:first + size] + data[first:first + size] +
                                         data[first + 2 * size:])
        told = self.check("dispatch", golden, self.write("twice.safetensors", twice, metadata))
        self.assertEqual(told["mismatches"][0]["first"]["slot"], 1)
        # Rows mixed by column are in no multiset of whole rows.
        hidden = self.permuted(golden, fix_slots=False)[0]["recv.hidden"]
        mixed = {**tensors, "recv.hidden": hidden,
                 "recv.scales": read(golden)[0]["recv.scales"]}
        told = self.check("dispatch", golden, self.write("got.safetensors", mixed, metadata))
        self.assertEqual(told["verdict"], "MISMATCH")

    def test_wrong_targets_and_counters_are_told_first(self):
        golden = self.golden("dispatch")
        for name, byte, check, join in (
                ("target_rank", 0, "dispatch.targets", "whole rows"),
                ("target_slot", 0, "dispatch.targets", "whole rows"),
                ("recv_counters", 4 * 2, "dispatch.recv_counters", "recorded slots")):
            with self.subTest(name):
                told = self.check("dispatch", golden, self.changed(golden, name, byte, 4))
                mismatch, = told["mismatches"]
                self.assertEqual(mismatch["check"], check)
                self.assertIn(join, told["provenance"]["join"])

    def test_every_bit_of_a_row_is_compared_and_none_of_an_unused_one(self):
        golden = self.golden("dispatch")
        counters = struct.unpack("<9i", read(golden)[0]["recv_counters"][2])
        for pair in range(9):
            for slot in range(4):
                got = self.changed(golden, "recv.hidden", (pair * 4 + slot) * 16 + 5)
                if slot >= counters[pair]:
                    self.check("dispatch", golden, got, code=OK)
                    continue
                mismatch, = self.check("dispatch", golden, got)["mismatches"]
                self.assertEqual(mismatch["first"], {"rank": pair // 3, "source": pair % 3,
                                                     "slot": slot, "element": 2})


    def test_an_invalid_id_that_is_given_is_expected_in_unused_rows_of_ids(self):
        tensors = dispatch_inputs()
        tensors["payload.topk_ids"] = tensors["topk_ids"]
        for setting, code in ((["--set", "invalid_id=-7"], MISMATCH), ([], OK)):
            golden = self.golden("dispatch", tensors, CASES["dispatch"][1] + setting)
            self.check("dispatch", golden, golden, code=OK)
            # Rank 1 has no tokens, so the first row from it is unused.
            got = self.changed(golden, "recv.topk_ids", 8 * 4)
            told = self.check("dispatch", golden, got, code=code)
            if code == MISMATCH:
                self.assertEqual(told["mismatches"][0]["first"],
                                 {"rank": 0, "source": 1, "slot": 0, "element": 0})


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
