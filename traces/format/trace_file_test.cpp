// Traces on disk (SPEC TRC-1.1, TRC-1.7, TRC-1.8), and the sample that this repository ships.
#include "traces/format/trace_file.hpp"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <functional>
#include <nlohmann/json.hpp>

#include "model/core/safetensors.hpp"
#include "model/core/testing_files.hpp"
#include "traces/format/trace_testing.hpp"

namespace assay::traces {
namespace {

using assay::testing::read_bytes;
using assay::testing::TempDir;
using assay::testing::write_bytes;
using testing::make;
using testing::Parts;
using testing::require_error;
using testing::small_parts;

// Writes small_parts() with one thing changed, and returns its path.
std::string write_changed(const TempDir& dir,
                          const std::function<void(TensorFileWriter&, Parts&)>& change) {
  static Parts parts;  // the writer keeps pointers
  parts = small_parts();
  TensorFileWriter writer;
  writer.set_schema("assay.trace", 1);
  for (const auto& [key, value] :
       {std::pair{"model", "toy"}, std::pair{"licence", "CC0-1.0"}, std::pair{"source", "by hand"},
        std::pair{"num_experts", "4"}, std::pair{"hidden_size", "16"}, std::pair{"layers", "2"}})
    writer.set_metadata(key, value);
  writer.add<std::int32_t>("request", {6}, parts.tensors.request);
  writer.add<std::int32_t>("position", {6}, parts.tensors.position);
  change(writer, parts);
  std::string path = dir.file("changed.safetensors");
  const Status written = writer.write(path);
  INFO((written ? "" : written.error().sentence));
  REQUIRE(written.has_value());
  return path;
}

void add_rest(TensorFileWriter& writer, Parts& parts) {
  writer.add<std::int16_t>("topk_ids", {6, 2, 2}, parts.tensors.topk_ids);
  writer.add<std::int32_t>("step", {6}, parts.tensors.step);
}

TEST_CASE("a written trace reads back as the same trace", "[TRC-1.1][TRC-1.8]") {
  const TempDir dir;
  assay::testing::prop("any parts", [&] {
    const Expected<Trace> trace = make(*testing::any_parts());
    RC_ASSERT(trace.has_value());
    const std::string path = dir.file("t.safetensors");
    RC_ASSERT(write_trace(*trace, path).has_value());
    const Expected<Trace> back = open_trace(path);
    if (!back) RC_FAIL(back.error().sentence);
    RC_ASSERT(same_trace(*trace, *back));
    const std::string bytes = read_bytes(path);
    RC_ASSERT(write_trace(*back, path).has_value());
    RC_ASSERT(read_bytes(path) == bytes);
  });
}

TEST_CASE("same_trace sees every difference", "[TRC-1.8]") {
  const Expected<Trace> trace = make(small_parts());
  const auto differs = [&](const std::function<void(Parts&)>& change) {
    Parts parts = small_parts();
    change(parts);
    const Expected<Trace> other = make(parts);
    REQUIRE(other.has_value());
    CHECK_FALSE(same_trace(*trace, *other));
  };
  differs([](Parts& parts) { parts.info.source = "elsewhere"; });
  differs([](Parts& parts) { parts.info.padded = true; });
  differs([](Parts& parts) { parts.tensors.request[5] = 9; });
  differs([](Parts& parts) { parts.tensors.step[5] = 9; });
  differs([](Parts& parts) { parts.tensors.position[5] = 9; });
  differs([](Parts& parts) { std::swap(parts.tensors.topk_ids[0], parts.tensors.topk_ids[1]); });
  differs([](Parts& parts) { parts.tensors.topk_weights = {}; });
  differs(
      [](Parts& parts) { std::get<std::vector<Bf16>>(parts.tensors.topk_weights)[0].bits ^= 1; });
  CHECK(same_trace(*trace, *make(small_parts())));
}

TEST_CASE("shards with an index read back as the same trace", "[TRC-1.7]") {
  const TempDir dir;
  assay::testing::prop("any parts and shard size", [&] {
    const Expected<Trace> trace = make(*testing::any_parts());
    RC_ASSERT(trace.has_value());
    const auto size = *rc::gen::inRange<std::int64_t>(1, 14);
    const Expected<std::string> index = write_trace_shards(*trace, dir.file("t.safetensors"), size);
    RC_ASSERT(index.has_value());
    RC_ASSERT(*index == dir.file("t.safetensors.index.json"));
    const Expected<Trace> back = open_trace_shards(*index);
    if (!back) RC_FAIL(back.error().sentence);
    RC_ASSERT(same_trace(*trace, *back));
  });
}

TEST_CASE("a file of another schema or version is refused", "[TRC-1.1]") {
  const TempDir dir;
  require_error(open_trace(write_changed(dir,
                                         [](TensorFileWriter& writer, Parts& parts) {
                                           add_rest(writer, parts);
                                           writer.set_schema("assay.golden", 1);
                                         })),
                {"changed.safetensors", "schema is \"assay.golden\"; allowed is \"assay.trace\""});
  require_error(open_trace(write_changed(dir,
                                         [](TensorFileWriter& writer, Parts& parts) {
                                           add_rest(writer, parts);
                                           writer.set_schema("assay.trace", 2);
                                         })),
                {"version \"2\"", "allowed are 1 to 1"});
}

TEST_CASE("malformed metadata is refused with the key and its limits", "[TRC-1.2]") {
  const TempDir dir;
  struct Case {
    const char *key, *value, *sentence;
  };
  for (const Case& c :
       {Case{"num_experts", "32768", "num_experts is \"32768\"; allowed are 1 to 32767"},
        Case{"num_experts", "99999999999", "allowed are 1 to 32767"},
        Case{"num_experts", "4 ", "num_experts is \"4 \""},
        Case{"layers", "-2", "layers is \"-2\""}, Case{"hidden_size", "", "hidden_size is \"\""},
        Case{"padding", "0", "padding is \"0\""},
        Case{"layers", "3", "shape [6, 2, 2]; allowed is [tokens, layers=3, top_k]"},
        Case{"num_experts", "1", "allowed for its last axis, top_k, are 1 to 1"}}) {
    require_error(open_trace(write_changed(dir,
                                           [&](TensorFileWriter& writer, Parts& parts) {
                                             add_rest(writer, parts);
                                             writer.set_metadata(c.key, c.value);
                                           })),
                  {"changed.safetensors", c.sentence});
  }
}

TEST_CASE("missing, unknown and misshapen tensors are refused by name", "[TRC-1.3]") {
  const TempDir dir;
  const auto open = [&](const std::function<void(TensorFileWriter&, Parts&)>& change) {
    return open_trace(write_changed(dir, change));
  };
  require_error(open([](TensorFileWriter& writer, Parts& parts) {
                  writer.add<std::int16_t>("topk_ids", {6, 2, 2}, parts.tensors.topk_ids);
                }),
                {"no tensor \"step\""});
  require_error(open([](TensorFileWriter& writer, Parts& parts) {
                  add_rest(writer, parts);
                  writer.add<std::int32_t>("topk_weight", {6}, parts.tensors.step);
                }),
                {"tensor \"topk_weight\" is unknown; allowed are topk_ids, topk_weights"});
  require_error(open([](TensorFileWriter& writer, Parts& parts) {
                  add_rest(writer, parts);
                  writer.add("topk_weights", Dtype::kF16, {6, 2, 2},
                             std::as_bytes(std::span(parts.tensors.topk_ids)));
                }),
                {"dtype F16; allowed is BF16 or F32"});
  require_error(open([](TensorFileWriter& writer, Parts& parts) {
                  writer.add<std::int16_t>("topk_ids", {6, 2, 2}, parts.tensors.topk_ids);
                  writer.add<std::int32_t>("step", {3, 2}, parts.tensors.step);
                }),
                {"tensor \"step\" has shape [3, 2]; allowed is [tokens=6]"});
  CHECK(open([](TensorFileWriter& writer, Parts& parts) {
          add_rest(writer, parts);
          writer.add<std::int32_t>("x.tokens", {6}, parts.tensors.step);
        }).has_value());
  require_error(open([](TensorFileWriter& writer, Parts& parts) {
                  parts.tensors.topk_ids[0] = 7;
                  add_rest(writer, parts);
                }),
                {"changed.safetensors: request 0, step 0, layer 0: expert id 7"});
}

TEST_CASE("shards that do not belong together are refused", "[TRC-1.7]") {
  const TempDir dir;
  const Expected<Trace> trace = make(small_parts());
  const auto index = [&] { return *write_trace_shards(*trace, dir.file("t.safetensors"), 2); }();
  const std::string good = read_bytes(index);
  const auto changed = [&](const std::string& from, const std::string& to) {
    std::string text = good;
    REQUIRE(text.find(from) != std::string::npos);
    text.replace(text.find(from), from.size(), to);
    write_bytes(index, text);
    return open_trace_shards(index);
  };
  require_error(changed("t-00002-of-00003", "t-00001-of-00003"), {index, "allowed is one file"});
  require_error(changed("t-00002-of-00003", "../t-00002-of-00003"), {"allowed is one file"});
  require_error(
      changed("\"num_experts\": \"4\"", "\"num_experts\": \"5\""),
      {"\"t-00001-of-00003.safetensors\" has metadata num_experts \"4\"; the index has \"5\""});
  require_error(changed("\"schema\": \"assay.trace\"", "\"schema\": \"assay.golden\""),
                {"schema \"assay.golden\""});
  require_error(changed("topk_ids.00003", "topk_ids.00004"),
                {"is shard \"1/3\"; the index has it as 1/2"});
  require_error(changed("\"weight_map\": {", "\"weight_map\": {\"stray.00001\": \"x\","),
                {"names 16 tensors; 3 shards"});
  require_error(changed("\"step.00002\"", "\"stop.00002\""), {"no \"step.00002\""});
  require_error(changed("\"layers\"", "\"model\""), {"key \"model\" twice"});
  require_error(changed("{", "["), {index, "is not a JSON object"});
  require_error(changed("\"weight_map\"", "\"weights\""), {"has no object \"weight_map\""});

  std::string outside = good;
  const std::string second = "t-00002-of-00003";
  for (std::size_t at = 0; (at = outside.find(second, at)) != std::string::npos; at += 20)
    outside.insert(at, "../");
  write_bytes(index, outside);
  require_error(open_trace_shards(index), {"names in the folder of the index"});

  write_bytes(index, good);
  REQUIRE(open_trace_shards(index).has_value());
  require_error(open_trace(dir.file("t-00002-of-00003.safetensors")), {"is shard 2/3 of a trace"});
  // A shard of another trace under the right name.
  Parts other = small_parts();
  other.info.model = "another";
  REQUIRE(write_trace_shards(*make(other), dir.file("u.safetensors"), 2).has_value());
  std::filesystem::rename(dir.file("u-00002-of-00003.safetensors"),
                          dir.file("t-00002-of-00003.safetensors"));
  require_error(open_trace_shards(index), {"has metadata model \"another\""});
  std::filesystem::remove(dir.file("t-00002-of-00003.safetensors"));
  require_error(open_trace_shards(index), {"t-00002-of-00003.safetensors"});
}

TEST_CASE("shard arguments outside of the limits are refused", "[TRC-1.7]") {
  const TempDir dir;
  const Expected<Trace> trace = make(small_parts());
  require_error(write_trace_shards(*trace, dir.file("t.safetensors"), 0),
                {"tokens per shard is 0"});
  require_error(write_trace_shards(*trace, dir.file("t.bin"), 2), {"does not end in"});
  require_error(write_trace_shards(*trace, dir.file("no/t.safetensors"), 2), {"no/t-00001"});
}

TEST_CASE("the shipped sample is a decode batch of 64 requests", "[TRC-1.1]") {
  const std::string folder = ASSAY_TRACE_SAMPLES;
  const Expected<Trace> trace = open_trace(folder + "/assay-moe-sample.safetensors");
  INFO((trace ? "" : trace.error().sentence));
  REQUIRE(trace.has_value());
  CHECK(trace->num_experts() == 32);
  CHECK(trace->top_k() == 4);
  CHECK(trace->num_layers() >= 8);
  CHECK(trace->weights_dtype() == Dtype::kBf16);
  CHECK(trace->info().source.find("trained by us") != std::string::npos);
  for (const TokenGroup& group : trace->groups()) REQUIRE(group.tokens.size() == 64);

  // The report beside it states these figures; they are worked out again here.
  const auto report = nlohmann::json::parse(read_bytes(folder + "/assay-moe-sample.json"));
  CHECK(report["trace"]["tokens"] == trace->num_tokens());
  CHECK(report["held_out"]["loss_nats"] < report["held_out"]["unigram_entropy_nats"]);
  for (std::int32_t layer = 0; layer < trace->num_layers(); ++layer) {
    std::vector<double> picks(32);
    for (std::int64_t token = 0; token < trace->num_tokens(); ++token)
      for (const std::int16_t id : trace->topk_ids(token, layer))
        picks[static_cast<std::size_t>(id)] += 1;
    const double load = *std::max_element(picks.begin(), picks.end()) * 32 /
                        static_cast<double>(trace->num_tokens() * 4);
    CHECK(load > 1.3);
    CHECK(load < 5);
    const double stated = report["trace"]["load_max_over_mean"][static_cast<std::size_t>(layer)];
    CHECK(std::abs(stated - load) <= 0.0005);
  }
}

}  // namespace
}  // namespace assay::traces
