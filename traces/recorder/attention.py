"""Sees what the attention of a model is given while it runs: queries, keys and values as the kernel
gets them, after norms and rotary embedding, with scale, mask, soft cap and sinks.

Decides how attention calls are intercepted (a function registered with transformers' attention
interface, which records and then calls the model's own), and which calls can be described at all:
the mask that the model passes must be, element by element, the one that the capture will state.
Everything else is refused with a sentence (SPEC TRC-4.5). Decides nothing about decoding or files.
"""

import dataclasses
import sys

import torch

from .capture_file import Capture, Layer
from .hook import HookError, text_config

NAME = "assay_capture"  # of our function in transformers' attention interface
# Arguments of attention functions that change nothing about what is computed.
HARMLESS = {"position_ids", "cache_position", "use_cache", "output_attentions", "return_dict",
            "output_hidden_states", "output_router_logits", "position_embeddings",
            "logits_to_keep", "num_items_in_batch", "is_causal"}


@dataclasses.dataclass
class AttentionCall:
    query: torch.Tensor   # [batch, q_heads, rows, head_dim]
    key: torch.Tensor     # [batch, kv_heads, keys, head_dim]; the rows' own keys are the last
    value: torch.Tensor   # [batch, kv_heads, keys, v_dim]
    scale: float
    mask: str             # "full", "causal" or "window:N", aligned at the last row and key
    softcap: float | None = None
    sinks: torch.Tensor | None = None   # [q_heads], in nats
    output: torch.Tensor | None = None  # [batch, rows, q_heads, v_dim], if a function computed it


class AttentionCapture:
    """with AttentionCapture(model) as capture: model(...); calls = capture.take()

    `layers`: numbers of the layers to record, all if absent. Without a model nothing is
    intercepted: an engine of your own calls see() where it calls its kernel.
    """

    def __init__(self, model=None, layers=None):
        self.model = model
        self.layers = None if layers is None else set(layers)
        self._captured = {}

    def __enter__(self):
        if self.model is None:
            return self
        from transformers import AttentionInterface, AttentionMaskInterface
        from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
        self._before = text_config(self.model)._attn_implementation
        if self._before == NAME:
            raise HookError(f"{type(self.model).__name__} is being captured already")
        if self._before not in ("eager", "sdpa"):
            raise HookError(f"{type(self.model).__name__} runs attention by {self._before!r}; "
                            f"allowed are 'eager' and 'sdpa', whose masks can be read")
        self._functions = ALL_ATTENTION_FUNCTIONS
        AttentionInterface.register(NAME, self._attend)
        AttentionMaskInterface.register(NAME, AttentionMaskInterface()[self._before])
        self.model.set_attn_implementation(NAME)
        if text_config(self.model)._attn_implementation != NAME:
            raise HookError(f"{type(self.model).__name__} does not call attention through "
                            f"transformers' attention interface; call see() by hand")
        return self

    def __exit__(self, *exception):
        if self.model is not None:
            self.model.set_attn_implementation(self._before)

    def take(self):
        """What was seen since the last take(): {layer: AttentionCall}, by layer."""
        wanted = sorted(self.layers or [])
        silent = [layer for layer in wanted if layer not in self._captured]
        if silent or not self._captured:
            raise HookError(f"attention ran in layers {sorted(self._captured)}, but not in "
                            f"{silent or 'any'}; every captured layer must run once in each "
                            f"forward pass")
        captured, self._captured = self._captured, {}
        return dict(sorted(captured.items()))

    def see(self, layer, query, key, value, *, scaling, attention_mask=None, is_causal=True,
            sliding_window=None, softcap=None, sinks=None, output=None):
        """query [batch, q_heads, rows, head_dim], key and value [batch, kv_heads, keys, ...].
        attention_mask: none, or booleans or addends that broadcast to [batch, q_heads, rows, keys].
        is_causal: what no mask means for more than one row."""
        if self.layers is not None and layer not in self.layers:
            return
        if layer in self._captured:
            raise HookError(f"attention of layer {layer} ran twice without a take() in between")
        mask = "causal" if is_causal else "full"
        if sliding_window is not None:
            mask = f"window:{sliding_window}"
        if not is_causal and (sliding_window is not None or query.shape[2] != key.shape[2]):
            raise HookError(f"layer {layer}: attention that is not causal, window "
                            f"{sliding_window}, {query.shape[2]} rows, {key.shape[2]} keys; "
                            f"allowed is full attention of all rows to all keys")
        check_mask(f"layer {layer}", mask, attention_mask, query.shape[2], key.shape[2])
        self._captured[layer] = AttentionCall(
            query.detach(), key.detach(), value.detach(), float(scaling), mask, softcap,
            None if sinks is None else sinks.detach().reshape(-1),
            None if output is None else output.detach())

    def _attend(self, module, query, key, value, attention_mask, scaling=None, softcap=None,
                sliding_window=None, s_aux=None, dropout=0.0, **others):
        function = own_function(module, self._before, self._functions)
        given = {"softcap": softcap, "sliding_window": sliding_window, "s_aux": s_aux}
        output, weights = function(
            module, query, key, value, attention_mask, scaling=scaling, dropout=dropout,
            **{name: value for name, value in given.items() if value is not None}, **others)
        layer = getattr(module, "layer_idx", None)
        if layer is None:  # not of the language model: an image tower, for example
            return output, weights
        strange = sorted(name for name, value in others.items()
                         if value is not None and name not in HARMLESS)
        if strange or dropout:
            raise HookError(f"layer {layer}: attention was given dropout {dropout} and {strange}, "
                            f"which a capture cannot state")
        causal = others.get("is_causal")
        self.see(layer, query, key, value, attention_mask=attention_mask, softcap=softcap,
                 scaling=query.shape[-1] ** -0.5 if scaling is None else scaling,
                 is_causal=getattr(module, "is_causal", True) if causal is None else causal,
                 sliding_window=sliding_window, sinks=s_aux, output=output)
        return output, weights


