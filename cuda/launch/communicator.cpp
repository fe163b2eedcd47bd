// Ranks, devices and symmetric memory through NCCL's host API. Every failure names the call and
// what the machine lacks.
#include "cuda/launch/communicator.hpp"

#include <nccl.h>

#include <chrono>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <future>
#include <thread>

#include "cuda/launch/device.hpp"
#include "cuda/launch/environment.hpp"
#include "cuda/launch/peer_addresses.hpp"
#include "cuda/launch/rendezvous.hpp"

namespace assay::cuda {

namespace {

Error nccl_error(ncclResult_t code, const std::string& what) {
  return unsupported(what + ": " + ncclGetErrorString(code) + " (" + ncclGetLastError(nullptr) +
                     ")");
}

#define ASSAY_NCCL(call, what)                                          \
  do {                                                                  \
    const ncclResult_t assay_nccl = (call);                             \
    if (assay_nccl != ncclSuccess) return nccl_error(assay_nccl, what); \
  } while (false)

// Words of one rank that a gather takes at most: a status word, or what must be equal everywhere.
constexpr std::size_t kGatheredWordsMax = 8;
// Host and device alignment of every window, the widest vector's by far; NCCL asks for it.
constexpr std::uint64_t kWindowAlignment = NCCL_WIN_REQUIRED_ALIGNMENT;

std::uint64_t round_up(std::uint64_t bytes) {
  return (bytes + kWindowAlignment - 1) / kWindowAlignment * kWindowAlignment;
}

// What only peers can complete: a collective of NCCL, or its set-up.
constexpr std::chrono::seconds kPeerBudget{60};

// Runs `call`, which may block in NCCL for as long as peers are missing, with an end. A call that
// has not ended keeps its thread; the process should then end.
Status within_budget(const std::function<Status()>& call, const std::string& what) {
  auto done = std::make_shared<std::promise<Status>>();
  std::future<Status> answer = done->get_future();
  std::thread([call, done] { done->set_value(call()); }).detach();
  if (answer.wait_for(kPeerBudget) != std::future_status::ready)
    return bad_input(what + " has not ended within " + std::to_string(kPeerBudget.count()) +
                     " s: not all processes take part");
  return answer.get();
}

// The same for giving back: a peer that died must not keep this process from ending. What has not
// ended by then is left to the end of the process.
void give_back_within_budget(const std::function<void()>& call) {
  constexpr std::chrono::seconds kGiveBack{10};
  auto done = std::make_shared<std::promise<void>>();
  std::future<void> answer = done->get_future();
  std::thread([call = std::function<void()>(call), done]() mutable {
    call();
    call = nullptr;  // what it holds must not be given back while the process already ends
    done->set_value();
  }).detach();
  answer.wait_for(kGiveBack);
}

}  // namespace

int device_count() {
  int count = 0;
  return cudaGetDeviceCount(&count) == cudaSuccess ? count : 0;
}

struct Communicator::Impl {
  std::int32_t ep_size = 1;
  bool emulated = false;
  std::vector<LocalRank> local;
  std::vector<ncclComm_t> comms;  // one per local rank; none when emulated
  OwnStream stream;               // of gathers; one process per rank only
  DeviceMemory words;
  bool lost = false;  // a peer did not answer
  ~Impl() {
    if (comms.empty()) return;
    give_back_within_budget([comms = comms, lost = lost] {
      for (ncclComm_t comm : comms) {
        if (lost)
          ncclCommAbort(comm);
        else
          ncclCommDestroy(comm);
      }
    });
  }
};

struct SymmetricMemory::Impl {
  std::shared_ptr<Communicator::Impl> communicator;
  std::uint64_t bytes_per_rank = 0;
  std::vector<Window> windows;
  DeviceMemory emulated;
  std::vector<ncclWindow_t> registered;
  std::vector<void*> memory;
  ~Impl() {
    if (registered.empty()) return;
    give_back_within_budget(
        [communicator = communicator, registered = registered, memory = memory] {
          for (std::size_t i = 0; i < registered.size(); ++i) {
            DeviceScope scope(communicator->local[i].device);
            if (registered[i] != nullptr && !communicator->lost)
              ncclCommWindowDeregister(communicator->comms[i], registered[i]);
            if (memory[i] != nullptr) ncclMemFree(memory[i]);
          }
        });
  }
};

std::span<const Window> SymmetricMemory::windows() const { return impl_->windows; }
std::uint64_t SymmetricMemory::bytes_per_rank() const { return impl_->bytes_per_rank; }
std::int32_t Communicator::ep_size() const { return impl_->ep_size; }
std::span<const LocalRank> Communicator::local_ranks() const { return impl_->local; }
bool Communicator::is_emulated() const { return impl_->emulated; }

Expected<Communicator> Communicator::emulated(std::int32_t ep_size, int device) {
  if (ep_size < 1 || ep_size > 256)
    return bad_input("ep_size is " + std::to_string(ep_size) + "; allowed are 1 to 256");
  if (device < 0 || device >= device_count())
    return unsupported("CUDA device " + std::to_string(device) +
                       " was asked for; this machine has " + std::to_string(device_count()));
  auto impl = std::make_shared<Impl>();
  impl->ep_size = ep_size;
  impl->emulated = true;
  for (std::int32_t rank = 0; rank < ep_size; ++rank) impl->local.push_back({RankId(rank), device});
  return Communicator(impl);
}

Expected<Communicator> Communicator::one_process(std::span<const int> devices) {
  const int visible = device_count();
  for (const int device : devices)
    if (device < 0 || device >= visible)
      return unsupported("CUDA device " + std::to_string(device) +
                         " was asked for; this machine has " + std::to_string(visible));
  auto impl = std::make_shared<Impl>();
  impl->ep_size = static_cast<std::int32_t>(devices.size());
  impl->comms.resize(devices.size());
  ASSAY_NCCL(ncclCommInitAll(impl->comms.data(), static_cast<int>(devices.size()), devices.data()),
             "ncclCommInitAll");
  for (std::size_t i = 0; i < devices.size(); ++i)
    impl->local.push_back({RankId(static_cast<std::int32_t>(i)), devices[i]});
  return Communicator(impl);
}

namespace {

// NCCL's id of this job: from NCCL_COMM_ID, which every process has, or from rank 0.
Expected<ncclUniqueId> job_id(const ProcessPlace& place, const std::string& path, int timeout_ms) {
  ncclUniqueId id{};
  const bool by_address = std::getenv("NCCL_COMM_ID") != nullptr;
  if (by_address || place.rank == 0) ASSAY_NCCL(ncclGetUniqueId(&id), "ncclGetUniqueId");
  if (by_address) return id;
  std::vector<std::byte> message(sizeof id);
  std::memcpy(message.data(), &id, sizeof id);
  ASSAY_TRY(message, receive_from_rank_0({path, place.rank, place.size, timeout_ms}, message));
  if (message.size() != sizeof id)
    return bad_input("rank 0 speaks of an NCCL id of " + std::to_string(message.size()) +
                     " bytes; this process's NCCL has " + std::to_string(sizeof id));
  std::memcpy(&id, message.data(), sizeof id);
  return id;
}

}  // namespace

Expected<Communicator> Communicator::from_environment(const std::string& id_path, int timeout_ms) {
  ASSAY_TRY(const ProcessPlace place, place_in_environment());
  if (place.local_rank >= device_count())
    return unsupported("local rank " + std::to_string(place.local_rank) +
                       " needs a device of its own; this machine has " +
                       std::to_string(device_count()));
  ASSAY_TRY(const ncclUniqueId id, job_id(place, id_path, timeout_ms));
  auto impl = std::make_shared<Impl>();
  impl->ep_size = place.size;
  impl->local.push_back({RankId(place.rank), place.local_rank});
  impl->comms.resize(1);
  DeviceScope scope(place.local_rank);
  ASSAY_TRY(impl->stream, OwnStream::make());
  ASSAY_TRY(impl->words, DeviceMemory::make(sizeof(std::uint64_t) * kGatheredWordsMax *
                                                static_cast<std::size_t>(place.size + 1),
                                            "words of all ranks"));
  ASSAY_CHECK(within_budget(
      [impl, id, place]() -> Status {
        DeviceScope own(place.local_rank);
        ASSAY_NCCL(ncclCommInitRank(&impl->comms[0], place.size, id, place.rank),
                   "ncclCommInitRank");
        return Done{};
      },
      "joining NCCL"));
  return Communicator(impl);
}

Expected<std::vector<std::uint64_t>> Communicator::gather(
    std::span<const std::uint64_t> of_local_ranks) const {
  Impl& impl = *impl_;
  const std::size_t words = of_local_ranks.size() / impl.local.size();
  CONTRACT(words * impl.local.size() == of_local_ranks.size() && words <= kGatheredWordsMax,
           of_local_ranks.size());
  std::vector<std::uint64_t> all(of_local_ranks.begin(), of_local_ranks.end());
  if (impl.local.size() == static_cast<std::size_t>(impl.ep_size)) return all;
  if (impl.lost) return bad_input("a peer did not answer earlier; this communicator is of no use");
  DeviceScope scope(impl.local[0].device);
  const std::size_t bytes = words * sizeof(std::uint64_t);
  auto* own = static_cast<std::uint64_t*>(impl.words.data());
  auto* gathered = own + words;
  all.resize(words * static_cast<std::size_t>(impl.ep_size));
  ASSAY_CUDA(
      cudaMemcpyAsync(own, of_local_ranks.data(), bytes, cudaMemcpyHostToDevice, impl.stream),
      "copying words for all ranks");
  ASSAY_NCCL(ncclAllGather(own, gathered, words, ncclUint64, impl.comms[0], impl.stream),
             "ncclAllGather of words");
  const Status ended = wait_for(impl.stream, kPeerBudget, "a gather of all ranks");
  if (!ended) {
    impl.lost = true;
    return ended.error();
  }
  ASSAY_CUDA(
      cudaMemcpy(all.data(), gathered, all.size() * sizeof(std::uint64_t), cudaMemcpyDeviceToHost),
      "copying the words of all ranks");
  return all;
}

namespace {

// The window of a registered buffer as kernels on this device address it: NCCL maps the peers of an
// LSA team at one stride, which is checked and not believed.
Expected<Window> window_of(ncclWindow_t registered, std::int32_t ranks) {
  ASSAY_TRY(const DeviceMemory table,
            DeviceMemory::make(sizeof(std::uint64_t) * static_cast<std::size_t>(ranks),
                               "peer addresses"));
  enqueue_peer_addresses(registered, ranks, static_cast<std::uint64_t*>(table.data()));
  std::vector<std::uint64_t> at(static_cast<std::size_t>(ranks));
  ASSAY_CUDA(cudaMemcpy(at.data(), table.data(), at.size() * sizeof(std::uint64_t),
                        cudaMemcpyDeviceToHost),
             "reading peer addresses");
  Window window{Address{at[0]}, ranks > 1 ? at[1] - at[0] : 0};
  for (std::int32_t rank = 0; rank < ranks; ++rank)
    if (window.of(RankId(rank)).raw != at[static_cast<std::size_t>(rank)] || at[0] == 0)
      return unsupported("NCCL does not map the group's memory at a constant stride; are all " +
                         std::to_string(ranks) + " ranks in one NVLink domain?");
  return window;
}

}  // namespace

Expected<SymmetricMemory> Communicator::allocate(std::uint64_t bytes_per_rank) const {
  const std::uint64_t bytes = round_up(bytes_per_rank);
  auto memory = std::make_shared<SymmetricMemory::Impl>();
  memory->communicator = impl_;
  memory->bytes_per_rank = bytes;
  const std::vector<LocalRank>& local = impl_->local;
  if (impl_->emulated) {
    DeviceScope scope(local[0].device);
    ASSAY_TRY(memory->emulated,
              DeviceMemory::make(bytes * static_cast<std::uint64_t>(impl_->ep_size), "workspaces"));
    memory->windows.assign(local.size(), Window{memory->emulated.address(), bytes});
    return SymmetricMemory(memory);
  }
  memory->memory.resize(local.size());
  memory->registered.resize(local.size());
  for (std::size_t i = 0; i < local.size(); ++i) {
    DeviceScope scope(local[i].device);
    ASSAY_NCCL(ncclMemAlloc(&memory->memory[i], bytes),
               "ncclMemAlloc of " + std::to_string(bytes) + " bytes");
  }
  // One group for all communicators of the process: registering is collective, and the windows are
  // valid only after the group ends.
  ASSAY_CHECK(within_budget(
      [memory, bytes]() -> Status {
        const Impl& communicator = *memory->communicator;
        ASSAY_NCCL(ncclGroupStart(), "ncclGroupStart");
        for (std::size_t i = 0; i < communicator.local.size(); ++i) {
          DeviceScope scope(communicator.local[i].device);
          ASSAY_NCCL(ncclCommWindowRegister(communicator.comms[i], memory->memory[i], bytes,
                                            &memory->registered[i], NCCL_WIN_COLL_SYMMETRIC),
                     "ncclCommWindowRegister");
        }
        ASSAY_NCCL(ncclGroupEnd(), "ncclGroupEnd after ncclCommWindowRegister");
        return Done{};
      },
      "registering a symmetric window"));
  for (std::size_t i = 0; i < local.size(); ++i) {
    // Registration succeeds and leaves no window where symmetric memory is unsupported.
    if (memory->registered[i] == nullptr)
      return unsupported(
          "NCCL gave no symmetric window: peer access between all devices and CUDA "
          "virtual memory are needed, and NCCL_WIN_ENABLE must not be 0");
    DeviceScope scope(local[i].device);
    ASSAY_TRY(const Window window, window_of(memory->registered[i], impl_->ep_size));
    memory->windows.push_back(window);
  }
  return SymmetricMemory(memory);
}

}  // namespace assay::cuda
