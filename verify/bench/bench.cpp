// The run: ceilings and parts first, then every row with its own ceilings.
#include "verify/bench/bench.hpp"

#include <fmt/format.h>
#include <nccl.h>

#include <algorithm>
#include <memory>

#include "cuda/launch/communicator.hpp"
#include "cuda/launch/driver_version.hpp"
#include "verify/bench/foreign_rounds.hpp"
#include "verify/bench/rounds.hpp"
#include "verify/bench/wire.hpp"
#include "verify/subject/cuda_pool.hpp"

namespace assay::verify::bench {

namespace {

double value_of(const std::vector<Figure>& figures, std::string_view name) {
  for (const Figure& figure : figures)
    if (figure.name == name) return figure.value;
  return 0;
}

// The steps of a round of one token that wait for one another (SPEC VER-20.5).
Floors floors_of(const std::vector<Figure>& parts) {
  const auto part = [&](const char* name) { return value_of(parts, name); };
  const double kernels = 2 * part(kEmptyKernel);
  const double half_trip = part(kFlagRoundTrip) / 2;  // a fence, a store and a poll
  const double way = half_trip - part(kReleaseFence);
  Floors floors;
  floors.fence = kernels + part(kLocalLoad) + part(kLocalAtomic) + part(kPeerStoreFence) + way +
                 half_trip + part(kPeerLoad);
  floors.sentinel =
      kernels + std::max(part(kLocalLoad), part(kReleaseFence)) + way + part(kLocalLoad) + way;
  return floors;
}

std::string version(int number, int thousands, int tens) {
  return fmt::format("{}.{}", number / thousands, number % thousands / tens);
}

Status describe_machine(int device, BenchResult& result) {
  cudaDeviceProp properties{};
  ASSAY_CUDA(cudaGetDeviceProperties(&properties, device), "asking for a device's name");
  int runtime = 0, nccl = 0;
  ASSAY_CUDA(cudaRuntimeGetVersion(&runtime), "asking for CUDA's version");
  ncclGetVersion(&nccl);
  result.device_name = properties.name;
  result.driver = cuda::driver_version();
  result.cuda = version(runtime, 1000, 10);
  result.nccl = version(nccl, 10000, 100);
  return Done{};
}

// Known figures are of one kind of machine.
void forget_known(std::vector<Figure>& figures) {
  for (Figure& figure : figures) figure.known.reset();
}

struct Bench {
  const BenchOptions& options;
  cuda::Communicator communicator;
  std::optional<Wire> wire;  // none: all ranks are on one GPU
  Stopwatch watch;
  std::optional<KernelsLibrary> foreign;
  std::optional<cuda::SymmetricMemory> memory;
  bool is_lost = false;  // something still runs, or a device is in error: nothing may be freed

