"""Tests of the recorder. Those of the file writer need the standard library alone; those of the
hook and the model are skipped, with the reason, where torch or transformers is missing.

    cd traces && python3 -m unittest recorder.recorder_test
"""

import array
import json
import pathlib
import struct
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from recorder.trace_file import Recording, TraceError  # noqa: E402

try:
    import torch
except ImportError:
    torch = None
try:
    import transformers
except ImportError:
    transformers = None
needs_torch = unittest.skipUnless(torch, "torch is not installed")


def toy(**changes):
    arguments = dict(model="toy", num_experts=8, hidden_size=16, layers=2, top_k=2,
                     licence="CC0-1.0", source="by hand")
    return Recording(**{**arguments, **changes})


def append(recording, ids=(0, 1, 2, 3), weights=(0x3F40, 0x3E80, 0x3F40, 0x3E80), requests=(0,),
           step=0, positions=(5,)):
    kind = "H" if recording.weights_dtype == "BF16" else "I"
    recording.append(requests=list(requests), step=step, positions=list(positions),
                     ids=array.array("h", ids).tobytes(),
                     weights=array.array(kind, weights).tobytes())


class TraceFile(unittest.TestCase):
    def test_a_written_file_has_the_header_and_bytes_of_the_format(self):
        recording = toy()
        append(recording)
        append(recording, step=1, positions=(6,), ids=(7, 6, 5, 4))
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "t.safetensors"
            recording.write(path)
            data = path.read_bytes()
            self.assertEqual([p.name for p in pathlib.Path(folder).iterdir()], ["t.safetensors"])
        (length,) = struct.unpack("<Q", data[:8])
        header, body = json.loads(data[8:8 + length]), data[8 + length:]
        self.assertEqual(length % 8, 0)
        self.assertEqual(header.pop("__metadata__"), {
            "schema": "assay.trace", "version": "1", "model": "toy", "num_experts": "8",
            "hidden_size": "16", "layers": "2", "licence": "CC0-1.0", "source": "by hand"})
        self.assertEqual(header["topk_ids"]["shape"], [2, 2, 2])
        self.assertEqual(header["topk_ids"]["dtype"], "I16")
        begin, end = header["topk_ids"]["data_offsets"]
        self.assertEqual(struct.unpack("<8h", body[begin:end]), (0, 1, 2, 3, 7, 6, 5, 4))
        begin, end = header["position"]["data_offsets"]
        self.assertEqual(struct.unpack("<2i", body[begin:end]), (5, 6))
        spans = sorted(tuple(tensor["data_offsets"]) for tensor in header.values())
        self.assertEqual([0] + [end for _, end in spans], [b for b, _ in spans] + [len(body)])

    def test_what_cannot_be_a_trace_is_refused_with_the_value(self):
        for sentence, arguments in {
            "expert id 8; allowed are 0 to 7": dict(ids=(0, 1, 2, 8)),
            "expert id -1; allowed are 0 to 7": dict(ids=(0, 1, -1, 3)),
            "picks \\[2, 2\\] in one layer": dict(ids=(0, 1, 2, 2)),
            "weight nan": dict(weights=(0x3F40, 0x7FC0, 0, 0)),
            "weight inf": dict(weights=(0x3F40, 0x7F80, 0, 0)),
            "weight -0.25": dict(weights=(0x3F40, 0xBE80, 0, 0)),
            "2 positions for 1 requests": dict(positions=(1, 2)),
            "ids are 6 bytes": dict(ids=(0, 1, 2)),
            "weights are 6 bytes": dict(weights=(0, 0, 0)),
            "\\(-1, 0, 5\\); each is 0": dict(requests=(-1,)),
        }.items():
            recording = toy()
            with self.assertRaisesRegex(TraceError, sentence):
                append(recording, **arguments)
            self.assertEqual((recording.tokens, len(recording.topk_ids)), (0, 0), sentence)
        for sentence, arguments in {
            "num_experts is 32768; allowed are 1 to 32767": dict(num_experts=32768),
            "top_k is 9; allowed are 1 to 8": dict(top_k=9),
            "licence is empty": dict(licence=""),
            "weights_dtype is F16": dict(weights_dtype="F16"),
        }.items():
            with self.assertRaisesRegex(TraceError, sentence):
                toy(**arguments)
        with self.assertRaisesRegex(TraceError, "holds no token"):
            toy().write("/nonexistent/t.safetensors")

    def test_a_token_recorded_twice_is_refused(self):
        recording = toy()
        append(recording)
        with self.assertRaisesRegex(TraceError, "\\(0, 0, 5\\) is recorded twice"):
            append(recording)
        append(recording, positions=(6,))

    def test_f32_weights_keep_all_bits(self):
        recording = toy(weights_dtype="F32")
        append(recording, weights=(0x3F400001, 0x00000001, 0x7F7FFFFF, 0x80000000))
        with self.assertRaisesRegex(TraceError, "weight nan"):
            append(recording, step=1, weights=(0x7F800001, 0, 0, 0))
        self.assertEqual(bytes(recording.topk_weights[:4]), b"\x01\x00\x40\x3f")

    def test_the_load_is_the_busiest_expert_over_the_mean(self):
        recording = toy(num_experts=4)
        append(recording, ids=(0, 1, 2, 3))
        append(recording, step=1, ids=(0, 2, 2, 3))
        self.assertEqual(recording.load_by_layer(), [2.0, 2.0])


