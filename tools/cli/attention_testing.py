"""What the tests of golden attention share: one problem in every layout, and the two commands.
Runs no test itself."""

import random
import struct

from golden_testing import Golden, read

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
