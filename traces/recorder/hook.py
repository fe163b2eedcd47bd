"""Sees the routing of a mixture-of-experts model while it runs, through forward hooks on its gates.

Decides which modules are gates and how their output is read as (ids, weights) [rows, top_k];
decides nothing about decoding or files. The ids and weights are the ones that the model itself uses
wherever the gate returns them; they are recomputed only for gates that return bare logits, with
exactly the operations of the blocks named in RULES. Everything else is refused with a
sentence, because a plausible guess would be a wrong trace.
"""

import dataclasses

import torch


class HookError(RuntimeError):
    """A model whose routing this hook cannot read; the message says what is missing."""


@dataclasses.dataclass
class LayerRouting:
    ids: torch.Tensor      # int64 [rows, top_k], in the order in which the router returned them
    weights: torch.Tensor  # [rows, top_k], in the model's own dtype
    logits: torch.Tensor | None  # [rows, num_experts] where the gate returns them


class RoutingCapture:
    """with RoutingCapture(model) as capture: model(...); layers = capture.take()

    `gates`: list of modules in layer order, found by find_gates() if absent. `select`: a function
    logits [rows, num_experts] -> (ids, weights) for gates that return logits by an unknown rule.
    """

    def __init__(self, model, gates=None, num_experts=None, top_k=None, select=None):
        config = text_config(model)
        self.num_experts = num_experts or first_of(config, EXPERT_COUNT_NAMES)
        self.top_k = top_k or first_of(config, TOP_K_NAMES)
        if not self.num_experts or not self.top_k:
            raise HookError(f"{type(model).__name__}: its config has none of "
                            f"{EXPERT_COUNT_NAMES} or none of {TOP_K_NAMES}; pass num_experts and "
                            f"top_k")
        self.gates = gates or find_gates(model, self.num_experts)
        if not self.gates:
            raise HookError(f"{type(model).__name__}: no gate found, that is no module whose class "
                            f"ends in Router or Gate, nor a Linear named gate or router, with "
                            f"{self.num_experts} rows of weight; pass gates=[...]")
        self.select = select or known_rule(config)
        self._captured = [None] * len(self.gates)
        self._handles = []

    @property
    def layers(self):
        return len(self.gates)

    def __enter__(self):
        for layer, gate in enumerate(self.gates):
            self._handles.append(gate.register_forward_hook(
                lambda module, args, output, layer=layer: self._see(layer, module, output)))
        return self

    def __exit__(self, *exception):
        for handle in self._handles:
            handle.remove()
        self._handles.clear()

    def take(self):
        """Routing of the one forward pass since the last take(): a LayerRouting per layer."""
        silent = [layer for layer, seen in enumerate(self._captured) if seen is None]
        if silent:
            raise HookError(f"gates {silent} of {self.layers} did not run; every gate must run "
                            f"once in each forward pass")
        captured, self._captured = self._captured, [None] * self.layers
        return captured

    def _see(self, layer, module, output):
        if self._captured[layer] is not None:
            raise HookError(f"gate {layer} ran twice without a take() in between")
        self._captured[layer] = read_gate_output(
            output, self.num_experts, self.top_k, self.select, type(module).__name__)


