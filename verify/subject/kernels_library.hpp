// One-sided kernels in somebody's shared library: how they are opened and called. Decides what a
// table must have and what becomes of a return value (SPEC VER-1.8); who gives them memory and
// streams is kernels_subject.hpp and verify/bench.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "model/core/expected.hpp"
#include "verify/subject/one_sided_kernels.h"

namespace assay::verify {

class KernelsLibrary {
 public:
  // `spec` is "kernels:FILE". Errors: the loader's own words, a library without the entry point,
  // another ABI version, a smaller table, a missing function. Before CUDA starts: a module that is
  // loaded at its first launch would wait for the kernels that wait for it, so this asks CUDA, in
  // the environment that its start reads, to load all of them with the device.
  static Expected<KernelsLibrary> open(std::string spec);

  const std::string& spec() const { return spec_; }
  std::string_view name() const { return table_->name; }
  // `bad_options` becomes whether the error is ASSAY_BAD_OPTIONS.
  Expected<std::uint64_t> window_bytes(const assay_kernels_config& config, bool& bad_options) const;
  // ASSAY_SLOTS_*, not looked at. What the library's function throws passes: this is called for a
  // subject's own slot_rule, whose caller catches it (foreign.hpp).
  int slot_rule(const assay_kernels_config& config, std::int32_t max) const;

 private:
  friend class RankKernels;
  KernelsLibrary() = default;
  std::shared_ptr<void> owner_;
  const assay_kernels* table_ = nullptr;
  std::string spec_;
};

// Where a round's results and inputs lie at a rank: device pointers, none of them null.
struct KernelsPlaces {
  std::vector<void*> recv;
  std::int32_t* recv_counters = nullptr;
  std::int32_t* target_rank = nullptr;
  std::int32_t* target_slot = nullptr;
  void* expert_out = nullptr;
};

// One rank of a group, from create to destroy. The rank's device is current in every call.
class RankKernels {
 public:
  static Expected<RankKernels> make(const KernelsLibrary& library,
                                    const assay_kernels_config& config, std::int32_t rank,
                                    const std::vector<void*>& windows, bool& bad_options);
  RankKernels(RankKernels&& other) noexcept;
  RankKernels& operator=(RankKernels&&) = delete;
  ~RankKernels();

  Expected<KernelsPlaces> places(const assay_kernels_round& round) const;
  Status dispatch(const assay_kernels_round& round, void* stream) const;
  Status combine(const assay_kernels_round& round, void* stream) const;

 private:
  RankKernels(KernelsLibrary library, void* state) : library_(std::move(library)), state_(state) {}
  KernelsLibrary library_;
  void* state_;
};

}  // namespace assay::verify
