// How fast the spec route is, against memcpy of the same rows: dispatch builds one destination rank
// at a time in a reused arena, combine sums one source rank at a time. Not a test: it prints
// figures and exits 1 only if a figure misses its aim (half of memcpy; memory 1.25 times buffers +
// inputs).
//
//   spec_bench [ep [tokens [top_k [hidden]]]]      default 64 128 8 7168, BF16
//
// Each pair (memcpy, ours) is measured interleaved, A B A B, 9 times after one unmeasured pass that
// touches all pages; the figure is the ratio of medians. Time is the thread's CPU time, which
// counts waiting for memory and does not count other programs. Live bytes are rows that hold a
// token.
#include <sys/mman.h>
#include <sys/resource.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <random>
#include <vector>

#include "model/moe/moe.hpp"

namespace {

using namespace assay;
using namespace assay::moe;

constexpr int kRepeats = 9;

// Pages of 2 MiB where the system grants them; never returned, so that every use after the first
// finds them touched.
std::span<std::byte> arena(std::int64_t bytes) {
  constexpr std::int64_t kHuge = 2 << 20;
  const auto size = static_cast<std::size_t>((bytes + kHuge - 1) / kHuge * kHuge);
  void* const memory = std::aligned_alloc(kHuge, size);
  CONTRACT(memory != nullptr, size);
  madvise(memory, size, MADV_HUGEPAGE);
  return {static_cast<std::byte*>(memory), static_cast<std::size_t>(bytes)};
}

double cpu_seconds() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

template <class F>
double seconds(F&& work) {
  const double start = cpu_seconds();
  work();
  return cpu_seconds() - start;
}

struct Pair {
  double base = 0, ours = 0;  // seconds, medians
};
template <class A, class B>
Pair interleaved(A&& base, B&& ours) {
  base();
  ours();
  std::vector<double> a, b;
  for (int i = 0; i < kRepeats; ++i) {
    a.push_back(seconds(base));
    b.push_back(seconds(ours));
  }
  std::sort(a.begin(), a.end());
  std::sort(b.begin(), b.end());
  return {a[kRepeats / 2], b[kRepeats / 2]};
}

bool report(const char* what, double bytes, const Pair& pair, double aim) {
  const double ratio = pair.base / pair.ours;
  std::printf("%-34s %6.2f GB/s   memcpy of the same rows %6.2f GB/s   ratio %.2f%s\n", what,
              bytes / pair.ours * 1e-9, bytes / pair.base * 1e-9, ratio,
              aim == 0       ? ""
              : ratio >= aim ? "   (aim 0.50: met)"
                             : "   (aim 0.50: MISSED)");
  return ratio >= aim;
}

// Random picks of distinct experts, as a router makes them.
Routing random_routing(std::int32_t ep, std::int32_t tokens, std::int32_t top_k,
                       std::int32_t experts) {
  std::mt19937 random(1);
  std::vector<std::vector<std::int32_t>> ids(static_cast<std::size_t>(ep));
  for (auto& mine : ids)
    for (std::int32_t token = 0; token < tokens; ++token) {
      const std::size_t first = mine.size();
      while (mine.size() < first + static_cast<std::size_t>(top_k)) {
        const auto id = static_cast<std::int32_t>(random() % static_cast<std::uint32_t>(experts));
        if (std::find(mine.begin() + static_cast<std::ptrdiff_t>(first), mine.end(), id) ==
            mine.end())
          mine.push_back(id);
      }
    }
  return Routing::make(top_k, tokens, ids).value();
}

// The stand-in twice: long rows in and 4 elements out is the hash, the reverse the generator.
bool bench_stand_in(std::span<const std::byte> in, std::int64_t row_bytes, std::int32_t hidden,
                    std::byte* out) {
  const auto run = [&](std::int64_t read, std::int32_t elements) {
    const StandIn config{.key = 1, .dtype = Dtype::kBf16, .hidden_size = elements};
    const LocalPick pick{PhysicalExpertId{1}, 1};
    std::vector<double> times;
    for (int i = 0; i <= kRepeats; ++i)
      times.push_back(seconds([&] {
        for (std::size_t row = 0; row < 500; ++row) {
          const auto bytes =
              in.subspan(row * static_cast<std::size_t>(row_bytes), static_cast<std::size_t>(read));
          stand_in_row(config, std::span(&bytes, 1), std::span(&pick, 1), out);
        }
      }));
    std::sort(times.begin(), times.end());
    return times[kRepeats / 2];
  };
  const double hashed = 500e-9 * static_cast<double>(row_bytes) / run(row_bytes, 4);
  const double made = 500e-9 * hidden * 2 / run(8, hidden);
  std::printf("%-34s %6.2f GB/s hashed   (aim 2: %s), %.2f GB/s made (aim 1: %s)\n",
              "stand-in experts", hashed, hashed >= 2 ? "met" : "MISSED", made,
              made >= 1 ? "met" : "MISSED");
  return hashed >= 2 && made >= 1;
}

}  // namespace

