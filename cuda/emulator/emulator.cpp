// Batches of units on the current device: lays out their memory, launches, waits with an end, and
// copies results back. Decides the size of a batch.
#include "cuda/emulator/emulator.hpp"

#include <algorithm>
#include <functional>
#include <type_traits>

#include "cuda/emulator/emulator_kernel.hpp"
#include "cuda/launch/device.hpp"
#include "model/attention/block_executor.hpp"

namespace assay::cuda {
namespace {

using attention::Emulator;
using attention::ProductTasks;
using attention::TileRecord;
using attention::Unit;
using attention::UnitLayout;
using attention::UnitResult;
using attention::UnitScratch;
using attention::UnitSpace;
using attention::UnitView;

std::size_t scratch_bytes(const UnitView& view, const UnitLayout& layout) {
  if (view.dtype == Dtype::kF8E4m3)
    return UnitScratch<std::uint8_t>().place(view, layout.rows(), layout.segments(), nullptr);
  return UnitScratch<std::uint16_t>().place(view, layout.rows(), layout.segments(), nullptr);
}

std::size_t shared_bytes(const UnitView& view, int rows) {
  const ProductTasks tasks(view.arithmetic, rows, kUnitThreads);
  return tasks.stage_operands(view.arithmetic) * sizeof(numerics::BlockOperand);
}

// Where one unit's results begin in the batch's memory.
struct Place {
  std::size_t out = 0, lse = 0, tiles = 0;
};

// The units of one launch and what they need.
struct Batch {
  std::vector<UnitView> views;
  std::vector<Place> places;
  Place total;  // elements, rows and records
  std::size_t scratch = 16, shared = 16;
};

Batch batch_of(const Emulator& emulator, std::span<const Unit> units) {
  Batch batch;
  for (const Unit& unit : units) {
    const UnitView& view = batch.views.emplace_back(emulator.view(unit));
    const UnitLayout layout(view);
    batch.places.push_back(batch.total);
    const auto rows = static_cast<std::size_t>(layout.valid_rows());
    batch.total.out += rows * static_cast<std::size_t>(view.v_dim);
    batch.total.lse += rows;
    batch.total.tiles += static_cast<std::size_t>(layout.visits());
    batch.scratch = std::max(batch.scratch, scratch_bytes(view, layout));
    batch.shared = std::max(batch.shared, shared_bytes(view, layout.rows()));
  }
  return batch;
}

class Timer {
 public:
  Status start(cudaStream_t stream) {
    ASSAY_CUDA(cudaEventCreate(&begin_), "cudaEventCreate");
    ASSAY_CUDA(cudaEventCreate(&end_), "cudaEventCreate");
    ASSAY_CUDA(cudaEventRecord(begin_, stream), "cudaEventRecord");
    return Done{};
  }
  Status stop(cudaStream_t stream) {
    ASSAY_CUDA(cudaEventRecord(end_, stream), "cudaEventRecord");
    return Done{};
  }
  Expected<double> milliseconds() const {
    float ms = 0;
    ASSAY_CUDA(cudaEventElapsedTime(&ms, begin_, end_), "cudaEventElapsedTime");
    return static_cast<double>(ms);
  }
  Timer() = default;
  Timer(const Timer&) = delete;
  Timer& operator=(const Timer&) = delete;
  ~Timer() {
    if (begin_ != nullptr) cudaEventDestroy(begin_);
    if (end_ != nullptr) cudaEventDestroy(end_);
  }