def own_function(module, name, functions):
    """The attention function that the model would have called."""
    if name != "eager":
        return functions[name]
    return sys.modules[type(module).__module__].eager_attention_forward


def visible_keys(mask, first, end, rows, keys):
    """bool [end - first, keys]: which keys the rows [first, end) of `rows` see. The last row stands
    at the last key."""
    distance = torch.arange(first, end)[:, None] + (keys - rows) - torch.arange(keys)[None]
    if mask == "full":
        return torch.ones_like(distance, dtype=torch.bool)
    kind, _, size = mask.partition(":")
    return (distance >= 0) & (distance < (int(size) if kind == "window" else keys))


def check_mask(where, mask, given, rows, keys, block=1024):
    """Refuses a given mask that is not `mask`. None given is understood as PyTorch understands it:
    causal for as many rows as keys, all keys for a single row."""
    if given is None:
        window = int(mask.partition(":")[2] or keys)
        if mask != "full" and (rows not in (1, keys) or keys > window):
            raise HookError(f"{where}: no mask for {rows} rows over {keys} keys, against {mask}; "
                            f"which keys a row sees is then up to the kernel")
        return
    for first in range(0, rows, block):
        part = given[..., first:first + block, :keys].to("cpu")
        expected = visible_keys(mask, first, min(first + block, rows), rows, keys)
        if part.dtype != torch.bool:
            hidden = part <= torch.finfo(torch.float16).min
            if not torch.equal(hidden, part != 0):
                raise HookError(f"{where}: the mask adds other values than 0 and the lowest "
                                f"number; a capture cannot state such a bias")
            part = ~hidden
        wrong = (part != expected).nonzero()
        if len(wrong):
            *_, row, key = wrong[0].tolist()
            sees = "does not see" if expected[row, key] else "sees"
            raise HookError(f"{where}: row {first + row} of {rows} {sees} key {key} of {keys}, "
                            f"against {mask}; requests that are padded, packed together or in a "
                            f"static cache are recorded one at a time")


