// Loading, and translating return values into states with a message.
#include "verify/subject/subject.hpp"

#include <fmt/format.h>

#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <utility>

#include "model/core/text.hpp"
#include "verify/subject/foreign.hpp"

namespace assay::verify {

namespace {

// The table as it was before slot_rule was appended (SPEC VER-1.5).
constexpr std::size_t kFirstTableBytes = offsetof(assay_subject, slot_rule);

Group::Result result_of(int code, const assay_message& message, std::string_view function) {
  switch (code) {
    case ASSAY_OK:
      return {};
    case ASSAY_UNSUPPORTED: {
      std::string text = text_of(message);
      if (text.empty()) text = "the subject gave no reason";
      return {Group::State::kUnsupported, std::move(text)};
    }
    case ASSAY_BAD_OPTIONS:
      if (function == "create") return {Group::State::kBadOptions, text_of(message)};
      [[fallthrough]];
    case ASSAY_FAILED: {
      std::string text = text_of(message);
      if (text.empty()) text = fmt::format("{} failed and left no message", function);
      return {Group::State::kFailed, std::move(text)};
    }
    default:
      return {Group::State::kFailed,
              fmt::format("{} returned {}; allowed are 0 (ok), 1 (failed), 2 (unsupported) and 3 "
                          "(bad options){}{}",
                          function, code, text_of(message).empty() ? "" : ": ", text_of(message))};
  }
}

}  // namespace

Expected<Subject> Subject::wrap(const assay_subject* table, std::string spec, std::string mutant) {
  if (table == nullptr) return bad_input(fmt::format("subject {} has no table", in_quotes(spec)));
  if (table->abi_version != ASSAY_SUBJECT_ABI_VERSION) {
    return bad_input(fmt::format("subject {} has ABI version {}; this build speaks version {}",
                                 in_quotes(spec), table->abi_version, ASSAY_SUBJECT_ABI_VERSION));
  }
  if (table->struct_size < kFirstTableBytes) {
    return bad_input(fmt::format("subject {} has a table of {} bytes; version {} needs at least {}",
                                 in_quotes(spec), table->struct_size, ASSAY_SUBJECT_ABI_VERSION,
                                 kFirstTableBytes));
  }
  const std::pair<const char*, bool> members[] = {{"name", table->name != nullptr},
                                                  {"create", table->create != nullptr},
                                                  {"run", table->run != nullptr},
                                                  {"destroy", table->destroy != nullptr}};
  for (const auto& [member, present] : members) {
    if (!present)
      return bad_input(fmt::format("subject {} leaves {} null", in_quotes(spec), member));
  }
  Subject subject;
  subject.table_ = table;
  subject.spec_ = std::move(spec);
  subject.mutant_ = std::move(mutant);
  return subject;
}

Expected<Subject> Subject::plugin(const std::string& file) {
  const std::string spec = std::string(kPluginSpec) + file;
  ASSAY_TRY(const Library library,
            open_plugin(spec, ASSAY_SUBJECT_ENTRY_NAME, "verify/subject/subject.h"));
  ASSAY_TRY(const assay_subject* const table,
            call_foreign(spec, ASSAY_SUBJECT_ENTRY_NAME,
                         reinterpret_cast<assay_subject_entry>(library.entry)));
  ASSAY_TRY(Subject subject, wrap(table, spec));
  subject.library_ = library.owner;
  return subject;
}

Group::Group(Group&& other) noexcept
    : subject_(std::move(other.subject_)), group_(std::exchange(other.group_, nullptr)) {}

Group& Group::operator=(Group&& other) noexcept {
  if (this != &other) {
    destroy();
    subject_ = std::move(other.subject_);
    group_ = std::exchange(other.group_, nullptr);
  }
  return *this;
}

Group::~Group() { destroy(); }

void Group::destroy() {
  if (group_ == nullptr) return;
  const auto done = call_foreign(subject_->spec(), "destroy", [&] {
    subject_->table().destroy(std::exchange(group_, nullptr));
    return Done{};
  });
  if (done) return;
  // No result could say so: nobody waits for one.
  std::fputs(fmt::format("assay: subject {} failed: {}\n", in_quotes(subject_->spec()),
                         done.error().sentence)
                 .c_str(),
             stderr);
  std::_Exit(1);
}

Group::Result Group::create(const Subject& subject, const assay_group_config& config) {
  destroy();
  assay_message message{};
  void* group = nullptr;
  const auto code = call_foreign(subject.spec(), "create",
                                 [&] { return subject.table().create(&config, &group, &message); });
  if (!code) return {State::kFailed, code.error().sentence};
  const Result result = result_of(*code, message, "create");
  if (result.state != State::kOk) return result;
  if (group == nullptr) return {State::kFailed, "create returned ok and no group"};
  subject_ = subject;
  group_ = group;
  return result;
}

Expected<moe::SlotRule> Group::slot_rule(std::int32_t max_tokens_per_rank) const {
  CONTRACT(group_ != nullptr);
  const assay_subject& table = subject_->table();
  if (table.struct_size < sizeof(assay_subject) || table.slot_rule == nullptr)
    return moe::SlotRule::kCounterAnyOrder;
  ASSAY_TRY(const int rule, call_foreign(subject_->spec(), "slot_rule", [&] {
              return table.slot_rule(group_, max_tokens_per_rank);
            }));
  switch (rule) {
    case ASSAY_SLOTS_COUNTER:
      return moe::SlotRule::kCounterAnyOrder;
    case ASSAY_SLOTS_PREFIX:
      return moe::SlotRule::kPrefixScan;
    case ASSAY_SLOTS_TOKEN_INDEX:
      return moe::SlotRule::kTokenIndex;
    default:
      return bad_input(
          fmt::format("slot_rule of subject {} returned {}; allowed are 0 (counter), 1 "
                      "(prefix) and 2 (token_index)",
                      in_quotes(subject_->spec()), rule));
  }
}

Group::Result Group::run(const assay_round* rounds, std::int32_t num_rounds, assay_experts experts,
                         void* context) {
  CONTRACT(group_ != nullptr);
  assay_message message{};
  const auto code = call_foreign(subject_->spec(), "run", [&] {
    return subject_->table().run(group_, rounds, num_rounds, experts, context, &message);
  });
  if (!code) return {State::kFailed, code.error().sentence};
  return result_of(*code, message, "run");
}

}  // namespace assay::verify
