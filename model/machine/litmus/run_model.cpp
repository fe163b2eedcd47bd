// One execution of a litmus test is one Machine: locations are windows, threads interpret their
// instructions, registers are host memory. A shuffle or vote passes values through words that the
// memory model never sees, so that it orders nothing.
#include "model/machine/litmus/run_model.hpp"

#include <algorithm>
#include <charconv>
#include <map>

#include <fmt/format.h>

#include "model/machine/explore.hpp"
#include "model/machine/litmus/forwarding_memory.hpp"
#include "model/machine/machine.hpp"
#include "model/machine/ptx_memory.hpp"

namespace assay::machine::litmus {

namespace {

constexpr std::uint32_t kMaxMeetings = 4;
using Registers = std::array<std::array<std::uint32_t, kMaxObservables>, kMaxThreads>;

template <Order O>
using OrderTag = std::integral_constant<Order, O>;

// Calls f(Access<...>) for the order and scope that the instruction names.
template <Order... Os, class F>
void with_access(const Instruction& i, F&& f) {
  const auto scoped = [&](auto order) {
    constexpr Order kOrder = decltype(order)::value;
    if constexpr (kOrder == Order::kWeak) {
      f(Access<kOrder, Scope::kNone>{});
    } else {
      switch (i.scope) {
        case Scope::kCta:
          return f(Access<kOrder, Scope::kCta>{});
        case Scope::kCluster:
          return f(Access<kOrder, Scope::kCluster>{});
        case Scope::kGpu:
          return f(Access<kOrder, Scope::kGpu>{});
        default:
          return f(Access<kOrder, Scope::kSys>{});
      }
    }
  };
  const bool found = ((i.order == Os ? (scoped(OrderTag<Os>{}), true) : false) || ...);
  CONTRACT(found, i.text);
}

// Memory whose words from `exchange` on carry values and nothing else.
class LitmusMemory final : public ForwardingMemory {
 public:
  LitmusMemory(std::unique_ptr<MemoryModel> inner, Memory& memory)
      : ForwardingMemory(std::move(inner)), values_(memory) {}
  void set_exchange(Address first, std::uint64_t bytes) {
    exchange_ = first;
    bytes_ = bytes;
  }

  MaybeFault load(const MemoryEvent& event, std::byte* value) override {
    return is_exchange(event) ? values_.load(event, value) : ForwardingMemory::load(event, value);
  }
  MaybeFault store(const MemoryEvent& event, const std::byte* value) override {
    return is_exchange(event) ? values_.store(event, value) : ForwardingMemory::store(event, value);
  }
  MaybeFault await(const MemoryEvent& event, const Await& await, Look look, bool& satisfied,
                   std::uint64_t& seen) override {
    return is_exchange(event) ? values_.await(event, await, look, satisfied, seen)
                              : ForwardingMemory::await(event, await, look, satisfied, seen);
  }

 private:
  bool is_exchange(const MemoryEvent& event) const {
    return event.address.raw - exchange_.raw < bytes_;
  }
  SequentialMemory values_;
  Address exchange_;
  std::uint64_t bytes_ = 0;
};

class Execution {
 public:
  Execution(const Test& test, const ModelConfig& config, MachineParts parts)
      : test_(test), machine_(machine_config(test, config), with_memory(config, parts)) {}

  machine::Outcome run() {
    for (const Location& location : test_.locations)
      locations_.push_back(
          machine_.allocate_window(location.name, location.words * 4, 16, Fill::kZero));
    for (const Name& name : test_.names)
      names_.push_back(name.is_alias ? machine_.alias(locations_[name.location])
                                     : locations_[name.location]);
    const std::uint64_t bytes = kMaxThreads * kMaxMeetings * 4;
    exchange_ = machine_.allocate_window("exchange", bytes, 16, Fill::kZero);
    memory_->set_exchange(exchange_.of(RankId(0)), bytes);
    enqueue_kernels();
    const RunResult result = machine_.run();
    if (result.status == RunStatus::kFault) return {false, "race: " + result.report};
    if (!result.ok()) return {false, result.report};
    return {true, fmt::format("{:x}", outcome())};
  }

 private:
  static MachineConfig machine_config(const Test& test, const ModelConfig& config) {
    MachineConfig machine;
    machine.num_ranks = static_cast<std::int32_t>(test.num_ranks());
    machine.boundary = config.boundary;
    machine.longest_run = 1;
    machine.step_budget = 100'000;  // a test has a few dozen operations
    return machine;
  }

