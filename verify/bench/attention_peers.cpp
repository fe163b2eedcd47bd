// What peers are asked and what they answer, as JSON, and speed-ups over them. Needs no GPU. See
// attention.hpp.
#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "verify/bench/attention.hpp"

namespace assay::verify::bench {
namespace {

using Json = nlohmann::ordered_json;

Json recipe_json(const cuda::AttentionRecipe& r) {
  return {{"dtype", dtype_name(r.dtype)},
          {"rows", r.rows},
          {"heads", r.heads},
          {"dim", r.dim},
          {"block_rows", r.block_rows},
          {"codes", r.codes},
          {"strength", static_cast<double>(r.strength)},
          {"high", r.high},
          {"seed", r.seed},
          {"high_every", r.high_every}};
}

std::string checksum_text(std::uint64_t sum) { return fmt::format("{:016x}", sum); }

const AttentionSet* find_set(const AttentionBenchResult& result, std::int64_t id) {
  for (const AttentionSet& set : result.sets)
    if (set.id == id) return &set;
  return nullptr;
}

// Members that a row must have; a missing or oddly typed one is the library's exception.
Expected<PeerAnswer> read(const Json& json, const AttentionBenchResult& result) {
  PeerAnswer answer;
  for (const auto& [id, sums] : json.at("checksums").items()) {
    const AttentionSet* const set = find_set(result, std::stoll(id));
    if (set == nullptr) return bad_input(fmt::format("peers tell of set {}; nobody asked", id));
    for (std::size_t i = 0; i < 3; ++i) {
      const std::string got = sums.at(i).get<std::string>();
      if (got != checksum_text(set->checksums[i]))
        return bad_input(
            fmt::format("peers made other tensors: {} of set {} has checksum {}, not "
                        "{}",
                        "qkv"[i], id, got, checksum_text(set->checksums[i])));
    }
  }
  for (const Json& row : json.at("rows")) {
    PeerRow r{row.at("peer").get<std::string>(), row.at("set").get<std::int64_t>(),
              row.at("mask").get<std::string>() == "causal", row.at("ms").get<double>(),
              row.at("ms_min").get<double>()};
    if (!json.at("checksums").contains(std::to_string(r.set)))
      return bad_input(
          fmt::format("{} has a time for set {}, whose tensors have no checksum", r.peer, r.set));
    answer.rows.push_back(std::move(r));
  }
  for (const auto& [peer, why] : json.at("missing").items())
    answer.missing.emplace_back(peer, why.get<std::string>());
  const Json notes = json.value("notes", Json::object());
  for (const auto& [peer, note] : notes.items())
    answer.notes.emplace_back(peer, note.get<std::string>());
  for (const auto& [name, version] : json.at("versions").items())
    answer.versions.emplace_back(name, version.get<std::string>());
  answer.matmul_tflops = json.value("matmul_tflops", 0.0);
  return answer;
}

}  // namespace

std::int32_t repeats_of(std::int32_t length, std::int32_t repeats) {
  return length > 32768 ? (repeats + 1) / 2 : repeats;
}

double dense_tflops(std::int32_t length, int heads, int dim, bool causal, double ms) {
  const double n = length;
  return ms > 0 ? 4 * n * n * dim * heads / (causal ? 2 : 1) / ms * 1e-9 : 0;
}

std::size_t rotated_caches(std::size_t cache_bytes) {
  constexpr std::size_t kRotatedBytes = std::size_t{512} << 20;
  return (kRotatedBytes + cache_bytes - 1) / cache_bytes;
}

double low_of_decode(double sparsity) {
  constexpr int kTilesOfChunk = 32;  // SPEC ATT-6.4
  return std::min(1.0, sparsity * kTilesOfChunk / (kTilesOfChunk - 1));
}

Json peer_request(const AttentionBenchResult& result, std::int32_t repeats) {
  Json sets = Json::array();
  for (const AttentionSet& set : result.sets) {
    Json masks = Json::array();
    for (const AttentionBenchRow& row : result.rows) {
      const char* const mask = row.causal ? "causal" : "full";
      if (row.set == set.id && std::find(masks.begin(), masks.end(), mask) == masks.end())
        masks.push_back(mask);
    }
    Json sums = Json::array();
    for (const std::uint64_t sum : set.checksums) sums.push_back(checksum_text(sum));
    sets.push_back({{"id", set.id},
                    {"kernel", set.kernel},
                    {"requests", set.requests},
                    {"pattern", set.pattern},
                    {"low", set.low},
                    {"repeats", set.kernel == "decode" ? repeats : repeats_of(set.length, repeats)},
                    {"masks", std::move(masks)},
                    {"checksums", std::move(sums)},
                    {"q", recipe_json(set.q)},
                    {"k", recipe_json(set.k)},
                    {"v", recipe_json(set.v)}});
  }
  return {{"sets", std::move(sets)}};
}

Expected<PeerAnswer> parse_peer_answer(const std::string& text,
                                       const AttentionBenchResult& result) {
  const Json json = Json::parse(text, nullptr, false);
  if (json.is_discarded() || !json.is_object())
    return bad_input("peers printed no JSON object on their last line");
  try {
    return read(json, result);
  } catch (const std::exception& error) {
    return bad_input(fmt::format("peers printed another object than expected: {}", error.what()));
  }
}

std::optional<SpeedUp> speed_up(const AttentionBenchResult& result, const PeerAnswer& peers,
                                const AttentionBenchRow& row) {
  const auto same_problem = [&](const auto& other) {
    return other.kernel == row.kernel && other.dtype == row.dtype &&
           other.requests == row.requests && other.length == row.length;
  };
  // Dense ways to the same problem: a time of each, on one or several sets of tensors.
  struct Way {
    std::string who;
    std::int64_t set;
    double ms;
  };
  std::vector<Way> ways;
  const bool over_ours = row.what != "dense" || row.tuning != kLaunchedTuning;
  for (const AttentionBenchRow& other : result.rows)
    if (over_ours && other.what == "dense" && other.tuning == kLaunchedTuning &&
        same_problem(other) && other.causal == row.causal)
      ways.push_back({"dense", other.set, other.ms});
  for (const PeerRow& peer : peers.rows) {
    const AttentionSet* const set = find_set(result, peer.set);
    if (set != nullptr && same_problem(*set) && peer.causal == row.causal)
      ways.push_back({peer.peer, peer.set, peer.ms});
  }
  std::optional<SpeedUp> best;
  for (const Way& way : ways) {
    const bool has_own = std::any_of(ways.begin(), ways.end(), [&](const Way& other) {
      return other.who == way.who && other.set == row.set;
    });
    if (way.ms <= 0 || (has_own && way.set != row.set)) continue;
    if (!best || way.ms / row.ms < best->value) best = SpeedUp{way.ms / row.ms, way.who};
  }
  return best;
}

}  // namespace assay::verify::bench