int main(int argc, char** argv) {
  const auto argument = [&](int i, std::int32_t standard) {
    return argc > i ? std::atoi(argv[i]) : standard;
  };
  const std::int32_t ep = argument(1, 64), tokens = argument(2, 128), top_k = argument(3, 8);
  const std::int32_t hidden = argument(4, 7168), experts = ep * 4;
  const auto placement = Placement::contiguous(ep, experts).value();
  const Routing routing = random_routing(ep, tokens, top_k, experts);
  const auto plan = plan_dispatch(placement, routing, SlotRule::kCanonical).value();
  const auto payloads = recipe_payloads(Recipe::kBf16, hidden, top_k).value();
  std::printf("ep %d, %d tokens a rank, top-%d, hidden %d, BF16; %lld rows in all\n", ep, tokens,
              top_k, hidden, static_cast<long long>(plan.total_rows()));

  // Inputs: every source's rows of every payload. Buffers: those of one destination rank.
  std::int64_t input_bytes = 0, buffer_bytes = 0, row_bytes = 0;
  std::vector<std::vector<const std::byte*>> sources(payloads.size());
  std::vector<std::span<std::byte>> recv;
  for (std::size_t p = 0; p < payloads.size(); ++p) {
    const std::int64_t bytes = std::int64_t{tokens} * payloads[p].bytes_per_token;
    const auto all = arena(bytes * ep);
    std::memset(all.data(), 1, all.size());
    for (std::int32_t src = 0; src < ep; ++src) sources[p].push_back(all.data() + src * bytes);
    recv.push_back(arena(recv_bytes(plan, payloads[p])));
    input_bytes += bytes * ep;
    buffer_bytes += recv_bytes(plan, payloads[p]);
    row_bytes += payloads[p].bytes_per_token;
  }

  bool good = true;
  const auto copy_rank = [&](RankId dst) {
    for (std::size_t p = 0; p < payloads.size(); ++p) {
      const auto bytes = payloads[p].bytes_per_token;
      std::byte* to = recv[p].data();
      for (RankId src{0}; src.value() < ep; src = src.next())
        for (const auto& row : plan.rows(dst, src)) {
          std::memcpy(to,
                      sources[p][static_cast<std::size_t>(src.value())] + row.token.value() * bytes,
                      static_cast<std::size_t>(bytes));
          to += bytes;
        }
    }
  };
  const auto all_ranks = [&](auto&& work) {
    for (RankId dst{0}; dst.value() < ep; dst = dst.next()) work(dst);
  };
  const Pair dispatch =
      interleaved([&] { all_ranks(copy_rank); },
                  [&] {
                    all_ranks([&](RankId dst) {
                      for (std::size_t p = 0; p < payloads.size(); ++p)
                        build_recv(plan, dst, payloads[p], sources[p], -1, recv[p]);
                    });
                  });
  const auto live = static_cast<double>(plan.total_rows() * row_bytes);
  good &= report("dispatch, all payloads", live, dispatch, 0.5);
  const double planning = seconds([&] {
    const auto again = plan_dispatch(placement, routing, SlotRule::kCanonical).value();
    CONTRACT(again.total_rows() == plan.total_rows(), again.total_rows());
  });
  std::printf("%-34s %6.2f ms (%.1f ns per pick)\n", "plan of the round", planning * 1e3,
              planning * 1e9 / (static_cast<double>(ep) * tokens * top_k));

  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  const auto peak = static_cast<double>(usage.ru_maxrss) * 1024;
  const auto allowed = static_cast<double>(input_bytes + buffer_bytes);
  std::printf("%-34s %6.1f MiB = %.2f x (one rank's buffers + inputs)%s\n", "peak memory",
              peak / (1 << 20), peak / allowed,
              peak <= 1.25 * allowed ? "   (aim 1.25: met)" : "   (aim 1.25: MISSED)");
  good &= peak <= 1.25 * allowed;

  const auto expert_out = arena(std::int64_t{ep} * tokens * hidden * 2);
  good &= bench_stand_in(recv[0], payloads[0].bytes_per_token, hidden, expert_out.data());

  // Combine: expert rows of one source spread over all ranks; the same arena serves each rank.
  std::vector<std::vector<std::byte>> blocks(static_cast<std::size_t>(ep));
  std::vector<const std::byte*> outs;
  const std::int64_t block = std::int64_t{tokens} * hidden * 2;
  for (auto& rows : blocks) {
    rows.assign(expert_out.begin(), expert_out.begin() + block);
    outs.push_back(rows.data());
  }
  // rank() addresses [src, slot]; for source 0 the block starts at the pointer itself.
  const auto out = arena(block);
  std::int64_t combined = 0;
  for (const std::int32_t rank : plan.target_rank(RankId{0})) combined += rank >= 0 ? 1 : 0;
  for (const CombineProfile& profile : combine_profiles()) {
    const auto combine = Combine::make(profile.arithmetic, {.top_k = top_k}).value();
    std::byte* const to = recv[0].data();
    const Pair pair = interleaved(
        [&] {
          std::byte* next = to;
          for (std::size_t i = 0; i < plan.target_rank(RankId{0}).size(); ++i) {
            const std::int32_t rank = plan.target_rank(RankId{0})[i];
            if (rank < 0) continue;
            std::memcpy(next,
                        outs[static_cast<std::size_t>(rank)] +
                            std::int64_t{plan.target_slot(RankId{0})[i]} * hidden * 2,
                        static_cast<std::size_t>(hidden) * 2);
            next += hidden * 2;
          }
        },
        [&] { combine.rank(plan, RankId{0}, outs, hidden, out.data()); });
    char what[64];
    std::snprintf(what, sizeof what, "combine %s", std::string(profile.name).c_str());
    const bool ours = &profile == &default_combine_profile();
    good &= report(what, static_cast<double>(combined * hidden * 2), pair, ours ? 0.5 : 0.0);
  }
  return good ? 0 : 1;
}
