// Whether the stand-in's values tell the arithmetics apart: each pair that can differ must, and
// each pair that cannot must not.
#include <algorithm>

#include "model/moe/combine_testing.hpp"
#include "model/moe/experts.hpp"

namespace assay::moe {
namespace {

// Tokens whose picks land on random ranks, with the stand-in's rows. `holes` = false places every
// pick on a rank of its own.
class Rounds {
 public:
  Rounds(std::int32_t k, Dtype dtype, bool holes) : k_(k), dtype_(dtype) {
    std::mt19937 random(static_cast<std::uint32_t>(k));
    const StandIn config{
        .key = 1, .dtype = dtype, .hidden_size = static_cast<std::int32_t>(kHidden)};
    for (std::size_t token = 0; token < kTokens; ++token) {
      Bytes payload(64);
      for (auto& byte : payload) byte = static_cast<std::byte>(random());
      const std::span<const std::byte> payloads[] = {payload};
      std::vector<std::uint32_t> seen;
      for (std::int32_t i = 0; i < k; ++i) {
        const std::uint32_t rank = holes ? random() % 8 : static_cast<std::uint32_t>(i);
        data_.emplace_back();
        if (std::find(seen.begin(), seen.end(), rank) != seen.end()) continue;
        seen.push_back(rank);
        data_.back().resize(kHidden * size_of(dtype));
        const LocalPick pick{PhysicalExpertId{static_cast<std::int32_t>(rank)}, 0x3F800000};
        stand_in_row(config, payloads, std::span(&pick, 1), data_.back().data());
      }
    }
  }

  std::vector<const Bytes*> rows(std::size_t token) const {
    std::vector<const Bytes*> list;
    for (std::size_t i = 0; i < static_cast<std::size_t>(k_); ++i) {
      const Bytes& row = data_[token * static_cast<std::size_t>(k_) + i];
      list.push_back(row.empty() ? nullptr : &row);
    }
    return list;
  }

  // Elements of 64 tokens of 256 whose bits differ, if asked not only in the sign of zero.
  std::int64_t differences(const Arithmetic& a, const Arithmetic& b,
                           bool beyond_zero = false) const {
    const std::uint32_t magnitude = ~(dtype_ == Dtype::kF32 ? 0x80000000u : 0x8000u);
    const std::uint32_t mask = beyond_zero ? magnitude : ~0u;
    const auto one = Combine::make(a, {.top_k = k_, .dtype = dtype_}).value();
    const auto two = Combine::make(b, {.top_k = k_, .dtype = dtype_}).value();
    std::int64_t count = 0;
    for (std::size_t token = 0; token < kTokens; ++token) {
      Bytes x(kHidden * size_of(dtype_)), y(x.size());
      one.row(pointers(rows(token)), static_cast<std::int64_t>(kHidden), x.data());
      two.row(pointers(rows(token)), static_cast<std::int64_t>(kHidden), y.data());
      for (std::size_t i = 0; i < kHidden; ++i)
        count += (bits_at(x, dtype_, i) & mask) != (bits_at(y, dtype_, i) & mask) ? 1 : 0;
    }
    return count;
  }
  // The same against a left fold over the positions.
  std::int64_t differences_from_left_fold(const Arithmetic& a) const {
    const auto combine = Combine::make(a, {.top_k = k_, .dtype = dtype_}).value();
    std::int64_t count = 0;
    for (std::size_t token = 0; token < kTokens; ++token) {
      const auto list = rows(token);
      for (std::size_t i = 0; i < kHidden; ++i) {
        F32 sum{0};
        for (std::size_t k = 0; k < list.size(); ++k) {
          const F32 term =
              list[k] != nullptr ? widened(dtype_, bits_at(*list[k], dtype_, i)) : F32{0};
          sum = k == 0 ? term : naive_add(a, dtype_, sum, term);
        }
        count += stored(dtype_, sum) != naive_out(combine, list, i) ? 1 : 0;
      }
    }
    return count;
  }

 private:
  static constexpr std::size_t kTokens = 64, kHidden = 256;
  std::int32_t k_;
  Dtype dtype_;
  std::vector<Bytes> data_;
};

TEST_CASE("the stand-in's values tell any two arithmetics apart that can differ",
          "[MOE-3.1][MOE-4.2]") {
  for (const std::int32_t k : allowed_top_k())
    for (const Dtype dtype : {Dtype::kBf16, Dtype::kF16, Dtype::kF32}) {
      const Rounds full(k, dtype, false), holes(k, dtype, true);
      INFO("top_k " << k << " " << dtype_name(dtype));
      const bool sequential = k == 12 || k == 14 || k == 18;
      // One rounding or several. Two terms: one addition, and rounding twice is innocuous.
      CHECK((full.differences(r1(), r2()) > 0) == (k >= 4 && dtype != Dtype::kF32));
      // Flushing. f16's subnormals are normal in f32.
      CHECK((full.differences(r2(), r2_ftz()) > 0) == (k >= 2 && dtype != Dtype::kF16));
      CHECK((full.differences(r1(), r1_ftz()) > 0) == (k >= 2 && dtype == Dtype::kF32));
      // Compacting. Without holes it changes the folds, and a sum of -0 alone where the picks do
      // not fill the leaves; with holes it pairs other terms.
      CHECK((full.differences(r2(), r3()) > 0) == (k != 2 && k != 8 && k != 16));
      CHECK((full.differences(r2(), r3(), true) > 0) == sequential);
      CHECK((holes.differences(r2(), r3()) > 0) == (k != 2));
      CHECK((holes.differences(r2(), r3(), true) > 0) == (k >= 4));
      CHECK((holes.differences(r1(), r3(), true) > 0) == (k >= 4));
      CHECK((holes.differences(r2_ftz(), r3()) > 0) == (k != 2 || dtype != Dtype::kF16));
      // A fold instead of a tree, or the other way round.
      for (const Arithmetic& a : {r1(), r2(), r2_ftz()})
        CHECK((full.differences_from_left_fold(a) > 0) == (k >= 4 && !sequential));
      CHECK((full.differences_from_left_fold(r3()) > 0) == (k >= 4 || k == 1));
    }
}

}  // namespace
}  // namespace assay::moe
