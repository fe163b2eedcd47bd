// assay size: what a configuration costs in bytes. What a token puts on the wire and gets back, how
// large the buffers are, what AllGather would move instead, and where everything lies in the
// workspace of our own kernels.
#include <fmt/format.h>

#include "cuda/kernels/one_sided/workspace_layout.hpp"
#include "model/core/case_text.hpp"
#include "model/core/text.hpp"
#include "model/moe/buffer_sizes.hpp"
#include "tools/cli/arguments.hpp"
#include "tools/cli/document.hpp"
#include "tools/cli/output.hpp"
#include "tools/cli/tools.hpp"
#include "verify/subject/one_sided_plan.hpp"

namespace assay::tools {
namespace {

// DeepSeek-V3's shape on one node of eight, decoding: the case that published tables start with.
MoeCase default_case() {
  MoeCase c;
  c.ep = 8;
  c.experts = 256;
  c.top_k = 8;
  c.hidden = 7168;
  c.max_tokens = 128;
  return c;
}

void add_bytes(Document& document, const char* key, std::int64_t bytes, const char* meaning) {
  const std::string unit = bytes_remark(bytes);
  document.field(key, bytes, unit.empty() ? meaning : fmt::format("{:<11} {}", unit, meaning));
}

void describe_token(Document& document, const moe::BufferSizes& sizes) {
  Table payloads{{"payload", "bytes"}, {}};
  for (const moe::Payload& payload : sizes.payloads)
    payloads.rows.push_back({payload.name, payload.bytes_per_token});
  document.table("payloads", std::move(payloads));
  Document& token = document.group("per_token");
  add_bytes(token, "dispatch_per_target", sizes.dispatch_per_target, "sent to one target rank");
  token.field("targets_max", std::int64_t{sizes.max_targets}, "min(top_k, ep)");
  add_bytes(token, "dispatch_max", sizes.dispatch_per_token, "sent at most");
  add_bytes(token, "combine_per_row", sizes.combine_per_row, "one row combined back");
  add_bytes(token, "combine_max", sizes.combine_per_token, "combined back at most");
  const double ratio = static_cast<double>(sizes.dispatch_per_target) /
                       static_cast<double>(sizes.bf16_dispatch_per_target);
  token.field("dispatch_over_bf16", ratio,
              fmt::format("{} of the {} bytes of bf16", percent_remark(ratio),
                          sizes.bf16_dispatch_per_target));
}

void describe_rank(Document& document, const moe::BufferSizes& sizes) {
  Document& rank = document.group("per_rank");
  add_bytes(rank, "recv_hidden", sizes.recv_hidden_per_rank, "hidden states, [ep, max_tokens]");
  add_bytes(rank, "recv", sizes.recv_per_rank, "all payloads, [ep, max_tokens]");
  add_bytes(rank, "combine_region", sizes.combine_region_per_rank,
            "returned rows, [ep, max_tokens]");
  Document& traffic = document.group("hidden_traffic");
  add_bytes(traffic, "all_gather", sizes.all_gather_hidden, "ep x tokens x hidden, by AllGather");
  add_bytes(traffic, "top_k_copies", sizes.top_k_hidden,
            "top_k x tokens x hidden, one copy per pick");
  add_bytes(traffic, "one_sided_max", sizes.all_to_all_hidden,
            "min(top_k, ep) x tokens x hidden, one copy per rank at most");
  const double ratio =
      static_cast<double>(sizes.all_gather_hidden) / static_cast<double>(sizes.all_to_all_hidden);
  traffic.field("all_gather_over_one_sided", ratio, "times the bytes");
}

// The byte map of the window that every rank shares with its peers, gaps included, so that the rows
// add up to its size.
Status describe_workspace(Document& document, const MoeCase& c, const moe::BufferSizes& sizes) {
  one_sided::GroupCapacity capacity;
  capacity.ep_size = c.ep;
  capacity.top_k = c.top_k;
  capacity.max_tokens_per_rank = c.max_tokens;
  capacity.payload_bytes_total = sizes.dispatch_per_target;
  capacity.row_bytes = sizes.combine_per_row;
  verify::ProtocolOption protocol;  // Sentinel for as many tokens as it takes by default
  protocol.choice = verify::ProtocolOption::Choice::kAuto;
  capacity.sentinel_max_tokens = protocol.sentinel_max_tokens_of(c.max_tokens);
  ASSAY_TRY(const one_sided::Workspace workspace, one_sided::Workspace::make(capacity));
  const Layout& layout = workspace.layout();
  Table map{{"region", "offset", "bytes", "element", "axes", "meaning"}, {}};
  std::uint64_t end = 0;
  const auto pad_to = [&](std::uint64_t offset) {
    if (offset > end)
      map.rows.push_back({"(padding)", end, offset - end, std::uint64_t{1}, "", ""});
  };
  for (const Layout::Placed& region : layout.regions()) {
    pad_to(region.offset_bytes);
    map.rows.push_back({region.name, region.offset_bytes, region.bytes, region.element_bytes,
                        fmt::format("[{}]", joined(region.axes)), region.meaning});
    end = region.end_bytes();
  }
  pad_to(layout.total_bytes());
  const auto total = static_cast<std::int64_t>(workspace.window_bytes());
  document.field("workspace", total, bytes_remark(total) + " per rank, of our own kernels");
  std::int64_t armed = 0;
  for (const one_sided::WindowRange& range : workspace.armed_ranges())
    armed += static_cast<std::int64_t>(range.bytes);
  document.field("workspace_armed", armed,
                 fmt::format("{} of it: slots and inbox of Sentinel, for rounds of up to {} tokens",
                             bytes_remark(armed), capacity.sentinel_max_tokens));
  document.table("workspace_map", std::move(map));
  return Done{};
}

Expected<ExitCode> print_sizes(const OptionalText& case_text, const OptionalText& recipe_text,
                               const OptionalText& json) {
  ASSAY_TRY(const Output output, Output::open(json));
  ASSAY_TRY(const MoeCase c, parse_moe_case(case_text.value_or(""), default_case()));
  ASSAY_TRY(const moe::Recipe recipe, moe::parse_recipe(recipe_text.value_or("bf16")));
  moe::SizeQuestion question;
  question.recipe = recipe;
  question.ep_size = c.ep;
  question.num_experts = c.experts;
  question.top_k = c.top_k;
  question.hidden_size = c.hidden;
  question.max_tokens_per_rank = c.max_tokens;
  ASSAY_TRY(const moe::BufferSizes sizes, moe::buffer_sizes(question));
  Document document;
  document.field("case", print(c));
  document.field("recipe", std::string(moe::recipe_name(recipe)));
  describe_token(document, sizes);
  describe_rank(document, sizes);
  ASSAY_CHECK(describe_workspace(document, c, sizes));
  ASSAY_CHECK(output.write(document));
  return ExitCode::kConforms;
}

}  // namespace

Action declare_size(Arguments& arguments) {
  const OptionalText& case_text = arguments.option(
      "--case", "LINE", fmt::format("sizes; missing keys are from \"{}\"", print(default_case())));
  const OptionalText& recipe =
      arguments.option("--recipe", "NAME", "bf16 (default), fp8_block128, mxfp8 or nvfp4");
  const OptionalText& json = arguments.json();
  return [&case_text, &recipe, &json] { return print_sizes(case_text, recipe, json); };
}

}  // namespace assay::tools
