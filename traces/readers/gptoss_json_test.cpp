// The GPT-OSS JSON reader (SPEC TRC-2.2, TRC-2.4, TRC-2.5).
#include <fmt/format.h>

#include <cstdlib>

#include "model/core/testing_files.hpp"
#include "traces/format/trace_testing.hpp"
#include "traces/readers/readers.hpp"

namespace assay::traces {
namespace {

using testing::require_error;

// One line per layer, so that lines can be counted: token t of 0.. is named on line 4 + 27 * t.
std::string layer_text(int layer, const std::string& ids, const std::string& weights) {
  return fmt::format("\"layer_{}\": {{\"selected_experts\": {}, \"selected_probs\": {}}}", layer,
                     ids, weights);
}

std::string file_text(int tokens, const std::string& replaced = "", const std::string& by = "") {
  std::string text =
      "{\"label\": [{\"router_data\": 1}, \"layer_0\"],\n\"full_text\": \"{\",\n\"router_data\": "
      "[\n";
  for (int token = 0; token < tokens; ++token) {
    text += fmt::format("{}{{\"token_{}\": {{\n", token == 0 ? "" : ",", 146 + token);
    for (int layer = 0; layer < 24; ++layer)
      text += layer_text(layer, fmt::format("[31, {}, {}, 6]", token, 7 + layer),
                         "[0.5, 0.25, 0.125, 0.125]") +
              (layer == 23 ? "\n" : ",\n");
    text += "}\n}\n";
  }
  text += "], \"row_index\": 1}\n";
  if (replaced.empty()) return text;
  REQUIRE(text.find(replaced) != std::string::npos);
  return text.replace(text.find(replaced), replaced.size(), by);
}

Expected<Trace> read(const std::string& text) { return read_gptoss_json(text, "fixture.json"); }

TEST_CASE("a JSON file of GPT-OSS routing becomes a trace of one request", "[TRC-2.4]") {
  const Expected<Trace> trace = read(file_text(3));
  INFO((trace ? "" : trace.error().sentence));
  REQUIRE(trace.has_value());
  REQUIRE(trace->num_tokens() == 3);
  CHECK(trace->num_experts() == 32);
  CHECK(trace->num_layers() == 24);
  CHECK(trace->hidden_size() == 2880);
  for (std::int32_t token = 0; token < 3; ++token) {
    CHECK(trace->request(token) == 0);
    CHECK(trace->step(token) == token);
    CHECK(trace->position(token) == 146 + token);
    CHECK(trace->topk_id(token, 9, 1) == token);
    CHECK(trace->topk_id(token, 9, 2) == 16);
    CHECK(trace->topk_weight(token, 9, 2).bits == 0x3e000000);
  }
}

TEST_CASE("weights of a JSON file are BF16 if that loses nothing, F32 otherwise", "[TRC-2.5]") {
  CHECK(read(file_text(2))->weights_dtype() == Dtype::kBf16);
  const Expected<Trace> trace = read(file_text(2, "0.25, 0.125", "0.1, 0.125"));
  REQUIRE(trace.has_value());
  CHECK(trace->weights_dtype() == Dtype::kF32);
  CHECK(trace->topk_weight(0, 0, 1).bits == 0x3dcccccd);
  CHECK(read(file_text(2, "0.5", "1"))->weights_dtype() == Dtype::kBf16);
}

TEST_CASE("what does not belong into the JSON is refused with its line and place", "[TRC-2.4]") {
  struct Case {
    const char *replaced, *by, *sentence;
  };
  for (const Case& c : {
           Case{"[31, 0, 9, 6]", "[31, 0, 32, 6]", "line 7: expert id 32; allowed are 0 to 31"},
           Case{"[31, 0, 9, 6]", "[31, 0, -1, 6]", "line 7: expert id -1"},
           Case{"[31, 0, 9, 6]", "[31, 0, 9.0, 6]",
                "9.0 in router_data.token_146.layer_2.selected_experts"},
           Case{"[31, 0, 9, 6]", "[31, 0, 18446744073709551615, 6]", "allowed are 0 to 31"},
           Case{"[31, 0, 9, 6]", "[31, 0, 9]",
                "a list of 3 in router_data.token_146.layer_2.selected_experts; allowed is a list "
                "of 4 whole numbers 0 to 31"},
           Case{"[31, 0, 9, 6]", "[31, 0, 9, 6, 7]", "line 7: 7 in router_data.token_146.layer_2"},
           Case{"[31, 0, 9, 6]", "[31, 0, 9, \"6\"]", "\"6\" in router_data"},
           Case{"[31, 0, 9, 6]", "[31, 0, 9, [6]]", "a list in router_data"},
           Case{"[31, 0, 9, 6]", "[31, 0, 9, null]", "null in router_data"},
           Case{"[31, 0, 9, 6]", "[31, 0, 9, 9]", "line 7: expert 9 is picked twice"},
           Case{"[31, 0, 9, 6]", "7", "7 in router_data.token_146.layer_2.selected_experts"},
           Case{"0.5, 0.25", "-0.5, 0.25",
                "line 5: weight -0.5; allowed are finite values from 0 up"},
           Case{"0.5, 0.25", "1e39, 0.25", "weight inf"},
           Case{"0.5, 0.25", "1e999, 0.25", "is not JSON at \"1e999\""},
           Case{"0.5, 0.25", "NaN, 0.25", "line 5: is not JSON"},
           Case{"\"selected_probs\"", "\"probs\"",
                "line 5: \"probs\" in router_data.token_146.layer_0"},
           Case{"\"selected_probs\"", "\"selected_experts\"", "each once"},
           Case{", \"selected_probs\": [0.5, 0.25, 0.125, 0.125]", "",
                "no selected_probs in router_data.token_146.layer_0"},
           Case{"\"layer_3\"", "\"layer_24\"",
                "\"layer_24\" in router_data.token_146; allowed is an object with layer_0 to "
                "layer_23"},
           Case{"\"layer_3\"", "\"layer_03\"", "\"layer_03\""},
           Case{"\"layer_3\"", "\"layer_2\"",
                "line 8: repeats request 0, step 0, layer 2 of line 7"},
           Case{"\"token_147\"", "\"token_148\"",
                "token_148 follows token_146; positions go up by one"},
           Case{"\"token_147\"", "\"token_146\"", "token_146 follows token_146"},
           Case{"\"token_147\"", "\"tokens\"", "\"tokens\" in router_data"},
           Case{"[\n{\"token_146\"", "[{}, {\"token_146\"", "an empty object in router_data"},
           Case{"}\n}\n,{\"token_147\"", "}\n,\"token_147\"", "a second token in one object"},
           Case{"\"router_data\": [\n", "\"router_data\": 4, \"rest\": [\n", "4 in router_data"},
           Case{"\"full_text\": \"{\"", "\"router_data\": []", "a second router_data"},
           Case{"\"router_data\": [\n", "\"routing\": [\n", "has no \"router_data\""},
       }) {
    INFO(c.by);
    require_error(read(file_text(2, c.replaced, c.by)), {c.sentence});
  }
}

TEST_CASE("a number at the end of a line is refused on that line", "[TRC-2.4]") {
  // The parser has read the line end by then, to know that the number is over.
  require_error(read(file_text(1, "[31, 0, 9, 6]", "[31, 0,\n9,\n99\n, 6]")),
                {"line 9: expert id 99"});
}

TEST_CASE("a JSON file that ends early is refused at every length", "[TRC-2.4]") {
  const std::string text = file_text(1);
  const std::size_t end = text.find_last_of('}');
  for (std::size_t length = 0; length <= end; ++length) {
    const Expected<Trace> trace = read(text.substr(0, length));
    if (trace) FAIL("accepted after " << length << " of " << text.size() << " bytes");
    if (trace.error().sentence.find("is not JSON") == std::string::npos)
      FAIL(length << ": " << trace.error().sentence);
  }
  CHECK(read(text.substr(0, end + 1)).has_value());
}

TEST_CASE("missing layers and an empty list of tokens are refused", "[TRC-2.2]") {
  std::string text = file_text(2);
  const std::size_t begin = text.find("\"layer_4\""), end = text.find("\"layer_5\"");
  text.erase(begin, end - begin);
  require_error(read(text), {"no row for request 0, step 0, layer 4", "in line 5"});
  require_error(read("{\"router_data\": []}"), {"has no row of routing"});
  require_error(read("[]"), {"a list in the file; allowed is one object with one router_data"});
}

TEST_CASE("the published JSON file and the CSV made of its siblings read alike",
          "[TRC-2.4][extra]") {
  const char* extra = std::getenv("ASSAY_EXTRA_DATA");
  if (extra == nullptr) {
    WARN("skipped: ASSAY_EXTRA_DATA is not set; it names a folder with traces/ in it");
    return;
  }
  const Expected<Trace> trace =
      read_trace(std::string(extra) + "/traces/gptoss20b_mmlu_marketing_original.json");
  INFO((trace ? "" : trace.error().sentence));
  REQUIRE(trace.has_value());
  CHECK(trace->num_tokens() == 30);
  CHECK(trace->position(0) == 146);
  CHECK(trace->position(29) == 175);
  CHECK(trace->weights_dtype() == Dtype::kBf16);
  // The first generated token of every conversation is the same template token.
  CHECK(trace->topk_id(0, 0, 0) == 31);
  CHECK(trace->topk_weight(0, 0, 0).bits == 0x3efa0000);
}

}  // namespace
}  // namespace assay::traces