  Expected<BenchRow> run(RowRequest request);
  Status measure_fence(BenchRow& row);
  void measure_sentinel(BenchRow& row);
  Status measure_foreign(BenchRow& row);
  Status measure_ceilings(BenchRow& row);
  void measure_nccl(std::vector<BenchRow>& rows);
};

Expected<BenchRow> Bench::run(RowRequest request) {
  BenchRow row;
  row.request = std::move(request);
  const Status fence = measure_fence(row);
  if (!fence && fence.error().kind != ErrorKind::kUnsupported) return fence.error();
  if (!fence) row.fence_reason = fence.error().sentence;
  if (options.sentinel) measure_sentinel(row);
  if (foreign) ASSAY_CHECK(measure_foreign(row));
  return row;
}

Status Bench::measure_fence(BenchRow& row) {
  ASSAY_TRY(const auto rounds, Rounds::make(communicator, memory, row.request, false, options));
  ASSAY_TRY(row.fence, rounds->time(watch));
  ASSAY_TRY(row.checked_tokens, rounds->check(watch));
  row.dispatch_row_bytes = rounds->dispatch_row_bytes();
  ASSAY_TRY(row.dispatch_traffic, dispatch_traffic(row.request.model, communicator.ep_size(),
                                                   row.request.topk_ids, row.dispatch_row_bytes));
  row.combine_traffic =
      returned(row.dispatch_traffic, row.dispatch_row_bytes, rounds->combine_row_bytes());
  if (options.ceilings && wire) ASSAY_CHECK(measure_ceilings(row));
  return Done{};
}

void Bench::measure_sentinel(BenchRow& row) {
  if (row.request.batch > options.sentinel_max_tokens) {
    row.sentinel_reason = "the batch is beyond Sentinel's";
    return;
  }
  // Blocks that wait for each other, one for every slot of a round at every rank: the most that
  // finished on an H200 (4 ranks of 8 tokens: verify/evidence/moe-emulated-bench-h200-x1-*).
  constexpr std::size_t kResident = 128;
  if (options.emulated && kResident < options.devices.size() * options.devices.size() *
                                          static_cast<std::size_t>(row.request.batch)) {
    row.sentinel_reason = "its blocks would not be resident together on one GPU";
    return;
  }
  const auto measured = [&]() -> Status {
    ASSAY_TRY(const auto rounds, Rounds::make(communicator, memory, row.request, true, options));
    ASSAY_TRY(row.sentinel, rounds->time(watch));
    ASSAY_TRY(const std::int64_t checked, rounds->check(watch));
    row.checked_tokens += checked;
    return Done{};
  }();
  if (measured) return;
  row.sentinel.reset();
  row.sentinel_reason = measured.error().sentence;
}

Status Bench::measure_foreign(BenchRow& row) {
  bool bad_options = false;
  std::unique_ptr<ForeignRounds> rounds;
  const auto measured = [&]() -> Status {
    ASSAY_TRY(rounds, ForeignRounds::make(*foreign, communicator, memory, row.request, options,
                                          bad_options));
    ASSAY_TRY(row.foreign_rounds, rounds->time(watch));
    ASSAY_TRY(const std::int64_t checked, rounds->check(watch));
    row.checked_tokens += checked;
    return Done{};
  }();
  if (measured) return Done{};
  if (bad_options) return measured.error().within(foreign->spec());
  row.foreign_rounds.clear();
  row.foreign_reason = measured.error().sentence;
  if (watch.is_idle()) return Done{};
  is_lost = true;
  static_cast<void>(rounds.release());
  return bad_input(fmt::format("{}: {}; nothing more can be timed in this process", foreign->spec(),
                               measured.error().sentence));
}

Status Bench::measure_ceilings(BenchRow& row) {
  ASSAY_TRY(const Wire::Ceiling out, wire->ceiling(row.dispatch_traffic, false));
  ASSAY_TRY(const Wire::Ceiling back, wire->ceiling(row.combine_traffic, true));
  row.dispatch_ceiling = out.microseconds;
  row.dispatch_mover = out.mover;
  row.dispatch_copy_engine = out.copy_engine;
  row.combine_ceiling = back.microseconds;
  row.combine_mover = back.mover;
  return Done{};
}

// After everything of our own: a failure of NCCL costs its own figures only.
void Bench::measure_nccl(std::vector<BenchRow>& rows) {
  std::string reason;
  for (BenchRow& row : rows) {
    if (row.dispatch_row_bytes == 0) continue;  // no traffic is known
    row.nccl_reason = reason;
    if (!reason.empty()) continue;
    const auto nccl =
        wire->nccl(row.request.batch, row.dispatch_row_bytes, row.request.model.hidden_size,
                   row.dispatch_traffic, row.combine_traffic);
    if (nccl) {
      row.nccl_all_gather_reduce_scatter = nccl->all_gather_reduce_scatter;
      row.nccl_all_to_all = nccl->all_to_all;
    } else {
      row.nccl_reason = reason = nccl.error().sentence;
    }
  }
}

Expected<Bench> make_bench(const BenchOptions& options, std::span<const RowRequest> rows) {
  std::optional<KernelsLibrary> foreign;
  if (!options.kernels.empty()) {
    ASSAY_TRY(foreign, KernelsLibrary::open(options.kernels));
  }
  separate_queues();
  const auto ep = static_cast<std::int64_t>(options.devices.size());
  ASSAY_TRY(const cuda::Communicator communicator,
            options.emulated ? cuda::Communicator::emulated(static_cast<std::int32_t>(ep), 0)
                             : cuda::Communicator::one_process(options.devices));
  std::int64_t bytes = 1;
  for (const RowRequest& row : rows)
    bytes = std::max(
        bytes, ep * row.batch * (std::int64_t{2} * row.model.hidden_size + 8 * row.model.top_k));
  std::optional<Wire> wire;
  if (!options.emulated) {
    ASSAY_TRY(wire, Wire::make(communicator, bytes));
  }
  ASSAY_TRY(Stopwatch watch, Stopwatch::make(options.devices));
  return Expected<Bench>(Bench{options, communicator, std::move(wire), std::move(watch),
                               std::move(foreign), std::nullopt, false});
}

Status measure_wire(Bench& bench, BenchResult& result) {
  ASSAY_TRY(result.ceilings, bench.wire->known_ceilings());
  ASSAY_TRY(result.parts, bench.wire->parts());
  if (result.device_name.find("H200") == std::string::npos) {
    forget_known(result.ceilings);
    forget_known(result.parts);
  }
  result.floors = floors_of(result.parts);
  return Done{};
}

}  // namespace

Expected<BenchResult> run_bench(const BenchOptions& options, std::vector<RowRequest> rows) {
  ASSAY_CHECK(check_bench(options, rows));
  const auto tell = [&](const std::string& what) {
    if (options.progress) options.progress(what);
  };
  tell("communicator and buffers");
  ASSAY_TRY(Bench made, make_bench(options, rows));
  auto owner = std::make_unique<Bench>(std::move(made));
  Bench& bench = *owner;
  BenchResult result;
  ASSAY_CHECK(describe_machine(options.devices[0], result));
  if (bench.foreign) result.foreign_name = bench.foreign->name();
  if (bench.wire) {
    tell("ceilings and parts");
    ASSAY_CHECK(measure_wire(bench, result));
  }
  for (RowRequest& request : rows) {
    tell(fmt::format("{} {} {} batch {}", request.model.name, request.router,
                     moe::recipe_name(request.recipe), request.batch));
    auto row = bench.run(std::move(request));
    if (bench.is_lost) static_cast<void>(owner.release());
    if (!row) return row.error();
    result.rows.push_back(*std::move(row));
  }
  if (options.nccl && bench.wire) {
    tell("NCCL");
    bench.measure_nccl(result.rows);
  }
  return result;
}

}  // namespace assay::verify::bench
