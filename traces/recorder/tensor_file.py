"""Reads and writes safetensors files: a length, a JSON header and raw little-endian tensors.

Decides how ours are laid out (SPEC COR-2.4) and nothing about what tensors mean. Standard library
only, since traces and captures are written and tested where no machine-learning package is
installed.
"""

import json
import os
import struct

DTYPE_BYTES = {"F32": 4, "I32": 4, "I16": 2, "BF16": 2, "F16": 2}


def write_tensors(path, metadata, tensors):
    """tensors: (name, dtype, shape, bytes). Writes to a temporary name beside `path` and renames,
    so that no reader sees half."""
    # Wider elements first, then by name: every tensor is aligned (SPEC COR-2.4).
    tensors = sorted(tensors, key=lambda t: (-DTYPE_BYTES[t[1]], t[0]))
    header, offset = {"__metadata__": dict(sorted(metadata.items()))}, 0
    for name, dtype, shape, data in tensors:
        header[name] = {"dtype": dtype, "shape": list(shape),
                        "data_offsets": [offset, offset + len(data)]}
        offset += len(data)
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)  # tensors start at a multiple of 8 bytes
    temporary = f"{path}.{os.getpid()}.partial"
    with open(temporary, "wb") as out:
        out.write(struct.pack("<Q", len(text)) + text)
        for *_, data in tensors:
            out.write(data)
    os.replace(temporary, path)


def read_tensors(path):
    """(metadata, {name: (dtype, shape, bytes)}) of a file that write_tensors() or any other writer
    of the format made. What the bytes hold is for the caller to check."""
    with open(path, "rb") as file:
        data = file.read()
    (length,) = struct.unpack("<Q", data[:8])
    header, body = json.loads(data[8:8 + length]), data[8 + length:]
    metadata = header.pop("__metadata__", {})
    tensors = {}
    for name, entry in header.items():
        begin, end = entry["data_offsets"]
        tensors[name] = (entry["dtype"], tuple(entry["shape"]), body[begin:end])
    return metadata, tensors
