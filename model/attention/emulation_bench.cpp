// How fast exact emulation is and how much memory it takes: one head, bf16. Not a test: it prints
// figures and exits 1 only if a dense figure misses its aim for the instruction set it ran on
// (4096 x 4096, d 128, one thread: 1.5 s with 512-bit vectors, 3 s with 256).
//
//   emulation_bench [q_len [kv_len [head_dim]]]      default 4096 4096 128
//
// Times are the process's CPU time, best of three, because other processes disturb the clock on the
// wall. Skipping runs use keys that are high in every second or tenth block of 128 and far below
// the running maximum in the others. Memory is the largest resident set less the tensors.
#include <sys/resource.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include <hwy/targets.h>

#include "model/attention/attention.hpp"
#include "model/numerics/convert.hpp"

namespace {

using namespace assay;
using namespace assay::attention;

std::uint16_t bf16(float x) { return numerics::cvt_rn_bf16_f32(numerics::from_float(x)).bits; }

double seconds(clockid_t clock) {
  timespec now{};
  clock_gettime(clock, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

struct Head {
  std::vector<std::uint16_t> q, k, v;
  Problem problem;
  double megabytes() const { return static_cast<double>(q.size() + k.size() + v.size()) * 2e-6; }
};

// Of every `period` blocks of 128 keys the first is high; 1: all of them. The problem points into
// the head, so a head stays where it is made.
std::unique_ptr<Head> make_head(int q_len, int kv_len, int dim, int period) {
  std::mt19937 random(1);
  std::normal_distribution<float> normal;
  auto head = std::make_unique<Head>();
  const auto fill = [&](std::vector<std::uint16_t>& rows, int count, bool keys) {
    rows.reserve(static_cast<std::size_t>(count) * static_cast<std::size_t>(dim));
    for (int i = 0; i < count; ++i) {
      const float offset = i / 128 % period != 0 ? -24.0f : 0.0f;
      for (int d = 0; d < dim; ++d) {
        float x = normal(random);
        if (period > 1 && d == 0) x = keys ? offset : 12.0f;
        rows.push_back(bf16(x));
      }
    }
  };
  fill(head->q, q_len, false);
  fill(head->k, kv_len, true);
  fill(head->v, kv_len, false);
  Request r;
  r.q = contiguous_rows(head->q.data(), 0, q_len, 1, dim, 2);
  r.k = contiguous_rows(head->k.data(), 0, kv_len, 1, dim, 2);
  r.v = contiguous_rows(head->v.data(), 0, kv_len, 1, dim, 2);
  r.q_len = q_len;
  r.kv_len = kv_len;
  r.threshold = {Threshold::Kind::kLambda, 1e-3f};
  head->problem.head_dim = head->problem.v_dim = dim;
  head->problem.scale = 0.08838834764831845f;
  head->problem.requests.push_back(r);
  return head;
}

// Best of three, CPU seconds; 0 if the profile refuses the problem, which is printed.
double measure(const Profile& profile, const Problem& problem, int threads) {
  double cpu = 1e9, wall = 1e9;
  Counters counters;
  for (int i = 0; i < 3; ++i) {
    const double cpu_start = seconds(CLOCK_PROCESS_CPUTIME_ID);
    const double wall_start = seconds(CLOCK_MONOTONIC);
    const Expected<Emulation> result = emulate(profile, problem, {threads});
    if (!result) {
      std::printf("%s\n", result.error().sentence.c_str());
      return 0;
    }
    cpu = std::min(cpu, seconds(CLOCK_PROCESS_CPUTIME_ID) - cpu_start);
    wall = std::min(wall, seconds(CLOCK_MONOTONIC) - wall_start);
    counters = result->counters;
  }
  std::printf("  %-20s %d thread%s %5.1f %% skipped  CPU %6.3f s  wall %6.3f s\n",
              std::string(profile.name).c_str(), threads, threads == 1 ? " " : "s",
              100.0 * static_cast<double>(counters.skipped) /
                  static_cast<double>(std::max<std::int64_t>(counters.visited, 1)),
              cpu, wall);
  return cpu;
}

// The share of the dense time that a skipped tile saves, from a run with `skipped` of its tiles
// skipped: the rest is the first product and the row maxima, which the vote needs.
void print_saving(double dense, double sparse, double skipped) {
  std::printf("    a skipped tile costs %.0f %% of a kept one\n",
              100 * (1 - (1 - sparse / dense) / skipped));
}

void measure_memory(int dim) {
  const auto resident = [] {
    rusage usage{};
    getrusage(RUSAGE_SELF, &usage);
    return static_cast<double>(usage.ru_maxrss) * 1024e-6;
  };
  std::printf("memory, one head of 512 queries, MB beside the tensors:\n");
  const Expected<const Profile*> profile = find_profile("assay-prefill-sm90");
  for (int kv_len = 4096; kv_len <= 65536; kv_len *= 2) {
    const auto head = make_head(512, kv_len, dim, 2);
    const auto emulator = Emulator::make(**profile, head->problem);
    if (!emulator) return;
    const UnitResult unit = emulator->run(emulator->units().back());
    const double of_unit = resident() - head->megabytes();
    const Expected<Emulation> all = emulate(**profile, head->problem);
    std::printf("  kv %5d: one unit %5.1f, all units %5.1f (tensors %.1f, %zu tiles a unit)\n",
                kv_len, of_unit, resident() - head->megabytes(), head->megabytes(),
                unit.tiles.size());
  }
}

// False if the dense run misses the aim.
bool measure_target(const char* target, int q_len, int kv_len, int dim) {
  std::printf("%s\n", target);
  const std::string name(target);
  const double aim = name.substr(0, 4) == "AVX3" ? 1.5 : name == "AVX2" ? 3.0 : 1e9;
  const bool of_aim = q_len == 4096 && kv_len == 4096 && dim == 128;
  bool met = true;
  const auto dense = make_head(q_len, kv_len, dim, 1);
  const auto half = make_head(q_len, kv_len, dim, 2);
  const auto most = make_head(q_len, kv_len, dim, 10);
  for (const char* profile_name : {"assay-prefill-sm90", "trtllm-fmha_v2-sm90"}) {
    const Expected<const Profile*> profile = find_profile(profile_name);
    const double all_kept = measure(**profile, dense->problem, 1);
    measure(**profile, half->problem, 1);
    const double few_kept = measure(**profile, most->problem, 1);
    const int blocks = (kv_len + 127) / 128;
    print_saving(all_kept, few_kept, 1 - static_cast<double>((blocks + 9) / 10) / blocks);
    if (of_aim) met = met && all_kept <= aim;
  }
  const Expected<const Profile*> ours = find_profile("assay-prefill-sm90");
  measure(**ours, dense->problem, 2);
  measure(**ours, most->problem, 2);
  return met;
}

}  // namespace

int main(int argc, char** argv) {
  const int q_len = argc > 1 ? std::atoi(argv[1]) : 4096;
  const int kv_len = argc > 2 ? std::atoi(argv[2]) : q_len;
  const int dim = argc > 3 ? std::atoi(argv[3]) : 128;
  measure_memory(dim);  // first, since the largest resident set never shrinks
  std::printf("%d x %d, d %d, bf16\n", q_len, kv_len, dim);
  bool met = true;
  for (const std::int64_t target : hwy::SupportedAndGeneratedTargets()) {
    const std::string name = hwy::TargetName(target);
    if (name.substr(0, 3) != "AVX" && name.substr(0, 4) != "NEON") continue;
    hwy::SetSupportedTargetsForTest(target);
    hwy::GetChosenTarget().Update(hwy::SupportedTargets());
    met = measure_target(name.c_str(), q_len, kv_len, dim) && met;
  }
  hwy::SetSupportedTargetsForTest(0);
  if (!met) std::printf("missed: a dense run is slower than its aim\n");
  return met ? 0 : 1;
}
