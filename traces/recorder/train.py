"""Trains the sample model and captures the routing of a decode batch: one command, one GPU.

    cd traces && python3 -m recorder.train --out DIR [--recipe FILE] [--max-seconds N]

Writes DIR/<name>.safetensors (the trace) and DIR/<name>.json (the recipe as run, with every
measured figure). Decides the training loop, how hard load balancing pulls, and what a recorded step
is; exits with 1 if the result is not worth keeping (held-out loss, expert load).
"""

import argparse
import datetime
import hashlib
import json
import math
import os
import pathlib
import random
import sys
import time

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # cuBLAS repeats its bits with this

import torch
import torch.nn.functional as F

from .corpus import read_corpus, unigram_entropy_nats
from .hook import RoutingCapture, batch_bytes
from .model import ModelConfig, MoeLanguageModel
from .trace_file import Recording

LOAD_MIN, LOAD_MAX = 1.3, 5.0  # max/mean expert load that real routers show, per layer


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--recipe", default=pathlib.Path(__file__).with_name("recipe.json"))
    parser.add_argument("--out", required=True, help="folder for the trace and its report")
    parser.add_argument("--max-seconds", type=float, default=math.inf,
                        help="end training early after this time; the report says at which step")
    options = parser.parse_args()
    recipe = json.loads(pathlib.Path(options.recipe).read_text())
    report = run(recipe, pathlib.Path(options.out), options.max_seconds)
    faults = shortcomings(report)
    for fault in faults:
        print(f"train: {fault}", file=sys.stderr)
    return 1 if faults else 0


