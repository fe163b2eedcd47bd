// Set-up and chains of somebody's rounds.
#include "verify/bench/foreign_rounds.hpp"

#include "model/moe/profile.hpp"
#include "verify/bench/rounds.hpp"
#include "verify/subject/memory_ranges.hpp"

namespace assay::verify::bench {

namespace {

Address address_of(const void* pointer) { return {reinterpret_cast<std::uint64_t>(pointer)}; }

}  // namespace

Expected<std::unique_ptr<ForeignRounds>> ForeignRounds::make(
    const KernelsLibrary& library, const cuda::Communicator& communicator,
    std::optional<cuda::SymmetricMemory>& memory, const RowRequest& request,
    const BenchOptions& options, bool& bad_options) {
  const std::int32_t ep = communicator.ep_size();
  ASSAY_TRY(RoundData data, RoundData::make(request, ep));
  assay_kernels_config config{};
  config.struct_size = sizeof config;
  config.ep_size = ep;
  config.num_experts = request.model.num_experts;
  config.top_k = request.model.top_k;
  config.hidden_size = request.model.hidden_size;
  config.max_tokens_per_rank = request.batch;
  config.max_payload_bytes_total = static_cast<std::int32_t>(data.row_bytes());
  config.invalid_expert_id = -1;
  config.combine_dtype = ASSAY_DTYPE_BF16;
  config.profile = options.kernels_profile.c_str();
  config.options = options.kernels_options.c_str();
  config.timed = 1;
  ASSAY_TRY(const std::uint64_t bytes, library.window_bytes(config, bad_options));
  ASSAY_CHECK(window_of(communicator, bytes, memory));
  std::unique_ptr<ForeignRounds> made(new ForeignRounds(request, options, std::move(data)));
  ASSAY_TRY(made->kernels_,
            create_ranks(library, config, communicator, *memory, bytes, bad_options));
  for (std::size_t rank = 0; rank < made->kernels_.size(); ++rank) {
    cuda::DeviceScope scope(communicator.local_ranks()[rank].device);
    made->places_.emplace_back().device = communicator.local_ranks()[rank].device;
    ASSAY_CHECK(made->fill_rank(rank));
  }
  return Expected<std::unique_ptr<ForeignRounds>>(std::move(made));
}

Status ForeignRounds::fill_rank(std::size_t rank) {
  RankPlaces& places = places_[rank];
  ASSAY_TRY(cuda::DeviceMemory inputs,
            cuda::DeviceMemory::make(data_.input_bytes(), "payload rows"));
  ASSAY_TRY(cuda::DeviceMemory out, cuda::DeviceMemory::make(data_.out_bytes(), "combined rows"));
  data_.place_inputs(inputs.address(), places);
  places.out = out.address();
  std::vector<const void*>& rows = payload_rows_.emplace_back();
  for (const Address row : places.payload_rows) rows.push_back(cuda::pointer(row));
  inputs_.push_back(std::move(inputs));
  out_.push_back(std::move(out));
  ASSAY_TRY(const KernelsPlaces theirs, kernels_[rank]->places(round_of(rank)));
  ASSAY_CHECK(check_apart(theirs));
  for (const void* recv : theirs.recv) places.recv.push_back(address_of(recv));
  places.target_rank = address_of(theirs.target_rank);
  places.target_slot = address_of(theirs.target_slot);
  places.expert_out = address_of(theirs.expert_out);
  return data_.fill(rank, places);
}

Status ForeignRounds::check_apart(const KernelsPlaces& theirs) const {
  const std::uint64_t rows =
      static_cast<std::uint64_t>(data_.ep_size()) * static_cast<std::uint64_t>(request_.batch);
  MemoryRanges received;
  for (std::size_t i = 0; i < theirs.recv.size(); ++i)
    received.add(theirs.recv[i], rows * data_.payloads()[i].bytes_per_token);
  const std::uint64_t expert_rows =
      rows * static_cast<std::uint64_t>(request_.model.hidden_size) * 2;
  if (!received.overlaps(theirs.expert_out, expert_rows)) return Done{};
  return unsupported("expert_out lies in recv, where chained rounds would overwrite its rows");
}

assay_kernels_round ForeignRounds::round_of(std::size_t rank) const {
  assay_kernels_round round{};
  round.struct_size = sizeof round;
  round.max_tokens_per_rank = round.num_tokens = request_.batch;
  round.num_payloads = static_cast<std::int32_t>(data_.payloads().size());
  round.payloads = data_.payloads().data();
  round.topk_ids = static_cast<const std::int32_t*>(cuda::pointer(places_[rank].topk_ids));
  round.payload_rows = payload_rows_[rank].data();
  round.out = cuda::pointer(places_[rank].out);
  return round;
}

Expected<std::vector<double>> ForeignRounds::time(Stopwatch& watch) {
  ASSAY_TRY(std::vector<double> times,
            watch.time_each(
                [&](std::size_t rank) -> Status {
                  const assay_kernels_round round = round_of(rank);
                  for (std::int32_t i = 0; i < options_.rounds; ++i) {
                    ASSAY_CHECK(kernels_[rank]->dispatch(round, watch.stream(rank)));
                    ASSAY_CHECK(kernels_[rank]->combine(round, watch.stream(rank)));
                  }
                  return Done{};
                },
                options_.repeats));
  for (double& time : times) time /= options_.rounds;
  return times;
}

Expected<std::int64_t> ForeignRounds::check(const Stopwatch& watch) const {
  ASSAY_CHECK(watch.wait());
  ASSAY_TRY(const moe::CombineProfile* profile,
            moe::find_combine_profile(options_.kernels_profile));
  return data_.check(places_, profile->arithmetic);
}

}  // namespace assay::verify::bench
