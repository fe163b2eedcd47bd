#!/usr/bin/env python3
"""Makes CUDA kernels out of the mutants that make_mutant.py makes for the simulated machine, and
reads on_cuda.txt, which says where each is caught on a GPU.

    make_cuda_mutant.py body  NAME.mutant SOURCE_ROOT OUT.cu    one mutant's kernels, for its case
    make_cuda_mutant.py table SOURCE_ROOT OUT.cpp               the list of all of them

A mutant's file has the changed bodies and a copy of cuda/launch/kernel_table.cuh on top of them,
both in namespaces of their own, and finds the kernel that its head names: for the top_k of its case
and the arithmetic of its profile. All others are those of the launcher.
"""
import pathlib
import re
import sys
from dataclasses import dataclass

from make_mutant import MutantError, changed_bodies, name_of, parse, quoted

FOLDER = "verify/mutants"
TABLE = "on_cuda.txt"
KERNEL_TABLE = "cuda/launch/kernel_table.cuh"
KEYS = {"mutants", "suite", "case", "profile", "options", "gpus", "check", "why", "not-built"}
OPTIONS = "ranks=emulated timeout_ms=200"
# A variant of combine (`assay profiles`) as one_sided::Sum.
VARIANT_SUMS = {"R1+ftz": "kPayloadFtz", "R2": "kF32", "R2+ftz": "kF32Ftz", "R3": "kF32Compact"}
PROFILE_VARIANTS = {"assay-oneside": "R2", "flashinfer-oneside@0.6.0": "R1+ftz",
                    "flashinfer-oneside@0.6.16": "R2+ftz", "trtllm-oneside@compact": "R3"}
# A kernel as a Step and as a body of kernel_table.cuh.
KERNELS = {
    "dispatch": ("kDispatch", "FenceDispatch<{top_k}>"),
    "order_slots": ("kOrderSlots", "OrderSlots"),
    "expert_lists": ("kExpertLists", "ExpertLists"),
    "sanitize": ("kSanitize", "FenceSanitize"),
    "stage": ("kStage", "FenceStage<Bf16>"),
    "combine": ("kCombine", "FenceCombine<Sum::{sum}, Bf16, Bf16, {top_k}>"),
    "sentinel_dispatch": ("kSentinelDispatch", "SentinelDispatch<{top_k}>"),
    "sentinel_combine": ("kSentinelCombine", "SentinelCombine<Sum::{sum}, Bf16, Bf16, {top_k}>"),
}


@dataclass(frozen=True)
class OnCuda:
    """Where a mutant is caught on GPUs, or in `not_built` why it is not compiled for them."""
    name: str
    suite: str = ""
    case: str = ""
    profile: str = "assay-oneside"
    options: str = OPTIONS
    gpus: int = 1
    check: str = ""  # that must find it
    why: str = ""
    not_built: str = ""

    def top_k(self):
        return int(re.search(r"\btop_k=(\d+)", self.case).group(1))

    def command(self, program, subject, options):
        """What runs its case; without the mutant it is the control."""
        return [str(program), "verify", "--suite", self.suite, "--case", self.case, "--profile",
                self.profile, "--subject", subject, *(["--options", options] if options else []),
                "--budget", "0", "--json"]


def mutants_on_cuda(folder=pathlib.Path(__file__).resolve().parent):
    """{name: OnCuda} of all mutants beside on_cuda.txt. A mutant that it does not mention is an
    error, and so is one that it mentions twice or that does not exist."""
    found = {}
    files = {name_of(path): path for path in folder.glob("*.mutant")}
    lines = [line for line in (folder / TABLE).read_text().splitlines() if line[:1] != "#"]
    for block in "\n".join(lines).strip().split("\n\n"):
        keys = {}
        for line in block.strip().splitlines():
            key, colon, value = line.partition(": ")
            if not colon or key not in KEYS or key in keys:
                raise MutantError(f"{TABLE}: line {line!r}; allowed are {sorted(KEYS)}, once each")
            keys[key] = value.strip()
        for name in keys.pop("mutants", "").split():
            if name not in files or name in found:
                raise MutantError(f"{TABLE}: {name!r} is no mutant, or comes twice")
            head, _ = parse(files[name])
            found[name] = row_of(name, head, dict(keys))
    if set(found) != set(files):
        raise MutantError(f"{TABLE}: nothing is said of {sorted(set(files) - set(found))}")
    return found


def row_of(name, head, keys):
    if "not-built" in keys:
        if set(keys) != {"not-built"}:
            raise MutantError(f"{TABLE}: {name!r} is not built, and has {sorted(keys)}")
        return OnCuda(name, not_built=keys["not-built"])
    if "kernels" not in head or not {"suite", "case"} <= set(keys):
        raise MutantError(f"{TABLE}: {name!r} needs suite and case, and must not be a hole")
    if any(key in keys and "why" not in keys for key in ("check", "options", "gpus")):
        raise MutantError(f"{TABLE}: {name!r} has a check, options or gpus of its own and no why")
    row = OnCuda(name, **{"check": head["caught-by"], **keys, "gpus": int(keys.get("gpus", 1))})
    if row.profile not in PROFILE_VARIANTS:
        raise MutantError(f"{TABLE}: profile {row.profile!r}; allowed are "
                          f"{sorted(PROFILE_VARIANTS)}")
    sums = head.get("sums", "").split()
    if sums and sum_of(row.profile) not in sums:
        raise MutantError(f"{TABLE}: {name!r} changes {sums}, and {row.profile} computes another")
    return row


