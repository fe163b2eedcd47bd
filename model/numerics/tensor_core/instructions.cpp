// The table of matrix instructions: one call per row, every number with its evidence, and the
// parser of their names. Adding an instruction touches this file only. Decides SPEC NUM-4.8.
#include <array>
#include <vector>

#include "model/numerics/tensor_core/tensor_core.hpp"

namespace assay::numerics {
namespace {

using enum OperandFormat;

constexpr std::string_view format_name(OperandFormat format) {
  switch (format) {
    case kF16:
      return "f16";
    case kBf16:
      return "bf16";
    case kTf32:
      return "tf32";
    case kE4m3:
      return "e4m3";
    case kE5m2:
      return "e5m2";
    case kE3m2:
      return "e3m2";
    case kE2m3:
      return "e2m3";
    case kE2m1:
      return "e2m1";
  }
  return "?";
}

// What a generation's 16-bit and tf32 unit keeps: F, and e_zero for both destinations. A zero term
// counts as if its lowest kept bit were 2^-158 (F 25), 2^-156 (F 24); 2^-46, 2^-44 with fp16
// results.
struct Unit {
  int fraction_bits;
  int zero_exponent_f32;
  int zero_exponent_f16;
  int bytes_per_block;  // of one operand: L is this over the operand's size
};
constexpr Unit kAmpere{24, -132, -20, 16};
constexpr Unit kHopper{25, -133, -21, 32};

struct Claim {
  Evidence evidence;
  Grade grade;
  std::string_view source;
};
// NUM-4.9 lists what was measured, NUM-4.10 what is published and by whom.
constexpr Claim kMeasuredHere{Evidence::kMeasured, Grade::kBits, "NUM-4.9"};
constexpr Claim kPublished{Evidence::kPublished, Grade::kBitsClaimed, "NUM-4.10"};
constexpr Claim kInferred{Evidence::kInferred, Grade::kBitsClaimed, "NUM-4.10"};

constexpr int operand_bytes(OperandFormat format) {
  return format == kTf32 ? 4 : format == kF16 || format == kBf16 ? 2 : 1;
}

Rule unit_rule(const Unit& unit, OperandFormat a, OperandFormat b, OutputFormat output, int k) {
  Rule rule;
  rule.a = a;
  rule.b = b;
  rule.output = output;
  const int block = unit.bytes_per_block / operand_bytes(a);
  rule.products = block < k ? block : k;
  rule.fraction_bits = unit.fraction_bits;
  rule.zero_exponent =
      output == OutputFormat::kF16 ? unit.zero_exponent_f16 : unit.zero_exponent_f32;
  if (output == OutputFormat::kF16) rule.rounding = Rounding::kNearestEven;
  return rule;
}

class Table {
 public:
  Table() {
    hopper();
    blackwell();
    ampere_and_ada();
    rtx_blackwell();
  }
  std::vector<Instruction> rows;

 private:
  void row(Arch arch, std::string_view family, Rule rule, int k, Claim claim,
           Lowering lowering = Lowering::kNative, std::string_view scale = "") {
    std::string types = rule.output == OutputFormat::kF16 ? "f16." : "f32.";
    types.append(format_name(rule.a)).append(".").append(format_name(rule.b)).append(scale);
    rows.push_back(Instruction{family, std::move(types), arch, Arithmetic{rule, k, lowering},
                               claim.evidence, claim.grade, claim.source});
  }

  // mma.sync on 16-bit and tf32 operands: the same unit on every generation, other numbers.
  void mma_sync(Arch arch, const Unit& unit, Claim claim) {
    for (const int k : {16, 8}) {
      for (const OperandFormat f : {kBf16, kF16}) {
        row(arch, "mma.sync", unit_rule(unit, f, f, OutputFormat::kF32, k), k, claim);
      }
      row(arch, "mma.sync", unit_rule(unit, kF16, kF16, OutputFormat::kF16, k), k, claim);
    }
    for (const int k : {8, 4}) {
      row(arch, "mma.sync", unit_rule(unit, kTf32, kTf32, OutputFormat::kF32, k), k, claim);
    }
  }