def run(recipe, out, max_seconds=math.inf):
    """Trains, evaluates, records; returns the report that is also written beside the trace."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    seed_everything(recipe["seed"])
    corpus = read_corpus(limit_bytes=recipe["training"].get("limit_bytes"))
    config = ModelConfig(**recipe["model"])
    model = MoeLanguageModel(config).to(device)
    parameters = sum(p.numel() for p in model.parameters())
    print(f"{parameters:,} parameters, {len(corpus.train):,} bytes of text", flush=True)

    training = train(model, corpus, recipe, device, max_seconds)
    held_out = evaluate(model, corpus, device)
    recording = record(model, corpus, recipe, device, parameters)
    out.mkdir(parents=True, exist_ok=True)
    path = out / f"{recipe['name']}.safetensors"
    recording.write(path)

    inactive = 3 * config.hidden_size * config.expert_size * config.num_layers * (
        config.num_experts - config.num_experts_per_tok)
    report = {
        "recipe": recipe, "parameters": parameters, "parameters_active": parameters - inactive,
        "corpus": corpus.description, "training": training, "held_out": held_out,
        "trace": {"file": path.name, "bytes": path.stat().st_size,
                  "sha256": hashlib.sha256(path.read_bytes()).hexdigest(),
                  "tokens": recording.tokens, "layers": recording.layers,
                  "top_k": recording.top_k, "weights_dtype": recording.weights_dtype,
                  "load_max_over_mean": [round(x, 3) for x in recording.load_by_layer()]},
        "device": torch.cuda.get_device_name() if device == "cuda" else "cpu",
        "torch": torch.__version__, "cuda": torch.version.cuda,
        "date": datetime.date.today().isoformat(),
    }
    (out / f"{recipe['name']}.json").write_text(json.dumps(report, indent=2) + "\n")
    print(json.dumps({k: v for k, v in report.items() if k != "recipe"}, indent=2), flush=True)
    return report


def shortcomings(report):
    """Why this run is no sample, as sentences; empty if it is one."""
    faults = []
    loss, entropy = report["held_out"]["loss_nats"], report["held_out"]["unigram_entropy_nats"]
    if not loss < entropy:
        faults.append(f"held-out loss {loss} nats is not below the unigram entropy {entropy}")
    for layer, load in enumerate(report["trace"]["load_max_over_mean"]):
        if not LOAD_MIN <= load <= LOAD_MAX:
            faults.append(f"layer {layer}: max/mean load {load}; wanted {LOAD_MIN} to {LOAD_MAX}")
    return faults


def train(model, corpus, recipe, device, max_seconds):
    settings, context = recipe["training"], model.config.context
    text = torch.frombuffer(bytearray(corpus.train), dtype=torch.uint8).to(device)
    decayed = [p for p in model.parameters() if p.dim() > 1]
    others = [p for p in model.parameters() if p.dim() <= 1]
    optimiser = torch.optim.AdamW(
        [{"params": decayed, "weight_decay": settings["weight_decay"]},
         {"params": others, "weight_decay": 0.0}],
        lr=settings["learning_rate"], betas=(0.9, 0.95), fused=device == "cuda")
    routers = [layer.router for layer in model.layers]
    pull = torch.full((len(routers),), settings["balance_weight"], device=device)
    draws = torch.Generator().manual_seed(recipe["seed"])
    window = torch.arange(context + 1, device=device)
    started, step, losses = time.monotonic(), 0, []
    model.train()
    for step in range(1, settings["steps"] + 1):
        for group in optimiser.param_groups:
            group["lr"] = settings["learning_rate"] * schedule(step, settings)
        starts = torch.randint(len(text) - context, (settings["batch"], 1), generator=draws)
        tokens = text[starts.to(device) + window].long()
        with torch.autocast(device, torch.bfloat16):
            logits = model(tokens[:, :-1])
        loss = F.cross_entropy(logits.float().flatten(0, 1), tokens[:, 1:].flatten())
        balance = torch.stack([router.balance_loss for router in routers])
        (loss + (pull * balance).sum()).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), settings["clip_norm"])
        optimiser.step()
        optimiser.zero_grad(set_to_none=True)
        load = torch.stack([router.load for router in routers])
        pull = adjusted(pull, load, settings)
        if step % 50 == 0 or step in (1, settings["steps"]):
            seconds = time.monotonic() - started
            losses.append([step, round(loss.item(), 4)])
            print(f"step {step} loss {loss.item():.3f} load {load.min().item():.2f} to "
                  f"{load.max().item():.2f} pull {pull.min().item():.1e} to "
                  f"{pull.max().item():.1e} {seconds:.1f} s", flush=True)
            if seconds > max_seconds:
                break
    return {"steps": step, "ended_early": step < settings["steps"],
            "tokens": step * settings["batch"] * context, "loss_nats": losses,
            "balance_weight_final": [float(f"{p:.2e}") for p in pull.tolist()],
            "seconds": round(time.monotonic() - started, 1)}


def schedule(step, settings):
    """Linear warm-up, then a cosine down to a tenth."""
    warmup = min(1.0, step / settings["warmup_steps"])
    return warmup * (0.55 + 0.45 * math.cos(math.pi * step / settings["steps"]))


def adjusted(pull, load, settings):
    """A fixed balance weight gives even load in one run and collapse in the next. So a layer's
    weight moves by 2 % a step while its max/mean load is outside [low, high], and stays otherwise;
    the trained router is then neither flat nor collapsed."""
    factor = torch.where(load > settings["balance_high"], 1.02,
                         torch.where(load < settings["balance_low"], 1 / 1.02, 1.0))
    return (pull * factor).clamp(1e-6, 0.1)


@torch.no_grad()
def evaluate(model, corpus, device, max_windows=2048, batch=64):
    """Mean cross-entropy over held-out text, in windows of the training context."""
    context = model.config.context
    joined = b"\n".join(text for _, text in corpus.held_out)
    windows = min(max_windows, len(joined) // (context + 1))
    kept = joined[:windows * (context + 1)]
    tokens = torch.frombuffer(bytearray(kept), dtype=torch.uint8).view(windows, -1).long()
    model.eval()
    total = 0.0
    for rows in tokens.split(batch):
        rows = rows.to(device)
        with torch.autocast(device, torch.bfloat16):
            logits = model(rows[:, :-1])
        total += F.cross_entropy(logits.float().flatten(0, 1), rows[:, 1:].flatten(),
                                 reduction="sum").item()
    return {"bytes": len(kept), "loss_nats": round(total / (windows * context), 4),
            "unigram_entropy_nats": round(unigram_entropy_nats(kept), 4)}


@torch.no_grad()
def record(model, corpus, recipe, device, parameters):
    """Decodes all requests in lockstep. Step s is the batch in which every request's generated
    token number s passes through the model: one row for each request, prompts are not recorded. The
    sequences are computed anew at each step, which costs little at this size and spares a cache."""
    settings, config = recipe["recording"], model.config
    prompts = held_out_prompts(corpus, settings, random.Random(recipe["seed"]))
    lengths = torch.tensor([len(p) for p in prompts], device=device)
    requests, steps = len(prompts), settings["steps"]
    tokens = torch.zeros(requests, int(lengths.max()) + steps, dtype=torch.long)
    for row, prompt in enumerate(prompts):
        tokens[row, :len(prompt)] = torch.tensor(list(prompt))
    tokens = tokens.to(device)
    recording = Recording(
        model=recipe["name"], num_experts=config.num_experts, hidden_size=config.hidden_size,
        layers=config.num_layers, top_k=config.num_experts_per_tok, licence="Apache-2.0",
        source=f"trained by us, {parameters} parameters, on {corpus.description['text']}, "
               f"{corpus.description['licence']}; decode batch of {requests} requests")
    everyone = torch.arange(requests, device=device)
    draws = torch.Generator(device).manual_seed(recipe["seed"])
    model.eval()
    with RoutingCapture(model) as capture:
        for step in range(-1, steps):  # step -1 is the prefill, which only yields the first token
            last = lengths + step
            width = int(last.max()) + 1
            with torch.autocast(device, torch.bfloat16):
                logits = model(tokens[:, :width])
            captured = capture.take()
            if step >= 0:
                ids, weights, dtype = batch_bytes(captured, everyone * width + last)
                assert dtype == recording.weights_dtype, dtype
                recording.append(requests=list(range(requests)), step=step,
                                 positions=last.tolist(), ids=ids, weights=weights)
            chances = torch.softmax(logits[everyone, last].float() / settings["temperature"], -1)
            if step + 1 < steps:
                tokens[everyone, last + 1] = torch.multinomial(chances, 1, generator=draws)[:, 0]
    for row in (0, requests // 2):
        text = bytes(tokens[row, :lengths[row] + steps].tolist()).decode(errors="replace")
        print(f"request {row}: {text[:lengths[row]]!r} -> {text[lengths[row]:]!r}", flush=True)
    return recording


def held_out_prompts(corpus, settings, draws):
    """One prompt after another from the held-out files in turn, at a drawn place and length."""
    shortest, longest = settings["prompt_bytes"]
    files = [text for _, text in corpus.held_out if len(text) > longest]
    prompts = []
    for index in range(settings["requests"]):
        text, length = files[index % len(files)], draws.randint(shortest, longest)
        start = draws.randrange(len(text) - length)
        prompts.append(text[start:start + length])
    return prompts


def seed_everything(seed):
    random.seed(seed)
    torch.manual_seed(seed)
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.utils.deterministic.fill_uninitialized_memory = False
    # Neither cuDNN's nor flash attention's backward pass is repeatable, so two GPU runs differ. One
    # of them is ruled out so that at least every machine takes the other.
    torch.backends.cuda.enable_cudnn_sdp(False)


if __name__ == "__main__":
    sys.exit(main())
