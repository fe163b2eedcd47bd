// Ranks, devices and symmetric memory through NCCL's host API. Every failure names the call and
// what the machine lacks.
#include "cuda/launch/communicator.hpp"

#include <nccl.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <optional>
#include <thread>

#include "cuda/launch/device.hpp"
#include "cuda/launch/peer_addresses.hpp"

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

// Host and device alignment of every window, the widest vector's by far; NCCL asks for it.
constexpr std::uint64_t kWindowAlignment = NCCL_WIN_REQUIRED_ALIGNMENT;

std::uint64_t round_up(std::uint64_t bytes) {
  return (bytes + kWindowAlignment - 1) / kWindowAlignment * kWindowAlignment;
}

std::optional<int> number_in_environment(std::initializer_list<const char*> names) {
  for (const char* name : names)
    if (const char* text = std::getenv(name)) return std::atoi(text);
  return std::nullopt;
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
  ~Impl() {
    for (ncclComm_t comm : comms) ncclCommDestroy(comm);
  }
};

struct SymmetricMemory::Impl {
  std::vector<Window> windows;
  DeviceMemory emulated;
  std::vector<LocalRank> local;
  std::vector<ncclComm_t> comms;
  std::vector<ncclWindow_t> registered;
  std::vector<void*> memory;
  ~Impl() {
    for (std::size_t i = 0; i < registered.size(); ++i) {
      DeviceScope scope(local[i].device);
      if (registered[i] != nullptr) ncclCommWindowDeregister(comms[i], registered[i]);
      if (memory[i] != nullptr) ncclMemFree(memory[i]);
    }
  }
};

std::span<const Window> SymmetricMemory::windows() const { return impl_->windows; }
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

// Rank 0 writes NCCL's id to the file under a temporary name; the others wait for it, bounded.
Expected<ncclUniqueId> exchange_id(const std::string& file, int rank) {
  ncclUniqueId id{};
  if (std::getenv("NCCL_COMM_ID") != nullptr || rank == 0)
    ASSAY_NCCL(ncclGetUniqueId(&id), "ncclGetUniqueId");
  if (std::getenv("NCCL_COMM_ID") != nullptr) return id;
  if (rank == 0) {
    const std::string temporary = file + ".part";
    std::ofstream out(temporary, std::ios::binary);
    out.write(reinterpret_cast<const char*>(&id), sizeof id);
    out.close();
    if (!out || std::rename(temporary.c_str(), file.c_str()) != 0)
      return bad_input("the file for NCCL's id, " + file + ", cannot be written");
    return id;
  }
  constexpr int kTries = 600;  // a minute: processes of one job start within seconds
  for (int i = 0; i < kTries; ++i) {
    std::ifstream in(file, std::ios::binary);
    if (in.read(reinterpret_cast<char*>(&id), sizeof id)) return id;
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
  }
  return bad_input("rank 0 has not written NCCL's id to " + file + " within 60 s");
}

}  // namespace

Expected<Communicator> Communicator::from_environment(const std::string& id_file) {
  const auto rank = number_in_environment(
      {"RANK", "OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "SLURM_PROCID"});
  const auto size =
      number_in_environment({"WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_NTASKS"});
  const auto local = number_in_environment(
      {"LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID", "SLURM_LOCALID"});
  if (!rank || !size)
    return bad_input(
        "no rank and size in the environment; start this process under torchrun, "
        "mpirun or srun, or set RANK and WORLD_SIZE");
  if (*rank < 0 || *rank >= *size)
    return bad_input("rank " + std::to_string(*rank) + " of " + std::to_string(*size) +
                     " in the environment; allowed are 0 to size - 1");
  const int device = local.value_or(*rank);
  if (device >= device_count())
    return unsupported("local rank " + std::to_string(device) +
                       " needs a device of its own; this "
                       "machine has " +
                       std::to_string(device_count()));
  ASSAY_TRY(const ncclUniqueId id, exchange_id(id_file, *rank));
  auto impl = std::make_shared<Impl>();
  impl->ep_size = *size;
  impl->local.push_back({RankId(*rank), device});
  impl->comms.resize(1);
  DeviceScope scope(device);
  ASSAY_NCCL(ncclCommInitRank(&impl->comms[0], *size, id, *rank), "ncclCommInitRank");
  return Communicator(impl);
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
  if (impl_->emulated) {
    DeviceScope scope(impl_->local[0].device);
    ASSAY_TRY(memory->emulated,
              DeviceMemory::make(bytes * static_cast<std::uint64_t>(impl_->ep_size), "workspaces"));
    memory->windows.assign(impl_->local.size(), Window{memory->emulated.address(), bytes});
    return SymmetricMemory(memory);
  }
  memory->local = impl_->local;
  memory->comms = impl_->comms;
  memory->memory.resize(impl_->local.size());
  memory->registered.resize(impl_->local.size());
  for (std::size_t i = 0; i < impl_->local.size(); ++i) {
    DeviceScope scope(impl_->local[i].device);
    ASSAY_NCCL(ncclMemAlloc(&memory->memory[i], bytes),
               "ncclMemAlloc of " + std::to_string(bytes) + " bytes");
  }
  // One group for all communicators of the process: registering is collective, and the windows are
  // valid only after the group ends.
  ASSAY_NCCL(ncclGroupStart(), "ncclGroupStart");
  for (std::size_t i = 0; i < impl_->local.size(); ++i) {
    DeviceScope scope(impl_->local[i].device);
    ASSAY_NCCL(ncclCommWindowRegister(impl_->comms[i], memory->memory[i], bytes,
                                      &memory->registered[i], NCCL_WIN_COLL_SYMMETRIC),
               "ncclCommWindowRegister");
  }
  ASSAY_NCCL(ncclGroupEnd(), "ncclGroupEnd after ncclCommWindowRegister");
  for (std::size_t i = 0; i < impl_->local.size(); ++i) {
    // Registration succeeds and leaves no window where symmetric memory is unsupported.
    if (memory->registered[i] == nullptr)
      return unsupported(
          "NCCL gave no symmetric window: peer access between all devices and CUDA "
          "virtual memory are needed, and NCCL_WIN_ENABLE must not be 0");
    DeviceScope scope(impl_->local[i].device);
    ASSAY_TRY(const Window window, window_of(memory->registered[i], impl_->ep_size));
    memory->windows.push_back(window);
  }
  return SymmetricMemory(memory);
}

}  // namespace assay::cuda
