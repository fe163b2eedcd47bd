// Runs every litmus test of model/machine/litmus/tests on one or two GPUs with real PTX
// instructions and compares what is seen with what the axioms of PTX allow (SPEC MAC-8.5). Memory
// of a test lies on either GPU, in all combinations; threads of rank 1 run on the second GPU.
// Kernel boundaries: plain launches must stay within `ptx` (and are counted against `flush`, what
// hardware is assumed to do); programmatic launches within `pdl`.
// Exits with 0 if everything seen is allowed, and 1 if not, or if nothing was seen that only weak
// memory explains: then the run could not have found anything (MISTRUSTED).
//
//   litmus_probe [--gpus N] [--launches N] [--only TEXT] [--json FILE]
#include <cuda.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <fstream>
#include <map>
#include <sstream>

#include "cuda/probe/litmus_case.hpp"
#include "cuda/probe/litmus_probe.cuh"
#include "cuda/probe/litmus_report.hpp"
#include "cuda/probe/probe.cuh"

namespace assay::litmus_probe {

#include "cuda/litmus_cases.inc"

namespace {

constexpr std::uint32_t kRounds = 16;
constexpr std::uint32_t kInstances = kInstancesPerRound * kRounds;
constexpr std::uint32_t kMaxLocations = 4;
constexpr std::uint32_t kMaxStrideWords = 32;  // one line of 128 bytes per instance
constexpr std::size_t kLocationWords = std::size_t{kInstances} * kMaxStrideWords;
constexpr std::size_t kRegionBytes = kMaxLocations * kLocationWords * 4;
constexpr std::uint32_t kNoiseWords = 1u << 22;
constexpr std::uint32_t kHistogramSize = 256;

struct Options {
  int gpus = 2;
  int launches = 64;  // one of every layout, delay and flood
  std::string only, json, command;
};

struct Histogram {
  std::uint64_t key[kHistogramSize];
  unsigned long long count[kHistogramSize];
  unsigned long long unfinished, overflow;
};
constexpr std::uint64_t kFree = ~0ull;

struct Observed {
  ObservableInfo what[kMaxObservables];
  std::uint32_t count, threads;
};

// One thread per instance; lanes with one outcome count together.
__global__ void collect(const __grid_constant__ Launch launch, const __grid_constant__ Observed o,
                        std::uint32_t instances, Histogram* histogram) {
  const std::uint32_t i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= instances) return;
  bool finished = true;
  for (std::uint32_t t = 0; t < o.threads; ++t) finished &= launch.result[t][i] != kUnfinished;
  std::uint64_t outcome = 0;
  for (std::uint32_t k = 0; k < o.count; ++k) {
    const ObservableInfo& w = o.what[k];
    std::uint64_t value = w.is_register ? launch.result[w.thread][i] >> (4 * w.reg) & 15
                                        : launch.at(w.name, i)[w.word];
    outcome |= (value > 14 ? 15 : value) << (4 * k);
  }
  if (!finished) {
    atomicAdd(&histogram->unfinished, 1ull);
    return;
  }
  const unsigned same = __match_any_sync(__activemask(), static_cast<unsigned long long>(outcome));
  if ((threadIdx.x & 31) != static_cast<unsigned>(__ffs(static_cast<int>(same)) - 1)) return;
  const auto number = static_cast<unsigned long long>(__popc(same));
  std::uint32_t slot = scramble(static_cast<std::uint32_t>(outcome ^ outcome >> 32));
  for (std::uint32_t probes = 0; probes < kHistogramSize; ++probes, ++slot) {
    slot %= kHistogramSize;
    const unsigned long long before =
        atomicCAS(reinterpret_cast<unsigned long long*>(&histogram->key[slot]), kFree, outcome);
    if (before != kFree && before != outcome) continue;
    atomicAdd(&histogram->count[slot], number);
    return;
  }
  atomicAdd(&histogram->overflow, number);
}

// ---- memory
// --------------------------------------------------------------------------------------

void must(CUresult result, const char* what) {
  if (result == CUDA_SUCCESS) return;
  std::fprintf(stderr, "%s failed: CUresult %d\n", what, static_cast<int>(result));
  std::exit(3);
}

template <class F>
F driver_function(const char* name) {
  void* entry = nullptr;
  cudaDriverEntryPointQueryResult found;
  ASSAY_CUDA(cudaGetDriverEntryPointByVersion(name, &entry, 12000, cudaEnableDefault, &found));
  if (entry == nullptr) {
    std::fprintf(stderr, "the driver has no %s\n", name);
    std::exit(3);
  }
  return reinterpret_cast<F>(entry);
}

// Memory of one GPU at two virtual addresses, both usable by all GPUs.
struct Region {
  std::uint32_t* first = nullptr;
  std::uint32_t* second = nullptr;
};

Region make_region(int gpu, int gpus) {
  const auto granularity_of =
      driver_function<decltype(&cuMemGetAllocationGranularity)>("cuMemGetAllocationGranularity");
  const auto create = driver_function<decltype(&cuMemCreate)>("cuMemCreate");
  const auto reserve = driver_function<decltype(&cuMemAddressReserve)>("cuMemAddressReserve");
  const auto map = driver_function<decltype(&cuMemMap)>("cuMemMap");
  const auto set_access = driver_function<decltype(&cuMemSetAccess)>("cuMemSetAccess");
  CUmemAllocationProp properties{};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location = {CU_MEM_LOCATION_TYPE_DEVICE, gpu};
  std::size_t granularity = 0;
  must(granularity_of(&granularity, &properties, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED),
       "cuMemGetAllocationGranularity");
  const std::size_t bytes = (kRegionBytes + granularity - 1) / granularity * granularity;
  CUmemGenericAllocationHandle handle{};
  must(create(&handle, bytes, &properties, 0), "cuMemCreate");
  std::vector<CUmemAccessDesc> access;
  for (int g = 0; g < gpus; ++g)
    access.push_back({{CU_MEM_LOCATION_TYPE_DEVICE, g}, CU_MEM_ACCESS_FLAGS_PROT_READWRITE});
  Region region;
  for (std::uint32_t** address : {&region.first, &region.second}) {
    CUdeviceptr base = 0;
    must(reserve(&base, bytes, 0, 0, 0), "cuMemAddressReserve");
    must(map(base, bytes, 0, handle, 0), "cuMemMap");
    must(set_access(base, bytes, access.data(), access.size()), "cuMemSetAccess");
    *address = reinterpret_cast<std::uint32_t*>(base);
  }
  return region;
}

// ---- running
// -------------------------------------------------------------------------------------

struct Gpu {
  Region region;
  std::uint32_t *arrivals = nullptr, *noise = nullptr;
  cudaStream_t stream = nullptr;  // of the rank that runs here
  cudaEvent_t ready = nullptr, done = nullptr;
};

class Runner {
 public:
  explicit Runner(int gpus) {
    for (int g = 0; g < gpus; ++g) {
      ASSAY_CUDA(cudaSetDevice(g));
      ASSAY_CUDA(cudaFree(nullptr));
      for (int peer = 0; peer < gpus; ++peer)
        if (peer != g) ASSAY_CUDA(cudaDeviceEnablePeerAccess(peer, 0));
    }
    for (int rank = 0; rank < 2; ++rank) {
      // With one GPU the second rank has streams of its own on it.
      Gpu& gpu = gpu_[rank];
      const int device = rank < gpus ? rank : 0;
      ASSAY_CUDA(cudaSetDevice(device));
      ASSAY_CUDA(cudaStreamCreateWithFlags(&gpu.stream, cudaStreamNonBlocking));
      ASSAY_CUDA(cudaEventCreateWithFlags(&gpu.ready, cudaEventDisableTiming));
      ASSAY_CUDA(cudaEventCreateWithFlags(&gpu.done, cudaEventDisableTiming));
      if (rank < gpus) gpu.region = make_region(device, gpus);
      ASSAY_CUDA(cudaMalloc(&gpu.arrivals, 256));
      ASSAY_CUDA(cudaMalloc(&gpu.noise, kNoiseWords * 4));
    }
    ASSAY_CUDA(cudaSetDevice(0));
    ASSAY_CUDA(cudaMalloc(&histogram_, sizeof(Histogram)));
    ASSAY_CUDA(cudaMalloc(&results_, std::size_t{kMaxThreads} * kInstances * 4));
    ASSAY_CUDA(cudaMalloc(&trouble_, 4));
    ASSAY_CUDA(cudaMemset(trouble_, 0, 4));
  }

