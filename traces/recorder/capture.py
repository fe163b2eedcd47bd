"""Captures what the attention of any Hugging Face model is given: a prefill, then decode steps.

    cd traces && python3 -m recorder.capture --model PATH_OR_NAME --prompts prompts.txt \\
        --steps 64 --layers 0,11 --kv-heads 0 --licence "Apache-2.0" \\
        --out 'capture-layer{layer}.safetensors'

prompts.txt holds one prompt a line; prompts.json holds a list of lists of token ids and needs no
tokenizer. Decides how requests run: each alone, its prompt in one pass (step 0), then one generated
token a pass (steps 1 and up), so that nothing is padded. From other loops, use AttentionCapture and
AttentionRecorder directly.
"""

import argparse
import pathlib
import sys

import torch

from .attention import AttentionCapture, AttentionRecorder
from .hook import text_config
from .record import end_tokens, read_prompts, sample


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--model", required=True, help="folder or hub name for transformers")
    parser.add_argument("--prompts", required=True, help=".txt: one a line; .json: token ids")
    parser.add_argument("--out", required=True, help="one file a layer: '{layer}' is its number")
    parser.add_argument("--licence", required=True, help="of the model's outputs and of the files")
    parser.add_argument("--source", default="", help="a sentence; default: the model's name")
    parser.add_argument("--layers", type=numbers, help="such as 0,11; default: all")
    parser.add_argument("--kv-heads", type=numbers, help="which key heads to keep; default: all")
    parser.add_argument("--queries-per-key", type=int, help="query heads of each; default: all")
    parser.add_argument("--last-queries", type=int, help="query rows of each prompt; default: all")
    parser.add_argument("--max-prompt", type=int, help="cut prompts after so many tokens")
    parser.add_argument("--steps", type=int, default=64)
    parser.add_argument("--temperature", type=float, default=1.0, help="0 picks the best token")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    if "{layer}" not in options.out:
        parser.error(f"--out is {options.out!r}; it names one file a layer and holds '{{layer}}'")

    from transformers import AutoModelForCausalLM
    prompts = [prompt[:options.max_prompt] for prompt in read_prompts(options)]
    model = AutoModelForCausalLM.from_pretrained(options.model, dtype="auto")
    model.to("cuda" if torch.cuda.is_available() else "cpu")
    recorder = record_attention(
        model, prompts, steps=options.steps, temperature=options.temperature, seed=options.seed,
        layers=options.layers, name=options.model, licence=options.licence,
        source=options.source or options.model, kv_heads=options.kv_heads,
        queries_per_key=options.queries_per_key, last_queries=options.last_queries)
    for layer, capture in recorder.captures.items():
        path = options.out.replace("{layer}", str(layer))
        capture.write(path)
        print(f"{path}: {capture.summary()}, {pathlib.Path(path).stat().st_size:,} bytes")
    return 0


@torch.no_grad()
def record_attention(model, prompts, *, steps, name, licence, source, temperature=1.0, seed=1,
                     layers=None, observe=None, **selection):
    """Returns an AttentionRecorder. prompts: lists of token ids, none empty. selection: what
    AttentionRecorder takes. `observe(request, step, calls)` is called after each forward pass."""
    if not prompts or not all(prompts):
        raise ValueError(f"{len(prompts)} prompts, {sum(not p for p in prompts)} of them empty; "
                         f"at least one prompt, each with at least one token")
    device = next(model.parameters()).device
    recorder = AttentionRecorder(model=name, licence=licence, source=source,
                                 num_layers=text_config(model).num_hidden_layers, **selection)
    draws = torch.Generator(device).manual_seed(seed)
    ends = end_tokens(model)
    model.eval()
    with AttentionCapture(model, layers) as capture:
        for request, prompt in enumerate(prompts):
            tokens, cache = torch.tensor([prompt], device=device), None
            for step in range(steps + 1):
                outputs = model(input_ids=tokens, past_key_values=cache, use_cache=True)
                cache = outputs.past_key_values
                calls = capture.take()
                recorder.append(calls, [request], step)
                if observe:
                    observe(request, step, calls)
                tokens = sample(outputs.logits[:, -1], temperature, draws)[:, None]
                if tokens.item() in ends:
                    break
    return recorder


def numbers(text):
    return [int(part) for part in text.split(",")]


if __name__ == "__main__":
    sys.exit(main())
