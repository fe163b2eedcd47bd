// Allocation, inputs and the run of a program; kernels and memory of the protocols are
// one_sided_program.cpp.
#include "verify/explore/program.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "model/core/contract.hpp"
#include "model/core/text.hpp"
#include "verify/explore/protocol_parts.hpp"
#include "verify/subject/abi_round.hpp"

namespace assay::verify {

namespace {

std::size_t index(RankId rank) { return static_cast<std::size_t>(rank.value()); }

constexpr std::string_view kProtocols[] = {"fence", "sentinel"};

}  // namespace

std::string_view protocol_name(Protocol protocol) {
  return kProtocols[static_cast<std::size_t>(protocol)];
}

Expected<Protocol> parse_protocol(std::string_view name) {
  for (std::size_t i = 0; i < std::size(kProtocols); ++i)
    if (kProtocols[i] == name) return static_cast<Protocol>(i);
  return bad_input(fmt::format("the protocol is {}; allowed are fence, sentinel", in_quotes(name)));
}

std::string kernel_name(std::string_view kernel, std::size_t round) {
  return fmt::format("{} of round {}", kernel, round);
}

struct Program::Impl {
  ProgramSetup setup;
  GroupPlan plan;
  std::vector<RoundPlan> round_plans;
  Prepared prepared;
  ProgramMemory memory;  // of every execution's machine: addresses do not change
  std::vector<machine::NamedPart> part_names{};

