// Creation, check and recovery of a group's workspace.
#include "cuda/launch/group.hpp"

#include <fmt/format.h>

#include "cuda/launch/device.hpp"

namespace assay::cuda {

namespace {

// Everybody tells what the group was made with; whoever differs from rank 0 is named.
Status agree(const Communicator& communicator, const one_sided::Workspace& workspace,
             const KernelRequest& request) {
  const std::uint64_t own[] = {workspace.layout().digest(), workspace.window_bytes(),
                               static_cast<std::uint64_t>(request.top_k),
                               static_cast<std::uint64_t>(request.sum) |
                                   static_cast<std::uint64_t>(request.rows) << 8 |
                                   static_cast<std::uint64_t>(request.pulled) << 16 |
                                   static_cast<std::uint64_t>(request.out) << 24};
  static constexpr const char* kMeaning[] = {"layout digest", "window bytes", "top_k",
                                             "arithmetic and formats"};
  constexpr std::size_t kWords = std::size(own);
  std::vector<std::uint64_t> local;
  for (std::size_t i = 0; i < communicator.local_ranks().size(); ++i)
    local.insert(local.end(), std::begin(own), std::end(own));
  ASSAY_TRY(const std::vector<std::uint64_t> all, communicator.gather(local));
  for (std::size_t rank = 1; rank < all.size() / kWords; ++rank)
    for (std::size_t word = 0; word < kWords; ++word)
      if (all[rank * kWords + word] != all[word])
        return bad_input(
            fmt::format("rank {} makes the group with another {} than rank 0: {:#x}, not {:#x}",
                        rank, kMeaning[word], all[rank * kWords + word], all[word]));
  return Done{};
}

}  // namespace

Expected<OneSidedGroup> OneSidedGroup::make(const Communicator& communicator,
                                            const one_sided::Workspace& workspace,
                                            const KernelRequest& request, std::uint32_t threads,
                                            std::optional<SymmetricMemory> memory) {
  ASSAY_TRY(OneSidedKernels kernels, OneSidedKernels::find(request));
  for (const LocalRank& local : communicator.local_ranks()) {
    DeviceScope scope(local.device);
    ASSAY_CHECK(kernels.load(threads));
    if (communicator.is_emulated()) break;  // one device
  }
  // Before anything is allocated: NCCL takes windows of unlike sizes without a word, and hangs when
  // they are given back (SPEC CUD-2.1).
  ASSAY_CHECK(agree(communicator, workspace, request));
  if (!memory) {
    ASSAY_TRY(memory, communicator.allocate(workspace.window_bytes()));
  }
  CONTRACT(memory->bytes_per_rank() >= workspace.window_bytes(), memory->bytes_per_rank());
  OneSidedGroup group(communicator, workspace, kernels, *std::move(memory));
  ASSAY_CHECK(group.reset());
  ASSAY_CHECK(group.barrier());
  return group;
}

Status OneSidedGroup::reset() const {
  for (std::size_t i = 0; i < communicator_.local_ranks().size(); ++i) {
    DeviceScope scope(communicator_.local_ranks()[i].device);
    for (const one_sided::WindowRange& range : workspace_.zeroed_ranges())
      ASSAY_CUDA(cudaMemset(pointer(own(i).at(range.offset_bytes)), 0, range.bytes),
                 "zeroing control words");
    for (const one_sided::WindowRange& range : workspace_.armed_ranges())
      ASSAY_CUDA(cudaMemset(pointer(own(i).at(range.offset_bytes)), 0xFF, range.bytes),
                 "arming slots");
  }
  for (std::size_t i = 0; i < communicator_.local_ranks().size(); ++i) {
    DeviceScope scope(communicator_.local_ranks()[i].device);
    ASSAY_CUDA(cudaStreamSynchronize(nullptr), "initialising a workspace");
  }
  return Done{};
}

Status OneSidedGroup::barrier() const {
  const std::vector<std::uint64_t> nothing(communicator_.local_ranks().size(), 0);
  ASSAY_CHECK(communicator_.gather(nothing));
  return Done{};
}

Expected<std::vector<RankStatus>> OneSidedGroup::local_status() const {
  std::vector<RankStatus> all;
  for (std::size_t i = 0; i < communicator_.local_ranks().size(); ++i) {
    DeviceScope scope(communicator_.local_ranks()[i].device);
    std::byte bytes[one_sided::StatusWord::kBytes];
    ASSAY_CUDA(cudaMemcpy(bytes, pointer(own(i).at(workspace_.offsets().status)), sizeof bytes,
                          cudaMemcpyDeviceToHost),
               "reading a status word");
    all.push_back(RankStatus::of_bytes(bytes));
  }
  return all;
}

Status OneSidedGroup::check() const {
  ASSAY_TRY(const std::vector<RankStatus> local, local_status());
  std::vector<std::uint64_t> words;
  for (const RankStatus& status : local) {
    const auto of_rank = status.words();
    words.insert(words.end(), of_rank.begin(), of_rank.end());
  }
  ASSAY_TRY(words, communicator_.gather(words));
  std::vector<RankStatus> all;
  for (std::size_t at = 0; at < words.size(); at += RankStatus::kWords)
    all.push_back(RankStatus::of_words(std::span(words).subspan(at, RankStatus::kWords)));
  return status_of_all(all);
}

// Between the two barriers no kernel of the group runs anywhere: nothing can land on words that are
// being zeroed, and nobody starts while a peer's words are still old.
Status OneSidedGroup::recover() const {
  ASSAY_CHECK(barrier());
  ASSAY_CHECK(reset());
  return barrier();
}

}  // namespace assay::cuda
