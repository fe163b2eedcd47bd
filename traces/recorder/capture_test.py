"""Tests of captures (SPEC TRC-4.1, TRC-4.4, TRC-4.5). Those of the file need the standard library
alone; those of the hook are skipped, with the reason, where torch or transformers is missing.

    cd traces && python3 -m unittest recorder.capture_test
"""

import array
import json
import pathlib
import random
import struct
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from recorder.capture_file import (  # noqa: E402
    Call, Capture, CaptureError, Layer, f32_text, read_capture)
from recorder.tensor_file import read_tensors, write_tensors  # noqa: E402

try:
    import torch
except ImportError:
    torch = None
try:
    import transformers
except ImportError:
    transformers = None


def toy_layer(**changes):
    arguments = dict(model="toy", licence="CC0-1.0", source="by hand", layer=1, num_layers=3,
                     q_heads=[4, 5], kv_heads=[2], num_q_heads=8, num_kv_heads=4, scale=0.125)
    return Layer(**{**arguments, **changes})


def toy(layer=None, **changes):
    return Capture(layer or toy_layer(), **{**dict(head_dim=4, v_dim=3), **changes})


def elements(count, first=0x3F80):
    """bf16 codes from 1.0 upwards."""
    return array.array("H", range(first, first + count)).tobytes()


def append(capture, request=0, step=0, rows=1, queries=None, first=0x3F80, **changes):
    queries = rows if queries is None else queries
    arguments = dict(q=elements(queries * 8, first), k=elements(rows * 4, first + 1000),
                     v=elements(rows * 3, first + 2000))
    capture.append(request=request, step=step, **{**arguments, **changes})


def written(capture):
    """(bytes of the file, what read_capture says of it)."""
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "c.safetensors"
        capture.write(path)
        if [p.name for p in pathlib.Path(folder).iterdir()] != ["c.safetensors"]:
            raise AssertionError("a file was left over")
        return path.read_bytes(), read_capture(path)


