// GPT-OSS routing as JSON, one generated text per file (SPEC TRC-2.4):
//   {"router_data": [{"token_146": {"layer_0": {"selected_experts": [31, 21, 22, 6],
//                                               "selected_probs": [0.488, ...]}, ...}}, ...], ...}
// Read as events, because the files that people capture are long and a DOM drops duplicate keys.
// Other keys of the outermost object are labels and are skipped.
#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <charconv>
#include <cmath>
#include <iterator>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>

#include "model/core/text.hpp"
#include "traces/readers/gptoss.hpp"
#include "traces/readers/readers.hpp"

namespace assay::traces {
namespace {

using gptoss::kTopK;

// Where the parser is. The parser reads one character beyond a number, so the line that counts is
// that of the last character read, a line end belonging to the line that it ends.
struct Cursor {
  std::int64_t line = 1;
  std::int64_t last_line = 1;
};

class CountingIterator {
 public:
  using iterator_category = std::input_iterator_tag;
  using value_type = char;
  using difference_type = std::ptrdiff_t;
  using pointer = const char*;
  using reference = const char&;

  CountingIterator(const char* at, Cursor* cursor) : at_(at), cursor_(cursor) {}
  reference operator*() const { return *at_; }
  CountingIterator& operator++() {
    cursor_->last_line = cursor_->line;
    cursor_->line += *at_ == '\n';
    ++at_;
    return *this;
  }
  CountingIterator operator++(int) {
    CountingIterator before = *this;
    ++*this;
    return before;
  }
  friend bool operator==(const CountingIterator& a, const CountingIterator& b) {
    return a.at_ == b.at_;
  }
  friend bool operator!=(const CountingIterator& a, const CountingIterator& b) { return !(a == b); }

 private:
  const char* at_;
  Cursor* cursor_;
};

// Turns events into rows. A callback that returns false ends the parse; `error` says why.
class Events final : public nlohmann::json_sax<nlohmann::json> {
 public:
  explicit Events(const Cursor& cursor) : cursor_(cursor) {}
  gptoss::Gatherer gatherer;
  std::optional<Error> error;
  bool has_router_data = false;

  bool null() override { return scalar("null"); }
  bool boolean(bool) override { return scalar("true or false"); }
  bool string(string_t& text) override { return scalar(in_quotes(text, 20)); }
  bool binary(binary_t&) override { return scalar("binary data"); }
  bool number_integer(number_integer_t value) override {
    return number(std::to_string(value), value, static_cast<double>(value));
  }
  bool number_unsigned(number_unsigned_t value) override {
    // Those above the largest signed number are outside of every limit and must stay so.
    constexpr auto kMost = number_unsigned_t{std::numeric_limits<std::int64_t>::max()};
    return number(std::to_string(value), static_cast<std::int64_t>(std::min(value, kMost)),
                  static_cast<double>(value));
  }
  bool number_float(number_float_t value, const string_t& text) override {
    return number(text, std::nullopt, value);
  }
  bool start_object(std::size_t) override;
  bool end_object() override;
  bool start_array(std::size_t) override;
  bool end_array() override;
  bool key(string_t& name) override;
  bool parse_error(std::size_t, const std::string& last,
                   const nlohmann::detail::exception&) override {
    return fail(bad_input(fmt::format("is not JSON at {}", in_quotes(last))));
  }

 private:
  enum class Place {
    kFile,          // outside the outermost object
    kTop,           // in it
    kLabel,         // before or in the value of a key that is not routing
    kRoutingValue,  // before the list router_data
    kTokens,        // in that list
    kHolder,        // in an object that holds one token
    kTokenValue,    // before the object of its layers
    kToken,         // in it
    kLayerValue,    // before the object of one layer
    kLayer,         // in it
    kIdsValue,      // before the list selected_experts
    kIds,           // in it
    kWeightsValue,  // before the list selected_probs
    kWeights,       // in it
  };
  bool go(Place place) {
    place_ = place;
    return true;
  }
  bool scalar(const std::string& shown);
  bool number(const std::string& shown, std::optional<std::int64_t> whole, double value);
  bool close_list(const std::optional<std::size_t>& count);
  bool close_layer();
  bool name_token(const std::string& name);
  bool name_layer(const std::string& name);
  bool name_list(const std::string& name);
  bool wrong(const std::string& got);
  bool fail(const Error& why) {
    if (!error) error = why.within(fmt::format("line {}", cursor_.last_line));
    return false;
  }