  // mma.sync on fp8 where the compiler lowers it to fp16 (NUM-4.6).
  void mma_sync_lowered_fp8(Arch arch, Claim claim, Claim mixed_claim) {
    for (const OutputFormat output : {OutputFormat::kF32, OutputFormat::kF16}) {
      for (const OperandFormat a : {kE4m3, kE5m2}) {
        for (const OperandFormat b : {kE4m3, kE5m2}) {
          Rule rule = unit_rule(kHopper, kF16, kF16, output, 16);
          rule.a = a;
          rule.b = b;
          row(arch, "mma.sync", rule, 32, a != b ? mixed_claim : claim, Lowering::kFp8ThroughF16);
        }
      }
    }
  }

  void hopper() {
    const Arch arch = Arch::kSm90a;
    for (const OperandFormat f : {kBf16, kF16})
      row(arch, "wgmma", unit_rule(kHopper, f, f, OutputFormat::kF32, 16), 16, kMeasuredHere);
    row(arch, "wgmma", unit_rule(kHopper, kF16, kF16, OutputFormat::kF16, 16), 16, kMeasuredHere);
    row(arch, "wgmma", unit_rule(kHopper, kTf32, kTf32, OutputFormat::kF32, 8), 8, kMeasuredHere);
    for (const OutputFormat output : {OutputFormat::kE8m13, OutputFormat::kF16}) {
      for (const OperandFormat a : {kE4m3, kE5m2}) {
        for (const OperandFormat b : {kE4m3, kE5m2}) {
          Rule rule = unit_rule(kHopper, a, b, output, 32);
          rule.fraction_bits = 13;
          row(arch, "wgmma", rule, 32, kMeasuredHere);
        }
      }
    }
    mma_sync(arch, kHopper, kMeasuredHere);
    mma_sync_lowered_fp8(arch, kMeasuredHere, kMeasuredHere);
  }

  // tcgen05 reads sub-byte operands from byte containers, so a block is 32 products of any of them.
  void block_scaled(Arch arch, std::string_view mxf8f6f4, std::string_view mxf4,
                    std::string_view mxf4_block16, Claim claim) {
    for (const OperandFormat a : {kE4m3, kE5m2, kE3m2, kE2m3, kE2m1}) {
      for (const OperandFormat b : {kE4m3, kE5m2, kE3m2, kE2m3, kE2m1}) {
        Rule rule = unit_rule(kHopper, a, b, OutputFormat::kF32, 32);
        rule.scale = ScaleFormat::kUe8m0;
        rule.scale_block = 32;
        row(arch, mxf8f6f4, rule, 32, claim, Lowering::kNative, ".ue8m0");
      }
    }
    Rule rule;
    rule.a = rule.b = kE2m1;
    rule.products = 64;
    rule.group = 16;
    rule.fraction_bits = 35;
    rule.zero_exponent = -139;
    rule.scale = ScaleFormat::kUe8m0;
    rule.scale_block = 32;
    row(arch, mxf4, rule, 64, claim, Lowering::kNative, ".ue8m0");
    rule.scale_block = 16;
    row(arch, mxf4_block16, rule, 64, claim, Lowering::kNative, ".ue8m0");
    rule.scale = ScaleFormat::kUe4m3;
    row(arch, mxf4_block16, rule, 64, claim, Lowering::kNative, ".ue4m3");
  }

  void f8f6f4(Arch arch, std::string_view family) {
    for (const OutputFormat output : {OutputFormat::kF32, OutputFormat::kF16}) {
      for (const OperandFormat a : {kE4m3, kE5m2, kE3m2, kE2m3, kE2m1}) {
        for (const OperandFormat b : {kE4m3, kE5m2, kE3m2, kE2m3, kE2m1})
          row(arch, family, unit_rule(kHopper, a, b, output, 32), 32, kPublished);
      }
    }
  }