  MachineParts with_memory(const ModelConfig& config, MachineParts& parts) {
    parts.make_memory_model = [&config, this](Memory& memory, Scheduler& scheduler) {
      std::unique_ptr<MemoryModel> inner;
      if (config.make_memory)
        inner = config.make_memory(memory, scheduler, config.boundary);
      else
        inner = std::make_unique<PtxMemory>(memory, scheduler, config.boundary);
      auto model = std::make_unique<LitmusMemory>(std::move(inner), memory);
      memory_ = model.get();
      return model;
    };
    return std::move(parts);
  }

  void enqueue_kernels() {
    struct Ctas {
      std::map<std::uint32_t, std::map<std::uint32_t, std::uint32_t>> threads;  // cta, thread
      std::uint32_t group_size = 1;
    };
    std::map<std::array<std::uint32_t, 2>, Ctas> kernels;  // ascending, as streams run them
    for (std::uint32_t t = 0; t < test_.threads.size(); ++t) {
      const Place& p = test_.threads[t].place;
      Ctas& ctas = kernels[{p.rank, p.kernel}];
      ctas.threads[p.cta][p.thread] = t;
      ctas.group_size = std::max(ctas.group_size, p.thread + 1);
    }
    for (const auto& [key, ctas] : kernels) {
      std::vector<std::map<std::uint32_t, std::uint32_t>> dense;
      for (const auto& [cta, threads] : ctas.threads) dense.push_back(threads);
      Kernel kernel;
      kernel.name = fmt::format("kernel{}", key[1]);
      kernel.num_ctas = static_cast<std::uint32_t>(dense.size());
      kernel.group_size = ctas.group_size;
      kernel.body = [this, dense](SimOps& ops) {
        const auto& threads = dense[ops.cta()];
        if (const auto found = threads.find(ops.thread()); found != threads.end())
          interpret(ops, found->second);
      };
      machine_.enqueue(RankId(static_cast<std::int32_t>(key[0])), kDefaultStream,
                       std::move(kernel));
    }
  }

  void interpret(SimOps& ops, std::uint32_t thread) {
    std::uint32_t meeting = 0;
    for (const Instruction& i : test_.threads[thread].code) perform(ops, thread, i, meeting);
  }

  void perform(SimOps& ops, std::uint32_t thread, const Instruction& i, std::uint32_t& meeting) {
    auto& r = registers_[thread];
    switch (i.op) {
      case Op::kLoad:
        return load(ops, i, r);
      case Op::kStore:
        return store(ops, i);
      case Op::kAwait:
        with_access<Order::kRelaxed, Order::kAcquire>(i, [&](auto access) {
          const Await await{0xFFFFFFFFu, i.value[0], 0, RankId(0),
                            i.until_equal ? Until::kEquals : Until::kDiffers};
          ops.wait_until(as<std::uint32_t>, access, Site::kNone, address(i), await);
        });
        return;
      case Op::kAtomAdd:
      case Op::kAtomCas:
      case Op::kRedAdd:
        return atomic(ops, i, r);
      case Op::kFence:
        with_access<Order::kAcquire, Order::kRelease, Order::kAcqRel, Order::kSc>(
            i, [&](auto access) { ops.fence(access, Site::kNone); });
        return;
      case Op::kBarrier:
        return ops.barrier(Site::kNone);
      case Op::kShuffle:
      case Op::kVoteAny:
        return exchange(ops, thread, i, meeting++);
      case Op::kLaunchDependents:
        return ops.launch_dependents(Site::kNone);
      case Op::kWaitForGrid:
        return ops.wait_for_grid(Site::kNone);
      case Op::kAliasFence:
        CONTRACT(false, "model_can_run is false for this test", test_.name);
    }
  }

  Address address(const Instruction& i) const {
    return names_[i.name].of(RankId(0)).at(std::uint64_t{i.word} * 4);
  }

  template <class R>
  void load(SimOps& ops, const Instruction& i, R& r) {
    with_access<Order::kWeak, Order::kRelaxed, Order::kAcquire>(i, [&](auto access) {
      if (i.words == 1) {
        r[i.reg[0]] = ops.load(as<std::uint32_t>, access, Site::kNone, address(i));
        return;
      }
      const Vec16 got = ops.load(as<Vec16>, access, Site::kNone, address(i));
      for (std::uint32_t w = 0; w < 4; ++w) r[i.reg[w]] = got.word[w];
    });
  }

  void store(SimOps& ops, const Instruction& i) {
    with_access<Order::kWeak, Order::kRelaxed, Order::kRelease>(i, [&](auto access) {
      if (i.words == 1)
        ops.store(access, Site::kNone, address(i), i.value[0]);
      else
        ops.store(access, Site::kNone, address(i),
                  Vec16{{i.value[0], i.value[1], i.value[2], i.value[3]}});
    });
  }

