#!/usr/bin/env python3
"""Makes one source file out of the kernel bodies with one change in them.

A mutant is a file NAME.mutant: a head of "key: value" lines and one or more replacements, each of
which must match exactly once, token by token, in the named header. The bodies themselves contain no
mutant code; this script inlines them into one file, applies the change, and gives the copy a
namespace of its own, so that all mutants and the real kernels live in one program.

    make_mutant.py body  NAME.mutant SOURCE_ROOT OUT.cpp     one mutant as a translation unit
    make_mutant.py table OUT.cpp NAME.mutant...              the list of all of them
    make_mutant.py hole  NAME.mutant SOURCE_ROOT OUT.cpp     the same for verify/explore
    make_mutant.py holes OUT.cpp NAME.mutant...
    make_mutant.py attention       NAME.mutant SOURCE_ROOT OUT.cu   one wrong attention kernel
    make_mutant.py attention_table OUT.cpp NAME.mutant...           the list of all of them

Head keys: title (a sentence), clause, caught-by (the check that must find it), kernels (which of
dispatch sanitize stage combine sentinel_dispatch sentinel_combine order_slots expert_lists come
from the copy), sums (for combine and sentinel_combine: which Sum values), needs (optional: what a
case must have for the fault to matter; shown to people). A hole has title, clause, caught-by and
protocol (fence or sentinel): all its kernels come from the copy. An attention mutant
(verify/mutants/attention) has title, clause, caught-by, the property of attention that must find
it, and profile, whose kernel it is: assay-prefill-sm90 with a vote and with a trace, or
assay-decode-sm90 with its merge. Heads have 128 elements of bf16; of a decode, dtype (optional) may
be F8_E4M3.
"""
import pathlib
import re
import sys

FOLDER = "cuda/kernels/one_sided"
SHARED = {"params.hpp", "workspace.hpp"}  # types that the real kernels' callers know: not copied
ATTENTION_FOLDER = "cuda/kernels/attention"
ATTENTION_SHARED = {"params.cuh"}  # likewise
ATTENTION_PROFILES = {"assay-prefill-sm90": "prefill_sm90.cuh",
                      "assay-decode-sm90": "decode_sm90.cuh"}
ATTENTION_DTYPES = {"BF16": ("Bf16", "kBf16"), "F8_E4M3": ("E4m3", "kF8E4m3")}
KERNELS = ("dispatch", "sanitize", "stage", "combine", "sentinel_dispatch", "sentinel_combine",
           "order_slots", "expert_lists")
HEAD_KEYS = {"title", "clause", "caught-by", "kernels", "sums", "needs", "protocol",
             "profile", "dtype"}
PROTOCOLS = ("fence", "sentinel")


class MutantError(Exception):
    pass


def parse(path, attention=False):
    text = path.read_text()
    head_text, _, body = text.partition("\n---\n")
    head = {}
    for line in head_text.splitlines():
        key, colon, value = line.partition(":")
        if not colon or key.strip() not in HEAD_KEYS:
            raise MutantError(f"{path}: head line {line!r}; allowed keys are {sorted(HEAD_KEYS)}")
        head[key.strip()] = value.strip()
    for key in ("title", "clause", "caught-by"):
        if key not in head:
            raise MutantError(f"{path}: no {key!r} in the head")
    if attention:
        check_attention(path, head)
    elif "profile" in head or "dtype" in head:
        raise MutantError(f"{path}: 'profile' and 'dtype' are of attention mutants")
    if not attention and ("kernels" in head) == ("protocol" in head):
        raise MutantError(f"{path}: the head names either 'kernels' or, for a hole, 'protocol'")
    if head.get("protocol", "fence") not in PROTOCOLS:
        raise MutantError(f"{path}: protocol {head['protocol']!r}; allowed are {PROTOCOLS}")
    unknown = set(head.get("kernels", "").split()) - set(KERNELS)
    if unknown:
        raise MutantError(f"{path}: kernels {sorted(unknown)}; allowed are {KERNELS}")
    blocks = re.findall(r"^@@ (\S+)\n<<<<\n(.*?)\n====\n(.*?)>>>>$", body, re.S | re.M)
    if not blocks:
        raise MutantError(f"{path}: no replacement; expected @@ FILE, <<<<, old, ====, new, >>>>")
    return head, [(name, old, new.rstrip("\n")) for name, old, new in blocks]