  void blackwell() {
    const Arch arch = Arch::kSm100a;
    for (const OperandFormat f : {kBf16, kF16}) {
      row(arch, "tcgen05.kind::f16", unit_rule(kHopper, f, f, OutputFormat::kF32, 16), 16,
          kPublished);
    }
    row(arch, "tcgen05.kind::f16", unit_rule(kHopper, kF16, kF16, OutputFormat::kF16, 16), 16,
        kPublished);
    row(arch, "tcgen05.kind::tf32", unit_rule(kHopper, kTf32, kTf32, OutputFormat::kF32, 8), 8,
        kPublished);
    f8f6f4(arch, "tcgen05.kind::f8f6f4");
    block_scaled(arch, "tcgen05.kind::mxf8f6f4.block32", "tcgen05.kind::mxf4.block32",
                 "tcgen05.kind::mxf4nvf4.block16", kPublished);
    Rule nvf4_block32;
    for (const Instruction& r : rows)
      if (r.family == "tcgen05.kind::mxf4.block32") nvf4_block32 = r.arithmetic.rule;
    row(arch, "tcgen05.kind::mxf4nvf4.block32", nvf4_block32, 64, kPublished, Lowering::kNative,
        ".ue8m0");
    mma_sync(arch, kHopper, kPublished);
    mma_sync_lowered_fp8(arch, kPublished, kInferred);
  }

  void ampere_and_ada() {
    for (const Arch arch : {Arch::kSm80, Arch::kSm89}) mma_sync(arch, kAmpere, kPublished);
    for (const OutputFormat output : {OutputFormat::kE8m13, OutputFormat::kF16}) {
      for (const OperandFormat a : {kE4m3, kE5m2}) {
        for (const OperandFormat b : {kE4m3, kE5m2}) {
          Rule rule = unit_rule(kAmpere, a, b, output, 32);
          rule.fraction_bits = 13;
          row(Arch::kSm89, "mma.sync", rule, 32, kPublished);
        }
      }
    }
  }