  template <class R>
  void atomic(SimOps& ops, const Instruction& i, R& r) {
    with_access<Order::kRelaxed, Order::kAcquire, Order::kRelease, Order::kAcqRel>(
        i, [&](auto access) {
          const std::uint32_t old =
              i.op == Op::kAtomCas
                  ? ops.atomic_cas(access, Site::kNone, address(i), i.value[1], i.value[0])
                  : ops.atomic_add(access, Site::kNone, address(i), i.value[0]);
          if (i.op != Op::kRedAdd) r[i.reg[0]] = old;
        });
  }

  // Every lane brings its register to a word of its own, and waits for those it looks at.
  void exchange(SimOps& ops, std::uint32_t thread, const Instruction& i, std::uint32_t meeting) {
    CONTRACT(meeting < kMaxMeetings, test_.name);
    constexpr std::uint32_t kBrought = 0x100;  // above every value of a test
    auto& r = registers_[thread];
    const auto word = [&](std::uint32_t t) {
      return exchange_.of(RankId(0)).at((std::uint64_t{t} * kMaxMeetings + meeting) * 4);
    };
    ops.store(relaxed_cta, Site::kNone, word(thread), kBrought | r[i.source_reg]);
    std::uint32_t any = 0, of_lane = 0;
    for (std::uint32_t t = 0; t < test_.threads.size(); ++t) {
      const Place& a = test_.threads[t].place;
      const Place& b = test_.threads[thread].place;
      if (a.rank != b.rank || a.kernel != b.kernel || a.cta != b.cta) continue;
      if (i.op == Op::kShuffle && a.thread != i.lane) continue;
      const Await await{kBrought, kBrought, 0, RankId(0), Until::kEquals};
      const auto got = static_cast<std::uint32_t>(
          ops.wait_until(as<std::uint32_t>, relaxed_cta, Site::kNone, word(t), await).seen);
      of_lane = got & ~kBrought;
      any |= of_lane != 0;
    }
    r[i.reg[0]] = i.op == Op::kShuffle ? of_lane : any;
  }

  Outcome outcome() {
    Outcome outcome = 0;
    for (std::uint32_t k = 0; k < test_.observables.size(); ++k) {
      const Observable& o = test_.observables[k];
      std::uint32_t value = 0;
      if (o.is_register)
        value = registers_[o.thread][o.reg];
      else
        CONTRACT(machine_
                     .read(locations_[o.location].of(RankId(0)).at(o.word * 4),
                           std::as_writable_bytes(std::span(&value, 1)))
                     .has_value(),
                 test_.name);
      outcome = with_value(outcome, k, value);
    }
    return outcome;
  }

  const Test& test_;
  LitmusMemory* memory_ = nullptr;  // owned by the machine
  Machine machine_;
  std::vector<Window> locations_, names_;
  Window exchange_;
  Registers registers_{};
};

}  // namespace

ModelResult explore_model(const Test& test, const ModelConfig& config) {
  CONTRACT(model_can_run(test), test.name);
  ExploreConfig search;
  search.search = Search::kExhaustive;
  search.reduce = config.reduce;
  search.collect_outcomes = true;
  search.max_executions = config.max_executions;
  const Exploration exploration = explore(
      search, [&](MachineParts parts) { return Execution(test, config, std::move(parts)).run(); });
  ModelResult result;
  result.executions = exploration.executions;
  result.blocked = exploration.blocked;
  result.exhausted = exploration.exhausted;
  for (const auto& [sentence, seen] : exploration.outcomes) {
    Outcome outcome = 0;
    if (seen.ok) {
      std::from_chars(sentence.data(), sentence.data() + sentence.size(), outcome, 16);
      result.outcomes.insert(outcome);
    } else if (sentence.find("data race") != std::string::npos) {
      result.race = sentence;
    } else {
      result.trouble = sentence;
    }
  }
  return result;
}

Verdict model_verdict(const Test& test, const ModelResult& result) {
  if (!result.race.empty()) return Verdict::kRace;
  const bool shown = std::any_of(result.outcomes.begin(), result.outcomes.end(),
                                 [&](Outcome outcome) { return satisfies_exists(test, outcome); });
  return shown ? Verdict::kAllowed : Verdict::kForbidden;
}

bool model_can_run(const Test& test) {
  for (const ThreadCode& thread : test.threads)
    for (const Instruction& i : thread.code)
      if (i.op == Op::kAliasFence) return false;
  return true;
}

}  // namespace assay::machine::litmus
