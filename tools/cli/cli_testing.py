"""What the tests of the assay command share: running it, what a refusal looks like, small traces.

Each test file runs as: <file> ASSAY EXAMPLE_PLUGIN [unittest options]. Standard library only.
"""

import json
import os
import pathlib
import struct
import subprocess
import sys
import tempfile
import unittest

SAMPLE = (pathlib.Path(__file__).resolve().parents[2] / "traces" / "samples" /
          "assay-moe-sample.safetensors")
# The words behind the file's name are taken here, so that unittest sees only its own.
ASSAY, PLUGIN = sys.argv.pop(1), sys.argv.pop(1)

OK, MISMATCH, BAD_INPUT, UNSUPPORTED = 0, 1, 2, 3

# The address sanitizer maps terabytes of shadow: under it no limit of memory says anything.
limits_memory = unittest.skipIf(os.environ.get("ASSAY_SANITIZED") == "1",
                                "the sanitizer needs its address space")


def run(*arguments, **options):
    return subprocess.run([ASSAY, *map(str, arguments)], capture_output=True, text=True,
                          timeout=300, **options)


class Command(unittest.TestCase):
    """Helpers: a directory per test, and what a refusal must look like."""

    def setUp(self):
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.dir = pathlib.Path(directory.name)

    def refuse(self, *arguments, says, code=BAD_INPUT):
        """Exit code, one sentence on standard error that holds all of `says`, nothing printed,
        no file left behind."""
        before = self.snapshot()
        result = run(*arguments)
        self.assertEqual(result.returncode, code, (arguments, result.stdout, result.stderr))
        self.assertEqual(result.stdout, "", arguments)
        self.assertRegex(result.stderr, r"\Aassay: [^\n]{10,}\n\Z")
        self.assertNotRegex(result.stderr, r"(\S*/\S*): \1", "a place is said once")
        for part in [says] if isinstance(says, str) else says:
            self.assertIn(part, result.stderr)
        self.assertEqual(self.snapshot(), before, "a refused command must leave no file")
        return result.stderr

    def snapshot(self):
        return {p: p.read_bytes() for p in sorted(self.dir.rglob("*")) if p.is_file()}

    def succeed(self, *arguments, code=OK):
        result = run(*arguments)
        self.assertEqual(result.returncode, code, (arguments, result.stdout, result.stderr))
        self.assertEqual(result.stderr, "", "progress is for terminals only")
        return result.stdout

    def json(self, *arguments, code=OK):
        return json.loads(self.succeed(*arguments, "--json", code=code))

    def assert_same_fields(self, text, value, path=()):
        """Every key and every leaf of the JSON is in the text."""
        if isinstance(value, dict):
            for key, inner in value.items():
                self.assertIn(key, text, path)
                self.assert_same_fields(text, inner, (*path, key))
        elif isinstance(value, list):
            for i, inner in enumerate(value):
                self.assert_same_fields(text, inner, (*path, i))
        else:
            shown = (str(value).lower() if isinstance(value, bool) else
                     f"{value:.4g}" if isinstance(value, float) else str(value))
            self.assertIn(shown, text, path)


CSV_HEADER = "conv,step,layer,e0,e1,e2,e3,p0,p1,p2,p3"


def csv_text(conversations=4, steps=2, change=None):
    """GPT-OSS routing; `change` maps (conv, step, layer) to another row of eight fields."""
    rows = [CSV_HEADER]
    for conv in range(conversations):
        for step in range(steps):
            for layer in range(24):
                first = conv * 5 + step * 7 + layer
                ids = [(first + k * 3) % 32 for k in range(4)]
                fields = [*map(str, ids), "3f00", "3e80", "3e00", "3e00"]
                if change and (conv, step, layer) == change[0]:
                    fields = change[1]
                rows.append(",".join([str(conv), str(step), str(layer), *fields]))
    return "\n".join(rows) + "\n"


def safetensors(tensors, metadata=None):
    """tensors: name -> (dtype, shape, bytes)."""
    header, offset = {"__metadata__": metadata or {}}, 0
    for name, (dtype, shape, data) in tensors.items():
        end = offset + len(data)
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + b"".join(d for _, _, d in tensors.values())


def trace_bytes(ids=(0, 1, 2, 3), weights=(0x3F00, 0x3E80), experts=4, metadata=None):
    """Two tokens, one layer, top-2."""
    info = {"schema": "assay.trace", "version": "1", "model": "m", "num_experts": str(experts),
            "hidden_size": "16", "layers": "1", "licence": "CC0-1.0", "source": "test"}
    info.update(metadata or {})
    return safetensors({
        "request": ("I32", [2], struct.pack("<2i", 0, 1)),
        "step": ("I32", [2], struct.pack("<2i", 0, 0)),
        "position": ("I32", [2], struct.pack("<2i", 5, 5)),
        "topk_ids": ("I16", [2, 1, 2], struct.pack("<4h", *ids)),
        "topk_weights": ("BF16", [2, 1, 2], struct.pack("<2H", *weights) * 2)}, info)
