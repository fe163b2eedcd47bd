"""assay and files of routing: what is refused, and with which sentence; info and convert."""

import struct
import unittest

from cli_testing import Command, SAMPLE, csv_text, trace_bytes


class BadTraces(Command):
    """Every verb that reads a trace refuses the same files with the same kind of sentence."""

    def refuse_file(self, name, content, says):
        path = self.dir / name
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        for command in (("replay", path, "--ep", 2), ("trace", "info", path),
                        ("trace", "convert", path, self.dir / "out.safetensors")):
            self.refuse(*command, says=[name, *says])

    def test_files_that_are_none(self):
        self.refuse("replay", self.dir / "missing.csv", says=["missing.csv", "No such file"])
        self.refuse("replay", self.dir, says=[str(self.dir), "not a regular file"])
        self.refuse("replay", "/dev/null", says="/dev/null")
        self.refuse_file("empty.csv", "", ["empty"])
        self.refuse_file("words.txt", "what is this\n", [])

    def test_truncated_and_hostile_safetensors(self):
        good = trace_bytes()
        self.refuse_file("cut.safetensors", good[:-1], [])
        self.refuse_file("header.safetensors", good[:40], [])
        self.refuse_file("length.safetensors", good[:5], [])
        self.refuse_file("huge.safetensors", struct.pack("<Q", 1 << 60) + good[8:], [])
        self.refuse_file("tail.safetensors", good + b"x", [])
        self.refuse_file("json.safetensors", good.replace(b'"request"', b'"request ', 1), [])
        self.refuse_file("twice.safetensors", good.replace(b'"request"', b'"step"   '), ["step"])
        self.refuse_file("dtype.safetensors", good.replace(b'"I16"', b'"I17"'), ["I17", "BF16"])
        self.refuse_file("shape.safetensors", good.replace(b"[2, 1, 2]", b"[-2,1, 2]", 1), ["-2"])
        self.refuse_file("overflow.safetensors",
                         good.replace(b"[2, 1, 2]", b"[9223372036854775807, 9, 9]", 1), [])

    def test_metadata_and_values_that_are_no_trace(self):
        self.refuse_file("schema.safetensors", trace_bytes(metadata={"schema": "other"}),
                         ['"other"', "assay.trace"])
        self.refuse_file("version.safetensors", trace_bytes(metadata={"version": "2"}), ["2", "1"])
        self.refuse_file("id.safetensors", trace_bytes(ids=(0, 4, 2, 3)), ["4", "3"])
        self.refuse_file("negative.safetensors", trace_bytes(ids=(0, -1, 2, 3)), ["-1"])
        self.refuse_file("nan.safetensors", trace_bytes(weights=(0x7FC0, 0x3E80)), ["nan"])
        self.refuse_file("experts.safetensors", trace_bytes(experts=40000), ["40000", "32767"])

    def test_csv_with_wrong_columns_ids_and_weights(self):
        self.refuse_file("columns.csv", csv_text().replace("e0,e1,e2,e3", "e0,e1,e2"), [])
        self.refuse_file("names.csv", csv_text().replace("conv,step", "step,conv"), [])
        at = (1, 0, 7)  # line 1 is the header, 24 layers for each of 2 steps come before
        line = "line 57"
        for name, fields, says in (
                ("few.csv", ["1", "2", "3"], []),
                ("range.csv", ["1", "2", "3", "32", "3f00", "3e80", "3e00", "3e00"], ["32", "31"]),
                ("minus.csv", ["1", "2", "3", "-1", "3f00", "3e80", "3e00", "3e00"], ["-1"]),
                ("word.csv", ["1", "2", "3", "x", "3f00", "3e80", "3e00", "3e00"], ['"x"']),
                ("same.csv", ["1", "2", "3", "3", "3f00", "3e80", "3e00", "3e00"], ["3"]),
                ("nan.csv", ["1", "2", "3", "4", "7fc0", "3e80", "3e00", "3e00"], ["nan"]),
                ("hex.csv", ["1", "2", "3", "4", "3fzz", "3e80", "3e00", "3e00"], ["3fzz"])):
            self.refuse_file(name, csv_text(change=(at, fields)), [line, *says])


class TraceVerbs(Command):
    def test_info_has_the_same_fields_in_text_and_json(self):
        info = self.json("trace", "info", SAMPLE)
        self.assert_same_fields(self.succeed("trace", "info", SAMPLE), info)
        self.assertEqual(info["tokens"], 8192)
        self.assertEqual(info["layers"], 12)

    def test_convert_keeps_the_routing(self):
        (self.dir / "in.csv").write_text(csv_text())
        out = self.dir / "out.safetensors"
        self.succeed("trace", "convert", self.dir / "in.csv", out)
        self.assertEqual(sorted(p.name for p in self.dir.iterdir()), ["in.csv", "out.safetensors"])
        before, after = (self.json("trace", "info", self.dir / n)
                         for n in ("in.csv", "out.safetensors"))
        self.assertEqual(after["format"], "safetensors")
        for differs in ("file", "format"):
            del before[differs], after[differs]
        self.assertEqual(before, after)
        again = self.dir / "again.safetensors"
        self.succeed("trace", "convert", out, again)
        self.assertEqual(out.read_bytes(), again.read_bytes())

    def test_convert_to_shards(self):
        (self.dir / "in.csv").write_text(csv_text())
        told = self.json("trace", "convert", self.dir / "in.csv", self.dir / "t.safetensors",
                         "--tokens-per-shard", 3)
        self.assertTrue(told["written"].endswith("t.safetensors.index.json"))
        self.assertEqual(self.json("trace", "info", told["written"])["tokens"], 8)
        self.refuse("trace", "convert", told["written"], self.dir / "x", "--tokens-per-shard", 0,
                    says=["--tokens-per-shard is 0", "1 to"])


if __name__ == "__main__":
    unittest.main()
