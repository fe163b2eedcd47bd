"""Collects queries, keys and values of one layer and writes them as a capture (FORMAT.md; SPEC
TRC-4), and reads captures back.

Decides what is refused before a byte is written, and cuts a capture into the calls of a kernel that
it holds; decides nothing about where rows come from. Standard library only, like trace_file.py.
"""

import array
import dataclasses
import json
import math
import re
import struct

from .tensor_file import read_tensors, write_tensors
from .trace_file import little, native

SCHEMA = "assay.capture"
VERSION = "1"
# High bytes of elements that may be NaN or infinite: an exponent of ones.
SUSPECT = {"BF16": bytes(int(b & 0x7F == 0x7F) for b in range(256)),
           "F16": bytes(int(b & 0x7C == 0x7C) for b in range(256))}
MASK = re.compile(r"full|causal|(?:window|chunked):[1-9][0-9]*")


class CaptureError(ValueError):
    """Rows that cannot be a capture; the message names the value and what is allowed."""


@dataclasses.dataclass(frozen=True)
class Call:
    """One call of an attention kernel: query rows [q_begin, q_end) of the file, over key rows
    [kv_begin, kv_end). The first query row's position among those keys is q_offset."""
    request: int
    step: int
    q_begin: int
    q_end: int
    kv_begin: int
    kv_end: int
    q_offset: int

    @property
    def decode(self):
        return self.q_end - self.q_begin == 1


