"""Proves the captures of Hugging Face models without downloading one: tiny models with random
weights.

    cd traces && python3 -m recorder.attention_check

For each architecture, two questions. Is a file enough: a bf16 model's prefill and decode steps are
captured, written and read back, and the model's own attention function, given nothing but rows and
parameters of the file, must return the model's outputs in every bit. Is a file right: attention
worked out in fp64 from what an fp32 model was given must be within the rounding of fp32 of the
model's outputs, and must not be if a parameter (window, soft cap, sinks, scale) is left out.
"""

import json
import math
import pathlib
import sys
import tempfile

import torch

from .attention import own_function, visible_keys
from .capture import record_attention
from .capture_file import read_capture

COMMON = dict(vocab_size=97, hidden_size=64, intermediate_size=96, num_hidden_layers=4,
              num_attention_heads=8, num_key_value_heads=2, head_dim=16, initializer_range=0.4,
              max_position_embeddings=128, pad_token_id=0, bos_token_id=None, eos_token_id=None)
MOE = dict(num_local_experts=4, num_experts_per_tok=2)
# name -> (config class, what differs from COMMON). Windows are shorter than the prompts.
ARCHITECTURES = {
    "llama": ("LlamaConfig", {}),
    "qwen3": ("Qwen3Config", {}),
    "mistral": ("MistralConfig", dict(sliding_window=12)),
    "mixtral": ("MixtralConfig", MOE),
    "gemma2": ("Gemma2Config", dict(sliding_window=12, attn_logit_softcapping=2.0,
                                    query_pre_attn_scalar=24)),
    "gpt_oss": ("GptOssConfig", MOE | dict(sliding_window=12)),
}
PROMPTS = [[1 + (5 * t + 7 * t * t) % 90 for t in range(length)] for length in (40, 1, 23)]
STEPS = 6
UNIT = 2.0 ** -24  # half an ulp of fp32, relative


def main():
    reports = [check(name) for name in ARCHITECTURES]
    print(json.dumps(reports, indent=2))
    return 1 if any(faults(report) for report in reports) else 0


def faults(report):
    """What is wrong with a report, as sentences."""
    found = []
    if not report["elements_compared"] or report["elements_differing"]:
        found.append(f"{report['elements_differing']} of {report['elements_compared']} differ")
    if not 0 < report["fp64_error_over_bound"] <= 1:
        found.append(f"fp64 is off by {report['fp64_error_over_bound']} bounds")
    found += [f"{name} could be left out" for name, ratio in report["left_out"].items()
              if ratio <= 1]
    return found


def check(name):
    compared = from_files(name)
    error, left_out = from_memory(name)
    return {"architecture": name, **compared, "fp64_error_over_bound": error,
            "left_out": left_out}


def random_model(name, dtype):
    import transformers
    torch.manual_seed(11)
    config_class, extra = ARCHITECTURES[name]
    config = getattr(transformers, config_class)(**{**COMMON, **extra})
    model = transformers.AutoModelForCausalLM.from_config(config).to(dtype).eval()
    for module in model.modules():  # transformers leaves some of them at zero
        if hasattr(module, "sinks"):
            torch.nn.init.normal_(module.sinks, std=1.0)
    return model


def record(model, observe):
    return record_attention(model, PROMPTS, steps=STEPS, name="random", licence="CC0-1.0",
                            source="random weights, a test of the recorder", observe=observe)


@torch.no_grad()
def from_files(name):
    """Outputs of the model's own function on rows that went through a file, bit by bit."""
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
    model = random_model(name, torch.bfloat16)
    way = model.config._attn_implementation
    modules = {module.layer_idx: module for module in model.modules()
               if hasattr(module, "layer_idx") and hasattr(module, "q_proj")}
    seen = {}
    recorder = record(model, lambda request, step, calls: seen.update(
        {(layer, request, step): call for layer, call in calls.items()}))
    report = {"attention": way, "layers": len(recorder.captures), "calls": 0,
              "elements_compared": 0, "elements_differing": 0}
    with tempfile.TemporaryDirectory() as folder:
        for layer, capture in recorder.captures.items():
            path = pathlib.Path(folder) / "c.safetensors"
            capture.write(path)
            capture = read_capture(path)
            function = own_function(modules[layer], way, ALL_ATTENTION_FUNCTIONS)
            for call in capture.calls():
                model_saw = seen.pop((layer, call.request, call.step))
                # A window's cache holds fewer keys; equal bits need equal shapes.
                keys = model_saw.key.shape[2]
                q, k, v = rows(capture, call, keys)
                out, _ = function(modules[layer], q, k, v, mask_for(way, capture, q, k),
                                  **arguments(capture, modules[layer]))
                report["calls"] += 1
                report["elements_compared"] += out.numel()
                report["elements_differing"] += (
                    out.view(torch.int16) != model_saw.output.view(torch.int16)).sum().item()
    if seen:
        raise AssertionError(f"{len(seen)} calls are in no file, such as {next(iter(seen))}")
    return report


