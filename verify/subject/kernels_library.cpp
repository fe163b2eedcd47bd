// Calls through the table, and their answers as sentences.
#include "verify/subject/kernels_library.hpp"

#include <fmt/format.h>

#include <cstdio>
#include <cstdlib>
#include <utility>

#include "model/core/text.hpp"
#include "verify/subject/foreign.hpp"

namespace assay::verify {

namespace {

// What a function returned, as an error unless it is ASSAY_OK (SPEC VER-1.8).
Status answer(int code, const assay_message& message, std::string_view function) {
  std::string text = text_of(message);
  switch (code) {
    case ASSAY_OK:
      return Done{};
    case ASSAY_UNSUPPORTED:
      return unsupported(text.empty() ? "the kernels' library gave no reason" : std::move(text));
    case ASSAY_FAILED:
      return bad_input(text.empty() ? fmt::format("{} failed and left no message", function)
                                    : std::move(text));
    case ASSAY_BAD_OPTIONS:
      return bad_input(text.empty()
                           ? fmt::format("{} refused the options and left no message", function)
                           : std::move(text));
    default:
      return bad_input(
          fmt::format("{} returned {}; allowed are 0 (ok), 1 (failed), 2 (unsupported) and 3 "
                      "(bad options){}{}",
                      function, code, text.empty() ? "" : ": ", text));
  }
}

template <class Call>
Status ask(const std::string& spec, const char* function, const Call& call,
           bool* bad_options = nullptr) {
  assay_message message{};
  ASSAY_TRY(const int code, call_foreign(spec, function, [&] { return call(&message); }));
  if (bad_options != nullptr) *bad_options = code == ASSAY_BAD_OPTIONS;
  return answer(code, message, function);
}

}  // namespace

Expected<KernelsLibrary> KernelsLibrary::open(std::string spec) {
  setenv("CUDA_MODULE_LOADING", "EAGER", 0);
  ASSAY_TRY(const Library opened,
            open_plugin(spec, ASSAY_KERNELS_ENTRY_NAME, "verify/subject/one_sided_kernels.h"));
  ASSAY_TRY(const assay_kernels* const table,
            call_foreign(spec, ASSAY_KERNELS_ENTRY_NAME,
                         reinterpret_cast<assay_kernels_entry>(opened.entry)));
  if (table == nullptr) return bad_input(fmt::format("{} has no table", in_quotes(spec)));
  if (table->abi_version != ASSAY_KERNELS_ABI_VERSION)
    return bad_input(fmt::format("{} has ABI version {}; this build speaks version {}",
                                 in_quotes(spec), table->abi_version, ASSAY_KERNELS_ABI_VERSION));
  if (table->struct_size < sizeof(assay_kernels))
    return bad_input(fmt::format("{} has a table of {} bytes; version {} needs at least {}",
                                 in_quotes(spec), table->struct_size, ASSAY_KERNELS_ABI_VERSION,
                                 sizeof(assay_kernels)));
  const std::pair<const char*, bool> members[] = {
      {"name", table->name != nullptr},         {"window_bytes", table->window_bytes != nullptr},
      {"create", table->create != nullptr},     {"places", table->places != nullptr},
      {"dispatch", table->dispatch != nullptr}, {"combine", table->combine != nullptr},
      {"destroy", table->destroy != nullptr}};
  for (const auto& [member, present] : members)
    if (!present) return bad_input(fmt::format("{} leaves {} null", in_quotes(spec), member));
  KernelsLibrary library;
  library.owner_ = opened.owner;
  library.table_ = table;
  library.spec_ = std::move(spec);
  return library;
}

Expected<std::uint64_t> KernelsLibrary::window_bytes(const assay_kernels_config& config,
                                                     bool& bad_options) const {
  std::uint64_t bytes = 0;
  ASSAY_CHECK(ask(
      spec_, "window_bytes",
      [&](assay_message* message) { return table_->window_bytes(&config, &bytes, message); },
      &bad_options));
  if (bytes == 0) return bad_input("window_bytes returned ok and 0 bytes");
  return bytes;
}

int KernelsLibrary::slot_rule(const assay_kernels_config& config, std::int32_t max) const {
  return table_->slot_rule == nullptr ? ASSAY_SLOTS_COUNTER : table_->slot_rule(&config, max);
}

Expected<RankKernels> RankKernels::make(const KernelsLibrary& library,
                                        const assay_kernels_config& config, std::int32_t rank,
                                        const std::vector<void*>& windows, bool& bad_options) {
  void* state = nullptr;
  ASSAY_CHECK(ask(
      library.spec_, "create",
      [&](assay_message* message) {
        return library.table_->create(&config, rank, windows.data(), &state, message);
      },
      &bad_options));
  if (state == nullptr) return bad_input("create returned ok and no state");
  return RankKernels(library, state);
}

RankKernels::RankKernels(RankKernels&& other) noexcept
    : library_(std::move(other.library_)), state_(std::exchange(other.state_, nullptr)) {}

RankKernels::~RankKernels() {
  if (state_ == nullptr) return;
  const auto done = call_foreign(library_.spec_, "destroy", [&] {
    library_.table_->destroy(std::exchange(state_, nullptr));
    return Done{};
  });
  if (done) return;
  // No result could say so: nobody waits for one.
  std::fputs(fmt::format("assay: {} failed: {}\n", in_quotes(library_.spec_), done.error().sentence)
                 .c_str(),
             stderr);
  std::_Exit(1);
}

Expected<KernelsPlaces> RankKernels::places(const assay_kernels_round& round) const {
  KernelsPlaces places;
  places.recv.assign(static_cast<std::size_t>(round.num_payloads), nullptr);
  assay_kernels_places asked{sizeof asked, places.recv.data(), nullptr, nullptr, nullptr, nullptr};
  ASSAY_CHECK(ask(library_.spec_, "places", [&](assay_message* message) {
    return library_.table_->places(state_, &round, &asked, message);
  }));
  for (void* recv : places.recv)
    if (recv == nullptr) return bad_input("places left recv of a payload null");
  const std::pair<const char*, void*> others[] = {{"recv_counters", asked.recv_counters},
                                                  {"target_rank", asked.target_rank},
                                                  {"target_slot", asked.target_slot},
                                                  {"expert_out", asked.expert_out}};
  for (const auto& [member, address] : others)
    if (address == nullptr) return bad_input(fmt::format("places left {} null", member));
  places.recv_counters = asked.recv_counters;
  places.target_rank = asked.target_rank;
  places.target_slot = asked.target_slot;
  places.expert_out = asked.expert_out;
  return places;
}

Status RankKernels::dispatch(const assay_kernels_round& round, void* stream) const {
  return ask(library_.spec_, "dispatch", [&](assay_message* message) {
    return library_.table_->dispatch(state_, &round, stream, message);
  });
}

Status RankKernels::combine(const assay_kernels_round& round, void* stream) const {
  return ask(library_.spec_, "combine", [&](assay_message* message) {
    return library_.table_->combine(state_, &round, stream, message);
  });
}

}  // namespace assay::verify
