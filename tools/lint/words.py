"""Words that are forbidden where they would undo the design.

Outside cuda/ops nobody names hardware threads, inline assembly, volatile accesses or bare
barriers: a body that did could not run on the simulated machine. Inside the kernel bodies nobody
writes a pointer, a subscripted address, a floating type or literal, an endless loop or a wait
whose answer is ignored: each would be invisible to the machine, or change bits, or hang.
"""

import re
import sys

import lint

# Folders whose job is the hardware itself, and what stands for somebody else's kernels, which know
# nothing of the simulated machine.
HARDWARE = ("cuda/ops/", "cuda/probe/", "verify/subject/example_kernels.cu", "tools/peers/")
BODIES = "cuda/kernels/"

# The few places that need a word, each with its reason.
EXCEPTIONS = {
    ("model/numerics/add.hpp", "volatile"):
        "the self-check of the floating-point environment must not be folded by the compiler",
    ("model/numerics/add_test.cpp", "volatile"):
        "the test must compute at run time what it compares with",
}

OUTSIDE_OPS = {
    r"\b(asm|__asm__|__asm)\b": "inline assembly belongs in cuda/ops",
    r"\b(threadIdx|blockIdx|blockDim|gridDim|warpSize)\b": "built-in indices belong in cuda/ops",
    r"\bvolatile\b": "volatile has no order and no scope; use an Ops access that has both",
    r"\b__(syncthreads|syncwarp|threadfence|nanosleep|shfl|ballot|activemask|match)\w*":
        "barriers, fences and warp operations belong in cuda/ops",
    r"\batomic(Add|CAS|Exch|Sub|Max|Min|And|Or|Xor|Inc|Dec)\w*\s*\(":
        "CUDA atomics have no order or scope; use an Ops access that has both",
}

IN_BODIES = {
    r"\b(float|double|__half|__nv_bfloat16|float2|float4)\b":
        "arithmetic that reaches an output is an op on bit patterns",
    r"(?<![\w.])\d+\.\d*(e[+-]?\d+)?f?\b|(?<![\w.])\d+e[+-]?\d+f?\b":
        "a floating literal; state its bits",
    r"\b(auto|void|char|Address|Vec16|std::u?int\d+_t|T|Word|WordType)\s*(const\s*)?\*":
        "a pointer; memory is reached through Address and Ops",
    r"\b(reinterpret_cast|const_cast)\b":
        "a cast that makes pointers; memory is reached through Ops",
    r"\b(while\s*\(\s*(true|1)\s*\)|for\s*\(\s*;\s*;\s*\))":
        "an endless loop; every wait has a budget and is an ops.wait_until",
    r"\b(while|do)\b": "a loop without a visible bound; waits are ops.wait_until",
    r"^\s*(static_cast<void>\(|\(void\)\s*)?ops\.(template\s+)?wait_until\b":
        "a wait whose answer is ignored; it may have timed out",
    r"\.raw\b": "an address taken apart; move it with at()",
}


def check(tree):
    findings = []
    for path in tree.with_suffix(lint.CXX):
        if path.startswith(HARDWARE):
            continue
        rules = dict(OUTSIDE_OPS)
        # Explicit instantiations (.cu) and host code (.cpp) beside the bodies are not bodies.
        if path.startswith(BODIES) and path.endswith(".hpp"):
            rules.update(IN_BODIES)
        compiled = [(re.compile(pattern), reason) for pattern, reason in rules.items()]
        for number, line in lint.numbered_code(tree, path):
            for pattern, reason in compiled:
                match = pattern.search(line)
                if match and (path, match.group(0).strip()) not in EXCEPTIONS:
                    findings.append(f"{path}:{number}: {match.group(0).strip()!r}: {reason}")
    return findings


CLEAN = {
    "tools/peers/theirs.cu": "int t = threadIdx.x;\n",
    "cuda/ops/ptx.hpp": 'void f() { asm volatile("x"); __syncthreads(); int t = threadIdx.x; }\n',
    "cuda/kernels/body.hpp": "// asm, volatile and 1.5 are words of a comment.\n"
                             "void f(O& ops, Address a, std::uint64_t n) {\n"
                             "  const Awaited w = ops.wait_until(as<std::uint64_t>, a, await);\n"
                             "  for (std::uint64_t i = 0; i < n * 2; ++i) word[i] = x;\n"
                             "  value = *out; s = 1'000; const char c = 'w';\n"
                             "}\n",
    "model/core/text.cpp": 'const char* s = "asm volatile"; double d = 1.5; while (true) break;\n',
}


def body(line):
    return {"cuda/kernels/bad.hpp": f"void f() {{\n  {line}\n}}\n"}


PLANTED = {
    "assembly in the model": ({"model/core/bad.cpp": 'void f() { asm("nop"); }\n'}, "'asm'"),
    "a thread index in a kernel": (body("int t = threadIdx.x;"), "'threadIdx'"),
    "a block index in a kernel's .cu": (
        {"cuda/kernels/bad.cu": "int b = blockIdx.x;\n"}, "'blockIdx'"),
    "volatile in the launcher": (
        {"cuda/launch/bad.cpp": "volatile int x;\n"}, "'volatile'"),
    "a bare barrier in a body": (body("__syncthreads();"), "'__syncthreads'"),
    "a bare fence in a body": (body("__threadfence_system();"), "'__threadfence_system'"),
    "a CUDA atomic": (body("atomicAdd(p, 1);"), "atomics have no order"),
    "float in a body": (body("float x = y;"), "'float'"),
    "double arithmetic in a body": (body("sum = static_cast<double>(x) + y;"), "'double'"),
    "a floating literal in a body": (body("const auto half = 0.5f;"), "'0.5f'"),
    "a pointer in a body": (body("auto* p = q;"), "a pointer"),
    "a typed pointer in a body": (body("const std::uint32_t* p = q;"), "a pointer"),
    "a cast in a body": (body("x = reinterpret_cast<std::uint64_t>(q);"), "makes pointers"),
    "an address taken apart": (body("x = address.raw + 4;"), "'.raw'"),
    "an endless loop": (body("for (;;) {}"), "endless"),
    "a spin": (body("while (ops.load(as<std::uint32_t>, relaxed_sys, s, a) != 1) {}"), "'while'"),
    "a wait whose answer is ignored": (
        body("ops.wait_until(as<std::uint64_t>, x, s, a, w);"), "ignored"),
}

if __name__ == "__main__":
    sys.exit(lint.run(check, CLEAN, PLANTED, __doc__))