def check_attention(path, head):
    if "kernels" in head or "protocol" in head:
        raise MutantError(f"{path}: an attention mutant has neither 'kernels' nor 'protocol'")
    profile = head.get("profile")
    if profile not in ATTENTION_PROFILES:
        raise MutantError(f"{path}: profile {profile!r}; allowed are {sorted(ATTENTION_PROFILES)}")
    dtypes = sorted(ATTENTION_DTYPES) if profile == "assay-decode-sm90" else ["BF16"]
    if head.get("dtype", "BF16") not in dtypes:
        raise MutantError(f"{path}: dtype {head['dtype']!r}; allowed of {profile} are {dtypes}")


def name_of(path):
    name = path.name.removesuffix(".mutant")
    if not re.fullmatch(r"[a-z][a-z0-9_]*", name):
        raise MutantError(f"{path}: the name must be lower_case")
    return name


def pattern_of(old):
    """Matches the same tokens with any spacing: formatting a body does not break its mutants."""
    return re.compile(r"\s*".join(re.escape(token) for token in re.findall(r"\w+|[^\w\s]", old)))


def inlined(root, header, changes, done, path, folder=FOLDER, shared=frozenset(SHARED)):
    """The text of a header with the includes of its folder in place, each once."""
    if header in done:
        return ""
    done.add(header)
    text = (root / folder / header).read_text()
    for old, new in changes.pop(header, []):
        places = list(pattern_of(old).finditer(text))
        if len(places) != 1:
            raise MutantError(f"{path}: the old text occurs {len(places)} times in {header}, "
                              f"not once:\n{old}")
        text = text[: places[0].start()] + new + text[places[0].end():]
    lines = []
    for line in text.splitlines():
        include = re.fullmatch(rf'#include "{folder}/(\S+)"', line)
        if line == "#pragma once":
            continue
        if include and include.group(1) not in shared:
            lines.append(inlined(root, include.group(1), changes, done, path, folder, shared))
        else:
            lines.append(line)
    return "\n".join(lines)


def changed_bodies(mutant, root, name, blocks):
    """All bodies with the replacements in them, in a namespace of their own."""
    changes = {}
    for header, old, new in blocks:
        changes.setdefault(header, []).append((old, new))
    text = inlined(root, "matrix.hpp", changes, set(), mutant)
    if changes:
        raise MutantError(f"{mutant}: no header {sorted(changes)} among the bodies")
    text, spaces = re.subn(r"inline namespace bodies \{[^\n]*",
                           f"inline namespace mutant_{name} {{", text)
    if spaces == 0:
        raise MutantError(f"{mutant}: the bodies have no namespace of their own any more")
    return text


def write_body(mutant, root, out):
    head, blocks = parse(mutant)
    name = name_of(mutant)
    if "kernels" not in head:
        raise MutantError(f"{mutant}: this is a hole, not a mutant of a subject")
    text = changed_bodies(mutant, root, name, blocks)
    kernels = head["kernels"].split()
    sums = head.get("sums", "").split()
    if bool({"combine", "sentinel_combine"} & set(kernels)) != bool(sums):
        raise MutantError(f"{mutant}: `sums` goes with the combine kernels, and only with them")
    out.write_text(f"// Generated by make_mutant.py from {mutant.name}: {head['title']}\n"
                   + text + footer(name, head, kernels, sums))


