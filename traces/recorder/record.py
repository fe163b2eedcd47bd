"""Captures the routing of a decode batch of any Hugging Face mixture-of-experts model.

    cd traces && python3 -m recorder.record --model PATH_OR_NAME --prompts prompts.txt --steps 96 \\
        --licence "Apache-2.0" --out trace.safetensors

prompts.txt holds one prompt a line; prompts.json holds a list of lists of token ids and needs no
tokenizer. Decides how requests run in lockstep: all prompts are prefilled together (left-padded),
then step s passes every unfinished request's generated token s through the model, one row each.
Prompt tokens are not recorded. From other loops, use RoutingCapture and Recording directly.
"""

import argparse
import json
import pathlib
import sys

import torch

from .hook import RoutingCapture, batch_bytes, text_config
from .trace_file import Recording


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--model", required=True, help="folder or hub name for transformers")
    parser.add_argument("--prompts", required=True, help=".txt: one a line; .json: token ids")
    parser.add_argument("--out", required=True)
    parser.add_argument("--licence", required=True, help="of the model's outputs and of this trace")
    parser.add_argument("--source", default="", help="a sentence; default: the model's name")
    parser.add_argument("--steps", type=int, default=96)
    parser.add_argument("--temperature", type=float, default=1.0, help="0 picks the best token")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()

    from transformers import AutoModelForCausalLM
    prompts = read_prompts(options)
    model = AutoModelForCausalLM.from_pretrained(options.model, dtype="auto")
    model.to("cuda" if torch.cuda.is_available() else "cpu")
    recording = record_decode(
        model, prompts, steps=options.steps, temperature=options.temperature, seed=options.seed,
        name=options.model, licence=options.licence, source=options.source or options.model)
    recording.write(options.out)
    loads = ", ".join(f"{load:.2f}" for load in recording.load_by_layer())
    print(f"{options.out}: {recording.tokens} tokens, {recording.layers} layers, "
          f"top-{recording.top_k} of {recording.num_experts}; max/mean load by layer {loads}")
    return 0


@torch.no_grad()
def record_decode(model, prompts, *, steps, name, licence, source, temperature=1.0, seed=1,
                  capture=None, observe=None):
    """Returns a Recording. prompts: lists of token ids, none empty. `capture`: a RoutingCapture
    made by hand for models that it cannot read alone. `observe(chosen, captured)` is called after
    each recorded forward pass with the tokens [requests] that went in and what the hook saw."""
    if not prompts or not all(prompts):
        raise ValueError(f"{len(prompts)} prompts, {sum(not p for p in prompts)} of them empty; "
                         f"at least one prompt, each with at least one token")
    device, config = next(model.parameters()).device, text_config(model)
    capture = capture or RoutingCapture(model)
    widest = max(len(prompt) for prompt in prompts)
    tokens = torch.tensor([[0] * (widest - len(p)) + list(p) for p in prompts], device=device)
    mask = torch.tensor([[0] * (widest - len(p)) + [1] * len(p) for p in prompts], device=device)
    positions = (mask.cumsum(1) - 1).clamp(min=0)
    ends = end_tokens(model)
    draws = torch.Generator(device).manual_seed(seed)
    alive = list(range(len(prompts)))
    recording = None
    model.eval()
    with capture:
        outputs = model(input_ids=tokens, attention_mask=mask, position_ids=positions,
                        use_cache=True)
        capture.take()  # the prompts' routing
        lengths = mask.sum(1)
        for step in range(steps):
            chosen = sample(outputs.logits[:, -1], temperature, draws)
            alive = [r for r in alive if chosen[r].item() not in ends]
            if not alive:
                break
            mask = torch.cat((mask, torch.ones_like(mask[:, :1])), dim=1)
            position = lengths + step
            outputs = model(input_ids=chosen[:, None], attention_mask=mask, use_cache=True,
                            position_ids=position[:, None], past_key_values=outputs.past_key_values)
            captured = capture.take()
            if observe:
                observe(chosen, captured)
            ids, weights, dtype = batch_bytes(captured, torch.tensor(alive, device=device))
            recording = recording or Recording(
                model=name, num_experts=capture.num_experts, hidden_size=config.hidden_size,
                layers=capture.layers, top_k=capture.top_k, licence=licence, source=source,
                weights_dtype=dtype)
            recording.append(requests=alive, step=step, positions=position[alive].tolist(), ids=ids,
                             weights=weights)
    if recording is None:
        raise ValueError(f"no token was generated in {steps} steps; every request ended at once")
    return recording


def read_prompts(options):
    """Lists of token ids from options.prompts; words by the tokenizer of options.model."""
    text = pathlib.Path(options.prompts).read_text()
    if options.prompts.endswith(".json"):
        return json.loads(text)
    from transformers import AutoTokenizer
    tokenizer = AutoTokenizer.from_pretrained(options.model)
    return [tokenizer(line).input_ids for line in text.splitlines() if line.strip()]


def sample(logits, temperature, draws):
    if temperature == 0:
        return logits.argmax(-1)
    chances = torch.softmax(logits.float() / temperature, dim=-1)
    return torch.multinomial(chances, 1, generator=draws)[:, 0]


def end_tokens(model):
    ends = getattr(getattr(model, "generation_config", None), "eos_token_id", None)
    return set(ends) if isinstance(ends, (list, tuple)) else {ends}


if __name__ == "__main__":
    sys.exit(main())