class AttentionRecorder:
    """Collects the calls of many forward passes: a Capture for each layer.

    `kv_heads`: which key heads of the model to keep, all if absent; `queries_per_key`: so many
    query heads of each, all if absent; `last_queries`: of a request's first pass keep only so many
    query rows, the last ones. F32 rows are rounded to BF16, and the capture says so.
    """

    def __init__(self, *, model, licence, source, num_layers, kv_heads=None, queries_per_key=None,
                 last_queries=None):
        self.labels = dict(model=model, licence=licence, source=source, num_layers=num_layers)
        self.kv_heads, self.queries_per_key = kv_heads, queries_per_key
        self.last_queries = last_queries
        self.captures = {}

    def append(self, calls, requests, step):
        """calls: what take() returned for one pass; requests: the number of the request in each
        row of the batch; step: the number of the pass, not falling within a request."""
        for layer, call in calls.items():
            if len(requests) != len(call.query):
                raise HookError(f"{len(requests)} requests for a batch of {len(call.query)}")
            capture = self.captures.get(layer) or self._new(layer, call)
            self.captures[layer] = capture
            self._same_parameters(capture, call)
            for row, request in enumerate(requests):
                self._append_row(capture, call, row, request, step)

    def _append_row(self, capture, call, row, request, step):
        rows, keys = call.query.shape[2], call.key.shape[2]
        past = keys - rows
        known = capture.rows("k", request) if request < len(capture.k) else 0
        window = int(call.mask.partition(":")[2] or 0)
        if past != known and not (window and min(known, window - 1) <= past < known):
            raise HookError(f"request {request}, step {step}: {keys} keys for {rows} rows after "
                            f"{known} recorded keys; a request is recorded from its first token, "
                            f"through a cache that grows by a pass's rows")
        heads = capture.layer.kv_heads
        key, value = call.key[row, heads], call.value[row, heads]
        for name, data, old in (("key", key, capture.k), ("value", value, capture.v)):
            if past and not old[request].endswith(row_bytes(data[:, :past], capture.dtype)):
                raise HookError(f"request {request}, step {step}: a cached {name} is no longer the "
                                f"one that was recorded")
        kept = rows if known or not self.last_queries else min(rows, self.last_queries)
        query = call.query[row, capture.layer.q_heads]
        capture.append(request=request, step=step,
                       q=row_bytes(query[:, rows - kept:], capture.dtype),
                       k=row_bytes(key[:, past:], capture.dtype),
                       v=row_bytes(value[:, past:], capture.dtype))

    def _new(self, layer, call):
        q_count, kv_count = call.query.shape[1], call.key.shape[1]
        share = q_count // kv_count
        kept = self.queries_per_key or share
        if kept > share:
            raise HookError(f"{kept} query heads of each key head are wanted; there are {share}")
        kv_heads = self.kv_heads or list(range(kv_count))
        q_heads = [head * share + i for head in kv_heads for i in range(kept)]
        dtype = "F16" if call.query.dtype == torch.float16 else "BF16"
        description = Layer(
            layer=layer, q_heads=q_heads, kv_heads=kv_heads, num_q_heads=q_count,
            num_kv_heads=kv_count, scale=call.scale, mask=call.mask, softcap=call.softcap,
            rounded_from="F32" if call.query.dtype == torch.float32 else None, **self.labels)
        sinks = None if call.sinks is None else call.sinks.float()[q_heads].tolist()
        return Capture(description, head_dim=call.query.shape[3], v_dim=call.value.shape[3],
                       dtype=dtype, sinks=sinks)

    @staticmethod
    def _same_parameters(capture, call):
        stated = (capture.layer.scale, capture.layer.mask, capture.layer.softcap)
        if stated != (call.scale, call.mask, call.softcap):
            raise HookError(f"layer {capture.layer.layer}: scale, mask and soft cap were {stated}, "
                            f"now {(call.scale, call.mask, call.softcap)}; a capture states one")


def row_bytes(tensor, dtype):
    """[heads, rows, dim] -> little-endian bytes of [rows, heads, dim]."""
    kind = torch.float16 if dtype == "F16" else torch.bfloat16
    rows = tensor.transpose(0, 1).to(kind).contiguous()
    return rows.cpu().view(torch.int16).numpy().astype("<i2").tobytes()
