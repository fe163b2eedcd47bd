// Writes the CUDA text of every litmus test: real PTX instructions, one kernel per rank and kernel
// of a test, and a table with what the axioms of PTX allow (SPEC MAC-8.2). Runs at build time; the
// text is included by litmus_probe.cu, and cuda/probe/litmus_probe.cuh says what surrounds it.
//
//   litmus_generate OUT FILE...
#include <algorithm>
#include <cstdio>
#include <fstream>
#include <map>
#include <sstream>

#include <fmt/format.h>

#include "model/machine/litmus/axioms.hpp"
#include "model/machine/litmus/litmus.hpp"

namespace assay::machine::litmus {
namespace {

const char* order_text(Order order) {
  constexpr const char* kTexts[] = {"weak", "relaxed", "acquire", "release", "acq_rel", "sc"};
  return kTexts[static_cast<std::size_t>(order)];
}
const char* scope_text(Scope scope) {
  constexpr const char* kTexts[] = {"", ".cta", ".cluster", ".gpu", ".sys"};
  return kTexts[static_cast<std::size_t>(scope)];
}
std::string semantics(const Instruction& i) {
  return std::string(order_text(i.order)) + scope_text(i.scope);
}

// The C++ expression of an address in generated code: a pointer to the instance's word.
std::string address(const Instruction& i) { return fmt::format("a{} + {}", i.name, i.word); }

std::string load_text(const Instruction& i) {
  if (i.words == 4)
    return fmt::format(
        "asm volatile(\"ld.{}.global.v4.u32 {{%0, %1, %2, %3}}, [%4];\" : \"=r\"(r{}), "
        "\"=r\"(r{}), "
        "\"=r\"(r{}), \"=r\"(r{}) : \"l\"({}) : \"memory\");",
        semantics(i), i.reg[0], i.reg[1], i.reg[2], i.reg[3], address(i));
  return fmt::format(
      "asm volatile(\"ld.{}.global.u32 %0, [%1];\" : \"=r\"(r{}) : \"l\"({}) : \"memory\");",
      semantics(i), i.reg[0], address(i));
}

std::string store_text(const Instruction& i) {
  if (i.words == 4)
    return fmt::format(
        "asm volatile(\"st.{}.global.v4.u32 [%0], {{%1, %2, %3, %4}};\" :: \"l\"({}), \"r\"({}u), "
        "\"r\"({}u), \"r\"({}u), \"r\"({}u) : \"memory\");",
        semantics(i), address(i), i.value[0], i.value[1], i.value[2], i.value[3]);
  return fmt::format(
      "asm volatile(\"st.{}.global.u32 [%0], %1;\" :: \"l\"({}), \"r\"({}u) : "
      "\"memory\");",
      semantics(i), address(i), i.value[0]);
}

// Polls at most kMaxPolls times; who gives up does nothing more in this instance.
std::string await_text(const Instruction& i) {
  return fmt::format(
      "{{ std::uint32_t seen = 0; bool over = false; for (std::uint32_t polls = 0; !over && polls "
      "< kMaxPolls; ++polls) {{ asm volatile(\"ld.{}.global.u32 %0, [%1];\" : \"=r\"(seen) : "
      "\"l\"({}) : \"memory\"); over = seen {} {}u; }} if (!over) return; }}",
      semantics(i), address(i), i.until_equal ? "==" : "!=", i.value[0]);
}

std::string atomic_text(const Instruction& i) {
  if (i.op == Op::kRedAdd)
    return fmt::format(
        "asm volatile(\"red.{}.global.add.u32 [%0], %1;\" :: \"l\"({}), "
        "\"r\"({}u) : \"memory\");",
        semantics(i), address(i), i.value[0]);
  if (i.op == Op::kAtomAdd)
    return fmt::format(
        "asm volatile(\"atom.{}.global.add.u32 %0, [%1], %2;\" : \"=r\"(r{}) : "
        "\"l\"({}), \"r\"({}u) : \"memory\");",
        semantics(i), i.reg[0], address(i), i.value[0]);
  return fmt::format(
      "asm volatile(\"atom.{}.global.cas.b32 %0, [%1], %2, %3;\" : \"=r\"(r{}) : "
      "\"l\"({}), \"r\"({}u), \"r\"({}u) : \"memory\");",
      semantics(i), i.reg[0], address(i), i.value[1], i.value[0]);
}

std::string plain(const char* instruction) {
  return fmt::format("asm volatile(\"{};\" ::: \"memory\");", instruction);
}

std::string instruction_text(const Instruction& i) {
  switch (i.op) {
    case Op::kLoad:
      return load_text(i);
    case Op::kStore:
      return store_text(i);
    case Op::kAwait:
      return await_text(i);
    case Op::kAtomAdd:
    case Op::kAtomCas:
    case Op::kRedAdd:
      return atomic_text(i);
    case Op::kFence:
      return plain(("fence." + semantics(i)).c_str());
    case Op::kAliasFence:
      return plain("fence.proxy.alias");
    case Op::kLaunchDependents:
      // Then time for the dependents to start: without it the rest is over before they are.
      return plain("griddepcontrol.launch_dependents") + " delay_after_trigger(launch);";
    case Op::kWaitForGrid:
      return plain("griddepcontrol.wait");
    case Op::kBarrier:
    case Op::kShuffle:
    case Op::kVoteAny:
      break;
  }
  CONTRACT(false, "a meeting is written by meeting_text", i.text);
  return {};
}

bool is_meeting(const Instruction& i) {
  return i.op == Op::kBarrier || i.op == Op::kShuffle || i.op == Op::kVoteAny;
}

// Where threads of one kernel meet.
using KernelKey = std::array<std::uint32_t, 2>;  // rank, kernel
struct CtaCode {
  std::vector<std::uint32_t> threads;  // indices into Test::threads, by number in the CTA
};
struct KernelCode {
  std::map<std::uint32_t, CtaCode> ctas;  // by number in the test; dense in the launch
  std::uint32_t threads = 1;
  bool lanes = false;  // threads of a CTA are lanes of one warp
};

std::map<KernelKey, KernelCode> kernels_of(const Test& test) {
  std::map<KernelKey, KernelCode> kernels;
  for (std::uint32_t t = 0; t < test.threads.size(); ++t) {
    const Place& p = test.threads[t].place;
    KernelCode& kernel = kernels[{p.rank, p.kernel}];
    auto& threads = kernel.ctas[p.cta].threads;
    if (threads.size() <= p.thread) threads.resize(p.thread + 1);
    threads[p.thread] = t;
    kernel.threads = std::max(kernel.threads, p.thread + 1);
    const auto& code = test.threads[t].code;
    // Who gives up waiting would be missed where the others meet.
    CONTRACT(std::none_of(code.begin(), code.end(), is_meeting) ||
                 std::none_of(code.begin(), code.end(),
                              [](const Instruction& i) { return i.op == Op::kAwait; }),
             test.name, "a thread that awaits and meets others");
    for (const Instruction& i : code) kernel.lanes |= i.op == Op::kShuffle || i.op == Op::kVoteAny;
  }
  return kernels;
}

// All threads of the CTA execute one shuffle or vote together; what they bring differs by role.
void write_meeting(std::ostream& out, const CtaCode& cta,
                   const std::vector<const Instruction*>& at) {
  if (at[0]->op == Op::kBarrier) {
    out << "  asm volatile(\"bar.sync 0;\" ::: \"memory\");\n";
    return;
  }
  const bool shuffles = at[0]->op == Op::kShuffle;
  out << (shuffles ? "  {\n    std::uint32_t value = 0, lane = 0;\n"
                   : "  {\n    std::uint32_t value = 0;\n");
  for (std::uint32_t role = 0; role < cta.threads.size(); ++role)
    out << fmt::format("    if (role == {}) value = r{}{};\n", role, at[role]->source_reg,
                       shuffles ? fmt::format(", lane = {}", at[role]->lane) : "");
  out << (shuffles ? fmt::format("    value = shuffle(value, lane, {});\n", cta.threads.size())
                   : fmt::format("    value = vote_any(value, {});\n", cta.threads.size()));
  for (std::uint32_t role = 0; role < cta.threads.size(); ++role)
    out << fmt::format("    if (role == {}) r{} = value;\n", role, at[role]->reg[0]);
  out << "  }\n";
}

void write_cta(std::ostream& out, const Test& test, const std::string& function,
               const CtaCode& cta) {
  std::uint32_t registers = 0;
  for (const std::uint32_t t : cta.threads)
    registers = std::max(registers, test.threads[t].num_registers);
  out << fmt::format(
      "static __device__ void {}(const Launch& launch, std::uint32_t role, std::uint32_t instance) "
      "{{\n",
      function);
  for (std::uint32_t n = 0; n < test.names.size(); ++n)
    out << fmt::format("  [[maybe_unused]] std::uint32_t* const a{} = launch.at({}, instance);\n",
                       n, n);
  for (std::uint32_t r = 0; r < registers; ++r) out << fmt::format("  std::uint32_t r{} = 0;\n", r);
  std::vector<std::size_t> next(cta.threads.size(), 0);
  for (bool more = true; more;) {
    more = false;
    std::vector<const Instruction*> meeting;
    for (std::uint32_t role = 0; role < cta.threads.size(); ++role) {
      const auto& code = test.threads[cta.threads[role]].code;
      out << fmt::format("  if (role == {}) {{\n", role);
      while (next[role] < code.size() && !is_meeting(code[next[role]]))
        out << "    " << instruction_text(code[next[role]++]) << "\n";
      out << "  }\n";
      if (next[role] == code.size()) continue;
      meeting.push_back(&code[next[role]++]);
      more = true;
    }
    if (more) write_meeting(out, cta, meeting);
  }
  for (std::uint32_t role = 0; role < cta.threads.size(); ++role) {
    const std::uint32_t t = cta.threads[role];
    out << fmt::format("  if (role == {}) launch.result[{}][instance] = 0", role, t);
    for (std::uint32_t r = 0; r < test.threads[t].num_registers; ++r)
      out << fmt::format(" | pack(r{}, {})", r, r);
    out << ";\n";
  }
  out << "}\n";
}

void write_kernels(std::ostream& out, const Test& test, std::size_t index) {
  out << fmt::format("// {} line {}: {}\n", test.file, test.line, test.name);
  for (const auto& [key, kernel] : kernels_of(test)) {
    const std::string name = fmt::format("case{}_r{}k{}", index, key[0], key[1]);
    std::uint32_t dense = 0;
    std::string calls;
    for (const auto& [cta, code] : kernel.ctas) {
      write_cta(out, test, fmt::format("{}_c{}", name, dense), code);
      calls +=
          fmt::format("    if (cta == {}) {}_c{}(launch, role, instance);\n", dense, name, dense);
      ++dense;
    }
    out << fmt::format(
        "__global__ void {}(const __grid_constant__ Launch launch) {{\n"
        "  run(launch, Shape{{{}, {}, {}}}, [&](std::uint32_t cta, std::uint32_t role, "
        "std::uint32_t instance) {{\n{}  }});\n}}\n",
        name, dense, kernel.threads, kernel.lanes, calls);
  }
}

std::string quoted(const std::string& text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') out += '\\';
    out += c;
  }
  out += '"';
  return out;
}

template <class Set>
std::string outcome_list(const Set& outcomes) {
  std::string list = "{";
  for (const Outcome o : outcomes) list += fmt::format("0x{:x}ull, ", o);
  return list + "}";
}

void write_info(std::ostream& out, const Test& test, std::size_t index) {
  out << fmt::format("static CaseInfo info{}() {{\n  CaseInfo c;\n", index);
  out << fmt::format("  c.name = {};\n  c.file = {};\n  c.line = {};\n  c.source = {};\n",
                     quoted(test.name), quoted(test.file), test.line, quoted(test.source));
  out << fmt::format("  c.num_threads = {};\n", test.threads.size());
  for (const Location& l : test.locations)
    out << fmt::format("  c.locations.push_back({{{}, {}}});\n", quoted(l.name), l.words);
  for (const Name& n : test.names)
    out << fmt::format("  c.names.push_back({{{}, {}}});\n", n.location, n.is_alias);
  for (const Observable& o : test.observables) {
    // Memory is looked at by its first address, which has the number of the first name.
    std::uint32_t name = 0;
    while (!o.is_register && test.names[name].location != o.location) ++name;
    out << fmt::format("  c.observables.push_back({{{}, {}, {}, {}, {}}});\n", o.is_register,
                       o.thread, o.reg, name, o.word);
    out << fmt::format("  c.texts.push_back({});\n", quoted(o.text));
  }
  for (const Comparison& x : test.exists)
    out << fmt::format("  c.exists.push_back({{{}, {}, {}}});\n", x.observable, x.value, x.equal);
  for (std::size_t b = 0; b < kBoundaries.size(); ++b) {
    const AxiomaticResult result = evaluate_axioms(test, kBoundaries[b]);
    out << fmt::format("  c.verdict[{}] = \"{}\";\n  c.race[{}] = {};\n  c.allowed[{}] = {};\n", b,
                       verdict_name(test.expected[b]), b, result.race, b,
                       outcome_list(result.outcomes));
    if (b == 0) out << fmt::format("  c.sequential = {};\n", outcome_list(result.sequential));
  }
  for (const auto& [key, kernel] : kernels_of(test))
    out << fmt::format(
        "  c.kernels.push_back({{reinterpret_cast<const void*>(&case{}_r{}k{}), {}, {}, {}, "
        "{}}});\n",
        index, key[0], key[1], key[0], key[1], kernel.ctas.size(), kernel.threads);
  out << "  return c;\n}\n";
}

int generate(int argc, char** argv) {
  if (argc < 3) {
    std::fputs("usage: litmus_generate OUT FILE...\n", stderr);
    return 2;
  }
  const auto tests = read_litmus_files({argv + 2, argv + argc});
  if (!tests) {
    std::fprintf(stderr, "%s\n", tests.error().sentence.c_str());
    return 2;
  }
  std::ostringstream out;
  for (std::size_t i = 0; i < tests->size(); ++i) write_kernels(out, (*tests)[i], i);
  for (std::size_t i = 0; i < tests->size(); ++i) write_info(out, (*tests)[i], i);
  out << "std::vector<CaseInfo> all_cases() {\n  return {";
  for (std::size_t i = 0; i < tests->size(); ++i) out << fmt::format("info{}(), ", i);
  out << "};\n}\n";
  std::ofstream file(argv[1], std::ios::binary);
  file << out.str();
  if (!file.flush()) {
    std::fprintf(stderr, "%s cannot be written\n", argv[1]);
    return 2;
  }
  return 0;
}

}  // namespace
}  // namespace assay::machine::litmus

int main(int argc, char** argv) { return assay::machine::litmus::generate(argc, argv); }