  Seen run(const CaseInfo& test, const Configuration& configuration, int launches) {
    ASSAY_CUDA(cudaSetDevice(0));
    ASSAY_CUDA(cudaMemsetAsync(histogram_, 0xFF, sizeof(histogram_->key), gpu_[0].stream));
    ASSAY_CUDA(cudaMemsetAsync(histogram_->count, 0, sizeof(Histogram) - sizeof(histogram_->key),
                               gpu_[0].stream));
    std::uint64_t instances = 0;
    for (int i = 0; i < launches; ++i) instances += launch(test, configuration, i);
    Histogram host;
    ASSAY_CUDA(
        cudaMemcpyAsync(&host, histogram_, sizeof host, cudaMemcpyDeviceToHost, gpu_[0].stream));
    ASSAY_CUDA(cudaStreamSynchronize(gpu_[0].stream));
    ASSAY_CUDA(cudaGetLastError());
    Seen seen;
    seen.instances = instances;
    seen.unfinished = host.unfinished + host.overflow;
    for (std::uint32_t s = 0; s < kHistogramSize; ++s)
      if (host.key[s] != kFree) seen.outcomes[host.key[s]] = host.count[s];
    return seen;
  }

  std::uint32_t rounds_that_failed() const {
    std::uint32_t count = 0;
    ASSAY_CUDA(cudaMemcpy(&count, trouble_, 4, cudaMemcpyDeviceToHost));
    return count;
  }