  const Cursor& cursor_;
  Place place_ = Place::kFile;
  std::int64_t label_depth_ = 0;  // brackets open within a label's value
  std::optional<std::int32_t> first_position_;
  bool token_is_named_ = false;
  gptoss::Row row_;
  std::optional<std::size_t> num_ids_, num_weights_;  // of this layer, once its list was named
};

}  // namespace

Expected<Trace> read_gptoss_json(std::string_view text, const std::string& name) {
  Cursor cursor;
  Events events(cursor);
  const bool complete =
      nlohmann::json::sax_parse(CountingIterator(text.data(), &cursor),
                                CountingIterator(text.data() + text.size(), &cursor), &events);
  if (events.error) return *events.error;
  CONTRACT(complete, "the parser stopped without an error");
  if (!events.has_router_data)
    return bad_input("has no \"router_data\" in its outermost object; that list is required");
  return events.gatherer.finish(name);
}

namespace {

bool Events::start_object(std::size_t) {
  switch (place_) {
    case Place::kFile:
      return go(Place::kTop);
    case Place::kLabel:
      return ++label_depth_ > 0;
    case Place::kTokens:
      token_is_named_ = false;
      return go(Place::kHolder);
    case Place::kTokenValue:
      return go(Place::kToken);
    case Place::kLayerValue:
      num_ids_.reset();
      num_weights_.reset();
      return go(Place::kLayer);
    default:
      return wrong("an object");
  }
}

bool Events::end_object() {
  switch (place_) {
    case Place::kLabel:
      return --label_depth_ > 0 || go(Place::kTop);
    case Place::kHolder:
      return token_is_named_ ? go(Place::kTokens) : wrong("an empty object");
    case Place::kToken:
      return go(Place::kHolder);
    case Place::kLayer:
      return close_layer();
    default:
      return go(Place::kFile);
  }
}

bool Events::start_array(std::size_t) {
  switch (place_) {
    case Place::kLabel:
      return ++label_depth_ > 0;
    case Place::kRoutingValue:
      return go(Place::kTokens);
    case Place::kIdsValue:
      return go(Place::kIds);
    case Place::kWeightsValue:
      return go(Place::kWeights);
    default:
      return wrong("a list");
  }
}

bool Events::end_array() {
  switch (place_) {
    case Place::kLabel:
      return --label_depth_ > 0 || go(Place::kTop);
    case Place::kIds:
      return close_list(num_ids_);
    case Place::kWeights:
      return close_list(num_weights_);
    default:
      return go(Place::kTop);
  }
}

bool Events::key(string_t& name) {
  switch (place_) {
    case Place::kTop:
      if (name != "router_data") return go(Place::kLabel);
      if (has_router_data) return wrong("a second router_data");
      has_router_data = true;
      return go(Place::kRoutingValue);
    case Place::kHolder:
      return name_token(name);
    case Place::kToken:
      return name_layer(name);
    case Place::kLayer:
      return name_list(name);
    default:
      return true;  // within a label
  }
}

bool Events::scalar(const std::string& shown) {
  if (place_ != Place::kLabel) return wrong(shown);
  return label_depth_ > 0 || go(Place::kTop);
}

bool Events::number(const std::string& shown, std::optional<std::int64_t> whole, double value) {
  if (place_ == Place::kIds) {
    if (!whole || *num_ids_ == row_.ids.size()) return wrong(shown);
    const Status status = gptoss::check_id(*whole);
    if (!status) return fail(status.error());
    row_.ids[(*num_ids_)++] = static_cast<std::int16_t>(*whole);
    return true;
  }
  if (place_ == Place::kWeights) {
    if (*num_weights_ == row_.weights.size()) return wrong(shown);
    // A cast of what is beyond the largest float is undefined; infinity is refused below.
    const float nearest = std::abs(value) > std::numeric_limits<float>::max()
                              ? std::numeric_limits<float>::infinity()
                              : static_cast<float>(value);
    const F32 weight{std::bit_cast<std::uint32_t>(nearest)};
    const Status status = gptoss::check_weight(weight);
    if (!status) return fail(status.error());
    row_.weights[(*num_weights_)++] = weight;
    return true;
  }
  return scalar(shown);
}

bool Events::close_list(const std::optional<std::size_t>& count) {
  if (*count != static_cast<std::size_t>(kTopK)) return wrong(fmt::format("a list of {}", *count));
  return go(Place::kLayer);
}

bool Events::close_layer() {
  if (!num_ids_ || !num_weights_)
    return wrong(num_ids_ ? "no selected_probs" : "no selected_experts");
  const Status distinct = gptoss::check_distinct(row_.ids);
  if (!distinct) return fail(distinct.error());
  const Status added = gatherer.add(row_, cursor_.last_line);
  if (!added) return fail(added.error());
  return go(Place::kToken);
}

// "<prefix><number>" with a number of 0 to `max`, spelled the one usual way.
std::optional<std::int32_t> numbered(const std::string& name, std::string_view prefix,
                                     std::int32_t max) {
  if (name.rfind(prefix, 0) != 0) return std::nullopt;
  const char *begin = name.data() + prefix.size(), *end = name.data() + name.size();
  std::int32_t value = 0;
  const auto [stop, code] = std::from_chars(begin, end, value);
  const bool usual = code == std::errc{} && stop == end && value >= 0 && value <= max &&
                     std::to_string(value).size() == static_cast<std::size_t>(end - begin);
  return usual ? std::optional(value) : std::nullopt;
}

bool Events::name_token(const std::string& name) {
  if (token_is_named_) return wrong("a second token in one object");
  const auto position = numbered(name, "token_", std::numeric_limits<std::int32_t>::max());
  if (!position) return wrong(in_quotes(name));
  if (first_position_ && *position != row_.position + 1) {
    return fail(bad_input(fmt::format("token_{} follows token_{}; positions go up by one",
                                      *position, row_.position)));
  }
  token_is_named_ = true;
  row_.position = *position;
  if (!first_position_) first_position_ = *position;
  row_.step = *position - *first_position_;
  return go(Place::kTokenValue);
}

bool Events::name_layer(const std::string& name) {
  const auto layer = numbered(name, "layer_", gptoss::kNumLayers - 1);
  if (!layer) return wrong(in_quotes(name));
  row_.layer = *layer;
  return go(Place::kLayerValue);
}

bool Events::name_list(const std::string& name) {
  const bool ids = name == "selected_experts";
  std::optional<std::size_t>& count = ids ? num_ids_ : num_weights_;
  if ((!ids && name != "selected_probs") || count) return wrong(in_quotes(name));
  count = 0;
  return go(ids ? Place::kIdsValue : Place::kWeightsValue);
}

// What belongs where, for the sentence.
bool Events::wrong(const std::string& got) {
  const auto [where, allowed] = [&]() -> std::pair<std::string, std::string> {
    const std::string token = fmt::format("router_data.token_{}", row_.position);
    const std::string layer = fmt::format("{}.layer_{}", token, row_.layer);
    switch (place_) {
      case Place::kRoutingValue:
      case Place::kTokens:
      case Place::kHolder:
        return {"router_data", "a list of objects with one key token_<position> each"};
      case Place::kTokenValue:
      case Place::kToken:
        return {token, fmt::format("an object with layer_0 to layer_{}", gptoss::kNumLayers - 1)};
      case Place::kLayerValue:
      case Place::kLayer:
        return {layer, "an object with selected_experts and selected_probs, each once"};
      case Place::kIdsValue:
      case Place::kIds:
        return {layer + ".selected_experts",
                fmt::format("a list of {} whole numbers 0 to {}", kTopK, gptoss::kNumExperts - 1)};
      case Place::kWeightsValue:
      case Place::kWeights:
        return {layer + ".selected_probs", fmt::format("a list of {} numbers from 0 up", kTopK)};
      default:
        return {"the file", "one object with one router_data"};
    }
  }();
  return fail(bad_input(fmt::format("{} in {}; allowed is {}", got, where, allowed)));
}

}  // namespace
}  // namespace assay::traces
