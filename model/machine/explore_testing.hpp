// For the tests of the search: small random programs as data, run under any schedule. Decides
// nothing.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "model/core/testing.hpp"
#include "model/machine/explore.hpp"
#include "model/machine/machine.hpp"

namespace assay::machine::testing {

enum class Act : std::uint8_t {
  kLoad,     // relaxed, as are stores, atomics and waits
  kAcquire,  // a load
  kStore,
  kRelease,  // a store
  kAdd,
  kCas,
  kFence,       // sc
  kLightFence,  // acq_rel
  kWait,
  kBarrier,
  kLoadVector,   // all words at once
  kStoreVector,  // the value in all words
  kWeakLoad,     // the last two are for memories in which a race is a fault
  kWeakStore,
};

struct Instruction {
  Act act = Act::kLoad;
  std::uint32_t word = 0;   // which of the shared words
  std::uint32_t value = 0;  // stored, added, waited for or put in place of 0
};
inline std::ostream& operator<<(std::ostream& out, const Instruction& i) {
  const char* names[] = {"load",        "acquire",      "store",     "release",   "add",
                         "cas",         "fence",        "light",     "wait",      "barrier",
                         "load vector", "store vector", "weak load", "weak store"};
  return out << names[static_cast<std::size_t>(i.act)] << "(w" << i.word << ", " << i.value << ")";
}

// threads[cta * group_size + lane]
struct Program {
  std::uint32_t group_size = 1;
  std::uint32_t resident_ctas = 64;
  Fill fill = Fill::kZero;  // kPoison: reading a word that nobody has written ends the run
  std::vector<std::vector<Instruction>> threads;
};
inline std::ostream& operator<<(std::ostream& out, const Program& program) {
  out << "group " << program.group_size << " resident " << program.resident_ctas
      << (program.fill == Fill::kPoison ? " poison" : "");
  for (const auto& thread : program.threads) {
    out << "\n  ";
    for (const Instruction& instruction : thread) out << instruction << "; ";
  }
  return out;
}

inline constexpr std::uint32_t kNumWords = 2;  // of a vector of 4

// Everything that an instruction reads goes into `log`.
inline void perform(SimOps& ops, const Instruction& i, Address words, std::string& log) {
  const Address word = words.at(i.word * 4);
  constexpr auto u32 = as<std::uint32_t>;
  switch (i.act) {
    case Act::kLoad:
      log += std::to_string(ops.load(u32, relaxed_gpu, Site::kDispatchReadPhase, word));
      break;
    case Act::kAcquire:
      log += std::to_string(ops.load(u32, acquire_gpu, Site::kDispatchReadPhase, word));
      break;
    case Act::kStore:
      ops.store(relaxed_gpu, Site::kDispatchFlag, word, i.value);
      break;
    case Act::kRelease:
      ops.store(release_gpu, Site::kDispatchFlag, word, i.value);
      break;
    case Act::kAdd:
      log += std::to_string(ops.atomic_add(relaxed_gpu, Site::kDispatchTicket, word, i.value));
      break;
    case Act::kCas:
      log +=
          std::to_string(ops.atomic_cas(relaxed_gpu, Site::kDispatchTakeSlot, word, 0u, i.value));
      break;
    case Act::kFence:
      ops.fence(sc_sys, Site::kDispatchRelease);
      break;
    case Act::kLightFence:
      ops.fence(acq_rel_gpu, Site::kDispatchRelease);
      break;
    case Act::kWait:
      log += std::to_string(
          ops.wait_until(u32, relaxed_gpu, Site::kDispatchWait, word, Await{~0u, i.value}).seen);
      break;
    case Act::kBarrier:
      ops.barrier(Site::kDispatchTokenDone);
      break;
    case Act::kLoadVector: {
      const Vec16 all = ops.load(as<Vec16>, relaxed_gpu, Site::kCombinePull, words);
      for (const std::uint32_t element : all.word) log += std::to_string(element);
      break;
    }
    case Act::kStoreVector:
      ops.store(relaxed_gpu, Site::kDispatchStorePayload, words,
                Vec16{{i.value, i.value, i.value, i.value}});
      break;
    case Act::kWeakLoad:
      log += std::to_string(ops.load(u32, weak, Site::kDispatchReadIds, word));
      break;
    case Act::kWeakStore:
      ops.store(weak, Site::kDispatchStoreCount, word, i.value);
      break;
  }
}
using MakeModel = std::function<std::unique_ptr<MemoryModel>(Memory&, Scheduler&)>;

// Returns a program as explore() wants it; the outcome is everything that can be seen of the end.
inline Execute execute_program(const Program& program, MakeModel make_model = {}) {
  return [program, make_model](MachineParts parts) {
    if (make_model) parts.make_memory_model = make_model;
    MachineConfig config;
    config.num_ranks = 1;
    config.group_size = program.group_size;
    config.resident_ctas = program.resident_ctas;
    Machine machine(config, std::move(parts));
    const Address words = machine.allocate(RankId(0), "words", 16, 16, program.fill);
    std::vector<std::string> seen(program.threads.size());
    const auto num_ctas = static_cast<std::uint32_t>(program.threads.size()) / program.group_size;
    machine.enqueue(RankId(0), kDefaultStream,
                    Kernel{"program", num_ctas, [&](SimOps& ops) {
                             const std::uint32_t me = ops.cta() * program.group_size + ops.thread();
                             for (const Instruction& i : program.threads[me])
                               perform(ops, i, words, seen[me]);
                           }});
    const RunResult result = machine.run();
    Outcome outcome{result.ok(), ""};
    // How far the others had come is not told apart (SPEC MAC-7.8).
    // Which of two accesses in a race is told first is the schedule's.
    if (result.status == RunStatus::kFault)
      return Outcome{false, make_model ? "fault" : result.report};
    for (const std::string& log : seen) outcome.sentence += log + "|";
    std::array<std::uint32_t, kNumWords> end{};
    machine.peek(words, std::as_writable_bytes(std::span(end)));
    for (const std::uint32_t word : end) outcome.sentence += " " + std::to_string(word);
    if (!result.ok()) outcome.sentence += " " + result.report;
    return outcome;
  };
}

inline Exploration outcomes_of(const Execute& execute, bool reduce,
                               SearchFault fault = SearchFault::kNone) {
  ExploreConfig config;
  config.collect_outcomes = true;
  config.reduce = reduce;
  config.search_fault = fault;
  config.max_executions = 4'000;
  return explore(config, execute);
}
// The names of all outcomes.
inline std::set<std::string> names(const Exploration& exploration) {
  std::set<std::string> all;
  for (const auto& [name, seen] : exploration.outcomes) all.insert(name);
  return all;
}

struct Mix {
  std::uint32_t most = 5;    // instructions, so that every interleaving can be run
  bool weak_memory = false;  // with orders, and with weak accesses
  bool vectors = false;
};

inline rc::Gen<Instruction> instructions(const Mix& mix) {
  return rc::gen::exec([mix] {
    Instruction i;
    std::vector<Act> acts{Act::kLoad, Act::kLoad, Act::kStore, Act::kStore,
                          Act::kAdd,  Act::kCas,  Act::kFence, Act::kWait};
    if (mix.weak_memory)
      acts.insert(acts.end(), {Act::kAcquire, Act::kAcquire, Act::kRelease, Act::kRelease,
                               Act::kLightFence, Act::kWeakLoad, Act::kWeakStore});
    if (mix.vectors) acts.insert(acts.end(), {Act::kLoadVector, Act::kStoreVector});
    i.act = *rc::gen::elementOf(acts);
    i.word = *rc::gen::inRange(0u, kNumWords);
    i.value = *rc::gen::inRange(i.act == Act::kWait ? 0u : 1u, 3u);
    return i;
  });
}

inline rc::Gen<Program> small_programs(const Mix& mix) {
  return rc::gen::exec([mix] {
    Program program;
    program.group_size = *rc::gen::element(1u, 1u, 2u);
    const std::uint32_t num_ctas = program.group_size == 1 ? *rc::gen::inRange(2u, 4u) : 2u;
    if (num_ctas == 3 && *rc::gen::inRange(0, 6) == 0) program.resident_ctas = 2;
    if (*rc::gen::inRange(0, 4) == 0) program.fill = Fill::kPoison;
    const std::uint32_t num_threads = num_ctas * program.group_size;
    // Threads that begin are steps as well.
    std::uint32_t left = std::max(mix.most - (num_threads - 2), num_threads);
    for (std::uint32_t t = 0; t < num_threads; ++t) {
      const std::uint32_t fair = std::max(1u, (left + num_threads - t - 1) / (num_threads - t));
      std::vector<Instruction> thread;
      for (std::uint32_t n = *rc::gen::inRange(1u, fair + 1); n > 0 && left > 0; --n, --left)
        thread.push_back(*instructions(mix));
      program.threads.push_back(std::move(thread));
    }
    if (program.group_size == 2 && *rc::gen::inRange(0, 2) == 0)
      for (std::uint32_t t = 0; t < 2; ++t)
        program.threads[t].insert(
            program.threads[t].begin() +
                *rc::gen::inRange<std::ptrdiff_t>(
                    0, static_cast<std::ptrdiff_t>(program.threads[t].size()) + 1),
            {Act::kBarrier, 0, 0});
    return program;
  });
}

}  // namespace assay::machine::testing
