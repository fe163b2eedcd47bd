// For tests that need a GPU: random attention problems. Decides nothing about Assay.
#pragma once

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <stdexcept>
#include <string>

#include "cuda/launch/attention_gpu_testing.hpp"
#include "model/core/testing.hpp"

namespace assay::cuda::testing {

using attention::MaskKind;

// A case of any kind. Sizes do not grow with RapidCheck's: small problems decide nothing.
inline rc::Gen<GpuCase> cases(bool decode) {
  return rc::gen::resize(
      100, rc::gen::exec([decode] {
        GpuCase c;
        c.decode = decode;
        c.dtype = *rc::gen::element(Dtype::kBf16, Dtype::kBf16, Dtype::kF16, Dtype::kF8E4m3);
        c.kv_heads = *rc::gen::inRange(1, 3);
        c.q_heads = c.kv_heads * (decode ? *rc::gen::element(1, 2, 3, 5, 8, 16, 16, 20, 64)
                                         : *rc::gen::inRange(1, 4));
        c.head_dim = *rc::gen::element(64, 128, 128, 256);
        if (c.dtype == Dtype::kF8E4m3) c.head_dim = std::max(128, c.head_dim);
        const int requests = *rc::gen::inRange(1, 5);
        c.q_lens.clear();
        c.kv_lens.clear();
        c.thresholds.clear();
        c.source = *rc::gen::element(Source::kOff, Source::kFactor, Source::kLambda,
                                     Source::kFactors, Source::kLambdas, Source::kLambdas);
        for (int i = 0; i < requests; ++i) {
          // Lengths around tile edges, and zero.
          const int edge = *rc::gen::inRange(0, 4) * 64 + *rc::gen::inRange(-2, 3);
          const int edge_kv = *rc::gen::inRange(0, 7) * 128 + *rc::gen::inRange(-2, 3);
          if (decode) {
            // As many tokens as a few units of the model's time hold.
            c.q_lens.push_back(*rc::gen::element(0, 1, 1, 1, 2, 1 + 64 * c.kv_heads / c.q_heads));
            // Around edges of chunks, of 2048 keys, and of tiles within them.
            const int chunks = *rc::gen::inRange(0, c.dtype == Dtype::kF8E4m3 ? 2 : 4);
            c.kv_lens.push_back(std::max(0, 2048 * chunks + edge_kv));
          } else {
            c.q_lens.push_back(
                *rc::gen::element(0, 1, std::max(0, edge), *rc::gen::inRange(0, 260)));
            c.kv_lens.push_back(*rc::gen::element(0, std::max(0, edge_kv), std::max(1, edge_kv),
                                                  *rc::gen::inRange(0, 900)));
          }
          const float lambda = *rc::gen::element(0.0f, 1e-6f, 1e-3f, 0.02f, 0.3f, 0.99999994f, 1.0f,
                                                 1.0000001f, 20.0f, INFINITY);
          const bool factor = c.source == Source::kFactor || c.source == Source::kFactors;
          c.thresholds.push_back(factor ? lambda * static_cast<float>(c.kv_lens.back()) : lambda);
          if (std::isnan(c.thresholds.back())) c.thresholds.back() = 0;
          // One value for all where there is no array.
          if (c.source == Source::kFactor || c.source == Source::kLambda)
            c.thresholds.back() = c.thresholds.front();
        }
        c.mask = *rc::gen::element(MaskKind::kFull, MaskKind::kCausal, MaskKind::kCausal,
                                   MaskKind::kWindow, MaskKind::kChunked);
        c.mask_size = 1 << *rc::gen::inRange(0, 10);
        c.offset = *rc::gen::element(AttentionOffset::kBottomRight, AttentionOffset::kTopLeft,
                                     AttentionOffset::kGiven);
        c.layout = *rc::gen::element(Layout::kPacked, Layout::kPadded, Layout::kPaged);
        c.page_rows = *rc::gen::element(8, 16, 32, 64, 128, 256);
        c.spread = *rc::gen::element(0.1f, 1.0f, 3.0f);
        c.contrast = *rc::gen::element(0.0f, 2.0f, 8.0f, 30.0f);
        c.values = *rc::gen::element(Values::kNormal, Values::kNormal, Values::kNormal,
                                     Values::kSpecial, Values::kBits);
        c.decisions = *rc::gen::arbitrary<bool>();
        c.lse = *rc::gen::inRange(0, 4) != 0;
        if (decode) {
          if (c.mask_size < 64) c.mask_size <<= *rc::gen::inRange(0, 8);
          c.blocks = *rc::gen::element(0, 0, 1, 2, 3, 7);
          c.chunks = *rc::gen::element(0, 0, 1, 1, 2, 3, 9);
          c.bounds = *rc::gen::inRange(0, 4) != 0;
        }
        c.seed = *rc::gen::arbitrary<unsigned>();
        return c;
      }));
}

// ASSAY_ATTENTION_CASES is how many, from the first on, or FROM:TO, so that several processes can
// share them.
struct CaseNumbers {
  int begin = 0, end = 300;
};
inline CaseNumbers random_cases() {
  CaseNumbers numbers;
  const char* const asked = std::getenv("ASSAY_ATTENTION_CASES");
  if (asked == nullptr) return numbers;
  const char* const colon = std::strchr(asked, ':');
  if (colon != nullptr) numbers.begin = std::atoi(asked);
  numbers.end = std::atoi(colon != nullptr ? colon + 1 : asked);
  if (numbers.begin < 0 || numbers.end <= numbers.begin)
    throw std::invalid_argument(std::string("ASSAY_ATTENTION_CASES names no cases: ") + asked);
  return numbers;
}

}  // namespace assay::cuda::testing
