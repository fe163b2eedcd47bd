"""Proves the hook on Hugging Face models without downloading one: tiny models with random weights.

    cd traces && python3 -m recorder.hook_check [--out DIR]

For each architecture it records a decode batch and compares every recorded id and weight with an
answer worked out a second way, from the router logits that transformers itself reports. Decides
what counts as equal: every id and every bit of every weight. --out also writes the traces.
"""

import argparse
import json
import pathlib
import sys

import torch

from .hook import RoutingCapture
from .record import record_decode

COMMON = dict(vocab_size=97, hidden_size=64, intermediate_size=96, num_hidden_layers=3,
              num_attention_heads=4, num_key_value_heads=2, num_experts_per_tok=3,
              max_position_embeddings=128, pad_token_id=0, bos_token_id=None, eos_token_id=None)
# name -> (config class, what differs from COMMON, picked weights: "all" softmax over all experts,
# "renormalised" the same divided by the picked sum, "picked" softmax over the picked logits)
ARCHITECTURES = {
    "mixtral": ("MixtralConfig", dict(num_local_experts=8), "renormalised"),
    "olmoe": ("OlmoeConfig", dict(num_experts=16), "all"),
    "qwen2_moe": ("Qwen2MoeConfig", dict(num_experts=12, moe_intermediate_size=48,
                                         shared_expert_intermediate_size=48), "all"),
    "qwen3_moe": ("Qwen3MoeConfig", dict(num_experts=16, moe_intermediate_size=48, head_dim=16,
                                         norm_topk_prob=True), "renormalised"),
    "gpt_oss": ("GptOssConfig", dict(num_local_experts=16, head_dim=16), "picked"),
}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=pathlib.Path, help="folder for the traces and the report")
    options = parser.parse_args()
    reports = [check(name, options.out) for name in ARCHITECTURES]
    if options.out:
        (options.out / "hook_check.json").write_text(json.dumps(reports, indent=2) + "\n")
    print(json.dumps(reports, indent=2))
    wrong = sum(r["ids_differing"] + r["weights_differing"] + r["decode_ids_differing"]
                for r in reports)
    compared = all(r["rows_compared"] and r["decode_rows_compared"] for r in reports)
    return 0 if compared and not wrong else 1


def check(name, out=None):
    """Two questions. Does the hook see what the gate decided: ids and weight bits against
    torch.topk of the logits of the same bf16 pass. Are the right rows recorded: a cached,
    left-padded decode against one pass over the whole sequences, in float64 so that rounding
    decides no pick."""
    import transformers
    torch.manual_seed(7)
    config_class, extra, form = ARCHITECTURES[name]
    config = getattr(transformers, config_class)(**{**COMMON, **extra})
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = transformers.AutoModelForCausalLM.from_config(config, experts_implementation="eager")
    model.to(device, torch.bfloat16).eval()

    prompts = [[1 + (3 * r + t) % 90 for t in range(5 + r)] for r in range(4)]
    same_pass = {"rows": 0, "ids": 0, "weights": 0, "ties": 0}
    tokens = torch.tensor([[1 + (7 * r + t) % 90 for t in range(40)] for r in range(8)])
    for layer, logits in zip(*whole_pass(model, tokens, torch.ones_like(tokens)), strict=True):
        ids, weights = picks_from_logits(logits, layer.ids.shape[1], form)
        same_pass["rows"] += len(ids)
        # Equal logits may come in either order (torch.topk leaves it open): their values count.
        same_pass["ids"] += (logits.gather(1, ids) != logits.gather(1, layer.ids)).sum().item()
        same_pass["ties"] += (ids != layer.ids).sum().item()
        same_pass["weights"] += (weights.to(layer.weights.dtype) != layer.weights).sum().item()

    labels = dict(name=f"random-{name}", licence="CC0-1.0", source="random weights, a hook test")
    if out:
        out.mkdir(parents=True, exist_ok=True)
        record_decode(model, prompts, steps=6, **labels).write(out / f"random-{name}.safetensors")
    model.double()
    chosen = []
    recording = record_decode(model, prompts, steps=6, **labels,
                              observe=lambda tokens, captured: chosen.append(tokens))
    return {"architecture": name, "transformers": transformers.__version__, "device": device,
            "layers": recording.layers, "rows_compared": same_pass["rows"],
            "ids_differing": same_pass["ids"], "ids_swapped_on_ties": same_pass["ties"],
            "weights_differing": same_pass["weights"],
            "decode_rows_compared": recording.tokens * recording.layers,
            "decode_ids_differing": decode_differences(model, prompts, chosen, recording),
            "distinct_experts": len(set(recording.topk_ids))}


def decode_differences(model, prompts, chosen, recording):
    """Rows whose recorded ids differ from those of one uncached pass over the whole sequences."""
    widest = max(len(prompt) for prompt in prompts)
    steps = len(chosen)
    sequences = [[0] * (widest - len(p)) + p + [step[r].item() for step in chosen]
                 for r, p in enumerate(prompts)]
    mask = [[0] * (widest - len(p)) + [1] * (len(p) + steps) for p in prompts]
    captured, _ = whole_pass(model, torch.tensor(sequences), torch.tensor(mask))
    width = widest + steps
    differing = 0
    for row, (request, step) in enumerate(zip(recording.request, recording.step)):
        for layer, seen in enumerate(captured):
            start = (row * recording.layers + layer) * recording.top_k
            recorded = list(recording.topk_ids[start:start + recording.top_k])
            differing += recorded != seen.ids[request * width + widest + step].tolist()
    return differing


@torch.no_grad()
def whole_pass(model, tokens, mask):
    """(what the hook saw, the logits that transformers reports) by layer, for every row."""
    device = next(model.parameters()).device
    tokens, mask = tokens.to(device), mask.to(device)
    with RoutingCapture(model) as capture:
        outputs = model.model(input_ids=tokens, attention_mask=mask, output_router_logits=True,
                              position_ids=(mask.cumsum(1) - 1).clamp(min=0))
        return capture.take(), [t.reshape(-1, t.shape[-1]) for t in outputs.router_logits]


def picks_from_logits(logits, top_k, form):
    """ids by torch.topk of the logits; weights by each architecture's published formula."""
    ids = torch.topk(logits, top_k, dim=-1).indices
    if form == "picked":
        return ids, torch.softmax(logits.gather(1, ids), dim=-1, dtype=logits.dtype)
    weights = torch.softmax(logits.float(), dim=-1).gather(1, ids)
    if form == "renormalised":
        weights = weights / weights.sum(-1, keepdim=True)
    return ids, weights


if __name__ == "__main__":
    sys.exit(main())
