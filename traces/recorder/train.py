"""Trains the sample model and captures what it does: one command, one GPU.

    cd traces && python3 -m recorder.train --out DIR [--capture] [--recipe FILE] [--weights FILE]

Writes DIR/<name>.safetensors (the routing of a decode batch) if the recipe has a section
"recording"; DIR/<name>-layer<n>.safetensors (Q, K and V of the layers named in its section
"capture") with --capture; and DIR/<name>.json (the recipe as run, with every measured figure).
Decides the training loop, how hard load balancing pulls, and what a recorded step is; exits with 1
if the result is not worth keeping (held-out loss, expert load).
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

from .attention import AttentionCapture, AttentionRecorder, visible_keys
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
    parser.add_argument("--capture", action="store_true",
                        help="write Q, K and V too, as the recipe's section \"capture\" says")
    parser.add_argument("--weights", type=pathlib.Path,
                        help="keep the trained weights here; if the file exists, train nothing")
    options = parser.parse_args()
    recipe = json.loads(pathlib.Path(options.recipe).read_text())
    if options.capture and "capture" not in recipe:
        parser.error(f"{options.recipe} has no section \"capture\", which --capture asks for")
    report = run(recipe, pathlib.Path(options.out), options.max_seconds, options.capture,
                 options.weights)
    faults = shortcomings(report)
    for fault in faults:
        print(f"train: {fault}", file=sys.stderr)
    return 1 if faults else 0


def run(recipe, out, max_seconds=math.inf, capture=False, weights=None):
    """Trains, evaluates, records; returns the report that is also written beside the files."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    seed_everything(recipe["seed"])
    corpus = read_corpus(limit_bytes=recipe["training"].get("limit_bytes"))
    config = ModelConfig(**recipe["model"])
    model = MoeLanguageModel(config).to(device)
    parameters = sum(p.numel() for p in model.parameters())
    print(f"{parameters:,} parameters, {len(corpus.train):,} bytes of text", flush=True)

    training = trained(model, corpus, recipe, device, max_seconds, weights)
    inactive = 3 * config.hidden_size * config.expert_size * config.num_layers * (
        config.num_experts - config.num_experts_per_tok)
    report = {
        "recipe": recipe, "parameters": parameters, "parameters_active": parameters - inactive,
        "corpus": corpus.description, "training": training,
        "held_out": evaluate(model, corpus, device,
                             recipe["training"].get("held_out_windows", 2048)),
        "device": torch.cuda.get_device_name() if device == "cuda" else cpu_name(),
        "torch": torch.__version__, "cuda": torch.version.cuda if device == "cuda" else None,
        "date": datetime.date.today().isoformat(),
    }
    out.mkdir(parents=True, exist_ok=True)
    if "recording" in recipe:
        recording = record(model, corpus, recipe, device, parameters)
        path = out / f"{recipe['name']}.safetensors"
        recording.write(path)
        report["trace"] = file_report(path) | {
            "tokens": recording.tokens, "layers": recording.layers, "top_k": recording.top_k,
            "weights_dtype": recording.weights_dtype,
            "load_max_over_mean": [round(x, 3) for x in recording.load_by_layer()]}
    if capture:
        report["captures"] = []
        for layer, recording in capture_sample(model, recipe, device, report).items():
            path = out / f"{recipe['name']}-layer{layer}.safetensors"
            recording.write(path)
            report["captures"].append(file_report(path) | recording.summary()
                                      | {"heads": attention_figures(recording)})
    (out / f"{recipe['name']}.json").write_text(json.dumps(report, indent=2) + "\n")
    print(json.dumps({k: v for k, v in report.items() if k != "recipe"}, indent=2), flush=True)
    return report


def file_report(path):
    return {"file": path.name, "bytes": path.stat().st_size,
            "sha256": hashlib.sha256(path.read_bytes()).hexdigest()}


def cpu_name():
    """The processor's own words where Linux tells them."""
    try:
        lines = pathlib.Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return "cpu"
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return f"cpu: {names[0]}" if names else "cpu"


def shortcomings(report):
    """Why this run is no sample, as sentences; empty if it is one."""
    faults = []
    loss, entropy = report["held_out"]["loss_nats"], report["held_out"]["unigram_entropy_nats"]
    if not loss < entropy:
        faults.append(f"held-out loss {loss} nats is not below the unigram entropy {entropy}")
    for layer, load in enumerate(report.get("trace", {}).get("load_max_over_mean", [])):
        if not LOAD_MIN <= load <= LOAD_MAX:
            faults.append(f"layer {layer}: max/mean load {load}; wanted {LOAD_MIN} to {LOAD_MAX}")
    return faults