@dataclasses.dataclass
class Layer:
    """What the metadata of a capture says. `q_heads`, `kv_heads`: which of the model's heads, in
    the order of the file; every key head comes with the same number of its query heads."""
    model: str
    licence: str
    source: str
    layer: int
    num_layers: int
    q_heads: list
    kv_heads: list
    num_q_heads: int
    num_kv_heads: int
    scale: float
    mask: str = "causal"
    softcap: float | None = None
    rounded_from: str | None = None  # the model's own type, if the rows were rounded to dtype

    def check(self):
        for name in ("model", "licence", "source"):
            if not getattr(self, name):
                raise CaptureError(f"{name} is empty; a capture says what it was captured from")
        if not 0 <= self.layer < self.num_layers:
            raise CaptureError(f"layer is {self.layer}; allowed are 0 to {self.num_layers - 1}")
        for name, heads, count in (("q_heads", self.q_heads, self.num_q_heads),
                                   ("kv_heads", self.kv_heads, self.num_kv_heads)):
            if not heads or len(set(heads)) != len(heads) or not all(
                    0 <= head < count for head in heads):
                raise CaptureError(f"{name} are {heads}; allowed are different ones of 0 to "
                                   f"{count - 1}, at least one")
        if self.num_q_heads % self.num_kv_heads or len(self.q_heads) % len(self.kv_heads):
            raise CaptureError(f"query heads {self.q_heads} of {self.num_q_heads} share key heads "
                               f"{self.kv_heads} of {self.num_kv_heads}; allowed are multiples")
        share, model_share = (len(self.q_heads) // len(self.kv_heads),
                              self.num_q_heads // self.num_kv_heads)
        for index, head in enumerate(self.q_heads):
            reads, listed = head // model_share, self.kv_heads[index // share]
            if reads != listed:
                raise CaptureError(f"query head {head} reads key head {reads}, but place {index} "
                                   f"of q_heads belongs to key head {listed}")
        if not MASK.fullmatch(self.mask):
            raise CaptureError(f"mask is {self.mask!r}; allowed are full, causal, window:N and "
                               f"chunked:N with N from 1")
        if not (self.scale > 0 and math.isfinite(self.scale)):
            raise CaptureError(f"scale is {self.scale}; allowed are positive numbers")
        if self.softcap is not None and not (self.softcap > 0 and math.isfinite(self.softcap)):
            raise CaptureError(f"softcap is {self.softcap}; allowed are positive numbers, or none")

    def metadata(self):
        params = {"mask": self.mask, "scale": f32_text(self.scale)}
        if self.softcap is not None:
            params["softcap"] = f32_text(self.softcap)
        metadata = {"schema": SCHEMA, "version": VERSION, "model": self.model,
                    "licence": self.licence, "source": self.source, "layer": str(self.layer),
                    "num_layers": str(self.num_layers),
                    "q_heads": ",".join(map(str, self.q_heads)),
                    "kv_heads": ",".join(map(str, self.kv_heads)),
                    "num_q_heads": str(self.num_q_heads), "num_kv_heads": str(self.num_kv_heads),
                    "assay.params": json.dumps(params, separators=(",", ":"))}
        if self.rounded_from:
            metadata["rounded_from"] = self.rounded_from
        return metadata


class Capture:
    """Rows of one layer, request by request."""

    def __init__(self, layer, *, head_dim, v_dim=None, dtype="BF16", sinks=None):
        """sinks: numbers [q_heads of the file], in nats."""
        layer.check()
        self.layer, self.head_dim, self.v_dim = layer, head_dim, v_dim or head_dim
        if dtype not in SUSPECT:
            raise CaptureError(f"dtype is {dtype}; allowed are {' and '.join(SUSPECT)}")
        if sinks is not None and len(sinks) != len(layer.q_heads):
            raise CaptureError(f"{len(sinks)} sinks for {len(layer.q_heads)} query heads")
        self.dtype, self.sinks = dtype, sinks
        self.q, self.k, self.v, self.step = [], [], [], []  # by request

    def append(self, *, request, step, q, k, v):
        """One forward pass of one request. k, v: bytes of its new rows, [rows, kv_heads, head_dim]
        and [rows, kv_heads, v_dim]; q: bytes of the last rows among them, [rows, q_heads,
        head_dim]; all of them once a query row was recorded. step: not below the one before."""
        keys, queries = len(self.layer.kv_heads), len(self.layer.q_heads)
        rows = {name: whole_rows(name, data, heads, dim) for name, data, heads, dim in (
            ("q", q, queries, self.head_dim), ("k", k, keys, self.head_dim),
            ("v", v, keys, self.v_dim))}
        if not 0 <= request <= len(self.k):
            raise CaptureError(f"request is {request}; allowed are 0 to {len(self.k)}")
        known = request < len(self.k)
        if rows["k"] != rows["v"] or rows["q"] > rows["k"] or not rows["k"]:
            raise CaptureError(f"request {request}: {rows['q']} query, {rows['k']} key and "
                               f"{rows['v']} value rows; keys and values come in pairs, queries "
                               f"are the last of them")
        if known and self.step[request] and rows["q"] != rows["k"]:
            raise CaptureError(f"request {request}: {rows['q']} query rows with {rows['k']} new "
                               f"keys; after the first recorded query none may be left out")
        last = self.step[request][-1] if known and self.step[request] else 0
        if not last <= step < 1 << 31:
            raise CaptureError(f"request {request}: step {step} after {last}; steps never fall")
        for name, data in (("q", q), ("k", k), ("v", v)):
            check_finite(name, data, self.dtype, f"request {request}, step {step}")
        if not known:
            for rows_of in (self.q, self.k, self.v):
                rows_of.append(bytearray())
            self.step.append(array.array("i"))
        self.q[request] += q
        self.k[request] += k
        self.v[request] += v
        self.step[request].extend([step] * rows["q"])

    def rows(self, name, request):
        heads, dim = {"q": (self.layer.q_heads, self.head_dim),
                      "k": (self.layer.kv_heads, self.head_dim),
                      "v": (self.layer.kv_heads, self.v_dim)}[name]
        return len(getattr(self, name)[request]) // (2 * len(heads) * dim)

    def calls(self):
        """The calls of a kernel that the capture holds, request by request."""
        q_begin = kv_begin = 0
        for request, steps in enumerate(self.step):
            first = self.rows("k", request) - len(steps)  # position of the first query row
            for begin, end, step in passes(steps):
                yield Call(request, step, q_begin + begin, q_begin + end, kv_begin,
                           kv_begin + first + end, first + begin)
            q_begin += len(steps)
            kv_begin += self.rows("k", request)

    def summary(self):
        calls = list(self.calls())
        return {"layer": self.layer.layer, "q_heads": self.layer.q_heads,
                "kv_heads": self.layer.kv_heads, "head_dim": self.head_dim, "dtype": self.dtype,
                "prefill_rows": sum(c.q_end - c.q_begin for c in calls if not c.decode),
                "decode_steps": sum(c.decode for c in calls)}

    def write(self, path):
        """Replaces `path` whole, so that no reader sees half."""
        if not self.step or not all(self.step):
            raise CaptureError(f"query rows by request are {[len(s) for s in self.step]}; every "
                               f"request needs one, and there must be a request")
        layer = self.layer
        totals, cumulative = {}, {}
        for name in ("q", "k"):
            edges = array.array("i", [0])
            for request in range(len(self.k)):
                edges.append(edges[-1] + self.rows(name, request))
            totals[name], cumulative[name] = edges[-1], little(edges)
        steps = array.array("i", [step for steps in self.step for step in steps])
        edges_shape = [len(self.k) + 1]
        tensors = [
            ("q", self.dtype, [totals["q"], len(layer.q_heads), self.head_dim], b"".join(self.q)),
            ("k", self.dtype, [totals["k"], len(layer.kv_heads), self.head_dim], b"".join(self.k)),
            ("v", self.dtype, [totals["k"], len(layer.kv_heads), self.v_dim], b"".join(self.v)),
            ("cu_seqlens_q", "I32", edges_shape, cumulative["q"]),
            ("cu_seqlens_kv", "I32", edges_shape, cumulative["k"]),
            ("step", "I32", [totals["q"]], little(steps))]
        if self.sinks is not None:
            tensors.append(("sinks", "F32", [len(self.sinks)],
                            little(array.array("f", self.sinks))))
        write_tensors(path, layer.metadata(), tensors)


def read_capture(path):
    """A file of write(), checked by the same rules."""
    metadata, tensors = read_tensors(path)
    found = (metadata.get("schema"), metadata.get("version"))
    if found != (SCHEMA, VERSION):
        raise CaptureError(f"{path} is {found}; allowed is {(SCHEMA, VERSION)}")
    params = json.loads(metadata["assay.params"])
    numbers = {key: [int(n) for n in metadata[key].split(",")] for key in ("q_heads", "kv_heads")}
    numbers |= {key: int(metadata[key])
                for key in ("layer", "num_layers", "num_q_heads", "num_kv_heads")}
    layer = Layer(
        model=metadata["model"], licence=metadata["licence"], source=metadata["source"],
        scale=float(params["scale"]), mask=params["mask"],
        softcap=float(params["softcap"]) if "softcap" in params else None,
        rounded_from=metadata.get("rounded_from"), **numbers)
    dtype, q_shape, q = tensors["q"]
    _, v_shape, v = tensors["v"]
    sinks = list(native(array.array("f"), tensors["sinks"][2])) if "sinks" in tensors else None
    capture = Capture(layer, head_dim=q_shape[2], v_dim=v_shape[2], dtype=dtype, sinks=sinks)
    q_edges, kv_edges, steps = (native(array.array("i"), tensors[name][2])
                                for name in ("cu_seqlens_q", "cu_seqlens_kv", "step"))
    _, k_shape, k = tensors["k"]
    for request in range(len(kv_edges) - 1):
        q_first, q_end = q_edges[request:request + 2]
        kv_first, kv_end = kv_edges[request:request + 2]
        hidden = kv_end - kv_first - (q_end - q_first)  # keys whose queries were not kept
        for begin, end, step in passes(steps[q_first:q_end]):
            first_key = kv_first + (begin + hidden if begin else 0)
            capture.append(request=request, step=step,
                           q=rows_of(q, q_shape, q_first + begin, q_first + end),
                           k=rows_of(k, k_shape, first_key, kv_first + hidden + end),
                           v=rows_of(v, v_shape, first_key, kv_first + hidden + end))
    return capture


def passes(steps):
    """(begin, end, step) of each stretch of equal steps."""
    begin = 0
    for end in range(1, len(steps) + 1):
        if end == len(steps) or steps[end] != steps[begin]:
            yield begin, end, steps[begin]
            begin = end


def rows_of(data, shape, begin, end):
    row = 2 * shape[1] * shape[2]
    return data[begin * row:end * row]


def whole_rows(name, data, heads, dim):
    rows, rest = divmod(len(data), 2 * heads * dim)
    if rest:
        raise CaptureError(f"{name} is {len(data)} bytes; rows of [{heads}, {dim}] are "
                           f"{2 * heads * dim} each")
    return rows


def check_finite(name, data, dtype, where):
    suspects = bytes(data[1::2]).translate(SUSPECT[dtype])
    place = suspects.find(1)
    while place >= 0:
        code = data[2 * place] | data[2 * place + 1] << 8
        if dtype == "F16" or code & 0x80:  # BF16's lowest exponent bit lies in the low byte
            raise CaptureError(f"{where}: {name} holds a NaN or an infinity, bits {code:#06x} at "
                               f"element {place}; allowed are finite elements")
        place = suspects.find(1, place + 1)


def f32_text(value):
    """The shortest decimal that reads back as the same F32."""
    (single,) = struct.unpack("<f", struct.pack("<f", value))
    texts = (f"{single:.{digits}g}" for digits in range(1, 10))
    text = next(t for t in texts if struct.unpack("<f", struct.pack("<f", float(t)))[0] == single)
    return repr(float(text)).removesuffix(".0")  # 50, which .1g spells 5e+01