def footer(name, head, kernels, sums):
    own = "own_sim_kernels()"
    dispatch = ("[](int top_k) -> SimKernels::Dispatch "
                "{ return one_sided::find_dispatch<machine::SimOps>(top_k); }"
                if "dispatch" in kernels else f"{own}.dispatch")
    sanitize = ("&one_sided::sanitize<machine::SimOps>"
                if "sanitize" in kernels else f"{own}.sanitize")
    stage = ("[](one_sided::RowFormat) -> SimKernels::Stage "
             "{ return &one_sided::stage<Bf16, machine::SimOps>; }"
             if "stage" in kernels else f"{own}.stage")
    combine = combine_table("combine", "FenceBodies", "Combine", kernels, sums)
    sentinel_dispatch = ("[](int top_k) -> SimKernels::SentinelDispatch { return one_sided::"
                         "find_dispatch_in<one_sided::SentinelBodies, machine::SimOps>(top_k); }"
                         if "sentinel_dispatch" in kernels else f"{own}.sentinel_dispatch")
    sentinel_combine = combine_table("sentinel_combine", "SentinelBodies", "SentinelCombine",
                                     kernels, sums)
    order_slots = ("&one_sided::order_slots<machine::SimOps>"
                   if "order_slots" in kernels else f"{own}.order_slots")
    expert_lists = ("&one_sided::list_experts<machine::SimOps>"
                    if "expert_lists" in kernels else f"{own}.expert_lists")
    quote = lambda s: '"' + quoted(s) + '"'
    return f"""
#include "verify/mutants/mutants.hpp"
#include "verify/subject/sim_subject.hpp"

namespace assay::verify {{
namespace {{

const SimKernels& kernels_of_mutant() {{
  static const SimKernels kernels{{{dispatch}, {sanitize}, {stage}, {combine},
                                  {sentinel_dispatch}, {sentinel_combine},
                                  {order_slots}, {expert_lists}}};
  return kernels;
}}

int create_mutant(const assay_group_config* config, void** group, assay_message* message) {{
  return sim_create(kernels_of_mutant(), config, group, message);
}}

const assay_subject kSubject{{ASSAY_SUBJECT_ABI_VERSION, sizeof(assay_subject), "mutant {name}",
                             &create_mutant, &sim_run, &sim_destroy, &sim_slot_rule}};

}}  // namespace

extern const Mutant kMutant_{name};
const Mutant kMutant_{name}{{"{name}", {quote(head['title'])}, {quote(head['clause'])},
                            {quote(head['caught-by'])}, {quote(head.get('needs', ''))},
                            &kSubject}};

}}  // namespace assay::verify
"""


def combine_table(kernel, bodies, result, kernels, sums):
    """The entry of a combine kernel: the copy's bodies for `sums`, our own for the rest."""
    if kernel not in kernels:
        return f"own_sim_kernels().{kernel}"
    cases = "".join(
        f"    if (sum == one_sided::Sum::{s})\n"
        f"      return one_sided::find_combine_in<one_sided::{bodies}, one_sided::Sum::{s},\n"
        "                                        machine::SimOps>(rows, out, top_k);\n"
        for s in sums)
    return ("[](one_sided::Sum sum, one_sided::RowFormat rows, one_sided::RowFormat out, int top_k)"
            f" -> SimKernels::{result} {{\n{cases}"
            f"    return own_sim_kernels().{kernel}(sum, rows, out, top_k);\n  }}")


def write_hole(mutant, root, out):
    head, blocks = parse(mutant)
    name = name_of(mutant)
    if "protocol" not in head:
        raise MutantError(f"{mutant}: this is a mutant of a subject, not a hole")
    words = ", ".join(f'"{quoted(head[key])}"' for key in ("title", "clause", "caught-by"))
    out.write_text(f"// Generated by make_mutant.py from {mutant.name}: {head['title']}\n"
                   + changed_bodies(mutant, root, name, blocks) + f"""
#include "verify/explore/holes.hpp"
#include "verify/explore/kernel_table.hpp"

namespace assay::verify {{

extern const Hole kHole_{name};
const Hole kHole_{name}{{"{name}", {words},
                        Protocol::k{head["protocol"].capitalize()}, Variant::kNone,
                        &kExploreKernels}};

}}  // namespace assay::verify
""")


def write_attention(mutant, root, out):
    """A kernel with the replacements in it, in a namespace of its own inside the one of the types
    that the launcher shares with it."""
    head, blocks = parse(mutant, attention=True)
    name = name_of(mutant)
    changes = {}
    for header, old, new in blocks:
        changes.setdefault(header, []).append((old, new))
    text = inlined(root, ATTENTION_PROFILES[head["profile"]], changes, set(), mutant,
                   ATTENTION_FOLDER, frozenset(ATTENTION_SHARED))
    if changes:
        raise MutantError(f"{mutant}: no header {sorted(changes)} among those of the kernel")
    space = "namespace assay::attention_kernels"
    text, spaces = re.subn(rf"{space} \{{", f"{space}::mutant_{name} {{", text)
    if spaces == 0:
        raise MutantError(f"{mutant}: the kernel is not in {space} any more")
    words = ", ".join(f'"{quoted(head[key])}"' for key in ("title", "clause", "caught-by"))
    decode = head["profile"] == "assay-decode-sm90"
    dtype, dtype_value = ATTENTION_DTYPES[head.get("dtype", "BF16")]
    kernel_of = f"&attention_kernels::mutant_{name}::kernel_of"
    out.write_text(f"""// Generated by make_mutant.py from {mutant.name}: {head['title']}
#include "cuda/kernels/attention/{'decode_params.cuh' if decode else 'params.cuh'}"
{text}
#include "verify/attention/cuda_mutants.hpp"

{space}::mutant_{name} {{

{decode_kernel_of(dtype) if decode else prefill_kernel_of(dtype)}
}}  // {space}::mutant_{name}

namespace assay::verify {{
extern const CudaAttentionMutant kCudaAttentionMutant_{name};
const CudaAttentionMutant kCudaAttentionMutant_{name}{{
    "{name}", {words}, Dtype::{dtype_value},
    {'nullptr, ' + kernel_of if decode else kernel_of + ', nullptr'}}};
}}  // namespace assay::verify
""")


