// The pool, its growth, and turns on the devices.
#include "verify/subject/cuda_pool.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <condition_variable>
#include <cstdlib>
#include <map>
#include <mutex>
#include <utility>

namespace assay::verify {

PinnedMemory::PinnedMemory(PinnedMemory&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}

PinnedMemory& PinnedMemory::operator=(PinnedMemory&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

PinnedMemory::~PinnedMemory() {
  if (data_ != nullptr) cudaFreeHost(data_);
}

Expected<std::byte*> PinnedMemory::at_least(std::size_t bytes) {
  if (bytes > bytes_) {
    const std::size_t grown = std::bit_ceil(bytes);
    if (data_ != nullptr) cudaFreeHost(std::exchange(data_, nullptr));
    bytes_ = 0;
    ASSAY_CUDA(cudaHostAlloc(&data_, grown, cudaHostAllocPortable),
               fmt::format("pinning {} bytes", grown));
    bytes_ = grown;
  }
  return static_cast<std::byte*>(data_);
}

Status CudaSeat::grow(cuda::DeviceMemory& memory, std::size_t bytes, const char* what) {
  if (memory.bytes() >= bytes) return Done{};
  memory = cuda::DeviceMemory();  // the old one first: both together may not fit
  ASSAY_TRY(memory, cuda::DeviceMemory::make(bytes, what));
  return Done{};
}

namespace {

struct Key {
  Seats seats;
  std::int32_t ep_size;
  bool emulated() const { return seats != Seats::kRankEach; }
  friend bool operator<(const Key& a, const Key& b) {
    return std::pair(a.seats, a.ep_size) < std::pair(b.seats, b.ep_size);
  }
};

struct Pool {
  std::mutex mutex;
  std::map<Key, cuda::Communicator> communicators;
  std::map<Key, std::vector<std::unique_ptr<CudaPlace>>> free;

  // Never destroyed: at the end of a process CUDA may be gone before it.
  static Pool& get() {
    static Pool* pool = new Pool;
    return *pool;
  }
};

// Windows double, so that a process registers few of them: every registration takes address space
// that NCCL does not give back (NVIDIA/nccl issue 2331).
std::uint64_t window_size(std::uint64_t bytes) {
  constexpr std::uint64_t kSmallest = std::uint64_t{4} << 20;
  constexpr std::uint64_t kDoubling = std::uint64_t{1} << 30;  // larger ones as they are
  return bytes > kDoubling ? bytes : std::max(kSmallest, std::bit_ceil(bytes));
}

Expected<cuda::Communicator> communicator_of(Pool& pool, const Key& key) {
  const auto found = pool.communicators.find(key);
  if (found != pool.communicators.end()) return found->second;
  std::vector<int> devices;
  for (int device = 0; device < key.ep_size; ++device) devices.push_back(device);
  ASSAY_TRY(const cuda::Communicator made, key.emulated()
                                               ? cuda::Communicator::emulated(key.ep_size, 0)
                                               : cuda::Communicator::one_process(devices));
  pool.communicators.emplace(key, made);
  return made;
}

Expected<std::unique_ptr<CudaPlace>> make_place(cuda::Communicator communicator, Seats seats) {
  auto place = std::make_unique<CudaPlace>(CudaPlace{std::move(communicator), nullptr, {}, true});
  for (const cuda::LocalRank& local : place->communicator.local_ranks()) {
    cuda::DeviceScope scope(local.device);
    CudaSeat seat;
    seat.device = local.device;
    ASSAY_TRY(seat.stream, cuda::OwnStream::make());
    place->seats.push_back(std::move(seat));
    if (seats == Seats::kOneEmulated) break;
  }
  return Expected<std::unique_ptr<CudaPlace>>(std::move(place));
}

}  // namespace

void separate_queues() { setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 0); }

Expected<std::shared_ptr<CudaPlace>> take_place(Seats seats, std::int32_t ep_size,
                                                std::uint64_t window_bytes) {
  Pool& pool = Pool::get();
  const Key key{seats, ep_size};
  // NCCL calls of one communicator may not overlap, so the lock is held over them.
  const std::lock_guard lock(pool.mutex);
  auto& free = pool.free[key];
  std::unique_ptr<CudaPlace> place;
  if (!free.empty()) {
    place = std::move(free.back());
    free.pop_back();
  } else {
    ASSAY_TRY(cuda::Communicator communicator, communicator_of(pool, key));
    ASSAY_TRY(place, make_place(std::move(communicator), seats));
  }
  if (place->memory == nullptr || place->memory->bytes_per_rank() < window_bytes) {
    place->memory.reset();
    ASSAY_TRY(cuda::SymmetricMemory memory,
              place->communicator.allocate(window_size(window_bytes)));
    place->memory = std::make_unique<cuda::SymmetricMemory>(std::move(memory));
  }
  return std::shared_ptr<CudaPlace>(place.release(), [key](CudaPlace* done) {
    std::unique_ptr<CudaPlace> back(done);
    if (!back->usable) {
      static_cast<void>(back.release());  // what still runs there may still write there
      return;
    }
    Pool& owner = Pool::get();
    const std::lock_guard guard(owner.mutex);
    owner.free[key].push_back(std::move(back));
  });
}

namespace {

// Blocks that any device here holds of any of our kernels with 256 threads: 2048 threads on each of
// 132 multiprocessors (H200) would be 1056; kernels that use many registers fit half as often.
constexpr std::uint32_t kBlocks = 512;
// Streams beyond the hardware's queues would wait behind each other's kernels; of 32 queues.
constexpr std::uint32_t kTurnsMax = 24;

struct Turns {
  std::mutex mutex;
  std::condition_variable changed;
  std::uint64_t next = 0, served = 0;  // tickets: in order, so that a large round is not starved
  std::uint32_t blocks = 0, turns = 0;
  static Turns& get() {
    static Turns* turns = new Turns;
    return *turns;
  }
};

}  // namespace

DeviceTurn::DeviceTurn(std::uint32_t blocks) : blocks_(std::min(blocks, kBlocks)) {
  const bool alone = blocks == kAlone;  // kBlocks of it, so nobody comes beside it
  Turns& all = Turns::get();
  std::unique_lock lock(all.mutex);
  const std::uint64_t ticket = all.next++;
  all.changed.wait(lock, [&] {
    return ticket == all.served && all.blocks + blocks_ <= kBlocks && all.turns < kTurnsMax &&
           (!alone || all.turns == 0);
  });
  ++all.served;
  all.blocks += blocks_;
  ++all.turns;
  all.changed.notify_all();
}

DeviceTurn::~DeviceTurn() {
  Turns& all = Turns::get();
  const std::lock_guard lock(all.mutex);
  all.blocks -= blocks_;
  --all.turns;
  all.changed.notify_all();
}

}  // namespace assay::verify