 private:
  cudaEvent_t begin_ = nullptr, end_ = nullptr;
};

template <class T>
Status copy_back(const DeviceMemory& from, std::size_t at, T* to, std::size_t count) {
  if (count == 0) return Done{};
  const std::byte* const source = static_cast<const std::byte*>(from.data()) + at * sizeof(T);
  ASSAY_CUDA(cudaMemcpy(to, source, count * sizeof(T), cudaMemcpyDeviceToHost),
             "copying results of emulated units");
  return Done{};
}

// A batch's results on the device.
struct Results {
  DeviceMemory out, lse, tiles;
  static Expected<Results> make(const Place& total) {
    Results r;
    ASSAY_TRY(r.out, DeviceMemory::make(total.out * sizeof(std::uint16_t) + 16, "outputs"));
    ASSAY_TRY(r.lse, DeviceMemory::make(total.lse * sizeof(F32) + 16, "LSE"));
    ASSAY_TRY(r.tiles, DeviceMemory::make(total.tiles * sizeof(TileRecord) + 16, "decisions"));
    return Expected<Results>(std::move(r));
  }
  attention::UnitOutput at(const Place& place) const {
    return {static_cast<std::uint16_t*>(out.data()) + place.out,
            static_cast<F32*>(lse.data()) + place.lse,
            static_cast<TileRecord*>(tiles.data()) + place.tiles};
  }
  Expected<UnitResult> read(const Unit& unit, const UnitView& view, const Place& place) const {
    const UnitLayout layout(view);
    UnitSpace space(layout, view.v_dim);
    const attention::UnitOutput to = space.output();
    const auto rows = static_cast<std::size_t>(layout.valid_rows());
    ASSAY_CHECK(copy_back(out, place.out, to.out, rows * static_cast<std::size_t>(view.v_dim)));
    ASSAY_CHECK(copy_back(lse, place.lse, to.lse, rows));
    ASSAY_CHECK(copy_back(tiles, place.tiles, to.tiles, static_cast<std::size_t>(layout.visits())));
    return std::move(space).result(unit, layout);
  }
};

int multiprocessors() {
  int device = 0, count = 1;
  cudaGetDevice(&device);
  cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, device);
  return count;
}

static_assert(std::is_trivially_copyable_v<UnitJob>);  // it is copied to the device as bytes

using Take = std::function<void(std::size_t index, UnitResult unit)>;

// One launch; `first` is the index of its first unit.
Status run_batch(const Emulator& emulator, std::span<const Unit> units, std::size_t first,
                 const DeviceEmulateOptions& options, const Take& take) {
  const Batch batch = batch_of(emulator, units);
  ASSAY_TRY(const Results results, Results::make(batch.total));
  std::vector<UnitJob> jobs;
  for (std::size_t i = 0; i < units.size(); ++i)
    jobs.push_back({batch.views[i], results.at(batch.places[i])});
  const std::size_t job_bytes = jobs.size() * sizeof(UnitJob);
  ASSAY_TRY(const DeviceMemory job_memory, DeviceMemory::make(job_bytes, "units"));
  ASSAY_CHECK(
      copy_to_device(job_memory.data(), jobs.data(), job_bytes, "copying units to the device"));

  UnitLaunch launch;
  launch.jobs = static_cast<const UnitJob*>(job_memory.data());
  launch.count = static_cast<std::int32_t>(jobs.size());
  launch.bytes_per_element_1 = batch.views[0].dtype == Dtype::kF8E4m3;
  launch.shared_bytes = batch.shared;
  launch.scratch_bytes = batch.scratch;
  int resident = 0;
  ASSAY_CUDA(resident_unit_blocks(launch.bytes_per_element_1, batch.shared, &resident),
             "finding how many emulated units fit on a multiprocessor");
  launch.blocks = std::min(launch.count, std::max(resident, 1) * multiprocessors());
  ASSAY_TRY(const DeviceMemory scratch,
            DeviceMemory::make(batch.scratch * static_cast<std::size_t>(launch.blocks),
                               "scratch of emulated units"));
  launch.scratch = static_cast<std::byte*>(scratch.data());

  ASSAY_TRY(const OwnStream stream, OwnStream::make());
  Timer timer;
  ASSAY_CHECK(timer.start(stream));
  ASSAY_CUDA(enqueue_units(launch, stream), "launching emulated units");
  ASSAY_CHECK(timer.stop(stream));
  // After a refusal here, giving memory back waits for the kernel; its loops are all bounded.
  const std::string what = "emulating " + std::to_string(units.size()) + " units of " +
                           std::string(emulator.resolved().profile->name);
  ASSAY_CHECK(wait_for(stream, options.budget, what));
  if (options.kernel_ms != nullptr) {
    ASSAY_TRY(const double ms, timer.milliseconds());
    *options.kernel_ms += ms;
  }
  for (std::size_t i = 0; i < units.size(); ++i) {
    ASSAY_TRY(UnitResult unit, results.read(units[i], batch.views[i], batch.places[i]));
    take(first + i, std::move(unit));
  }
  return Done{};
}

// A batch is large enough that the last units of a launch, which leave multiprocessors idle, are
// few among all, and small enough that its decisions fit into memory: 4096 units that visit 512
// tiles of 128 keys each (64k keys) have 2^21 records of 48 bytes.
constexpr std::size_t kUnitsPerBatch = 4096;

Status run_in_batches(const Emulator& emulator, std::span<const Unit> units,
                      const DeviceEmulateOptions& options, const Take& take) {
  for (std::size_t first = 0; first < units.size(); first += kUnitsPerBatch) {
    const std::size_t count = std::min(kUnitsPerBatch, units.size() - first);
    ASSAY_CHECK(run_batch(emulator, units.subspan(first, count), first, options, take));
  }
  return Done{};
}

}  // namespace

Expected<DeviceEmulator> DeviceEmulator::make(const attention::Profile& profile,
                                              const attention::Problem& problem) {
  ASSAY_TRY(Emulator emulator, Emulator::make(profile, problem));
  return DeviceEmulator(std::move(emulator));
}

Expected<std::vector<UnitResult>> DeviceEmulator::run(std::span<const Unit> units,
                                                      const DeviceEmulateOptions& options) const {
  std::vector<UnitResult> all(units.size());
  ASSAY_CHECK(run_in_batches(emulator_, units, options, [&](std::size_t index, UnitResult unit) {
    all[index] = std::move(unit);
  }));
  return all;
}

Expected<attention::Emulation> DeviceEmulator::run_all(const DeviceEmulateOptions& options) const {
  attention::EmulationParts parts(emulator_);
  ASSAY_CHECK(run_in_batches(
      emulator_, emulator_.units(), options,
      [&](std::size_t index, UnitResult unit) { parts.add(index, std::move(unit)); }));
  return std::move(parts).finish();
}

}  // namespace assay::cuda