class CaptureFile(unittest.TestCase):
    def test_a_written_file_has_the_header_and_bytes_of_the_format(self):
        capture = toy(toy_layer(softcap=30.0, rounded_from="F32"), sinks=[0.5, -1.0])
        append(capture, rows=3)
        append(capture, request=1, rows=2, first=0x4000)
        append(capture, step=1, first=0x4100)  # request 0 again: files hold request by request
        data, _ = written(capture)
        (length,) = struct.unpack("<Q", data[:8])
        header, body = json.loads(data[8:8 + length]), data[8 + length:]
        self.assertEqual(length % 8, 0)
        metadata = header.pop("__metadata__")
        self.assertEqual(json.loads(metadata.pop("assay.params")),
                         {"mask": "causal", "scale": "0.125", "softcap": "30"})
        self.assertEqual(metadata, {
            "schema": "assay.capture", "version": "1", "model": "toy", "licence": "CC0-1.0",
            "source": "by hand", "layer": "1", "num_layers": "3", "q_heads": "4,5",
            "kv_heads": "2", "num_q_heads": "8", "num_kv_heads": "4", "rounded_from": "F32"})
        self.assertEqual({name: (t["dtype"], t["shape"]) for name, t in header.items()}, {
            "q": ("BF16", [6, 2, 4]), "k": ("BF16", [6, 1, 4]), "v": ("BF16", [6, 1, 3]),
            "cu_seqlens_q": ("I32", [3]), "cu_seqlens_kv": ("I32", [3]), "step": ("I32", [6]),
            "sinks": ("F32", [2])})

        def tensor(name):
            begin, end = header[name]["data_offsets"]
            return body[begin:end]
        self.assertEqual(tensor("q"), elements(24) + elements(8, 0x4100) + elements(16, 0x4000))
        self.assertEqual(struct.unpack("<3i", tensor("cu_seqlens_kv")), (0, 4, 6))
        self.assertEqual(struct.unpack("<6i", tensor("step")), (0, 0, 0, 1, 0, 0))
        self.assertEqual(struct.unpack("<2f", tensor("sinks")), (0.5, -1.0))
        self.assertEqual(sorted(header, key=lambda name: header[name]["data_offsets"]),
                         ["cu_seqlens_kv", "cu_seqlens_q", "sinks", "step", "k", "q", "v"])
        spans = sorted(tuple(tensor["data_offsets"]) for tensor in header.values())
        self.assertEqual([0] + [end for _, end in spans], [b for b, _ in spans] + [len(body)])

    def test_calls_are_stretches_of_equal_step_over_the_keys_up_to_them(self):
        capture = toy()
        append(capture, rows=5, queries=2)
        append(capture, step=3)
        append(capture, request=1, rows=1)
        append(capture, step=4, rows=2)
        self.assertEqual(list(capture.calls()), [
            Call(0, 0, 0, 2, 0, 5, 3), Call(0, 3, 2, 3, 0, 6, 5), Call(0, 4, 3, 5, 0, 8, 6),
            Call(1, 0, 5, 6, 8, 9, 0)])
        self.assertEqual([call.decode for call in capture.calls()], [False, True, False, True])
        summary = capture.summary()
        self.assertEqual((summary["prefill_rows"], summary["decode_steps"]), (4, 2))

    def test_any_capture_reads_back_as_it_was_written(self):
        draws = random.Random(20261130)
        chunked = hidden = 0
        for _ in range(200):
            share, keys = draws.randint(1, 3), draws.randint(1, 2)
            kv_heads = draws.sample(range(4), keys)
            layer = toy_layer(
                q_heads=[head * 4 + i for head in kv_heads for i in range(share)],
                kv_heads=kv_heads, num_q_heads=16, num_kv_heads=4,
                mask=draws.choice(("full", "causal", "window:7", "chunked:4096")),
                scale=draws.uniform(0.01, 2), softcap=draws.choice((None, draws.uniform(1, 50))))
            capture = Capture(layer, head_dim=draws.randint(1, 5), v_dim=draws.randint(1, 5),
                              dtype=draws.choice(("BF16", "F16")),
                              sinks=draws.choice((None, [0.25] * len(layer.q_heads))))
            steps = [0] * draws.randint(1, 3)
            for request in [*range(len(steps)), *draws.choices(range(len(steps)), k=4)]:
                rows = draws.choice((1, 1, draws.randint(1, 9)))
                first = request >= len(capture.k)
                queries = draws.randint(1, rows) if first else rows
                hidden += queries < rows
                chunked += not first and rows > 1
                data = [bytes(draws.choices(range(0x7B), k=2 * count * heads * dim))
                        for count, heads, dim in ((queries, share * keys, capture.head_dim),
                                                  (rows, keys, capture.head_dim),
                                                  (rows, keys, capture.v_dim))]
                capture.append(request=request, step=steps[request], q=data[0], k=data[1],
                               v=data[2])
                steps[request] += draws.randint(1, 3)
            data, back = written(capture)
            self.assertEqual(list(back.calls()), list(capture.calls()))
            self.assertEqual((back.q, back.k, back.v), (capture.q, capture.k, capture.v))
            self.assertEqual(written(back)[0], data)
        self.assertGreater(min(chunked, hidden), 20)

    def test_what_cannot_be_a_capture_is_refused_with_the_value(self):
        nan, infinity = elements(7) + b"\xc1\x7f", elements(7) + b"\x80\xff"
        for sentence, arguments in {
            "q is 15 bytes; rows of \\[2, 4\\] are 16 each": dict(q=bytes(15)),
            "1 query, 1 key and 2 value rows": dict(v=elements(6)),
            "2 query, 1 key and 1 value rows": dict(queries=2),
            "0 query, 0 key and 0 value rows": dict(rows=0),
            "request is 1; allowed are 0 to 0": dict(request=1),
            "step -1 after 0": dict(step=-1),
            "q holds a NaN or an infinity, bits 0x7fc1 at element 7": dict(q=nan),
            "q holds a NaN or an infinity, bits 0xff80 at element 7": dict(q=infinity),
        }.items():
            capture = toy()
            with self.assertRaisesRegex(CaptureError, sentence):
                append(capture, **arguments)
            self.assertEqual(capture.k, [], sentence)
        half = toy(dtype="F16")
        with self.assertRaisesRegex(CaptureError, "v holds a NaN or an infinity, bits 0x7c00"):
            append(half, v=elements(3, 0x7BFE), q=elements(8, 1), k=elements(4, 1))
        append(half, v=elements(3, 0x7BFD), q=elements(8, 1), k=elements(4, 1))
        for sentence, arguments in {
            "layer is 3; allowed are 0 to 2": dict(layer=3),
            "source is empty": dict(source=""),
            "q_heads are \\[4, 4\\]; allowed are different": dict(q_heads=[4, 4]),
            "kv_heads are \\[4\\]; allowed are different ones of 0 to 3": dict(kv_heads=[4]),
            "query head 6 reads key head 3, but place 1": dict(q_heads=[4, 6]),
            "allowed are multiples": dict(q_heads=[0, 1, 2], kv_heads=[0, 1]),
            "mask is 'window:0'": dict(mask="window:0"),
            "scale is nan; allowed are positive": dict(scale=float("nan")),
            "softcap is 0; allowed are positive": dict(softcap=0),
        }.items():
            with self.assertRaisesRegex(CaptureError, sentence):
                toy(toy_layer(**arguments))
        for sentence, arguments in {"dtype is F32": dict(dtype="F32"),
                                    "1 sinks for 2 query heads": dict(sinks=[0.0])}.items():
            with self.assertRaisesRegex(CaptureError, sentence):
                toy(**arguments)

    def test_queries_may_be_left_out_only_before_the_first_that_is_kept(self):
        capture = toy()
        append(capture, rows=3, queries=0)
        with self.assertRaisesRegex(CaptureError, "query rows by request are \\[0\\]"):
            capture.write("/nonexistent/c.safetensors")
        append(capture, step=1, rows=3, queries=1)
        with self.assertRaisesRegex(CaptureError, "1 query rows with 2 new keys"):
            append(capture, step=2, rows=2, queries=1)
        with self.assertRaisesRegex(CaptureError, "step 0 after 1"):
            append(capture, step=0)
        with self.assertRaisesRegex(CaptureError, "there must be a request"):
            toy().write("/nonexistent/c.safetensors")

    def test_another_schema_is_refused(self):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "c.safetensors"
            capture = toy()
            append(capture)
            capture.write(path)
            metadata, tensors = read_tensors(path)
            write_tensors(path, metadata | {"version": "2"},
                          [(name, *tensor) for name, tensor in tensors.items()])
            with self.assertRaisesRegex(CaptureError, "'2'\\); allowed is"):
                read_capture(path)

    def test_scales_are_written_as_short_as_they_can_be_read_back(self):
        self.assertEqual([f32_text(x) for x in (0.125, 0.1, 24 ** -0.5, 50, 1e-30)],
                         ["0.125", "0.1", "0.20412415", "50", "1e-30"])


