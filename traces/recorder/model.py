"""The small mixture-of-experts language model that our samples are captured from.

Decides its architecture only: byte vocabulary, pre-norm decoder, rotary causal attention in which
query heads may share key heads, a cache of keys and values for decoding, and in every layer a top-k
router (softmax over the picked logits, in bf16 as GPT-OSS runs its own) with
SwiGLU experts and no shared expert. No token is ever dropped. Index work is gathers in both
directions, never sums in the order of atomics; what still varies between two runs on a GPU is the
backward pass of attention.
"""

import dataclasses
import functools

import torch
import torch.nn.functional as F
from torch import nn


@dataclasses.dataclass
class ModelConfig:
    vocab_size: int = 256
    hidden_size: int = 512
    num_layers: int = 12
    num_heads: int = 8
    num_kv_heads: int = 0  # 0: as many as num_heads
    num_experts: int = 32
    num_experts_per_tok: int = 4
    expert_size: int = 256
    context: int = 512
    model_type: str = "assay_sample"

    @property
    def head_size(self):
        return self.hidden_size // self.num_heads

    @property
    def key_heads(self):
        return self.num_kv_heads or self.num_heads


class MoeLanguageModel(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.config = config
        self.embed = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(Layer(config) for _ in range(config.num_layers))
        self.norm = nn.RMSNorm(config.hidden_size, eps=1e-6)
        self.head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self.apply(self._initialise)

    def forward(self, tokens, cache=None, observe=None):
        """tokens int64 [batch, time] -> logits [batch, time, vocab].

        cache: a list, empty before the first tokens, of what has been seen of every layer: a first
        call may bring many tokens, later calls one each. observe(layer, q, k, v, scaling=) is
        called with what attention is about to read, [batch, heads, rows, head size]."""
        x = self.embed(tokens)
        begin = cache[0][0].shape[2] if cache else 0
        if begin and tokens.shape[1] != 1:
            raise ValueError(f"{tokens.shape[1]} tokens after {begin} in the cache; one is allowed")
        cos_sin = rotary(begin, tokens.shape[1], self.config.head_size, x.device)
        for index, layer in enumerate(self.layers):
            past = cache[index] if begin else None
            see = None if observe is None else functools.partial(observe, index)
            x, keys_values = layer(x, cos_sin, past, see)
            if begin:
                cache[index] = keys_values
            elif cache is not None:
                cache.append(keys_values)
        return self.head(self.norm(x))

    def _initialise(self, module):
        for parameter in module.parameters(recurse=False):
            if parameter.dim() > 1:
                nn.init.normal_(parameter, std=0.02)


class Layer(nn.Module):
    def __init__(self, config):
        super().__init__()
        d = config.hidden_size
        self.heads, self.key_heads = config.num_heads, config.key_heads
        self.head_size = config.head_size
        self.attention_norm = nn.RMSNorm(d, eps=1e-6)
        self.qkv = nn.Linear(d, (self.heads + 2 * self.key_heads) * self.head_size, bias=False)
        self.out = nn.Linear(d, d, bias=False)
        self.moe_norm = nn.RMSNorm(d, eps=1e-6)
        self.router = TopKRouter(config)
        self.experts = Experts(config)

    def forward(self, x, cos_sin, past=None, see=None):
        """Returns the layer's output and the keys and values up to here."""
        batch, time, d = x.shape
        qkv = self.qkv(self.attention_norm(x)).view(batch, time, -1, self.head_size)
        q, k, v = qkv.transpose(1, 2).split((self.heads, self.key_heads, self.key_heads), dim=1)
        q, k = rotate(q, cos_sin), rotate(k, cos_sin)
        v = v.to(q.dtype)
        if past is not None:
            k, v = torch.cat((past[0], k), dim=2), torch.cat((past[1], v), dim=2)
        if see is not None:
            see(q, k, v, scaling=self.head_size ** -0.5)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=past is None,
                                               enable_gqa=self.heads != self.key_heads)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, time, d))
        rows = self.moe_norm(x).reshape(-1, d)
        logits, weights, ids = self.router(rows)
        rows = rows.to(logits.dtype)  # experts compute in the router's precision: bf16 in autocast
        return x + self.experts(rows, ids, weights).view(batch, time, d), (k, v)