  ProgramMemory allocate(machine::Machine& machine) const;
  void write_inputs(machine::Machine& machine) const;
  machine::MachineConfig config() const;
};

namespace {

// What plan_round looks at, in the C interface's words.
struct PlainRound {
  explicit PlainRound(const Round& from, const GroupSetup& group) {
    for (const RoundPayload& entry : from.payloads)
      payloads.push_back({entry.payload.name.c_str(),
                          static_cast<std::uint32_t>(entry.payload.bytes_per_token),
                          entry.payload.holds_expert_ids ? 1 : 0});
    for (RankId rank{0}; rank.value() < group.ep_size; rank = rank.next())
      num_tokens.push_back(from.num_tokens(rank, group.top_k));
    round.struct_size = sizeof round;
    round.max_tokens_per_rank = from.max_tokens_per_rank;
    round.num_payloads = static_cast<std::int32_t>(payloads.size());
    round.payloads = payloads.data();
    round.num_tokens = num_tokens.data();
  }
  std::vector<assay_payload> payloads;
  std::vector<std::int32_t> num_tokens;
  assay_round round{};
};

std::int32_t sentinel_max_tokens(const ProgramSetup& setup) {
  if (setup.protocol == Protocol::kFence) return 0;
  return setup.sentinel_max_tokens.value_or(setup.group.max_tokens_per_rank);
}

Expected<one_sided::Workspace> with_one_generation(const GroupPlan& plan,
                                                   std::int32_t sentinel_max) {
  one_sided::GroupCapacity capacity;
  capacity.ep_size = plan.config.ep_size;
  capacity.top_k = plan.config.top_k;
  capacity.max_tokens_per_rank = plan.config.max_tokens_per_rank;
  capacity.payload_bytes_total = plan.config.max_payload_bytes_total;
  capacity.row_bytes = static_cast<std::int64_t>(plan.row_bytes());
  capacity.sentinel_max_tokens = sentinel_max;
  capacity.dispatch_generations /= 2;
  return one_sided::Workspace::make(capacity);
}

Status check_served(const ProgramSetup& setup, const ExploreKernels& kernels) {
  if (setup.rounds.empty()) return bad_input("a program needs at least one round");
  if (kernels.dispatch(setup.group.top_k) == nullptr)
    return unsupported(fmt::format("top_k is {}; explored kernels are compiled for top_k 1, 2, 4",
                                   setup.group.top_k));
  if (setup.group.combine_dtype != moe::Dtype::kBf16 || setup.group.low_precision_combine)
    return unsupported("explored kernels are compiled for bf16 rows");
  for (const Round& round : setup.rounds)
    if (round.alive.num_alive(setup.group.ep_size) != setup.group.ep_size)
      return unsupported("explored rounds have no dead ranks");
  if (setup.variant == Variant::kSkippedRound && setup.rounds.size() < 2)
    return bad_input("a program with a skipped round needs at least 2 rounds");
  if (is_failing(setup.variant) && setup.group.ep_size < 2)
    return bad_input("a program whose first rank stops needs at least 2 ranks");
  return Done{};
}

// Under Sentinel only those miss a rank in combine that have sent it a token.
Status check_missed(const ProgramSetup& setup, const std::vector<RoundTruth>& truth,
                    const std::vector<moe::SlotRule>& rules) {
  if (setup.variant != Variant::kFirstRankLeaves || rules[0] != moe::SlotRule::kTokenIndex)
    return Done{};
  for (RankId src{1}; src.value() < setup.group.ep_size; src = src.next())
    if (truth[0].plan.recv_counter(RankId(0), src) == 0)
      return bad_input(
          fmt::format("rank {} sends rank 0 nothing in round 0 and would not miss it in combine; "
                      "every rank must, for example with as many experts as ranks and top_k",
                      src.value()));
  return Done{};
}

}  // namespace

Expected<Program> Program::make(ProgramSetup setup) {
  if (setup.kernels == nullptr) setup.kernels = &own_explore_kernels();
  if (setup.group.profile == nullptr) setup.group.profile = &moe::default_combine_profile();
  ASSAY_CHECK(check_served(setup, *setup.kernels));
  const std::int32_t sentinel_max = sentinel_max_tokens(setup);
  std::vector<moe::SlotRule> rules;
  for (const Round& round : setup.rounds)
    rules.push_back(round.max_tokens_per_rank <= sentinel_max ? moe::SlotRule::kTokenIndex
                                                              : moe::SlotRule::kCounterAnyOrder);
  ASSAY_TRY(std::vector<RoundTruth> truth, make_truth(setup.group, setup.rounds, rules));
  ASSAY_CHECK(check_missed(setup, truth, rules));
  ASSAY_TRY(GroupPlan plan, plan_group(abi_config(setup.group), sentinel_max));
  if (setup.variant == Variant::kOneGeneration) {
    ASSAY_TRY(plan.workspace, with_one_generation(plan, sentinel_max));
  }
  if (plan.sum != one_sided::Sum::kF32)
    return unsupported(fmt::format("explored kernels are compiled for the arithmetic of {}",
                                   moe::default_combine_profile().name));
  auto impl = std::make_unique<Impl>(Impl{std::move(setup), std::move(plan), {}, {}, {}});
  std::vector<PlainRound> plain;
  for (const Round& round : impl->setup.rounds) {
    plain.emplace_back(round, impl->setup.group);
    assay_round_more more{};
    more.num_statistics = round.num_statistics();
    ASSAY_TRY(RoundPlan round_plan, plan_round(impl->plan, plain.back().round, more));
    impl->round_plans.push_back(std::move(round_plan));
  }
  impl->prepared.evidence.setup = impl->setup.group;
  impl->prepared.evidence.rounds = std::move(truth);
  impl->prepared.window_bytes = impl->plan.workspace.window_bytes();
  impl->prepared.window_alignment = impl->plan.workspace.layout().alignment_bytes();
  machine::Machine scratch(impl->config());
  impl->memory = impl->allocate(scratch);
  std::vector<const assay_round*> rounds;
  for (const PlainRound& round : plain) rounds.push_back(&round.round);
  const ProtocolInput input{impl->setup, impl->plan, impl->round_plans, rounds, impl->memory};
  prepare_one_sided(input, impl->prepared);
  for (const NamedRegion& region : impl->prepared.evidence.regions)
    if (region.round < 0)  // what belongs to a round is an allocation with a name of its own
      impl->part_names.push_back({region.name, region.first, region.bytes});
  return Program(std::move(impl));
}

Program::Program(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Program::Program(Program&&) noexcept = default;
Program& Program::operator=(Program&&) noexcept = default;
Program::~Program() = default;

const ProgramSetup& Program::setup() const { return impl_->setup; }

machine::MachineConfig Program::Impl::config() const {
  machine::MachineConfig config;
  config.num_ranks = setup.group.ep_size;
  config.group_size = setup.group_size;
  config.resident_ctas = setup.resident_ctas;
  config.boundary = setup.boundary;
  // Every operation of these small programs is a choice; a run of this length is a livelock.
  config.longest_run = 1;
  config.step_budget = 10'000'000;
  config.timeouts_fire = is_failing(setup.variant);
  return config;
}

ProgramMemory Program::Impl::allocate(machine::Machine& machine) const {
  using machine::Fill;
  ProgramMemory memory;
  memory.window = machine.allocate_window("workspace", prepared.window_bytes,
                                          prepared.window_alignment, Fill::kPoison);
  for (std::size_t r = 0; r < setup.rounds.size(); ++r) {
    auto& of_round = memory.of.emplace_back();
    for (RankId rank{0}; rank.value() < setup.group.ep_size; rank = rank.next()) {
      const std::uint64_t tokens =
          static_cast<std::uint64_t>(setup.rounds[r].num_tokens(rank, setup.group.top_k));
      const auto own = [&](const char* name, std::uint64_t bytes, std::uint64_t alignment) {
        return machine.allocate(rank, name, std::max<std::uint64_t>(bytes, 1), alignment,
                                Fill::kPoison);
      };
      of_round.push_back(
          {memory.window,
           own("topk_ids", tokens * static_cast<std::uint64_t>(setup.group.top_k) * 4, 4),
           own("payload rows", plan.payload_bytes(), 16),
           own("combined rows", tokens * plan.out_row_bytes(), 16),
           own("statistics", 4 * static_cast<std::uint64_t>(setup.group.num_statistics), 4)});
    }
  }
  return memory;
}

void Program::Impl::write_inputs(machine::Machine& machine) const {
  for (std::size_t r = 0; r < setup.rounds.size(); ++r) {
    const RoundTruth& truth = prepared.evidence.rounds[r];
    for (RankId rank{0}; rank.value() < setup.group.ep_size; rank = rank.next()) {
      const RankMemory& at = memory.of[r][index(rank)];
      if (setup.rounds[r].num_statistics() > 0)
        machine.write(at.statistics,
                      std::as_bytes(std::span(setup.rounds[r].statistics[index(rank)])));
      const std::vector<std::int32_t>& ids = truth.round.topk_ids[index(rank)];
      if (ids.empty()) continue;
      machine.write(at.topk_ids, std::as_bytes(std::span(ids)));
      for (std::size_t p = 0; p < truth.payloads.size(); ++p)
        machine.write(at.payload_rows.at(round_plans[r].payload_from_at[p]),
                      truth.payloads[p].holds_expert_ids
                          ? std::as_bytes(std::span(ids))
                          : std::span<const std::byte>(truth.round.payloads[p].rows[index(rank)]));
    }
  }
}

Execution Program::run(const Mutation& mutation, machine::MachineParts parts) const {
  machine::Machine machine(impl_->config(), std::move(parts));
  const ProgramMemory memory = impl_->allocate(machine);
  CONTRACT(memory.window.first == impl_->memory.window.first, "addresses depend on the execution");
  machine.name_parts(&impl_->part_names);
  impl_->write_inputs(machine);
  for (const auto& write : impl_->prepared.before) write(machine);
  for (std::int32_t r = 0; r < num_ranks(); ++r)
    for (std::uint32_t s = 1; s < impl_->prepared.streams_per_rank; ++s)
      machine.add_stream(RankId(r));
  Running running{{mutation.site, mutation.how, {}, 0}, Judge(impl_->prepared.evidence)};
  for (const Launch& launch : impl_->prepared.launches)
    machine.enqueue(
        launch.rank, machine::StreamId(launch.stream),
        machine::Kernel{launch.name, launch.num_ctas,
                        [&launch, &running](machine::SimOps& ops) { launch.body(ops, running); }});
  Execution done;
  done.result = machine.run();
  done.finding = running.judge.verdict(machine, done.result);
  done.used = running.mutation.used;
  return done;
}

}  // namespace assay::verify