@unittest.skipUnless(torch, "torch is not installed")
class Hook(unittest.TestCase):
    def see(self, rows=3, keys=3, **arguments):
        from recorder.attention import AttentionCapture
        capture = AttentionCapture()
        capture.see(0, torch.randn(1, 4, rows, 8), torch.randn(1, 2, keys, 8),
                    torch.randn(1, 2, keys, 8), scaling=0.5, **arguments)
        return capture.take()[0]

    def test_a_mask_is_what_it_is_stated_to_be(self):
        causal = torch.ones(3, 3, dtype=torch.bool).tril()
        low = torch.finfo(torch.bfloat16).min
        self.assertEqual(self.see().mask, "causal")
        self.assertEqual(self.see(attention_mask=causal[None, None]).mask, "causal")
        self.assertEqual(self.see(attention_mask=torch.where(causal, 0.0, low)).mask, "causal")
        self.assertEqual(self.see(rows=1).mask, "causal")
        self.assertEqual(self.see(is_causal=False).mask, "full")
        window = causal & ~causal.tril(-2)
        self.assertEqual(self.see(sliding_window=2, attention_mask=window).mask, "window:2")
        self.assertEqual(self.see(sliding_window=3).mask, "window:3")

    def test_a_mask_that_cannot_be_stated_is_refused(self):
        from recorder.hook import HookError
        causal = torch.ones(3, 3, dtype=torch.bool).tril()
        padded = causal.clone()
        padded[:, 0] = False
        for sentence, arguments in {
            "row 0 of 3 does not see key 0 of 3, against causal": dict(attention_mask=padded),
            "row 2 of 3 sees key 0 of 3, against window:2": dict(
                attention_mask=causal, sliding_window=2),
            "no mask for 3 rows over 3 keys, against window:2": dict(sliding_window=2),
            "no mask for 2 rows over 3 keys, against causal": dict(rows=2),
            "adds other values": dict(attention_mask=causal.float()),
            "attention that is not causal": dict(rows=2, is_causal=False),
        }.items():
            with self.assertRaisesRegex(HookError, sentence):
                self.see(**arguments)

    def test_rows_of_the_kept_heads_arrive_in_the_file(self):
        from recorder.attention import AttentionCapture, AttentionRecorder
        from recorder.hook import HookError
        recorder = AttentionRecorder(model="toy", licence="CC0-1.0", source="by hand",
                                     num_layers=1, kv_heads=[1], queries_per_key=1,
                                     last_queries=2)
        capture = AttentionCapture(layers=[0])
        q, k, v = (torch.randn(1, heads, 5, 8).bfloat16() for heads in (4, 2, 2))

        def run(begin, end, step, key=k):
            capture.see(0, q[:, :, begin:end], key[:, :, :end], v[:, :, :end], scaling=0.5)
            recorder.append(capture.take(), [0], step)
        run(0, 4, 0)
        run(4, 5, 1)
        _, back = written(recorder.captures[0])
        self.assertEqual((back.layer.q_heads, back.layer.kv_heads), ([2], [1]))
        for name, data, expected in (("q", back.q, q[0, 2, 2:]), ("k", back.k, k[0, 1]),
                                     ("v", back.v, v[0, 1])):
            rows = torch.frombuffer(data[0], dtype=torch.bfloat16).view(-1, 8)
            self.assertTrue(torch.equal(rows, expected), name)
        capture.see(0, q[:, :, :1], k, v, scaling=0.5)
        with self.assertRaisesRegex(HookError, "5 keys for 1 rows after 5 recorded keys"):
            recorder.append(capture.take(), [0], 2)
        recorder.captures.clear()
        run(0, 4, 0)
        with self.assertRaisesRegex(HookError, "a cached key is no longer the one"):
            run(4, 5, 1, key=k + 1)
        with self.assertRaisesRegex(HookError, "not in \\[0\\]"):
            capture.take()

    def test_the_sample_model_decodes_as_it_reads(self):
        from recorder.model import ModelConfig, MoeLanguageModel
        torch.manual_seed(3)
        model = MoeLanguageModel(ModelConfig(
            hidden_size=32, num_layers=2, num_heads=4, num_kv_heads=2, num_experts=4,
            num_experts_per_tok=2, expert_size=8)).double().eval()
        for parameter in model.parameters():
            torch.nn.init.normal_(parameter, std=0.5)
        tokens, cache = torch.randint(256, (2, 9)), []
        parts = [model(tokens[:, :6], cache)]
        parts += [model(tokens[:, i:i + 1], cache) for i in range(6, 9)]
        whole = model(tokens)
        self.assertGreater(whole.abs().max().item(), 0.1)
        self.assertTrue(torch.allclose(torch.cat(parts, 1), whole, rtol=1e-9, atol=1e-9))

    @unittest.skipUnless(transformers, "transformers is not installed")
    def test_files_are_enough_to_repeat_the_attention_of_transformers(self):
        from recorder.attention_check import ARCHITECTURES, check, faults
        for name in ARCHITECTURES:
            report = check(name)
            self.assertEqual(faults(report), [], report)

    @unittest.skipUnless(transformers, "transformers is not installed")
    def test_a_padded_batch_of_transformers_is_refused(self):
        from recorder.attention import AttentionCapture
        from recorder.attention_check import random_model
        from recorder.hook import HookError
        model = random_model("llama", torch.float32)
        tokens = torch.tensor([[0, 0, 5, 6], [3, 4, 5, 6]])
        with AttentionCapture(model), self.assertRaisesRegex(HookError, "one at a time"):
            model(input_ids=tokens, attention_mask=(tokens > 0).long())
        self.assertEqual(model.config._attn_implementation, "sdpa")


if __name__ == "__main__":
    unittest.main(verbosity=1)
