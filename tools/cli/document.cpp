// See document.hpp.
#include "tools/cli/document.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

namespace assay::tools {
namespace {

std::string value_text(const Value& value) {
  struct Show {
    std::string operator()(bool x) const { return x ? "true" : "false"; }
    std::string operator()(std::int64_t x) const { return fmt::format("{}", x); }
    std::string operator()(std::uint64_t x) const { return fmt::format("{}", x); }
    std::string operator()(double x) const { return fmt::format("{:.4g}", x); }
    std::string operator()(const std::string& x) const { return x; }
  };
  return std::visit(Show{}, value);
}

nlohmann::ordered_json value_json(const Value& value) {
  return std::visit([](const auto& x) { return nlohmann::ordered_json(x); }, value);
}

bool is_number(const Value& value) {
  return !std::holds_alternative<std::string>(value) && !std::holds_alternative<bool>(value);
}

std::string without_trailing_spaces(std::string line) {
  line.erase(line.find_last_not_of(' ') + 1);
  return line;
}

// Numbers to the right, words to the left.
std::string table_text(const Table& table, const std::string& indent) {
  std::vector<std::size_t> width;
  for (const std::string& column : table.columns) width.push_back(column.size());
  for (const auto& row : table.rows) {
    for (std::size_t i = 0; i < row.size(); ++i)
      width[i] = std::max(width[i], value_text(row[i]).size());
  }
  const auto line = [&](auto&& cell) {
    std::string out = indent;
    for (std::size_t i = 0; i < table.columns.size(); ++i) {
      const bool right = !table.rows.empty() && is_number(table.rows.front()[i]);
      out += i == 0 ? "" : "  ";
      out += right ? fmt::format("{:>{}}", cell(i), width[i])
                   : fmt::format("{:<{}}", cell(i), width[i]);
    }
    return without_trailing_spaces(std::move(out)) + "\n";
  };
  std::string out = line([&](std::size_t i) { return table.columns[i]; });
  for (const auto& row : table.rows) out += line([&](std::size_t i) { return value_text(row[i]); });
  return out;
}

}  // namespace

struct DocumentPrinter {
  static std::string text(const Document& document, const std::string& indent) {
    std::size_t width = 0;
    for (const Document::Entry& entry : document.entries_) {
      if (std::holds_alternative<Document::Field>(entry.content) ||
          std::holds_alternative<std::vector<Value>>(entry.content))
        width = std::max(width, entry.key.size());
    }
    std::string out;
    for (const Document::Entry& entry : document.entries_) out += entry_text(entry, width, indent);
    return out;
  }

  static std::string entry_text(const Document::Entry& entry, std::size_t width,
                                const std::string& indent) {
    if (const auto* field = std::get_if<Document::Field>(&entry.content)) {
      const std::string value = value_text(field->value);
      std::string line = fmt::format("{}{:<{}}  ", indent, entry.key, width);
      line += field->remark.empty() ? value : fmt::format("{:<12}  {}", value, field->remark);
      return without_trailing_spaces(std::move(line)) + "\n";
    }
    if (const auto* values = std::get_if<std::vector<Value>>(&entry.content)) {
      std::string line = fmt::format("{}{:<{}} ", indent, entry.key, width);
      for (const Value& value : *values) line += " " + value_text(value);
      return line + "\n";
    }
    if (const auto* table = std::get_if<Table>(&entry.content))
      return fmt::format("{}{}\n{}", indent, entry.key, table_text(*table, indent + "  "));
    if (const auto* rendered = std::get_if<Document::Rendered>(&entry.content))
      return rendered->text;
    const auto& group = std::get<std::shared_ptr<Document>>(entry.content);
    return fmt::format("{}{}\n{}", indent, entry.key, text(*group, indent + "  "));
  }

  static nlohmann::ordered_json json(const Document& document) {
    nlohmann::ordered_json object = nlohmann::ordered_json::object();
    for (const Document::Entry& entry : document.entries_) object[entry.key] = entry_json(entry);
    return object;
  }

  static nlohmann::ordered_json entry_json(const Document::Entry& entry) {
    if (const auto* field = std::get_if<Document::Field>(&entry.content))
      return value_json(field->value);
    if (const auto* rendered = std::get_if<Document::Rendered>(&entry.content))
      return *rendered->json;
    if (const auto* group = std::get_if<std::shared_ptr<Document>>(&entry.content))
      return json(**group);
    nlohmann::ordered_json array = nlohmann::ordered_json::array();
    if (const auto* values = std::get_if<std::vector<Value>>(&entry.content)) {
      for (const Value& value : *values) array.push_back(value_json(value));
      return array;
    }
    const Table& table = std::get<Table>(entry.content);
    for (const auto& row : table.rows) {
      nlohmann::ordered_json object = nlohmann::ordered_json::object();
      for (std::size_t i = 0; i < row.size(); ++i) object[table.columns[i]] = value_json(row[i]);
      array.push_back(std::move(object));
    }
    return array;
  }
};

Document& Document::field(std::string key, Value value, std::string remark) {
  entries_.push_back({std::move(key), Field{std::move(value), std::move(remark)}});
  return *this;
}

Document& Document::list(std::string key, std::vector<Value> values) {
  entries_.push_back({std::move(key), std::move(values)});
  return *this;
}

Document& Document::table(std::string key, Table table) {
  entries_.push_back({std::move(key), std::move(table)});
  return *this;
}

Document& Document::rendered(std::string key, std::string text,
                             const nlohmann::ordered_json& json) {
  if (!text.empty() && text.back() != '\n') text += '\n';
  entries_.push_back(
      {std::move(key),
       Rendered{std::move(text), std::make_shared<const nlohmann::ordered_json>(json)}});
  return *this;
}

Document& Document::group(std::string key) {
  auto inner = std::make_shared<Document>();
  entries_.push_back({std::move(key), inner});
  return *inner;
}

std::string Document::text() const { return DocumentPrinter::text(*this, ""); }

std::string Document::json() const {
  // Sentences of ours are UTF-8, but a path that a sentence quotes need not be.
  return DocumentPrinter::json(*this).dump(2, ' ', false,
                                           nlohmann::json::error_handler_t::replace) +
         "\n";
}

std::string bytes_remark(std::int64_t bytes) {
  static constexpr const char* kUnits[] = {"KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
  if (bytes < 1024) return "";
  double amount = static_cast<double>(bytes) / 1024;
  std::size_t unit = 0;
  while (amount >= 1024 && unit + 1 < std::size(kUnits)) {
    amount /= 1024;
    ++unit;
  }
  return fmt::format("{:.4g} {}", amount, kUnits[unit]);
}

std::string percent_remark(double fraction) { return fmt::format("{:.1f} %", fraction * 100); }

}  // namespace assay::tools