def read_gate_output(output, num_experts, top_k, select, gate="gate"):
    """What a gate returned, whatever its shape, as LayerRouting.

    Known forms: (logits, weights [k], ids [k]) in any order; (ids, weights); (dense scores [E] with
    zeros where not picked, ids); bare logits [E]. Leading axes are flattened to rows.
    """
    tensors = output if isinstance(output, (tuple, list)) else (output,)
    tensors = [t.detach().reshape(-1, t.shape[-1]) for t in tensors if torch.is_tensor(t)]
    ids = [t for t in tensors if not t.is_floating_point() and t.shape[-1] == top_k]
    floats = [t for t in tensors if t.is_floating_point()]
    wide = [t for t in floats if t.shape[-1] == num_experts]
    narrow = [t for t in floats if t.shape[-1] == top_k]
    if num_experts == top_k:
        raise HookError(f"{gate}: every token picks all {num_experts} experts; there is no routing "
                        f"to record")
    if len(ids) == 1 and len(narrow) == 1:
        return LayerRouting(ids[0].long(), narrow[0], wide[0] if wide else None)
    if len(ids) == 1 and len(wide) == 1 and not narrow:
        picked = wide[0].gather(1, ids[0].long())
        if (wide[0] != 0).sum() == (picked != 0).sum():  # dense scores: zero where not picked
            return LayerRouting(ids[0].long(), picked, None)
    if not ids and len(wide) == 1 and not narrow:
        if select is None:
            raise HookError(f"{gate} returns logits only, and how this model turns them into "
                            f"weights is not in RULES; pass select=")
        chosen, weights = select(wide[0], top_k)
        return LayerRouting(chosen, weights, wide[0])
    shapes = [(tuple(t.shape), str(t.dtype)) for t in tensors]
    raise HookError(f"{gate} returned {shapes}; expected ids or logits for {num_experts} experts, "
                    f"top-{top_k}")


def find_gates(model, num_experts):
    """Gates in the order of the model's modules, which is layer order. A shared expert's gate has
    one row of weight and a gated MLP's gate_proj has the wrong name and size: neither qualifies."""
    gates = []
    for name, module in model.named_modules():
        weight = getattr(module, "weight", None)
        if not torch.is_tensor(weight) or weight.dim() != 2 or weight.shape[0] != num_experts:
            continue
        kind, leaf = type(module).__name__, name.rsplit(".", 1)[-1]
        if kind.endswith(("Router", "Gate")) or leaf in ("gate", "router"):
            gates.append(module)
    return gates


def softmax_then_top_k(renormalise):
    def select(logits, top_k):
        probabilities = torch.nn.functional.softmax(logits, dim=-1, dtype=torch.float)
        weights, ids = torch.topk(probabilities, top_k, dim=-1)
        if renormalise:
            weights /= weights.sum(dim=-1, keepdim=True)
        return ids, weights.to(logits.dtype)
    return select


# Models whose gate is a bare Linear in some releases of transformers (4.x), by config.model_type,
# and whether the block renormalises the picked probabilities ("config": as norm_topk_prob says).
RULES = {"mixtral": True, "olmoe": "config", "qwen2_moe": "config", "qwen3_moe": "config"}
EXPERT_COUNT_NAMES = ("num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts")
TOP_K_NAMES = ("num_experts_per_tok", "top_k", "moe_top_k", "moe_k")


def known_rule(config):
    renormalise = RULES.get(getattr(config, "model_type", None))
    if renormalise is None:
        return None
    if renormalise == "config":
        renormalise = config.norm_topk_prob
    return softmax_then_top_k(renormalise)


def text_config(model):
    """The part of a config that describes the language model (multimodal ones nest it)."""
    config = getattr(model, "config", None)
    return getattr(config, "text_config", None) or config


def first_of(config, names):
    return next((getattr(config, n) for n in names if getattr(config, n, None)), None)


def batch_bytes(captured, rows):
    """Rows `rows` (index tensor) of all layers as (ids, weights, dtype) for Recording.append:
    [rows, layers, top_k] int16 bytes, and BF16 or F32 bytes. Weights narrower than F32 that are not
    BF16 (fp16) widen exactly to F32."""
    ids = torch.stack([layer.ids[rows] for layer in captured], dim=1)
    weights = torch.stack([layer.weights[rows] for layer in captured], dim=1)
    if weights.dtype == torch.bfloat16:
        raw, dtype = weights.contiguous().view(torch.int16), "BF16"
    else:
        raw, dtype = weights.float().contiguous().view(torch.int32), "F32"
    return (ids.to(torch.int16).cpu().contiguous().numpy().tobytes(),
            raw.cpu().numpy().tobytes(), dtype)