def rows(capture, call, keys):
    """q [1, heads, rows, dim], and the last `keys` of the keys and values that the call reads."""
    def tensor(parts, begin, end, heads, dim):
        data = bytearray(b"".join(parts))
        return torch.frombuffer(data, dtype=torch.bfloat16).view(-1, heads, dim)[
            begin:end].transpose(0, 1)[None].contiguous()
    layer = capture.layer
    first = call.kv_end - keys
    return (tensor(capture.q, call.q_begin, call.q_end, len(layer.q_heads), capture.head_dim),
            tensor(capture.k, first, call.kv_end, len(layer.kv_heads), capture.head_dim),
            tensor(capture.v, first, call.kv_end, len(layer.kv_heads), capture.v_dim))


def mask_for(way, capture, q, k):
    """The stated mask in the form in which transformers passes it."""
    count, keys = q.shape[2], k.shape[2]
    seen = visible_keys(capture.layer.mask, 0, count, count, keys)
    if way == "sdpa":
        plain = seen.all() if count == 1 else torch.equal(
            seen, visible_keys("causal", 0, count, count, keys))
        return None if plain else seen[None, None]
    lowest = torch.finfo(q.dtype).min
    return torch.where(seen, 0.0, lowest).to(q.dtype)[None, None]


def arguments(capture, module):
    given = {"scaling": capture.layer.scale}
    if capture.layer.softcap is not None:
        given["softcap"] = capture.layer.softcap
    if capture.sinks is not None:
        if not torch.equal(torch.tensor(capture.sinks), module.sinks.float()):
            raise AssertionError("the sinks of the file are not the model's")
    return given


@torch.no_grad()
def from_memory(name):
    """(largest error of fp64 attention against the fp32 model, over its bound; the same with one
    parameter left out, by name)."""
    worst, left_out = 0.0, {}

    def observe(request, step, calls):
        nonlocal worst
        for call in calls.values():
            out, bound = attention_fp64(call)
            worst = max(worst, ((call.output - out).abs() / bound).max().item())
            for fault, changed in without(call).items():
                out, bound = attention_fp64(call, **changed)
                ratio = ((call.output - out).abs() / bound).max().item()
                left_out[fault] = max(ratio, left_out.get(fault, 0.0))

    record(random_model(name, torch.float32), observe)
    return round(worst, 4), {fault: round(ratio) for fault, ratio in left_out.items()}


def without(call):
    """What attention_fp64() is to do wrongly on purpose, by name."""
    changes = {"scale": dict(scale=call.scale * (1 + 2.0 ** -10))}
    if call.mask.startswith("window"):
        changes["window"] = dict(mask="causal" if call.query.shape[2] > 1 else "full")
    if call.softcap is not None:
        changes["softcap"] = dict(softcap=None)
    if call.sinks is not None:
        changes["sinks"] = dict(sinks=None)
    return changes


def attention_fp64(call, **changed):
    """(output [batch, rows, q_heads, v_dim], how far fp32 may be from it, likewise).

    With u = 2^-24: a score is a dot product of d terms times the scale, off by at most
    e = (d + 2) u scale sum|q k| in any order of summation; the soft cap, of slope at most 1, adds
    three roundings and a tanh, at most 8 u cap; the subtraction of the maximum adds 2 u max|s|.
    A weight exp(s) / sum is then off by a factor within 1 +- (2 e + (n + 8) u) to first order, the
    weighted sum of n values by n u more, relative to sum p |v| <= max|v|. Doubled for the second
    order and for functions that are not correctly rounded."""
    given = dict(scale=call.scale, mask=call.mask, softcap=call.softcap, sinks=call.sinks) | changed
    q = call.query.double()
    k, v = (t.double().repeat_interleave(q.shape[1] // t.shape[1], 1)
            for t in (call.key, call.value))
    count, keys, dim = q.shape[2], k.shape[2], q.shape[3]
    scores = q @ k.transpose(2, 3) * given["scale"]
    error = (dim + 2) * UNIT * given["scale"] * (q.abs() @ k.abs().transpose(2, 3)).amax(-1)
    if given["softcap"] is not None:
        scores = given["softcap"] * torch.tanh(scores / given["softcap"])
        error = error + 8 * UNIT * given["softcap"]
    error = error + 2 * UNIT * scores.abs().amax(-1)
    scores = scores.masked_fill(~visible_keys(given["mask"], 0, count, count, keys), -math.inf)
    if given["sinks"] is not None:
        sink = given["sinks"].double()[None, :, None, None].expand(*scores.shape[:3], 1)
        scores = torch.cat((scores, sink), -1)
    weights = torch.softmax(scores, -1)[..., :keys]
    bound = 2 * (2 * error + (2 * keys + 8) * UNIT) * v.abs().amax((2, 3))[..., None]
    return (weights @ v).transpose(1, 2), bound.transpose(1, 2)[..., None]


if __name__ == "__main__":
    sys.exit(main())
