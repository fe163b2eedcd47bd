// How long exact emulation takes on a GPU, and that sampled units have the host's bits: one causal
// head of bf16, by default 65536 x 65536, d 128. Prints figures; exits 1 if a bit differs, 77
// without a GPU.
//
//   emulator_timing [length [units]]      units: how many are computed, spread over the head; all:
//   0
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <random>

#include "cuda/emulator/device_problem.hpp"
#include "cuda/emulator/emulator.hpp"
#include "model/numerics/convert.hpp"

namespace assay::cuda {
namespace {

using namespace attention;

std::vector<std::uint16_t> normal_rows(int rows, int dim, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<std::uint16_t> out(static_cast<std::size_t>(rows) * static_cast<std::size_t>(dim));
  for (std::uint16_t& x : out)
    x = numerics::cvt_rn_bf16_f32(numerics::from_float(normal(random))).bits;
  return out;
}

Status measure(int length, int wanted) {
  constexpr int kDim = 128;
  const auto q = normal_rows(length, kDim, 1), k = normal_rows(length, kDim, 2);
  const auto v = normal_rows(length, kDim, 3);
  Request r;
  r.q = contiguous_rows(q.data(), 0, length, 1, kDim, 2);
  r.k = contiguous_rows(k.data(), 0, length, 1, kDim, 2);
  r.v = contiguous_rows(v.data(), 0, length, 1, kDim, 2);
  r.q_len = r.kv_len = length;
  r.threshold = {Threshold::Kind::kLambda, 1e-3f};
  Problem p;
  p.head_dim = p.v_dim = kDim;
  p.mask = MaskKind::kCausal;
  p.scale = 0.08838834764831845f;
  p.requests.push_back(r);
  DeviceProblem device;
  for (const auto* rows : {&q, &k, &v}) ASSAY_CHECK(device.add(rows->data(), rows->size() * 2));
  const Problem moved = device.moved(p);

  ASSAY_TRY(const Profile* profile, find_profile("assay-prefill-sm90"));
  ASSAY_TRY(const auto emulator, DeviceEmulator::make(*profile, moved));
  ASSAY_TRY(const auto host, Emulator::make(*profile, p));
  const std::vector<Unit>& all = host.units();
  std::vector<Unit> units;
  const std::size_t count = wanted <= 0 ? all.size() : static_cast<std::size_t>(wanted);
  for (std::size_t i = 0; i < std::min(count, all.size()); ++i)
    units.push_back(all[all.size() * i / std::min(count, all.size())]);
  double ms = 0;
  DeviceEmulateOptions options;
  options.kernel_ms = &ms;
  ASSAY_TRY(const auto results, emulator.run(units, options));
  std::size_t tiles = 0, all_tiles = 0;
  for (const UnitResult& unit : results) tiles += unit.tiles.size();
  for (const Unit& unit : all) all_tiles += static_cast<std::size_t>(unit.index / 2 + 1);
  std::printf(
      "%d x %d causal, d %d: %zu of %zu units, %zu tiles in %.1f ms; a head by tiles %.1f ms\n",
      length, length, kDim, units.size(), all.size(), tiles, ms,
      ms * static_cast<double>(all_tiles) / static_cast<double>(tiles));
  // The host takes about a second for 2000 tiles, so it recomputes the first and the last unit.
  for (const std::size_t i : {std::size_t{0}, results.size() - 1}) {
    if (host.run(units[i]).out != results[i].out)
      return Error{ErrorKind::kBadInput,
                   "unit " + std::to_string(units[i].index) + " has other bits than the host's"};
  }
  return Done{};
}

}  // namespace
}  // namespace assay::cuda

int main(int argc, char** argv) {
  if (!assay::cuda::has_device()) return 77;
  const int length = argc > 1 ? std::atoi(argv[1]) : 65536;
  const int units = argc > 2 ? std::atoi(argv[2]) : 264;
  const assay::Status done = assay::cuda::measure(length, units);
  if (!done) std::printf("%s\n", done.error().sentence.c_str());
  return done ? 0 : 1;
}
