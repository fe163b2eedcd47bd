// Patterns, parts and collectives on the GPUs.
#include "verify/bench/wire.hpp"

#include <fmt/format.h>
#include <nccl.h>

#include <algorithm>
#include <cmath>

#include "cuda/probe/wire.hpp"

namespace assay::verify::bench {

namespace {

// Figures of four H200s of one host (driver 580.159.04, 2026-11, one pair unless it says more):
// a run that is not near them measured something else (SPEC VER-20.4).
struct Known {
  const char* name;
  double value;
};
constexpr Known kKnown[] = {
    {"peer stores, vectors, 132 blocks", 369},
    {"peer stores, vectors, 16 blocks", 327},
    {"peer stores, bulk, 132 blocks", 371},
    {"peer stores, bulk, 16 blocks", 355},
    {"peer copies, copy engine", 396},
    {"peer loads, vectors, 132 blocks", 374},
    {"peer loads, vectors, 16 blocks", 120},
    {"stores to all others, 4 GPUs", 349},
    {kFlagRoundTrip, 2.6},
    {kPeerLoad, 0.87},
    {kPeerStoreFence, 0.93},
    {kEmptyKernel, 0.51},
};

Figure figure(std::string name, double value, const char* unit) {
  Figure made{std::move(name), value, unit, std::nullopt, true};
  for (const Known& known : kKnown)
    if (made.name == known.name) made.known = known.value;
  return made;
}

std::int64_t whole_vectors(std::int64_t bytes) { return (bytes + 15) / 16 * 16; }

}  // namespace

Expected<Wire> Wire::make(const cuda::Communicator& communicator, std::int64_t bytes) {
  std::vector<int> devices;
  for (const cuda::LocalRank& local : communicator.local_ranks()) devices.push_back(local.device);
  const std::int64_t per_half = std::max<std::int64_t>(bytes + (1 << 20), std::int64_t{256} << 20);
  ASSAY_TRY(cuda::SymmetricMemory memory,
            communicator.allocate(2 * static_cast<std::uint64_t>(per_half)));
  ASSAY_TRY(Stopwatch watch, Stopwatch::make(devices));
  Wire wire(communicator, std::move(memory), std::move(watch));
  wire.bytes_ = per_half;
  for (std::size_t rank = 0; rank < devices.size(); ++rank) {
    cuda::DeviceScope scope(devices[rank]);
    ASSAY_CUDA(
        cudaMemset(cuda::pointer(wire.out_of(rank)), 0, 2 * static_cast<std::size_t>(per_half)),
        "clearing buffers");
    ASSAY_CUDA(cudaDeviceSynchronize(), "clearing buffers");
  }
  return Expected<Wire>(std::move(wire));
}

Address Wire::out_of(std::size_t rank) const {
  return memory_.windows()[rank].of(RankId(static_cast<std::int32_t>(rank)));
}

Address Wire::in_of(std::size_t rank, std::size_t seen_from) const {
  return memory_.windows()[seen_from]
      .of(RankId(static_cast<std::int32_t>(rank)))
      .at(static_cast<std::uint64_t>(bytes_));
}

const char* Wire::way_name(Way way, bool pulling) {
  switch (way) {
    case Way::kVector:
      return pulling ? "peer loads, vectors, 132 blocks" : "peer stores, vectors, 132 blocks";
    case Way::kVector16:
      return pulling ? "peer loads, vectors, 16 blocks" : "peer stores, vectors, 16 blocks";
    case Way::kBulk:
      return pulling ? "peer loads, bulk, 132 blocks" : "peer stores, bulk, 132 blocks";
    case Way::kBulk16:
      return pulling ? "peer loads, bulk, 16 blocks" : "peer stores, bulk, 16 blocks";
    case Way::kCopyEngine:
      return "peer copies, copy engine";
  }
  return "?";
}

// Remote bytes only: what stays on a rank needs no link. Each pair's bytes lie behind each other,
// at the sender and at the receiver.
Expected<double> Wire::move(const Traffic& traffic, bool pulling, Way way, int repeats) {
  const std::int32_t ep = traffic.ep_size;
  const auto u = [](std::int64_t x) { return static_cast<std::uint64_t>(x); };
  const int rounds = 5;
  const auto traffic_of = [&](std::int32_t me) {
    probe::Traffic lanes;
    for (std::int32_t step = 1; step < ep; ++step) {
      const std::int32_t peer = (me + step) % ep;
      const std::int64_t bytes =
          whole_vectors(pulling ? traffic.of(peer, me) : traffic.of(me, peer));
      if (bytes == 0) continue;
      std::int64_t at = 0;
      for (std::int32_t before = 0; before < (pulling ? me : peer); ++before)
        at += whole_vectors(pulling ? traffic.of(peer, before) : traffic.of(me, before));
      std::int64_t into = 0;
      for (std::int32_t before = 0; before < (pulling ? peer : me); ++before)
        into += whole_vectors(pulling ? traffic.of(before, me) : traffic.of(before, peer));
      const auto mine = static_cast<std::size_t>(me), other = static_cast<std::size_t>(peer);
      probe::Lane& lane = lanes.lane[lanes.lanes++];
      lane.bytes = u(bytes);
      if (pulling) {
        lane.from = memory_.windows()[mine].of(RankId(peer)).at(u(at)).raw;
        lane.to = in_of(mine, mine).at(u(into)).raw;
      } else {
        lane.from = out_of(mine).at(u(at)).raw;
        lane.to = in_of(other, mine).at(u(into)).raw;
      }
    }
    return lanes;
  };
  ASSAY_TRY(
      const std::vector<double> times,
      watch_.time_each(
          [&](std::size_t seat) -> Status {
            const probe::Traffic lanes = traffic_of(static_cast<std::int32_t>(seat));
            const cudaStream_t stream = watch_.stream(seat);
            for (int i = 0; i < rounds && lanes.lanes != 0; ++i) {
              if (way == Way::kCopyEngine) {
                for (std::uint32_t l = 0; l < lanes.lanes; ++l)
                  ASSAY_CUDA(cudaMemcpyAsync(reinterpret_cast<void*>(lanes.lane[l].to),
                                             reinterpret_cast<void*>(lanes.lane[l].from),
                                             lanes.lane[l].bytes, cudaMemcpyDeviceToDevice, stream),
                             "a copy to a peer");
                continue;
              }
              const bool few = way == Way::kVector16 || way == Way::kBulk16;
              ASSAY_CUDA(
                  probe::move(way == Way::kVector || way == Way::kVector16 ? probe::Mover::kVector
                                                                           : probe::Mover::kBulk,
                              lanes, few ? 16 : 132, stream),
                  "moving bytes");
            }
            return Done{};
          },
          repeats));
  return fastest(times) / rounds;
}

Expected<std::vector<Figure>> Wire::known_ceilings() {
  const auto ep = static_cast<std::int32_t>(watch_.size());
  std::vector<Figure> figures;
  constexpr std::int64_t kBytes = std::int64_t{192} << 20;  // 0.5 ms a round
  Traffic pair{ep, std::vector<std::int64_t>(static_cast<std::size_t>(ep) * watch_.size(), 0)};
  pair.bytes[1] = kBytes;  // rank 0 to rank 1
  Traffic back = pair;
  std::swap(back.bytes[1], back.bytes[static_cast<std::size_t>(ep)]);  // rank 0 pulls from rank 1
  for (const bool pulling : {false, true}) {
    for (const Way way :
         {Way::kVector, Way::kVector16, Way::kBulk, Way::kBulk16, Way::kCopyEngine}) {
      if (pulling && way == Way::kCopyEngine) continue;
      ASSAY_TRY(const double us, move(pulling ? back : pair, pulling, way, 2));
      figures.push_back(
          figure(way_name(way, pulling), static_cast<double>(kBytes) / us * 1e-3, "GB/s"));
      figures.back().decides = way != Way::kVector16 && way != Way::kBulk16;
    }
  }
  if (ep < 3) return figures;
  Traffic all = pair;
  for (std::int32_t source = 0; source < ep; ++source)
    for (std::int32_t target = 0; target < ep; ++target)
      all.bytes[static_cast<std::size_t>(source * ep + target)] =
          source == target ? 0 : kBytes / (ep - 1) / 16 * 16;
  double best = 0;
  for (const Way way : {Way::kVector, Way::kBulk}) {
    ASSAY_TRY(const double us, move(all, false, way, 2));
    best = std::max(best, link_bandwidth(all, us));
  }
  figures.push_back(figure(fmt::format("stores to all others, {} GPUs", ep), best, "GB/s"));
  return figures;
}

Expected<Wire::Ceiling> Wire::ceiling(const Traffic& traffic, bool pulling) {
  Ceiling best;
  for (const Way way : {Way::kVector, Way::kBulk}) {
    ASSAY_TRY(const double us, move(traffic, pulling, way, 2));
    if (best.microseconds == 0 || us < best.microseconds) best = {us, way_name(way, pulling), 0};
  }
  if (!pulling) {
    ASSAY_TRY(best.copy_engine, move(traffic, pulling, Way::kCopyEngine, 2));
  }
  return best;
}

namespace {

struct PartName {
  probe::Part part;
  const char* name;
  bool at_peer;
};
constexpr PartName kParts[] = {
    {probe::Part::kPeerLoad, kPeerLoad, true},
    {probe::Part::kPeerLoad, kLocalLoad, false},
    {probe::Part::kPeerStoreFence, kPeerStoreFence, true},
    {probe::Part::kReleaseFence, kReleaseFence, true},
    {probe::Part::kAcquireFence, "acquire fence", true},
    {probe::Part::kLocalAtomic, kLocalAtomic, false},
};

}  // namespace

Expected<std::vector<Figure>> Wire::parts() {
  std::vector<Figure> figures;
  constexpr std::uint32_t kCount = 1000;
  ASSAY_TRY(const std::vector<double> empty,
            watch_.time_each(
                [&](std::size_t seat) -> Status {
                  for (std::uint32_t i = 0; i < kCount; ++i)
                    ASSAY_CUDA(probe::empty_kernel(watch_.stream(seat)), "an empty kernel");
                  return Done{};
                },
                3));
  figures.push_back(figure(kEmptyKernel, fastest(empty) / kCount, "us"));

  const auto read_ns = [&](std::size_t rank) -> Expected<double> {
    std::uint64_t ns = 0;
    cuda::DeviceScope scope(watch_.device(rank));
    ASSAY_CUDA(cudaMemcpy(&ns, cuda::pointer(out_of(rank)), sizeof ns, cudaMemcpyDeviceToHost),
               "reading a time");
    if (ns == ~std::uint64_t{0}) return bad_input("a flag did not arrive within a second");
    return static_cast<double>(ns) / kCount * 1e-3;
  };
  const auto time_at = [&](std::size_t rank) {
    return reinterpret_cast<std::uint64_t*>(out_of(rank).raw);
  };
  for (const PartName& part : kParts) {
    const std::uint64_t place = in_of(part.at_peer ? 1 : 0, 0).raw;
    cuda::DeviceScope scope(watch_.device(0));
    for (int warm = 0; warm < 2; ++warm)
      ASSAY_CUDA(probe::time_part(part.part, place, kCount, time_at(0), watch_.stream(0)),
                 part.name);
    ASSAY_CHECK(watch_.wait());
    ASSAY_TRY(const double us, read_ns(0));
    figures.push_back(figure(part.name, us, "us"));
  }
  // The cells count from 1; in_of() is zero at first and nobody else uses its second line.
  for (std::size_t rank : {std::size_t{0}, std::size_t{1}}) {
    cuda::DeviceScope scope(watch_.device(rank));
    ASSAY_CUDA(cudaMemset(cuda::pointer(in_of(rank, rank).at(128)), 0, 8), "clearing a flag");
    ASSAY_CUDA(cudaDeviceSynchronize(), "clearing a flag");
  }
  for (std::size_t rank : {std::size_t{0}, std::size_t{1}}) {
    cuda::DeviceScope scope(watch_.device(rank));
    ASSAY_CUDA(probe::ping_pong(rank == 0, in_of(rank, rank).at(128).raw,
                                in_of(1 - rank, rank).at(128).raw, kCount, time_at(rank),
                                watch_.stream(rank)),
               "flags back and forth");
  }
  ASSAY_CHECK(watch_.wait());
  ASSAY_TRY(const double round_trip, read_ns(0));
  figures.push_back(figure(kFlagRoundTrip, round_trip, "us"));
  return figures;
}

namespace {

#define ASSAY_BENCH_NCCL(call, what)                                                   \
  do {                                                                                 \
    const ncclResult_t assay_nccl = (call);                                            \
    if (assay_nccl != ncclSuccess)                                                     \
      return unsupported(fmt::format("{}: {}", what, ncclGetErrorString(assay_nccl))); \
  } while (false)

}  // namespace

Expected<Wire::Collectives> Wire::nccl(std::int64_t batch, std::int64_t row_bytes,
                                       std::int32_t hidden_size, const Traffic& dispatch,
                                       const Traffic& combine) {
  const std::size_t ep = watch_.size();
  if (nccl_.empty()) {
    std::vector<ncclComm_t> comms(ep);
    std::vector<int> devices;
    for (std::size_t i = 0; i < ep; ++i) devices.push_back(watch_.device(i));
    ASSAY_BENCH_NCCL(ncclCommInitAll(comms.data(), static_cast<int>(ep), devices.data()),
                     "ncclCommInitAll");
    nccl_.assign(comms.begin(), comms.end());
  }
  const auto comm = [&](std::size_t i) { return static_cast<ncclComm_t>(nccl_[i]); };
  const int rounds = 10;
  const auto u = [](std::int64_t x) { return static_cast<std::size_t>(x); };
  const std::size_t row = u(row_bytes * batch);
  const std::size_t elements = u(batch * hidden_size);
  if (row * ep > u(bytes_) || 2 * elements * ep > u(bytes_))
    return unsupported("the buffers are too small for an AllGather of this batch");
  Collectives result;
  ASSAY_TRY(
      const std::vector<double> gathered,
      watch_.time_enqueued(
          [&]() -> Status {
            for (int i = 0; i < rounds; ++i) {
              ASSAY_BENCH_NCCL(ncclGroupStart(), "ncclGroupStart");
              for (std::size_t r = 0; r < ep; ++r)
                ASSAY_BENCH_NCCL(ncclAllGather(cuda::pointer(out_of(r)), cuda::pointer(in_of(r, r)),
                                               row, ncclUint8, comm(r), watch_.stream(r)),
                                 "ncclAllGather");
              ASSAY_BENCH_NCCL(ncclGroupEnd(), "ncclGroupEnd");
              ASSAY_BENCH_NCCL(ncclGroupStart(), "ncclGroupStart");
              for (std::size_t r = 0; r < ep; ++r)
                ASSAY_BENCH_NCCL(
                    ncclReduceScatter(cuda::pointer(in_of(r, r)), cuda::pointer(out_of(r)),
                                      elements, ncclBfloat16, ncclSum, comm(r), watch_.stream(r)),
                    "ncclReduceScatter");
              ASSAY_BENCH_NCCL(ncclGroupEnd(), "ncclGroupEnd");
            }
            return Done{};
          },
          2));
  result.all_gather_reduce_scatter = fastest(gathered) / rounds;

  const auto exchange = [&](const Traffic& traffic) -> Status {
    ASSAY_BENCH_NCCL(ncclGroupStart(), "ncclGroupStart");
    for (std::size_t r = 0; r < ep; ++r) {
      std::size_t from = 0, to = 0;
      for (std::size_t p = 0; p < ep; ++p) {
        const std::size_t out = u(traffic.of(static_cast<int>(r), static_cast<int>(p)));
        const std::size_t in = u(traffic.of(static_cast<int>(p), static_cast<int>(r)));
        ASSAY_BENCH_NCCL(ncclSend(cuda::pointer(out_of(r).at(from)), out, ncclUint8,
                                  static_cast<int>(p), comm(r), watch_.stream(r)),
                         "ncclSend");
        ASSAY_BENCH_NCCL(ncclRecv(cuda::pointer(in_of(r, r).at(to)), in, ncclUint8,
                                  static_cast<int>(p), comm(r), watch_.stream(r)),
                         "ncclRecv");
        from += out;
        to += in;
      }
    }
    ASSAY_BENCH_NCCL(ncclGroupEnd(), "ncclGroupEnd");
    return Done{};
  };
  ASSAY_TRY(const std::vector<double> exchanged, watch_.time_enqueued(
                                                     [&]() -> Status {
                                                       for (int i = 0; i < rounds; ++i) {
                                                         ASSAY_CHECK(exchange(dispatch));
                                                         ASSAY_CHECK(exchange(combine));
                                                       }
                                                       return Done{};
                                                     },
                                                     2));
  result.all_to_all = fastest(exchanged) / rounds;
  return result;
}

}  // namespace assay::verify::bench
