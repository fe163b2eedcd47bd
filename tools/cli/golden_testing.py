"""What the tests of assay golden and assay check share: an input of each operation, reading what
was written, and the two commands. Runs no test itself."""

import json
import pathlib
import random
import struct

from cli_testing import Command, MISMATCH, safetensors

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