  void rtx_blackwell() {
    const Arch arch = Arch::kSm120;
    mma_sync(arch, kHopper, kPublished);
    f8f6f4(arch, "mma.sync.kind::f8f6f4");
    block_scaled(arch, "mma.sync.kind::mxf8f6f4.block32", "mma.sync.kind::mxf4.block32",
                 "mma.sync.kind::mxf4nvf4.block16", kPublished);
  }
};

const std::vector<Instruction>& table() {
  static const Table built;
  return built.rows;
}

// The words of an instruction's name that select a row. PTX's other words (.sync of wgmma,
// .aligned, .mma_async, .row.col, .cta_group::1, .block_scale) change no bit and are dropped.
struct ParsedName {
  std::string family;
  std::string types;
  int m = 0, n = 0, k = 0;  // 0: not named
  bool valid = true;
};

// Reads "m64n8k16" or "k16". False if the word is no shape.
bool parse_shape(std::string_view word, ParsedName& parsed) {
  std::size_t at = 0;
  const auto number = [&](char letter) {
    int value = 0;
    if (at >= word.size() || word[at] != letter) return 0;
    for (++at; at < word.size() && word[at] >= '0' && word[at] <= '9' && value < 10000; ++at)
      value = value * 10 + (word[at] - '0');
    return value;
  };
  const int m = number('m');
  const int n = number('n');
  const int k = number('k');
  if (k == 0 || at != word.size() || (m == 0) != (n == 0)) return false;
  parsed.m = m;
  parsed.n = n;
  parsed.k = k;
  return true;
}

ParsedName parse_name(std::string_view name) {
  constexpr std::array<std::string_view, 7> dropped = {"mma_async",    "aligned",     "row", "col",
                                                       "cta_group::1", "block_scale", "mma"};
  ParsedName parsed;
  std::vector<std::string_view> types;
  bool first = true;
  while (!name.empty()) {
    const std::size_t dot = name.find('.');
    const std::string_view word = name.substr(0, dot);
    name = dot == std::string_view::npos ? std::string_view{} : name.substr(dot + 1);
    const bool is_type = word == "f32" || word == "f16" || word == "bf16" || word == "tf32" ||
                         word == "e4m3" || word == "e5m2" || word == "e3m2" || word == "e2m3" ||
                         word == "e2m1" || word == "ue8m0" || word == "ue4m3";
    if (first) {
      parsed.family = word == "mma" ? "mma.sync" : std::string(word);
      first = false;
    } else if (is_type) {
      types.push_back(word);
    } else if (word == "sync" || parse_shape(word, parsed)) {
      continue;
    } else if (word.substr(0, 6) == "kind::" || word.substr(0, 5) == "block") {
      if (word != "block_scale") parsed.family.append(".").append(word);
    } else {
      bool known = false;
      for (const std::string_view other : dropped) known |= word == other;
      parsed.valid &= known;
    }
  }
  // mma.sync repeats the type of c at the end: it must be that of d.
  if (parsed.family == "mma.sync" && types.size() == 4) {
    parsed.valid &= types[3] == types[0];
    types.pop_back();
  }
  for (const std::string_view type : types)
    parsed.types.append(parsed.types.empty() ? "" : ".").append(type);
  return parsed;
}

bool has_shape(const Instruction& instruction, const ParsedName& wanted) {
  if (wanted.k != 0 && wanted.k != instruction.arithmetic.k) return false;
  if (wanted.m == 0) return true;
  const bool n_is_multiple_of_8 = wanted.n % 8 == 0 && wanted.n >= 8 && wanted.n <= 256;
  if (instruction.family == "wgmma") return wanted.m == 64 && n_is_multiple_of_8;
  if (instruction.family.substr(0, 7) == "tcgen05")
    return (wanted.m == 64 || wanted.m == 128) && n_is_multiple_of_8;
  return wanted.m == 16 && wanted.n == 8;
}

}  // namespace

std::string_view arch_name(Arch arch) {
  switch (arch) {
    case Arch::kSm80:
      return "sm_80";
    case Arch::kSm89:
      return "sm_89";
    case Arch::kSm90a:
      return "sm_90a";
    case Arch::kSm100a:
      return "sm_100a";
    case Arch::kSm120:
      return "sm_120";
  }
  return "?";
}

Expected<Arch> parse_arch(std::string_view name) {
  if (name == "sm_80") return Arch::kSm80;
  if (name == "sm_89") return Arch::kSm89;
  if (name == "sm_90a" || name == "sm_90") return Arch::kSm90a;
  if (name == "sm_100a" || name == "sm_100") return Arch::kSm100a;
  if (name == "sm_120a" || name == "sm_120") return Arch::kSm120;
  return bad_input("arch is '" + std::string(name) +
                   "'; allowed are sm_80, sm_89, sm_90a, sm_100a and sm_120");
}

std::string Instruction::name() const {
  return std::string(family) + ".k" + std::to_string(arithmetic.k) + "." + types;
}

std::span<const Instruction> instructions() { return table(); }

const Instruction* find_instruction(std::string_view name, Arch arch) {
  const ParsedName wanted = parse_name(name);
  if (!wanted.valid) return nullptr;
  for (const Instruction& row : table()) {
    if (row.arch == arch && row.family == wanted.family && row.types == wanted.types &&
        has_shape(row, wanted))
      return &row;
  }
  return nullptr;
}

Expected<const Instruction*> require_instruction(std::string_view name, Arch arch) {
  if (const Instruction* row = find_instruction(name, arch)) return row;
  const std::string family = parse_name(name).family;
  std::string known;
  std::string families;
  for (const Instruction& row : table()) {
    if (row.arch != arch) continue;
    if (row.family == family) known += (known.empty() ? "" : ", ") + row.name();
    const std::string word(row.family);
    if (families.find(word + ",") == std::string::npos) families += word + ", ";
  }
  if (known.empty()) known = families + "each with a shape and types";
  return bad_input("instruction '" + std::string(name) + "' is not known on " +
                   std::string(arch_name(arch)) + "; allowed are " + known);
}

}  // namespace assay::numerics
