// What is sent and summed in a benchmark's rounds: inputs that say where they belong, and a look at
// what a round left. Decides SPEC VER-20.6 (what is checked). Whose kernels ran is rounds.hpp's and
// foreign_rounds.hpp's.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "cuda/launch/device.hpp"
#include "model/moe/combine.hpp"
#include "verify/bench/bench.hpp"
#include "verify/subject/subject.h"

namespace assay::verify::bench {

// Where one rank's inputs are and what its round leaves; all of its device.
struct RankPlaces {
  int device = 0;
  Address topk_ids;                   // int32 [batch, top_k]
  std::vector<Address> payload_rows;  // [payload] -> [batch, bytes_per_token]
  std::vector<Address> recv;          // [payload] -> [ep, batch, bytes_per_token]
  Address target_rank, target_slot;   // int32 [batch, top_k]
  Address expert_out;                 // bf16 [ep, batch, hidden]
  Address out;                        // bf16 [batch, hidden]
};

class RoundData {
 public:
  // The request outlives it; moving one keeps what payloads() points to. Errors: a recipe that the
  // hidden size does not fit.
  static Expected<RoundData> make(const RowRequest& request, std::int32_t ep);

  std::span<const assay_payload> payloads() const { return payloads_; }
  std::int32_t ep_size() const { return ep_; }
  std::int64_t row_bytes() const { return row_bytes_; }  // of all payloads
  std::uint64_t input_bytes() const;                     // of one rank, with alignment
  std::uint64_t out_bytes() const;
  // Where in a rank's input_bytes its ids and payload rows are.
  void place_inputs(Address inputs, RankPlaces& places) const;

  // Inputs, expert rows, and poison in `out`. Every expert row of a rank is the same, so that a sum
  // does not depend on which slots a round took.
  Status fill(std::size_t rank, const RankPlaces& places) const;
  // Tokens whose rows and sums of the last round were compared, bit for bit.
  Expected<std::int64_t> check(std::span<const RankPlaces> ranks,
                               const moe::CombineArithmetic& arithmetic) const;

 private:
  RoundData(const RowRequest& request, std::int32_t ep) : request_(&request), ep_(ep) {}
  Status check_token(std::span<const RankPlaces> ranks, std::size_t rank, std::int32_t token,
                     std::span<const std::int32_t> target_rank,
                     std::span<const std::int32_t> target_slot, const moe::Combine& combine) const;
  std::vector<std::byte> payload_row(std::size_t payload, std::size_t rank,
                                     std::int32_t token) const;
  std::vector<std::byte> expert_row(std::size_t rank) const;

  const RowRequest* request_;
  std::int32_t ep_;
  std::int64_t row_bytes_ = 0;
  std::vector<std::string> names_;
  std::vector<assay_payload> payloads_;  // point into names_
};

}  // namespace assay::verify::bench
