// GPT-OSS routing as CSV: conv,step,layer,e0,e1,e2,e3,p0,p1,p2,p3, weights as the bits of BF16 in
// hexadecimal (SPEC TRC-2.3). There is no quoting in this format, so a comma always separates.
#include <fmt/format.h>

#include <array>
#include <charconv>
#include <limits>
#include <optional>

#include "model/core/text.hpp"
#include "traces/readers/gptoss.hpp"
#include "traces/readers/readers.hpp"

namespace assay::traces {
namespace {

using gptoss::kTopK;
constexpr std::array<std::string_view, 3 + 2 * kTopK> kColumns = {
    "conv", "step", "layer", "e0", "e1", "e2", "e3", "p0", "p1", "p2", "p3"};
using Cells = std::array<std::string_view, kColumns.size()>;

Expected<Cells> split(std::string_view line);
Expected<gptoss::Row> parse_row(const Cells& cells);
std::string_view take_line(std::string_view& text);

}  // namespace

Expected<Trace> read_gptoss_csv(std::string_view text, const std::string& name) {
  const std::string_view header = take_line(text);
  if (header != joined(kColumns, ",")) {
    return bad_input(fmt::format("line 1: the columns are {}; allowed are {}", in_quotes(header),
                                 joined(kColumns, ",")));
  }
  gptoss::Gatherer gatherer;
  for (std::int64_t line = 2; !text.empty(); ++line) {
    const auto place = [&](const Error& error) {
      return error.within(fmt::format("line {}", line));
    };
    const Expected<Cells> cells = split(take_line(text));
    if (!cells) return place(cells.error());
    const Expected<gptoss::Row> row = parse_row(*cells);
    if (!row) return place(row.error());
    const Status added = gatherer.add(*row, line);
    if (!added) return place(added.error());
  }
  return gatherer.finish(name);
}

namespace {

// The text up to the next line end, "\n" or "\r\n", which is dropped.
std::string_view take_line(std::string_view& text) {
  const std::size_t end = text.find('\n');
  std::string_view line = text.substr(0, end);
  text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
  if (!line.empty() && line.back() == '\r') line.remove_suffix(1);
  return line;
}

Expected<Cells> split(std::string_view line) {
  Cells cells;
  std::size_t count = 0;
  for (std::string_view rest = line;; ++count) {
    const std::size_t comma = rest.find(',');
    if (count < cells.size()) cells[count] = rest.substr(0, comma);
    if (comma == std::string_view::npos) break;
    rest.remove_prefix(comma + 1);
  }
  if (++count == cells.size()) return cells;
  return bad_input(fmt::format("{} cells in {}; allowed are {}: {}", count, in_quotes(line),
                               kColumns.size(), joined(kColumns, ",")));
}

// Nothing unless all of `text` is a number in that base.
template <class T>
std::optional<T> number(std::string_view text, int base) {
  T value{};
  const auto [end, code] = std::from_chars(text.data(), text.data() + text.size(), value, base);
  if (code != std::errc{} || end != text.data() + text.size()) return std::nullopt;
  return value;
}

Expected<std::int32_t> whole(const Cells& cells, std::size_t column, std::int32_t max) {
  const auto value = number<std::int32_t>(cells[column], 10);
  if (value && 0 <= *value && *value <= max) return *value;
  return bad_input(fmt::format("column {} is {}; allowed are whole numbers 0 to {}",
                               kColumns[column], in_quotes(cells[column]), max));
}

Expected<gptoss::Row> parse_row(const Cells& cells) {
  constexpr std::int32_t kAny = std::numeric_limits<std::int32_t>::max();
  gptoss::Row row;
  ASSAY_TRY(row.request, whole(cells, 0, kAny));
  ASSAY_TRY(row.step, whole(cells, 1, kAny));
  ASSAY_TRY(row.layer, whole(cells, 2, gptoss::kNumLayers - 1));
  row.position = row.step;  // the length of the prompt is not in the file (SPEC TRC-2.3)
  for (std::size_t k = 0; k < row.ids.size(); ++k) {
    ASSAY_TRY(const std::int32_t id, whole(cells, 3 + k, gptoss::kNumExperts - 1));
    row.ids[k] = static_cast<std::int16_t>(id);
    const std::string_view cell = cells[3 + kTopK + k];
    const auto bits = number<std::uint16_t>(cell, 16);
    if (!bits || cell.size() != 4 || cell[0] == '-') {
      return bad_input(
          fmt::format("column {} is {}; allowed are four hexadecimal digits, the bits "
                      "of a BF16 value",
                      kColumns[3 + kTopK + k], in_quotes(cell)));
    }
    row.weights[k] = F32{std::uint32_t{*bits} << 16};
    const Status weight = gptoss::check_weight(row.weights[k]);
    if (!weight)
      return weight.error().within(
          fmt::format("column {} is {}", kColumns[3 + kTopK + k], in_quotes(cell)));
  }
  ASSAY_CHECK(gptoss::check_distinct(row.ids));
  return row;
}

}  // namespace
}  // namespace assay::traces