@needs_torch
class Hook(unittest.TestCase):
    def read(self, *output, select=None):
        from recorder.hook import read_gate_output
        return read_gate_output(output if len(output) > 1 else output[0], 5, 2, select)

    def setUp(self):
        torch.manual_seed(1)
        self.logits = torch.randn(3, 5)
        self.weights, self.ids = torch.topk(self.logits.softmax(-1), 2)

    def test_every_known_form_of_output_gives_the_same_routing(self):
        from recorder.hook import softmax_then_top_k
        dense = torch.zeros(3, 5).scatter(1, self.ids, self.weights)
        for seen in (self.read(self.logits, self.weights, self.ids),
                     self.read(self.ids, self.weights), self.read(dense, self.ids),
                     self.read(self.logits, select=softmax_then_top_k(False)),
                     self.read(self.logits[None], self.weights[None], self.ids.int()[None])):
            self.assertTrue(torch.equal(seen.ids, self.ids))
            self.assertTrue(torch.equal(seen.weights, self.weights))

    def test_renormalised_weights_sum_to_one(self):
        from recorder.hook import softmax_then_top_k
        seen = self.read(self.logits, select=softmax_then_top_k(True))
        self.assertTrue(torch.equal(seen.weights, self.weights / self.weights.sum(-1, True)))

    def test_an_output_that_could_be_misread_is_refused(self):
        from recorder.hook import HookError
        for output in ((self.logits,), (self.logits, self.ids), (self.weights,)):
            with self.assertRaises(HookError):
                self.read(*output)

    def test_a_gate_that_runs_twice_or_not_at_all_is_refused(self):
        from recorder.hook import HookError, RoutingCapture
        from recorder.model import ModelConfig, MoeLanguageModel
        config = ModelConfig(hidden_size=16, num_layers=2, num_heads=2, num_experts=4,
                             num_experts_per_tok=2, expert_size=8, context=8)
        model = MoeLanguageModel(config).eval()
        with RoutingCapture(model) as capture:
            self.assertEqual(capture.layers, 2)
            with self.assertRaisesRegex(HookError, "did not run"):
                capture.take()
            model(torch.zeros(1, 4, dtype=torch.long))
            self.assertEqual(capture.take()[1].ids.shape, (4, 2))
            model(torch.zeros(1, 4, dtype=torch.long))
            with self.assertRaisesRegex(HookError, "ran twice"):
                model(torch.zeros(1, 4, dtype=torch.long))
        model(torch.zeros(1, 4, dtype=torch.long))  # the hooks are gone

    def test_experts_compute_the_weighted_sum_of_swiglu_outputs(self):
        from recorder.model import Experts, ModelConfig
        config = ModelConfig(hidden_size=6, num_experts=5, num_experts_per_tok=2, expert_size=4)
        experts = Experts(config).double()
        for parameter in experts.parameters():
            torch.nn.init.normal_(parameter)
        rows = torch.randn(3, 6, dtype=torch.double, requires_grad=True)
        expected = []
        for row, ids, weights in zip(rows, self.ids, self.weights.double()):
            total = 0
            for expert, weight in zip(ids, weights):
                gate, up = (row @ experts.gate_up[expert]).chunk(2)
                total = total + weight * ((torch.nn.functional.silu(gate) * up)
                                          @ experts.down[expert])
            expected.append(total)
        parameters = [rows, *experts.parameters()]
        got = experts(rows, self.ids, self.weights.double())
        self.assertTrue(torch.allclose(got, torch.stack(expected), rtol=1e-12, atol=0))
        weight = torch.randn_like(got)
        ours = torch.autograd.grad((got * weight).sum(), parameters)
        theirs = torch.autograd.grad((torch.stack(expected) * weight).sum(), parameters)
        for a, b in zip(ours, theirs):
            self.assertTrue(torch.allclose(a, b, rtol=1e-9, atol=1e-12))

    @unittest.skipUnless(transformers, "transformers is not installed")
    def test_the_hook_agrees_with_transformers_in_every_bit(self):
        from recorder.hook_check import ARCHITECTURES, check
        for name in ARCHITECTURES:
            report = check(name)
            self.assertGreater(report["rows_compared"], 0)
            self.assertGreater(report["decode_rows_compared"], 0)
            differing = {k: v for k, v in report.items() if k.endswith("differing") and v}
            self.assertEqual(differing, {}, name)


if __name__ == "__main__":
    unittest.main(verbosity=1)