def prefill_kernel_of(dtype):
    return f"""cuda::PrefillKernel kernel_of(cuda::PrefillMode mode) {{
  using Shape = PrefillShape<{dtype}, 128>;
  const void* const function =
      mode == cuda::PrefillMode::kTrace
          ? reinterpret_cast<const void*>(&prefill_kernel<Shape, Mode::kTrace>)
      : mode == cuda::PrefillMode::kSkip
          ? reinterpret_cast<const void*>(&prefill_kernel<Shape, Mode::kSkip>)
          : nullptr;
  return cuda::prefill_kernel_with<Shape>(function);
}}
"""


def decode_kernel_of(dtype):
    """The launcher fills parameters of its own type, so the copy's must be as long."""
    return f"""static_assert(sizeof(DecodeParams) == sizeof(attention_kernels::DecodeParams));

template <class Shape>
cuda::DecodeKernel kernel_of_shape() {{
  return cuda::decode_kernel_with<Shape>(
      reinterpret_cast<const void*>(&decode_kernel<Shape>),
      reinterpret_cast<const void*>(&merge_kernel<{dtype}, 128>), kMergeWarps);
}}

cuda::DecodeKernel kernel_of(int rows) {{
  return rows <= 16 ? kernel_of_shape<DecodeShape<{dtype}, 128, 16>>()
                    : kernel_of_shape<DecodeShape<{dtype}, 128, kUnitRows>>();
}}
"""


def write_attention_table(out, mutants):
    names = sorted(name_of(m) for m in mutants)
    externs = "".join(f"extern const CudaAttentionMutant kCudaAttentionMutant_{n};\n"
                      for n in names)
    entries = ", ".join(f"&kCudaAttentionMutant_{n}" for n in names)
    out.write_text(f"""// Generated by make_mutant.py: every mutant of verify/mutants/attention.
#include "verify/attention/cuda_mutants.hpp"

namespace assay::verify {{

{externs}
namespace {{
const CudaAttentionMutant* const kAll[] = {{{entries}}};
// Before main, so that the command knows them.
[[maybe_unused]] const bool kRegistered = (register_cuda_attention_mutants(kAll), true);
}}  // namespace

}}  // namespace assay::verify
""")


def quoted(text):
    return text.replace("\\", "\\\\").replace('"', '\\"')


def write_list(out, mutants, of_what, header, kind, function):
    """The function that lists all mutants of a kind; the command is linked with it."""
    names = sorted(name_of(m) for m in mutants)
    externs = "".join(f"extern const {kind} k{kind}_{n};\n" for n in names)
    entries = ", ".join(f"k{kind}_{n}" for n in names)
    out.write_text(f"""// Generated by make_mutant.py: every {of_what} of verify/mutants.
#include "{header}"

namespace assay::verify {{

{externs}
std::span<const {kind}> {function}() {{
  static const {kind} all[] = {{{entries}}};
  return all;
}}

}}  // namespace assay::verify
""")


def write_table(out, mutants):
    write_list(out, mutants, "mutant", "verify/mutants/mutants.hpp", "Mutant", "mutants")


def write_holes(out, mutants):
    write_list(out, mutants, "patched hole", "verify/explore/holes.hpp", "Hole", "patched_holes")


WRITERS = {"body": write_body, "hole": write_hole, "attention": write_attention}
TABLE_WRITERS = {"table": write_table, "holes": write_holes,
                 "attention_table": write_attention_table}


def main(arguments):
    try:
        what, *paths = arguments or [""]
        paths = [pathlib.Path(path) for path in paths]
        if what in WRITERS and len(paths) == 3:
            WRITERS[what](*paths)
        elif what in TABLE_WRITERS and len(paths) >= 2:
            TABLE_WRITERS[what](paths[0], paths[1:])
        else:
            print(__doc__, file=sys.stderr)
            return 2
    except MutantError as error:
        print(f"make_mutant.py: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
