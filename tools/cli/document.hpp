// What a verb has to say, as one ordered list of named fields, tables and groups. Text and JSON are
// two renderings of it, so neither has a field that the other lacks. Decides how they look.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include <nlohmann/json_fwd.hpp>

namespace assay::tools {

// A value as JSON knows it. A real is rounded to four significant digits in text only.
using Value = std::variant<bool, std::int64_t, std::uint64_t, double, std::string>;

// Columns have names; in JSON a table is an array of objects with these names.
struct Table {
  std::vector<std::string> columns;
  std::vector<std::vector<Value>> rows;
};

class Document {
 public:
  // `remark` helps people ("160 MiB", "8.3 %") and is derived from the value, so JSON leaves it
  // out.
  Document& field(std::string key, Value value, std::string remark = "");
  Document& list(std::string key, std::vector<Value> values);
  Document& table(std::string key, Table table);
  // What a library renders itself, both ways with the same fields.
  Document& rendered(std::string key, std::string text, const nlohmann::ordered_json& json);
  // A group of fields: an object in JSON, indented in text. The reference is valid until the next
  // call on this document.
  Document& group(std::string key);

  std::string text() const;
  std::string json() const;  // ends in a newline

 private:
  struct Field {
    Value value;
    std::string remark;
  };
  struct Rendered {
    std::string text;
    std::shared_ptr<const nlohmann::ordered_json> json;
  };
  struct Entry {
    std::string key;
    std::variant<Field, std::vector<Value>, Table, Rendered, std::shared_ptr<Document>> content;
  };
  friend struct DocumentPrinter;
  std::vector<Entry> entries_;
};

// "160 MiB", "5.2 KiB"; nothing below 1 KiB.
std::string bytes_remark(std::int64_t bytes);
// "8.3 %"
std::string percent_remark(double fraction);

}  // namespace assay::tools
