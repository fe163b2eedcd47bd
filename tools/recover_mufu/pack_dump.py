#!/usr/bin/python3
"""Turns what `numerics_probe --dump DIRECTORY` wrote into the vector files of model/numerics.

    pack_dump.py DUMP_DIRECTORY OUTPUT_DIRECTORY --device NAME --driver VERSION \\
        --nvcc VERSION --date DATE

Writes OUTPUT/special/mufu_tanh_e<exponent>.i32delta.xz (binades 2^-8 to 2^2), OUTPUT/special/
mufu_half.u16.xz, and OUTPUT/tensor_core/probe/<instruction>.safetensors with one or two tiles of
each style. Standard library only.
"""
import argparse
import array
import json
import lzma
import os
import re
import struct

TYPES = {"bf16": (2, "BF16"), "f16": (2, "F16"), "tf32": (4, "F32"), "e4m3": (1, "F8_E4M3"),
         "e5m2": (1, "F8_E5M2")}
LINE = re.compile(r"(\S+) style (\d+) tiles (\d+) n 8 row_bytes (\d+)")


def read(path):
    with open(path, "rb") as f:
        return f.read()


def write(path, data):
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path + ".tmp", "wb") as f:
        f.write(data)
    os.rename(path + ".tmp", path)


def pack_tanh(dump, out):
    for exponent in range(-8, 3):
        values = array.array("I", read(f"{dump}/tanh_{exponent}.u32"))
        deltas = array.array("i", [values[0]])
        deltas.extend(b - a for a, b in zip(values, values[1:]))
        write(f"{out}/special/mufu_tanh_e{exponent}.i32delta.xz",
              lzma.compress(deltas.tobytes(), preset=6))


def safetensors(tensors, metadata):
    header, offset = {"__metadata__": metadata}, 0
    for name, dtype, shape, data in tensors:
        header[name] = {"dtype": dtype, "shape": shape,
                        "data_offsets": [offset, offset + len(data)]}
        offset += len(data)
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + b"".join(t[3] for t in tensors)


def pack_tiles(dump, out, metadata):
    raw, at, found = read(f"{dump}/tiles.bin"), 0, {}
    for line in read(f"{dump}/tiles.txt").decode().splitlines():
        name, style, tiles, row_bytes = LINE.fullmatch(line).groups()
        style, tiles, row_bytes = int(style), int(tiles), int(row_bytes)
        keep = 2 if name.startswith("wgmma") else 1
        entry = found.setdefault(
            name, {"row_bytes": row_bytes, "style": [], "parts": [b"", b"", b"", b""]})
        entry["style"] += [style] * keep
        for i, size in enumerate((64 * row_bytes, 8 * row_bytes, 512 * 4, 512 * 4)):
            entry["parts"][i] += raw[at:at + size * keep]
            at += size * tiles
    for name, entry in found.items():
        types = name.split(".")[-3:]
        tiles, k = len(entry["style"]), entry["row_bytes"] // TYPES[types[1]][0]
        a, b, c, d = entry["parts"]
        head = (f"wgmma.mma_async.sync.aligned.m64n8k{k}." if name.startswith("wgmma")
                else f"mma.sync.aligned.m16n8k{k}.")
        tensors = [("c", "F32", [tiles, 64, 8], c), ("d", "F32", [tiles, 64, 8], d),
                   ("style", "I32", [tiles], struct.pack(f"<{tiles}i", *entry["style"])),
                   ("a", TYPES[types[1]][1], [tiles, 64, k], a),
                   ("b", TYPES[types[2]][1], [tiles, 8, k], b)]
        file = name.replace(".sync", "").replace(".", "_")
        write(f"{out}/tensor_core/probe/{file}.safetensors",
              safetensors(tensors, {"instruction": head + ".".join(types), **metadata}))


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dump")
    parser.add_argument("out")
    for name in ("device", "driver", "nvcc", "date"):
        parser.add_argument("--" + name, required=True)
    args = parser.parse_args()
    pack_tanh(args.dump, args.out)
    write(f"{args.out}/special/mufu_half.u16.xz",
          lzma.compress(read(f"{args.dump}/half_tables.u16"), preset=9))
    pack_tiles(args.dump, args.out,
               {n: getattr(args, n) for n in ("device", "driver", "nvcc", "date")})


if __name__ == "__main__":
    main()