 private:
  // Starts one launch of all kernels of the test and its collection; returns the instances.
  std::uint64_t launch(const CaseInfo& test, const Configuration& configuration, int number) {
    const bool several = std::any_of(test.kernels.begin(), test.kernels.end(),
                                     [](const KernelInfo& k) { return k.kernel > 0; });
    Launch launch{};
    launch.rounds = several ? 1 : kRounds;
    launch.seed = scramble_host(static_cast<std::uint32_t>(number) * 2654435761u + 12345u);
    // Nothing, a few hundred cycles, or about one trip to the peer and back.
    constexpr std::uint32_t kDelays[] = {0, 255, 2047, 4095};
    launch.delay_mask = kDelays[number / 4 % 4];
    // 32 vectors of 6144 threads of noise are 3 MiB: about 7 us of the way to the peer.
    constexpr std::uint32_t kFloods[] = {0, 8, 0, 32};
    constexpr std::uint32_t kNoiseFloods[] = {0, 0, 32, 32};
    launch.flood = kFloods[number / 16 % 4];
    launch.noise_flood = kNoiseFloods[number / 16 % 4];
    place(test, configuration, number, launch);
    launch.num_gpus = static_cast<std::uint32_t>(configuration.gpus);
    for (int g = 0; g < 2; ++g) {
      launch.arrivals[g] = gpu_[g].arrivals;
      launch.noise[g] = gpu_[g].noise;
    }
    launch.noise_words = kNoiseWords;
    launch.trouble = trouble_;
    std::uint32_t blocks = 0;
    for (const KernelInfo& k : test.kernels) blocks += k.ctas * kBlocksPerCta + kNoiseBlocks;
    launch.meeting_blocks = several ? 0 : blocks;
    clear(launch, test);
    for (const KernelInfo& k : test.kernels) start(k, configuration, several, launch);
    const std::uint32_t instances = launch.rounds * kInstancesPerRound;
    gather(test, launch, instances);
    return instances;
  }

  static std::uint32_t scramble_host(std::uint32_t x) {
    x = (x ^ (x >> 16)) * 0x85EBCA6Bu;
    return x ^ (x >> 13);
  }

  // Layouts: a line, a sector or no more than the words themselves per instance; and all locations
  // of one instance in one line, as far as they lie on one GPU.
  void place(const CaseInfo& test, const Configuration& configuration, int number,
             Launch& launch) const {
    const bool has_vector = std::any_of(test.locations.begin(), test.locations.end(),
                                        [](const LocationInfo& l) { return l.words == 4; });
    const int layout = number % 4;
    launch.stride_words = layout == 1 ? 8 : layout == 2 ? (has_vector ? 4 : 1) : 32;
    for (std::uint32_t n = 0; n < test.names.size(); ++n) {
      const std::uint32_t l = test.names[n].location;
      const Region& region = gpu_[configuration.placement >> l & 1].region;
      const std::size_t offset = layout == 3 ? l * 4 : l * kLocationWords;
      launch.name[n] = (test.names[n].is_alias ? region.second : region.first) + offset;
    }
    for (std::uint32_t t = 0; t < test.num_threads; ++t)
      launch.result[t] = results_ + std::size_t{t} * kInstances;
  }

  void clear(const Launch& launch, const CaseInfo& test) {
    const std::size_t words = std::size_t{launch.rounds} * kInstancesPerRound * launch.stride_words;
    const cudaStream_t stream = gpu_[0].stream;
    for (std::uint32_t n = 0; n < test.names.size(); ++n)
      if (!test.names[n].is_alias) {
        // The last instance ends inside its stride in every layout.
        const auto begin = reinterpret_cast<std::uintptr_t>(launch.name[n]) / 128 * 128;
        ASSAY_CUDA(cudaMemsetAsync(reinterpret_cast<void*>(begin), 0, words * 4, stream));
      }
    ASSAY_CUDA(cudaMemsetAsync(results_, 0xFF, std::size_t{kMaxThreads} * kInstances * 4, stream));
    for (const Gpu& gpu : gpu_) ASSAY_CUDA(cudaMemsetAsync(gpu.arrivals, 0, 256, stream));
    ASSAY_CUDA(cudaEventRecord(gpu_[0].ready, stream));
    ASSAY_CUDA(cudaStreamWaitEvent(gpu_[1].stream, gpu_[0].ready, 0));
  }

