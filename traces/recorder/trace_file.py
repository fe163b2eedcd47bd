"""Collects routing row by row and writes it as a trace file (FORMAT.md; SPEC TRC-1).

Decides what is refused before a byte is written; decides nothing about where routing comes from.
Standard library only: the tests of this file must run where no machine-learning package is
installed.
"""

import array
import struct
import sys

from .tensor_file import write_tensors

SCHEMA = "assay.trace"
VERSION = "1"
MAX_EXPERTS = 32767  # ids are I16, and -1 is the only code that is not an id
WEIGHT_BYTES = {"BF16": 2, "F32": 4}


class TraceError(ValueError):
    """Routing that cannot be a trace; the message names the value and what is allowed."""


class Recording:
    """Routing of tokens [tokens, layers, top_k], in the order in which append() saw them."""

    def __init__(self, *, model, num_experts, hidden_size, layers, top_k, licence, source,
                 weights_dtype="BF16"):
        limits = (("num_experts", num_experts, MAX_EXPERTS), ("layers", layers, 1 << 16),
                  ("top_k", top_k, num_experts), ("hidden_size", hidden_size, 1 << 24))
        for name, value, limit in limits:
            if not 1 <= value <= limit:
                raise TraceError(f"{name} is {value}; allowed are 1 to {limit}")
        if weights_dtype not in WEIGHT_BYTES:
            raise TraceError(f"weights_dtype is {weights_dtype}; allowed are BF16 and F32")
        for name, text in (("model", model), ("licence", licence), ("source", source)):
            if not text:
                raise TraceError(f"{name} is empty; a trace says what it was captured from")
        self.metadata = {"schema": SCHEMA, "version": VERSION, "model": model,
                         "num_experts": str(num_experts), "hidden_size": str(hidden_size),
                         "layers": str(layers), "licence": licence, "source": source}
        self.num_experts, self.layers, self.top_k = num_experts, layers, top_k
        self.weights_dtype = weights_dtype
        self.request, self.step, self.position = (array.array("i") for _ in range(3))
        self.topk_ids = array.array("h")
        self.topk_weights = bytearray()
        self._seen = set()

    @property
    def tokens(self):
        return len(self.request)

    def append(self, *, requests, step, positions, ids, weights):
        """One batch. requests, positions: ints [rows]; step: int; ids: little-endian int16 bytes
        [rows, layers, top_k]; weights: bytes of the same shape in weights_dtype."""
        rows = len(requests)
        picks = rows * self.layers * self.top_k
        if len(positions) != rows:
            raise TraceError(f"{len(positions)} positions for {rows} requests")
        if len(ids) != 2 * picks:
            raise TraceError(f"ids are {len(ids)} bytes; [{rows}, {self.layers}, {self.top_k}] "
                             f"int16 is {2 * picks}")
        if len(weights) != WEIGHT_BYTES[self.weights_dtype] * picks:
            raise TraceError(f"weights are {len(weights)} bytes; {picks} of {self.weights_dtype} "
                             f"are {WEIGHT_BYTES[self.weights_dtype] * picks}")
        batch = native(array.array("h"), ids)
        self._check_ids(batch, rows, step)
        self._check_weights(weights, step)
        keys = [(request, step, position) for request, position in zip(requests, positions)]
        for key in keys:
            if min(key) < 0 or max(key) > 0x7FFFFFFF:
                raise TraceError(f"(request, step, position) is {key}; each is 0 to 2^31-1")
        if len(set(keys)) != rows or not self._seen.isdisjoint(keys):
            again = next(k for i, k in enumerate(keys) if k in self._seen or k in keys[:i])
            raise TraceError(f"(request, step, position) {again} is recorded twice")
        self._seen.update(keys)
        self.request.extend(requests)
        self.step.extend([step] * rows)
        self.position.extend(positions)
        self.topk_ids.extend(batch)
        self.topk_weights += weights

    def write(self, path):
        """Replaces `path` whole, so that no reader sees half."""
        shape = [self.tokens, self.layers, self.top_k]
        tensors = [("topk_ids", "I16", shape, little(self.topk_ids)),
                   ("topk_weights", self.weights_dtype, shape, bytes(self.topk_weights)),
                   ("request", "I32", shape[:1], little(self.request)),
                   ("step", "I32", shape[:1], little(self.step)),
                   ("position", "I32", shape[:1], little(self.position))]
        if not self.tokens:
            raise TraceError("the recording holds no token; nothing is written")
        write_tensors(path, self.metadata, tensors)

    def load_by_layer(self):
        """Busiest expert's tokens over the mean, per layer."""
        stride, loads = self.layers * self.top_k, []
        for layer in range(self.layers):
            counts = [0] * self.num_experts
            for k in range(self.top_k):
                for expert in self.topk_ids[layer * self.top_k + k::stride]:
                    counts[expert] += 1
            loads.append(max(counts) * self.num_experts / sum(counts))
        return loads

    def _check_ids(self, batch, rows, step):
        if rows and not 0 <= min(batch) <= max(batch) < self.num_experts:
            bad = next(i for i in batch if not 0 <= i < self.num_experts)
            raise TraceError(f"step {step}: expert id {bad}; allowed are 0 to "
                             f"{self.num_experts - 1}")
        for start in range(0, len(batch), self.top_k):
            picked = batch[start:start + self.top_k]
            if len(set(picked)) != self.top_k:
                raise TraceError(f"step {step}: one token picks {list(picked)} in one layer; "
                                 f"top-k picks are distinct")

    def _check_weights(self, weights, step):
        kind, shift = ("H", 16) if self.weights_dtype == "BF16" else ("I", 0)
        codes = native(array.array(kind), weights)
        # As a bit pattern a finite value >= 0 lies below +Inf; -0 is the one negative code let in.
        infinity, minus_zero = 0x7F800000 >> shift, 0x80000000 >> shift
        for code in codes:
            if code >= infinity and code != minus_zero:
                value = struct.unpack("<f", struct.pack("<I", code << shift))[0]
                raise TraceError(f"step {step}: weight {value}; allowed are finite values >= 0")


def native(target, little_endian_bytes):
    target.frombytes(bytes(little_endian_bytes))
    if sys.byteorder == "big":
        target.byteswap()
    return target


def little(values):
    copy = values[:]
    if sys.byteorder == "big":
        copy.byteswap()
    return copy.tobytes()
