// How fast exact emulation is: one head, bf16, on one thread. Not a test: it prints figures and
// exits 1 only if the dense figure misses its aim for the instruction set it ran on (4096 x 4096,
// d 128: 1.5 s with 512-bit vectors, 3 s with 256).
//
//   emulation_bench [q_len [kv_len [head_dim]]]      default 4096 4096 128
//
// The skipping runs use keys that alternate between two offsets along one direction, so that every
// second tile is far below the running maximum.
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <random>
#include <string>
#include <vector>

#include "model/attention/attention.hpp"
#include "model/numerics/convert.hpp"

namespace {

using namespace assay;
using namespace assay::attention;

std::uint16_t bf16(float x) { return numerics::cvt_rn_bf16_f32(numerics::from_float(x)).bits; }

double cpu_seconds() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

struct Head {
  std::vector<std::uint16_t> q, k, v;
  Problem problem;
};

Head make_head(int q_len, int kv_len, int dim, bool alternate) {
  std::mt19937 random(1);
  std::normal_distribution<float> normal;
  Head head;
  const auto fill = [&](std::vector<std::uint16_t>& rows, int count, bool keys) {
    for (int i = 0; i < count; ++i) {
      const float offset = keys && alternate && i / 128 % 2 == 1 ? -24.0f : 0.0f;
      for (int d = 0; d < dim; ++d) {
        float x = normal(random);
        if (alternate && d == 0) x = keys ? offset : 12.0f;
        rows.push_back(bf16(x));
      }
    }
  };
  fill(head.q, q_len, false);
  fill(head.k, kv_len, true);
  fill(head.v, kv_len, false);
  Request r;
  r.q = contiguous_rows(head.q.data(), 0, q_len, 1, dim, 2);
  r.k = contiguous_rows(head.k.data(), 0, kv_len, 1, dim, 2);
  r.v = contiguous_rows(head.v.data(), 0, kv_len, 1, dim, 2);
  r.q_len = q_len;
  r.kv_len = kv_len;
  r.threshold = {Threshold::Kind::kLambda, 1e-3f};
  head.problem.head_dim = head.problem.v_dim = dim;
  head.problem.scale = 0.08838834764831845f;
  head.problem.requests.push_back(r);
  return head;
}

double measure(const Profile& profile, const Problem& problem, const char* what) {
  double best = 1e9;
  Counters counters;
  for (int i = 0; i < 3; ++i) {
    const double start = cpu_seconds();
    const Expected<Emulation> result = emulate(profile, problem);
    if (!result) {
      std::printf("%s: %s\n", what, result.error().sentence.c_str());
      return 0;
    }
    best = std::min(best, cpu_seconds() - start);
    counters = result->counters;
  }
  std::printf("%-22s %-10s %6.3f s, %lld of %lld tiles skipped\n",
              std::string(profile.name).c_str(), what, best,
              static_cast<long long>(counters.skipped), static_cast<long long>(counters.visited));
  return best;
}

}  // namespace

int main(int argc, char** argv) {
  const int q_len = argc > 1 ? std::atoi(argv[1]) : 4096;
  const int kv_len = argc > 2 ? std::atoi(argv[2]) : q_len;
  const int dim = argc > 3 ? std::atoi(argv[3]) : 128;
  const std::string target(numerics::mma_simd_target());
  std::printf("%d x %d, d %d, bf16, one thread, %s\n", q_len, kv_len, dim, target.c_str());
  bool missed = false;
  for (const char* name : {"assay-prefill-sm90", "trtllm-fmha_v2-sm90"}) {
    const Expected<const Profile*> profile = find_profile(name);
    const Head dense = make_head(q_len, kv_len, dim, false);
    const double seconds = measure(**profile, dense.problem, "dense");
    const Head sparse = make_head(q_len, kv_len, dim, true);
    measure(**profile, sparse.problem, "half");
    const double aim = target.substr(0, 4) == "AVX3" ? 1.5 : target == "AVX2" ? 3.0 : 1e9;
    if (q_len == 4096 && kv_len == 4096 && dim == 128) missed |= seconds > aim;
  }
  return missed ? 1 : 0;
}