def sum_of(profile):
    return VARIANT_SUMS[PROFILE_VARIANTS[profile]]


def write_body(mutant, root, out):
    head, blocks = parse(mutant)
    name = name_of(mutant)
    row = mutants_on_cuda(root / FOLDER)[name]
    if row.not_built:
        raise MutantError(f"{mutant}: {TABLE} says that it is not built")
    write(out, f"// Generated by make_cuda_mutant.py from {mutant.name}: {head['title']}\n"
          + changed_bodies(mutant, root, name, blocks) + kernel_table(root, name)
          + finder(name, head, row) + subject(name, head))


def kernel_table(root, name):
    """The launcher's wrappers of bodies, around these bodies."""
    text = (root / KERNEL_TABLE).read_text()
    for old, new in (("#pragma once\n", ""),
                     ('#include "cuda/kernels/one_sided/matrix.hpp"\n', "")):
        text, times = text.replace(old, new), text.count(old)
        if times != 1:
            raise MutantError(f"{KERNEL_TABLE}: {old.strip()!r} occurs {times} times, not once")
    text, spaces = re.subn(r"inline namespace kernels \{[^\n]*",
                           f"inline namespace mutant_{name} {{", text)
    if spaces != 1:
        raise MutantError(f"{KERNEL_TABLE}: the kernels have no namespace of their own any more")
    return "\n" + text


def finder(name, head, row):
    cases = ""
    for kernel in head["kernels"].split():
        step, body = KERNELS[kernel]
        values = {"top_k": row.top_k(), "sum": sum_of(row.profile)}
        body = body.format(**values)
        condition = f"step == Step::{step}"
        if "dispatch" in kernel or "combine" in kernel:
            condition += f" && request.top_k == {values['top_k']}"
        if "combine" in kernel:
            condition += (f" && request.sum == Sum::{values['sum']} && bf16(request.pulled) &&\n"
                          "      bf16(request.out)")
        if kernel == "stage":
            condition += " && bf16(request.rows)"
        cases += f"""  if ({condition})
    return {{pointer<{body}, 1>(),
            pointer<{body}, kRanksPerLaunch>()}};
"""
    return f"""
namespace assay::cuda {{
inline namespace mutant_{name} {{

[[maybe_unused]] bool bf16(RowFormat format) {{ return format == RowFormat::kBf16; }}

KernelPair find_mutant(Step step, const KernelRequest& request) {{
{cases}  return find_own_kernels(step, request);
}}

}}  // namespace mutant_{name}
}}  // namespace assay::cuda
"""


def subject(name, head):
    words = ", ".join(f'"{quoted(head.get(key, ""))}"'
                      for key in ("title", "clause", "caught-by", "needs"))
    return f"""
#include "verify/mutants/mutants.hpp"
#include "verify/subject/cuda_subject.hpp"

namespace assay::verify {{
namespace {{

int create_mutant(const assay_group_config* config, void** group, assay_message* message) {{
  return cuda_create(&cuda::mutant_{name}::find_mutant, config, group, message);
}}

const assay_subject kSubject{{ASSAY_SUBJECT_ABI_VERSION, sizeof(assay_subject), "mutant {name}",
                             &create_mutant, &cuda_run, &cuda_destroy, &cuda_slot_rule}};

}}  // namespace

extern const Mutant kCudaMutant_{name};
const Mutant kCudaMutant_{name}{{"{name}", {words}, &kSubject}};

}}  // namespace assay::verify
"""


def write_table(root, out):
    rows = [row for _, row in sorted(mutants_on_cuda(root / FOLDER).items())]
    held = [row.name for row in rows if not row.not_built]
    externs = "".join(f"extern const Mutant kCudaMutant_{n};\n" for n in held)
    entries = ", ".join(f"&kCudaMutant_{n}" for n in held)
    reasons = ",\n".join(f'    {{"{row.name}", "{quoted(row.not_built)}"}}'
                         for row in rows if row.not_built)
    write(out, f"""// Generated by make_cuda_mutant.py: what {TABLE} says of every mutant.
#include "verify/mutants/cuda_mutants.hpp"

namespace assay::verify {{

{externs}
namespace {{
const Mutant* const kHeld[] = {{{entries}}};
const NotOnCuda kNotBuilt[] = {{
{reasons}}};
// Before main, so that the command knows them.
[[maybe_unused]] const bool kRegistered = (register_cuda_mutants({{kHeld, kNotBuilt}}), true);
}}  // namespace

}}  // namespace assay::verify
""")


def write(out, text):
    """Another option or reason in the table must not let nvcc compile all mutants again."""
    if not out.exists() or out.read_text() != text:
        out.write_text(text)


def main(arguments):
    try:
        if arguments[:1] == ["body"] and len(arguments) == 4:
            write_body(*map(pathlib.Path, arguments[1:]))
        elif arguments[:1] == ["table"] and len(arguments) == 3:
            write_table(*map(pathlib.Path, arguments[1:]))
        else:
            print(__doc__, file=sys.stderr)
            return 2
    except MutantError as error:
        print(f"make_cuda_mutant.py: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
