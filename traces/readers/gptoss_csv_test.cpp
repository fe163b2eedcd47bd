// The GPT-OSS CSV reader (SPEC TRC-2.2, TRC-2.3).
#include <fmt/format.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>

#include "model/core/testing_files.hpp"
#include "traces/format/trace_testing.hpp"
#include "traces/readers/readers.hpp"

namespace assay::traces {
namespace {

using testing::require_error;

constexpr const char* kHeader = "conv,step,layer,e0,e1,e2,e3,p0,p1,p2,p3\n";

// Rows of `convs` conversations with `steps` steps each; 0-based row r is line r + 2.
std::vector<std::string> rows(int convs, int steps) {
  std::vector<std::string> lines;
  for (int conv = 0; conv < convs; ++conv)
    for (int step = 0; step < steps; ++step)
      for (int layer = 0; layer < 24; ++layer)
        lines.push_back(fmt::format("{},{},{},{},{},{},{},3f00,3e80,3e00,3e00", conv, step, layer,
                                    conv, 10 + step, 20 + layer % 4, 31));
  return lines;
}

Expected<Trace> read(const std::vector<std::string>& lines, const std::string& header = kHeader) {
  std::string text = header;
  for (const std::string& line : lines) text += line + "\n";
  return read_gptoss_csv(text, "fixture.csv");
}

Expected<Trace> read_with(std::size_t row, const std::string& line) {
  auto lines = rows(2, 2);
  lines.at(row) = line;
  return read(lines);
}

TEST_CASE("a CSV of GPT-OSS routing becomes a trace with the model's sizes", "[TRC-2.2][TRC-2.3]") {
  const Expected<Trace> trace = read(rows(2, 3));
  INFO((trace ? "" : trace.error().sentence));
  REQUIRE(trace.has_value());
  CHECK(trace->num_experts() == 32);
  CHECK(trace->num_layers() == 24);
  CHECK(trace->hidden_size() == 2880);
  CHECK(trace->top_k() == 4);
  REQUIRE(trace->num_tokens() == 6);
  CHECK(trace->info().source == "fixture.csv");
  CHECK(trace->request(4) == 1);
  CHECK(trace->step(4) == 1);
  CHECK(trace->topk_id(4, 7, 0) == 1);
  CHECK(trace->topk_id(4, 7, 1) == 11);
  CHECK(trace->topk_id(4, 7, 2) == 23);
  CHECK(trace->topk_weight(4, 7, 1).bits == 0x3e800000);
  CHECK(trace->weights_dtype() == Dtype::kBf16);
}

TEST_CASE("rows of a CSV may come in any order, and lines may end as on Windows", "[TRC-2.3]") {
  auto lines = rows(2, 2);
  std::swap(lines[3], lines[70]);
  const Expected<Trace> swapped = read(lines);
  REQUIRE(swapped.has_value());
  // Token 2 appears first in row 3 now, so only the order of tokens may differ.
  CHECK(swapped->topk_id(0, 3, 0) == 0);
  for (std::string& line : lines = rows(2, 2)) line += "\r";
  const Expected<Trace> windows = read(lines, "conv,step,layer,e0,e1,e2,e3,p0,p1,p2,p3\r\n");
  REQUIRE(windows.has_value());
  CHECK(same_trace(*windows, *read(rows(2, 2))));
}

TEST_CASE("wrong columns are refused with the columns that are allowed", "[TRC-2.3]") {
  require_error(read(rows(1, 1), "conv,step,layer,e0,e1,e2,e3\n"),
                {"line 1: the columns are \"conv,step,layer,e0,e1,e2,e3\"; allowed are "
                 "conv,step,layer,e0,e1,e2,e3,p0,p1,p2,p3"});
  require_error(read(rows(1, 1), "step,conv,layer,e0,e1,e2,e3,p0,p1,p2,p3\n"), {"line 1"});
  require_error(read_with(5, "0,0,5,1,2,3,4,3f00,3e80,3e00"),
                {"line 7: 10 cells", "allowed are 11"});
  require_error(read_with(5, "0,0,5,1,2,3,4,3f00,3e80,3e00,3e00,0"), {"line 7: 12 cells"});
  require_error(read_with(5, ""), {"line 7: 1 cells in \"\""});
}

TEST_CASE("bad numbers are refused with line, column and what is allowed", "[TRC-2.3]") {
  struct Case {
    const char *line, *sentence;
  };
  for (const Case& c : {
           Case{"x,0,5,1,2,3,4,3f00,3e80,3e00,3e00",
                "line 7: column conv is \"x\"; allowed are whole"},
           Case{"-1,0,5,1,2,3,4,3f00,3e80,3e00,3e00", "column conv is \"-1\""},
           Case{"0,2147483648,5,1,2,3,4,3f00,3e80,3e00,3e00", "column step is \"2147483648\""},
           Case{"0,0,24,1,2,3,4,3f00,3e80,3e00,3e00",
                "column layer is \"24\"; allowed are whole numbers 0 to 23"},
           Case{"0,0,5,1,2,32,4,3f00,3e80,3e00,3e00",
                "column e2 is \"32\"; allowed are whole numbers 0 to 31"},
           Case{"0,0,5,1,2,-3,4,3f00,3e80,3e00,3e00", "column e2 is \"-3\""},
           Case{"0,0,5,1, 2,3,4,3f00,3e80,3e00,3e00", "column e1 is \" 2\""},
           Case{"0,0,5,1,2.0,3,4,3f00,3e80,3e00,3e00", "column e1 is \"2.0\""},
           Case{"0,0,5,1,,3,4,3f00,3e80,3e00,3e00", "column e1 is \"\""},
           Case{"0,0,5,1,2,3,3,3f00,3e80,3e00,3e00", "line 7: expert 3 is picked twice"},
           Case{"0,0,5,1,2,3,4,0.5,3e80,3e00,3e00",
                "column p0 is \"0.5\"; allowed are four hexadecimal digits"},
           Case{"0,0,5,1,2,3,4,3f0,3e80,3e00,3e00", "column p0 is \"3f0\""},
           Case{"0,0,5,1,2,3,4,3f00,3e80,3e00,-3e0", "column p3 is \"-3e0\""},
           Case{"0,0,5,1,2,3,4,3f00,7fc0,3e00,3e00", "line 7: column p1 is \"7fc0\": weight nan"},
           Case{"0,0,5,1,2,3,4,3f00,7f80,3e00,3e00",
                "weight inf; allowed are finite values from 0 up"},
           Case{"0,0,5,1,2,3,4,3f00,be80,3e00,3e00", "weight -0.25"},
       })
    require_error(read_with(5, c.line), {c.sentence});
}

TEST_CASE("a row that is there twice or not at all is refused", "[TRC-2.2]") {
  auto lines = rows(2, 2);
  lines.push_back(lines[30]);
  require_error(read(lines), {"line 98: repeats request 0, step 1, layer 6 of line 32"});
  lines = rows(2, 2);
  lines.erase(lines.begin() + 30);
  require_error(read(lines), {"no row for request 0, step 1, layer 6", "layers 0 to 23"});
  lines = rows(2, 3);
  lines.erase(lines.begin() + 24, lines.begin() + 48);  // conversation 0 without step 1
  require_error(read(lines), {"line 26: request 0 is at step 2 but never at step 1"});
}

TEST_CASE("a CSV without rows is refused", "[TRC-2.2]") {
  require_error(read({}), {"has no row of routing"});
  require_error(read({}, ""), {"line 1: the columns are \"\""});
}

TEST_CASE("the published decode batch is 64 conversations of 56 steps, and reads quickly",
          "[TRC-2.3][extra]") {
  const char* extra = std::getenv("ASSAY_EXTRA_DATA");
  if (extra == nullptr) {
    WARN("skipped: ASSAY_EXTRA_DATA is not set; it names a folder with traces/ in it");
    return;
  }
  const auto start = std::chrono::steady_clock::now();
  const Expected<Trace> trace =
      read_trace(std::string(extra) + "/traces/gptoss20b_decode_batch.csv");
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
  INFO((trace ? "" : trace.error().sentence));
  REQUIRE(trace.has_value());
  REQUIRE(trace->groups().size() == 56);
  for (const TokenGroup& group : trace->groups()) REQUIRE(group.tokens.size() == 64);
  // First and last row of the file.
  CHECK(trace->topk_id(0, 0, 0) == 31);
  CHECK(trace->topk_weight(0, 0, 0).bits == 0x3f050000);
  // Rows with two equal weights, where the order of picks is the router's own: 3,254 of 86,016 by a
  // count with Python's csv module.
  std::int64_t tied = 0;
  for (std::int64_t token = 0; token < trace->num_tokens(); ++token) {
    for (std::int32_t layer = 0; layer < 24; ++layer) {
      bool equal = false;
      for (std::int32_t a = 0; a < 4; ++a)
        for (std::int32_t b = 0; b < a; ++b)
          equal |=
              same_bits(trace->topk_weight(token, layer, a), trace->topk_weight(token, layer, b));
      tied += equal;
    }
  }
  CHECK(tied == 3254);
  std::printf("decode batch read in %.3f s\n", seconds.count());
#ifdef __OPTIMIZE__
  CHECK(seconds.count() < 0.3);
#endif
}

}  // namespace
}  // namespace assay::traces
