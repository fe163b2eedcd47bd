// Options and C functions of the simulated subject. Decides the spelling of its options.
#include "verify/subject/sim_subject.hpp"

#include <charconv>
#include <cstring>
#include <map>
#include <string>

#include <fmt/format.h>

#include "model/core/text.hpp"
#include "verify/subject/sim_group.hpp"

namespace assay::verify {

namespace {

int create_own(const assay_group_config* config, void** group, assay_message* message) {
  return sim_create(own_sim_kernels(), config, group, message);
}

Expected<std::uint64_t> parse_number(std::string_view key, std::string_view text) {
  std::uint64_t number = 0;
  const auto [end, failure] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (failure != std::errc() || end != text.data() + text.size())
    return bad_input(
        fmt::format("option {} is {}; allowed are whole numbers", key, in_quotes(text)));
  return number;
}

Expected<SimOptions> parse_options(std::string_view text) {
  SimOptions options;
  while (!text.empty()) {
    const std::size_t space = text.find(' ');
    const std::string_view item = text.substr(0, space);
    text = space == std::string_view::npos ? std::string_view{} : text.substr(space + 1);
    if (item.empty()) continue;
    const std::size_t equals = item.find('=');
    const std::string_view key = item.substr(0, equals);
    const std::string_view value =
        equals == std::string_view::npos ? std::string_view{} : item.substr(equals + 1);
    if (key == "timeouts") {
      if (value != "fire" && value != "deadlock")
        return bad_input(
            fmt::format("option timeouts is {}; allowed are fire, deadlock", in_quotes(value)));
      options.timeouts_fire = value == "fire";
      continue;
    }
    if (key == "protocol") {
      ASSAY_TRY(options.protocol.choice, parse_protocol_choice(value));
      continue;
    }
    if (key == "slots") {
      ASSAY_TRY(options.ordered_slots, parse_slots(value));
      continue;
    }
    ASSAY_TRY(const std::uint64_t number, parse_number(key, value));
    const auto refuse = [&](const char* allowed) {
      return bad_input(fmt::format("option {} is {}; allowed are {}", key, number, allowed));
    };
    if (key == "group_size") {
      if (number < 1 || number > 1024) return refuse("1 to 1024");
      options.group_size = static_cast<std::uint32_t>(number);
    } else if (key == "resident_ctas") {
      if (number < 1 || number > 0xFFFFFFFFu) return refuse("1 to 4294967295");
      options.resident_ctas = static_cast<std::uint32_t>(number);
    } else if (key == "first_epoch") {
      if (number > 0xFFFFFFFFu || number % 2 != 0) return refuse("even numbers to 4294967294");
      options.first_epoch = static_cast<std::uint32_t>(number);
    } else if (key == "longest_run") {
      if (number < 1 || number > (1u << 30)) return refuse("1 to 1073741824");
      options.longest_run = static_cast<std::uint32_t>(number);
    } else if (key == "sentinel_max_tokens") {
      if (number < 1 || number > 0x7FFFFFFFu) return refuse("1 to 2147483647");
      options.protocol.sentinel_max_tokens = static_cast<std::int32_t>(number);
    } else {
      return unsupported(
          fmt::format("option {} is unknown to the simulated subject; allowed are "
                      "group_size, resident_ctas, first_epoch, longest_run, timeouts, protocol, "
                      "sentinel_max_tokens, slots",
                      in_quotes(key)));
    }
  }
  return options;
}

}  // namespace

const assay_subject& simulated_subject() {
  static const assay_subject subject{ASSAY_SUBJECT_ABI_VERSION,
                                     sizeof(assay_subject),
                                     "sim",
                                     &create_own,
                                     &sim_run,
                                     &sim_destroy,
                                     &sim_slot_rule};
  return subject;
}

int sim_create(const SimKernels& kernels, const assay_group_config* config, void** group,
               assay_message* message) {
  *group = nullptr;
  if (config->struct_size < sizeof(assay_group_config))
    return tell(bad_input(fmt::format("assay_group_config has {} bytes; at least {} are needed",
                                      config->struct_size, sizeof(assay_group_config))),
                message);
  const auto options = parse_options(config->options == nullptr ? "" : config->options);
  if (!options) return tell(options.error(), message, ASSAY_BAD_OPTIONS);
  auto made = SimGroup::make(kernels, *config, *options);
  if (!made) return tell(made.error(), message);
  *group = (*std::move(made)).release();
  return ASSAY_OK;
}

int sim_run(void* group, const assay_round* rounds, int32_t num_rounds, assay_experts experts,
            void* context, assay_message* message) {
  const Status ran = static_cast<SimGroup*>(group)->run(
      {rounds, static_cast<std::size_t>(num_rounds)}, experts, context);
  return ran ? ASSAY_OK : tell(ran.error(), message);
}

void sim_destroy(void* group) { delete static_cast<SimGroup*>(group); }

int sim_slot_rule(void* group, int32_t max_tokens_per_rank) {
  return static_cast<const SimGroup*>(group)->slot_rule(max_tokens_per_rank);
}

}  // namespace assay::verify
