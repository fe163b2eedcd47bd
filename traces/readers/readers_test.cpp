// Which reader a file gets (SPEC TRC-2.1).
#include "traces/readers/readers.hpp"

#include "model/core/testing_files.hpp"
#include "traces/format/trace_file.hpp"
#include "traces/format/trace_testing.hpp"

namespace assay::traces {
namespace {

using assay::testing::TempDir;
using assay::testing::write_bytes;
using testing::require_error;

TraceFormat format_of(const TempDir& dir, const std::string& name, const std::string& bytes) {
  write_bytes(dir.file(name), bytes);
  const Expected<TraceFormat> format = detect_format(dir.file(name));
  INFO((format ? "" : format.error().sentence));
  REQUIRE(format.has_value());
  return *format;
}

TEST_CASE("content decides the format, whatever the file is called", "[TRC-2.1]") {
  const TempDir dir;
  CHECK(format_of(dir, "a.json", "conv,step,layer,e0\n") == TraceFormat::kGptOssCsv);
  CHECK(format_of(dir, "b.csv", " {\"a\": {\"weight_map\": 1}, \"router_data\": []}") ==
        TraceFormat::kGptOssJson);
  CHECK(format_of(dir, "c.safetensors", "{\"weight_map\": {}}") == TraceFormat::kIndex);
  CHECK(format_of(dir, "d.csv", std::string("\x10\0\0\0\0\0\0\0{}", 10)) ==
        TraceFormat::kSafetensors);
  // A captured text may quote anything.
  CHECK(format_of(dir, "e.json",
                  "{\"full_text\": \"\\\"weight_map\\\": {}\", \"router_data\": []}") ==
        TraceFormat::kGptOssJson);
  // Eight characters before a brace are no length.
  CHECK(format_of(dir, "f.json", "        {\"router_data\": []}") == TraceFormat::kGptOssJson);
}

TEST_CASE("the name decides where the content says nothing", "[TRC-2.1]") {
  const TempDir dir;
  CHECK(format_of(dir, "a.csv", "step;layer\n") == TraceFormat::kGptOssCsv);
  CHECK(format_of(dir, "a.json", "{\"router_dat") == TraceFormat::kGptOssJson);
  CHECK(format_of(dir, "a.safetensors.index.json", "{}") == TraceFormat::kIndex);
  CHECK(format_of(dir, "a.safetensors", "\x10") == TraceFormat::kSafetensors);
  require_error(read_trace(dir.file("a.csv")), {"a.csv: line 1: the columns are \"step;layer\""});
  require_error(read_trace(dir.file("a.json")), {"a.json: line 1: is not JSON"});
  require_error(read_trace(dir.file("a.safetensors")), {"a.safetensors: "});
  require_error(read_trace(dir.file("a.safetensors.index.json")),
                {"a.safetensors.index.json: has no object \"metadata\""});
}

TEST_CASE("a file that is nothing we know is refused with what we know", "[TRC-2.1]") {
  const TempDir dir;
  write_bytes(dir.file("t.parquet"), "PAR1\x15\x04");
  require_error(
      read_trace(dir.file("t.parquet")),
      {"t.parquet: begins with \"PAR1\\x15\\x04\"; allowed are", "conv,step,layer", "router_data"});
  for (const char* name : {"empty.csv", "empty.json", "empty.safetensors", "empty"}) {
    write_bytes(dir.file(name), "");
    require_error(read_trace(dir.file(name)), {name, "is empty, 0 bytes"});
  }
  write_bytes(dir.file("blank.csv"), "\n\n");
  require_error(read_trace(dir.file("blank.csv")), {"blank.csv: line 1"});
  require_error(read_trace(dir.file("absent.csv")), {"absent.csv"});
  require_error(read_trace(dir.path().string()), {dir.path().string()});
}

TEST_CASE("our own files are read by content, whole or in shards", "[TRC-2.1]") {
  const TempDir dir;
  const Expected<Trace> trace = testing::make(testing::small_parts());
  REQUIRE(write_trace(*trace, dir.file("t.dat")).has_value());
  CHECK(same_trace(*trace, *read_trace(dir.file("t.dat"))));
  const Expected<std::string> index = write_trace_shards(*trace, dir.file("u.safetensors"), 4);
  REQUIRE(index.has_value());
  CHECK(same_trace(*trace, *read_trace(*index)));
}

}  // namespace
}  // namespace assay::traces
