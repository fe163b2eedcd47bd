// Recording, the gate, and waiting with an end.
#include "verify/bench/timing.hpp"

#include <algorithm>
#include <atomic>
#include <utility>

#include "cuda/probe/wire.hpp"

namespace assay::verify::bench {

namespace {

// Longer than anything measured here, shorter than anybody's patience.
constexpr std::chrono::seconds kBudget{20};

}  // namespace

Stopwatch::Seat::Seat(Seat&& other) noexcept
    : device(other.device),
      stream(std::move(other.stream)),
      start(std::exchange(other.start, nullptr)),
      end(std::exchange(other.end, nullptr)),
      graph(std::exchange(other.graph, nullptr)) {}

Stopwatch::Seat::~Seat() {
  if (graph != nullptr) cudaGraphExecDestroy(graph);
  if (start != nullptr) cudaEventDestroy(start);
  if (end != nullptr) cudaEventDestroy(end);
}

Stopwatch::HostFlag::~HostFlag() {
  if (flag != nullptr) cudaFreeHost(flag);
}

Expected<Stopwatch> Stopwatch::make(std::span<const int> devices) {
  Stopwatch watch;
  watch.gate_ = std::make_shared<HostFlag>();
  ASSAY_CUDA(cudaHostAlloc(reinterpret_cast<void**>(&watch.gate_->flag), sizeof(std::uint32_t),
                           cudaHostAllocPortable | cudaHostAllocMapped),
             "pinning a flag");
  *watch.gate_->flag = 0;
  for (const int device : devices) {
    cuda::DeviceScope scope(device);
    Seat seat;
    seat.device = device;
    ASSAY_TRY(seat.stream, cuda::OwnStream::make());
    ASSAY_CUDA(cudaEventCreate(&seat.start), "cudaEventCreate");
    ASSAY_CUDA(cudaEventCreate(&seat.end), "cudaEventCreate");
    watch.seats_.push_back(std::move(seat));
  }
  return Expected<Stopwatch>(std::move(watch));
}

Status Stopwatch::wait() const {
  for (const Seat& seat : seats_) {
    cuda::DeviceScope scope(seat.device);
    ASSAY_CHECK(cuda::wait_for(seat.stream, kBudget, "a measurement"));
  }
  return Done{};
}

bool Stopwatch::is_idle() const {
  for (const Seat& seat : seats_)
    if (cudaStreamQuery(seat.stream) != cudaSuccess) return false;
  return true;
}

Status Stopwatch::record(const std::function<Status()>& enqueue) {
  // Before anything records: what NCCL keeps for a graph is given back when the graph goes.
  for (Seat& seat : seats_)
    if (seat.graph != nullptr) cudaGraphExecDestroy(std::exchange(seat.graph, nullptr));
  for (Seat& seat : seats_) {
    cuda::DeviceScope scope(seat.device);
    ASSAY_CUDA(cudaStreamBeginCapture(seat.stream, cudaStreamCaptureModeRelaxed),
               "beginning to record a graph");
  }
  const Status enqueued = enqueue();
  Status recorded = Done{};
  for (Seat& seat : seats_) {  // all recordings end, whatever happened
    cuda::DeviceScope scope(seat.device);
    cudaGraph_t graph = nullptr;
    cudaError_t code = cudaStreamEndCapture(seat.stream, &graph);
    if (code == cudaSuccess) code = cudaGraphInstantiate(&seat.graph, graph, 0);
    if (code == cudaSuccess) code = cudaGraphUpload(seat.graph, seat.stream);
    if (graph != nullptr) cudaGraphDestroy(graph);
    if (code != cudaSuccess && recorded) recorded = cuda::cuda_error(code, "recording a graph");
  }
  ASSAY_CHECK(enqueued);
  ASSAY_CHECK(recorded);
  return wait();
}

Status Stopwatch::launch_graphs() {
  for (Seat& seat : seats_) {
    cuda::DeviceScope scope(seat.device);
    ASSAY_CUDA(cudaGraphLaunch(seat.graph, seat.stream), "launching a graph");
  }
  return Done{};
}

Expected<double> Stopwatch::run_once(const std::function<Status()>& enqueue) {
  const std::uint32_t value = ++opened_;
  for (Seat& seat : seats_) {
    cuda::DeviceScope scope(seat.device);
    ASSAY_CUDA(probe::gate(gate_->flag, value, seat.stream), "gate");
    ASSAY_CUDA(cudaEventRecord(seat.start, seat.stream), "cudaEventRecord");
  }
  const Status enqueued = enqueue();
  for (Seat& seat : seats_) {
    cuda::DeviceScope scope(seat.device);
    ASSAY_CUDA(cudaEventRecord(seat.end, seat.stream), "cudaEventRecord");
  }
  std::atomic_ref<std::uint32_t>(*gate_->flag).store(value);
  ASSAY_CHECK(enqueued);
  ASSAY_CHECK(wait());
  double slowest = 0;
  for (Seat& seat : seats_) {
    float milliseconds = 0;
    ASSAY_CUDA(cudaEventElapsedTime(&milliseconds, seat.start, seat.end), "cudaEventElapsedTime");
    slowest = std::max(slowest, 1e3 * static_cast<double>(milliseconds));
  }
  return slowest;
}

Expected<std::vector<double>> Stopwatch::time(const std::function<Status()>& enqueue, int repeats) {
  ASSAY_CHECK(record(enqueue));
  return time_enqueued([&] { return launch_graphs(); }, repeats);
}

Expected<std::vector<double>> Stopwatch::time_enqueued(const std::function<Status()>& enqueue,
                                                       int repeats) {
  ASSAY_CHECK(run_once(enqueue));
  std::vector<double> microseconds;
  for (int i = 0; i < repeats; ++i) {
    ASSAY_TRY(const double one, run_once(enqueue));
    microseconds.push_back(one);
  }
  return microseconds;
}

Expected<std::vector<double>> Stopwatch::time_each(
    const std::function<Status(std::size_t)>& enqueue, int repeats) {
  return time(
      [&]() -> Status {
        for (std::size_t seat = 0; seat < seats_.size(); ++seat) {
          cuda::DeviceScope scope(seats_[seat].device);
          ASSAY_CHECK(enqueue(seat));
        }
        return Done{};
      },
      repeats);
}

double fastest(const std::vector<double>& times) {
  return *std::min_element(times.begin(), times.end());
}

}  // namespace assay::verify::bench