  void start(const KernelInfo& kernel, const Configuration& configuration, bool several,
             Launch launch) {
    const int device = configuration.gpus == 2 ? static_cast<int>(kernel.rank) : 0;
    ASSAY_CUDA(cudaSetDevice(device));
    launch.gpu = static_cast<std::uint32_t>(device);
    launch.seed += 77 * kernel.rank + 7 * kernel.kernel;
    cudaLaunchAttribute attribute{};
    attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attribute.val.programmaticStreamSerializationAllowed = 1;
    cudaLaunchConfig_t config{};
    config.gridDim = dim3(kernel.ctas * kBlocksPerCta + (several ? 0 : kNoiseBlocks));
    config.blockDim = dim3(kSlots * kernel.threads);
    config.stream = gpu_[kernel.rank].stream;
    config.attrs = &attribute;
    config.numAttrs = configuration.programmatic && kernel.kernel > 0 ? 1 : 0;
    void* arguments[] = {&launch};
    ASSAY_CUDA(cudaLaunchKernelExC(&config, kernel.function, arguments));
  }

  void gather(const CaseInfo& test, const Launch& launch, std::uint32_t instances) {
    ASSAY_CUDA(cudaEventRecord(gpu_[1].done, gpu_[1].stream));
    ASSAY_CUDA(cudaSetDevice(0));
    ASSAY_CUDA(cudaStreamWaitEvent(gpu_[0].stream, gpu_[1].done, 0));
    Observed observed{};
    observed.count = static_cast<std::uint32_t>(test.observables.size());
    observed.threads = test.num_threads;
    std::copy(test.observables.begin(), test.observables.end(), observed.what);
    collect<<<(instances + 255) / 256, 256, 0, gpu_[0].stream>>>(launch, observed, instances,
                                                                 histogram_);
    ASSAY_CUDA(cudaGetLastError());
  }

  Gpu gpu_[2];
  std::uint32_t* results_ = nullptr;  // on GPU 0: by thread, then by instance
  Histogram* histogram_ = nullptr;
  std::uint32_t* trouble_ = nullptr;
};

int probe(const Options& options) {
  int present = 0;
  ASSAY_CUDA(cudaGetDeviceCount(&present));
  if (options.gpus < 1 || options.gpus > 2 || options.gpus > present) {
    std::fprintf(stderr, "--gpus is %d; allowed are 1 and 2, and %d are here\n", options.gpus,
                 present);
    return 2;
  }
  Runner runner(options.gpus);
  Report report;
  for (const CaseInfo& test : all_cases()) {
    if (test.name.find(options.only) == std::string::npos) continue;
    const bool several = std::any_of(test.kernels.begin(), test.kernels.end(),
                                     [](const KernelInfo& k) { return k.kernel > 0; });
    for (int gpus = 1; gpus <= options.gpus; ++gpus)
      for (int programmatic = 0; programmatic <= (several ? 1 : 0); ++programmatic) {
        const std::uint32_t placements = gpus == 1 ? 1 : 1u << test.locations.size();
        for (std::uint32_t placement = 0; placement < placements; ++placement) {
          const Configuration configuration{gpus, programmatic != 0, placement};
          report.add(test, configuration, runner.run(test, configuration, options.launches));
        }
        report.end_run();
      }
  }
  report.rounds_that_failed(runner.rounds_that_failed());
  for (int g = 0; g < options.gpus; ++g) {
    cudaDeviceProp properties;
    ASSAY_CUDA(cudaGetDeviceProperties(&properties, g));
    report.gpu(properties.name);
  }
  int runtime = 0;
  ASSAY_CUDA(cudaRuntimeGetVersion(&runtime));
  return report.finish(options.json, options.command, runtime);
}

int parse_and_probe(int argc, char** argv) {
  Options options;
  options.command = "litmus_probe";
  for (int i = 1; i < argc; i += 2) {
    const std::string flag = argv[i];
    const char* value = i + 1 < argc ? argv[i + 1] : nullptr;
    if (value != nullptr && flag == "--gpus") {
      options.gpus = std::atoi(value);
    } else if (value != nullptr && flag == "--launches" && std::atoi(value) > 0) {
      options.launches = std::atoi(value);
    } else if (value != nullptr && flag == "--only") {
      options.only = value;
    } else if (value != nullptr && flag == "--json") {
      options.json = value;
      continue;  // where the result goes is no part of how to get it
    } else {
      std::fprintf(stderr,
                   "usage: litmus_probe [--gpus N] [--launches N] [--only TEXT] "
                   "[--json FILE]\n");
      return 2;
    }
    options.command += " " + flag + " " + value;
  }
  return probe(options);
}

}  // namespace

int main_of_probe(int argc, char** argv) { return parse_and_probe(argc, argv); }

}  // namespace assay::litmus_probe

int main(int argc, char** argv) { return assay::litmus_probe::main_of_probe(argc, argv); }