class TopKRouter(nn.Module):
    """rows [n, hidden] -> (logits [n, experts], weights [n, top_k], ids int64 [n, top_k]), picks in
    order of falling logit. Keeps the last pass's balance loss and load for the trainer."""

    def __init__(self, config):
        super().__init__()
        self.num_experts, self.top_k = config.num_experts, config.num_experts_per_tok
        self.weight = nn.Parameter(torch.empty(config.num_experts, config.hidden_size))

    def forward(self, rows):
        logits = F.linear(rows, self.weight)
        top, ids = torch.topk(logits, self.top_k, dim=-1)
        weights = torch.softmax(top.float(), dim=-1).to(logits.dtype)
        if self.training:
            self.balance_loss, self.load = self._balance(logits, ids)
        return logits, weights, ids

    def _balance(self, logits, ids):
        """The usual auxiliary loss: experts * sum(share of picks * mean probability); 1 if even."""
        picks = F.one_hot(ids, self.num_experts).sum(1).float().mean(0) / self.top_k
        probability = torch.softmax(logits.float(), dim=-1).mean(0)
        return self.num_experts * (picks * probability).sum(), picks.max() * self.num_experts


class Experts(nn.Module):
    def __init__(self, config):
        super().__init__()
        e, d, f = config.num_experts, config.hidden_size, config.expert_size
        self.num_experts = e
        self.gate_up = nn.Parameter(torch.empty(e, d, 2 * f))
        self.down = nn.Parameter(torch.empty(e, f, d))

    def forward(self, rows, ids, weights):
        n, top_k = ids.shape
        pair_of_slot, slot_of_pair = expert_slots(ids, self.num_experts)
        token_of_slot = torch.div(pair_of_slot, top_k, rounding_mode="floor")  # n where empty
        gathered = GatherRows.apply(rows, token_of_slot, slot_of_pair, top_k)
        gathered = gathered.view(self.num_experts, -1, rows.shape[1])
        gate, up = torch.bmm(gathered, self.gate_up.to(rows.dtype)).chunk(2, dim=-1)
        outputs = torch.bmm(F.silu(gate) * up, self.down.to(rows.dtype)).flatten(0, 1)
        picked = GatherRows.apply(outputs, slot_of_pair, pair_of_slot, 1).view(n, top_k, -1)
        return (picked * weights.unsqueeze(-1).to(picked.dtype)).sum(1)


def expert_slots(ids, num_experts):
    """Places the n * top_k (token, pick) pairs into [expert, capacity] slots, capacity being the
    busiest expert's load. Returns pair_of_slot (n * top_k where a slot is empty), slot_of_pair."""
    pairs = ids.numel()
    experts, order = torch.sort(ids.reshape(-1), stable=True)
    edges = torch.searchsorted(experts, torch.arange(num_experts + 1, device=ids.device))
    capacity = int((edges[1:] - edges[:-1]).max())  # the one wait for the GPU in a layer
    capacity = -(-capacity // 64) * 64
    slots = experts * capacity + torch.arange(pairs, device=ids.device) - edges[experts]
    slot_of_pair = torch.empty_like(order).scatter_(0, order, slots)
    pair_of_slot = torch.full((num_experts * capacity,), pairs, device=ids.device)
    pair_of_slot = pair_of_slot.scatter_(0, slots, order)
    return pair_of_slot, slot_of_pair


class GatherRows(torch.autograd.Function):
    """out[i] = rows[forward[i]], or zeros where forward[i] == len(rows). Its gradient is a gather
    too (an index_add would sum in the order of atomics): row r's gradient is the sum of the
    gradients at backward[r * fan : (r + 1) * fan]."""

    @staticmethod
    def forward(ctx, rows, forward, backward, fan):
        ctx.save_for_backward(backward)
        ctx.fan = fan
        return F.pad(rows, (0, 0, 0, 1))[forward]

    @staticmethod
    def backward(ctx, gradient):
        (backward,) = ctx.saved_tensors
        gradient = F.pad(gradient, (0, 0, 0, 1))[backward]
        return gradient.view(-1, ctx.fan, gradient.shape[-1]).sum(1), None, None, None


def rotary(begin, time, head_size, device):
    """For positions [begin, begin + time)."""
    rates = 10000.0 ** -(torch.arange(0, head_size, 2, device=device) / head_size)
    angles = torch.outer(torch.arange(begin, begin + time, device=device).float(), rates)
    return angles.cos(), angles.sin()


def rotate(x, cos_sin):
    cos, sin = (t.to(x.dtype) for t in cos_sin)
    a, b = x.chunk(2, dim=-1)
    return torch.cat((a * cos - b * sin, a * sin + b * cos), dim=-1)