def trained(model, corpus, recipe, device, max_seconds, weights):
    """Trains, or reads weights that were kept from the same recipe. Returns the training report."""
    trained_by = {key: recipe[key] for key in ("seed", "model", "training")}
    if weights and weights.exists():
        kept = torch.load(weights, map_location=device, weights_only=True)
        if kept["trained_by"] != trained_by:
            raise SystemExit(f"train: {weights} was trained by {kept['trained_by']}; this recipe "
                             f"is {trained_by}")
        model.load_state_dict(kept["state"])
        return kept["report"]
    report = train(model, corpus, recipe, device, max_seconds)
    if weights:
        torch.save({"trained_by": trained_by, "state": model.state_dict(), "report": report},
                   weights)
    return report


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
        with torch.autocast(device, torch.bfloat16, enabled=settings.get("bf16", True)):
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


@torch.no_grad()
def capture_sample(model, recipe, device, report):
    """Q, K and V of the recipe's prompts, one request after another: a prefill, then `steps`
    generated bytes, each a decode step over a cache. Attention runs in bf16 whatever the training
    ran in. Returns {layer: Capture}; adds to `report` what the prompts were."""
    settings = recipe["capture"]
    recorder = AttentionRecorder(
        model=recipe["name"], licence="Apache-2.0", num_layers=model.config.num_layers,
        source=f"trained by us, {report['parameters']} parameters, {report['training']['steps']} "
               f"steps on {report['device']}; not a production model; prompts of our own source",
        kv_heads=settings["kv_heads"], queries_per_key=settings["queries_per_key"])
    draws = torch.Generator(device).manual_seed(recipe["seed"])
    capture = AttentionCapture(layers=settings["layers"])
    report["prompts"] = []
    model.eval()
    for request, pieces in enumerate(settings["prompts"]):
        prompt = b"".join(piece_bytes(piece) for piece in pieces)
        report["prompts"].append({"bytes": len(prompt),
                                  "sha256": hashlib.sha256(prompt).hexdigest()})
        tokens, cache, written = torch.tensor([list(prompt)], device=device), [], bytearray()
        for step in range(settings["steps"] + 1):
            with torch.autocast(device, torch.bfloat16):
                logits = model(tokens, cache, capture.see)
            recorder.append(capture.take(), [request], step)
            chances = torch.softmax(logits[:, -1].float() / settings["temperature"], -1)
            tokens = torch.multinomial(chances, 1, generator=draws)
            written.append(tokens.item())
        print(f"{prompt[-60:]!r} -> {bytes(written)!r}", flush=True)
    return recorder.captures


def piece_bytes(piece):
    """Part of one of this package's own files, which no training has seen, or one byte over and
    over."""
    if "fill" in piece:
        return piece["fill"].encode() * piece["bytes"]
    data = pathlib.Path(__file__).with_name(piece["file"]).read_bytes()
    part = data[piece["begin"]:piece["begin"] + piece["bytes"]]
    if len(part) != piece["bytes"]:
        raise SystemExit(f"train: {piece} goes beyond the {len(data)} bytes of the file")
    return part


def attention_figures(capture, rows=128):
    """How far from even the captured attention is, over the last `rows` query rows of the first
    prefill: by query head the mean entropy of a row in nats, that of even attention to the same
    keys, and the mean weight that lies outside of the row's last 128 keys."""
    call = next(capture.calls())

    def last(parts, heads, begin, end):
        tensor = torch.frombuffer(bytearray(b"".join(parts)), dtype=torch.bfloat16)
        return tensor.view(-1, heads, capture.head_dim)[begin:end].double().transpose(0, 1)
    heads = len(capture.layer.q_heads)
    q = last(capture.q, heads, call.q_end - rows, call.q_end)
    k = last(capture.k, len(capture.layer.kv_heads), call.kv_begin, call.kv_end)
    k = k.repeat_interleave(heads // len(k), 0)
    keys = k.shape[1]
    seen = visible_keys("causal", 0, rows, rows, keys)
    scores = (q @ k.transpose(1, 2) * capture.layer.scale).masked_fill(~seen, -math.inf)
    weights = torch.softmax(scores, -1)
    entropy = -torch.special.xlogy(weights, weights).sum(-1).mean(-1)
    far = seen & ~visible_keys("window:128", 0, rows, rows, keys)
    even = seen.sum(-1).double().log().mean().item()
    return [{"q_head": head, "entropy_nats": round(entropy[i].item(), 3),
             "even_entropy_nats": round(even, 3),
             "weight_beyond_128_keys": round((weights[i] * far).sum(-1).mean().item(), 3)}
            for i, head in enumerate(capture.layer.q_heads)]


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
