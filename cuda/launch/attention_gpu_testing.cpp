// See attention_gpu_testing.hpp.
#include "cuda/launch/attention_gpu_testing.hpp"

#include <algorithm>

namespace assay::cuda::testing {
namespace {

using attention::Decision;

std::int64_t longest(const std::vector<int>& lens) {
  return *std::max_element(lens.begin(), lens.end());
}

std::vector<std::int32_t> firsts(const std::vector<int>& lens) {
  std::vector<std::int32_t> first{0};
  for (const int len : lens) first.push_back(first.back() + len);
  return first;
}

// Where kernels of this process tell which wait gave up.
WaitRecord* record() {
  static WaitRecord* const memory = [] {
    void* host = nullptr;
    if (cudaHostAlloc(&host, sizeof(WaitRecord), cudaHostAllocMapped) != cudaSuccess)
      host = nullptr;
    if (host != nullptr) std::memset(host, 0, sizeof(WaitRecord));
    return static_cast<WaitRecord*>(host);
  }();
  return memory;
}

}  // namespace

HostRows GpuProblem::rows_of(const std::vector<int>& lens, int heads, bool packed, bool query,
                             bool key) {
  HostRows t;
  const std::int64_t row = std::int64_t{heads} * case_.head_dim;
  const std::int64_t per_request = longest(lens) + 3;  // three rows that are nobody's
  const std::int64_t total = packed ? std::accumulate(lens.begin(), lens.end(), std::int64_t{0}) + 5
                                    : per_request * static_cast<std::int64_t>(lens.size());
  t.rows = packed ? total : per_request;
  const auto size = static_cast<std::size_t>(element_bytes());
  t.bytes.assign(static_cast<std::size_t>(total * row) * size, kNan);
  std::int64_t at = 0;
  for (std::size_t r = 0; r < lens.size(); ++r) {
    const std::int64_t begin = packed ? at : static_cast<std::int64_t>(r) * per_request;
    t.first.push_back(begin * row);
    for (std::int64_t i = 0; i < lens[r]; ++i) {
      const bool low = low_[static_cast<std::size_t>(i / 64) % low_.size()];
      for (std::int64_t e = 0; e < row; ++e) {
        const std::uint16_t code = value(query, key, low, static_cast<int>(e % case_.head_dim));
        std::memcpy(&t.bytes[static_cast<std::size_t>((begin + i) * row + e) * size], &code, size);
      }
    }
    at += lens[r];
  }
  return t;
}

// Pages [num_pages, 2, page_rows, kv_heads, head_dim] in random order, out of the rows of k and v.
void GpuProblem::build_pages() {
  // In bytes.
  const std::int64_t row = std::int64_t{case_.kv_heads} * case_.head_dim * element_bytes();
  table_stride_ = longest(case_.kv_lens) / case_.page_rows + 2;
  num_pages_ = 3;
  for (const int len : case_.kv_lens) num_pages_ += (len + case_.page_rows - 1) / case_.page_rows;
  std::vector<std::int32_t> order(static_cast<std::size_t>(num_pages_));
  std::iota(order.begin(), order.end(), 0);
  std::shuffle(order.begin(), order.end(), random_);
  // Entries that nobody needs name pages that do not exist.
  table_.assign(requests() * static_cast<std::size_t>(table_stride_), 1 << 30);
  pages_.assign(static_cast<std::size_t>(num_pages_ * 2 * case_.page_rows * row), kNan);
  std::size_t next = 0;
  for (std::size_t r = 0; r < requests(); ++r) {
    for (std::int64_t i = 0; i < case_.kv_lens[r]; ++i) {
      const std::size_t entry = r * static_cast<std::size_t>(table_stride_) +
                                static_cast<std::size_t>(i / case_.page_rows);
      if (i % case_.page_rows == 0) table_[entry] = order[next++];
      const std::int64_t to =
          (std::int64_t{table_[entry]} * 2 * case_.page_rows + i % case_.page_rows) * row;
      std::copy_n(&k_.bytes[static_cast<std::size_t>(k_.first[r] * element_bytes() + i * row)], row,
                  &pages_[static_cast<std::size_t>(to)]);
      std::copy_n(&v_.bytes[static_cast<std::size_t>(v_.first[r] * element_bytes() + i * row)], row,
                  &pages_[static_cast<std::size_t>(to + case_.page_rows * row)]);
    }
  }
}

attention::Rows GpuProblem::model_rows(const HostRows& from, std::size_t request, int heads,
                                       int len) const {
  const std::byte* const tensor = reinterpret_cast<const std::byte*>(from.bytes.data());
  return attention::contiguous_rows(tensor + from.first[request] * element_bytes(), 0, len, heads,
                                    case_.head_dim, element_bytes());
}

void GpuProblem::build() {
  for (int i = 0; i < 64; ++i) low_.push_back(random_() % 2 == 0);
  q_ = rows_of(case_.q_lens, case_.q_heads, packed_q(), true, false);
  k_ = rows_of(case_.kv_lens, case_.kv_heads, packed_kv(), false, true);
  v_ = rows_of(case_.kv_lens, case_.kv_heads, packed_kv(), false, false);
  if (case_.layout == Layout::kPaged) build_pages();
  first_q_ = firsts(case_.q_lens);
  first_kv_ = firsts(case_.kv_lens);
  attention::Problem& p = problem_;
  p.dtype = case_.dtype;
  p.out_dtype = out_dtype();
  p.q_heads = case_.q_heads;
  p.kv_heads = case_.kv_heads;
  p.head_dim = p.v_dim = case_.head_dim;
  p.mask = case_.mask;
  p.mask_size = case_.mask_size;
  p.scale = 1.0f / std::sqrt(static_cast<float>(case_.head_dim));
  for (std::size_t r = 0; r < requests(); ++r) {
    attention::Request request;
    request.q_len = case_.q_lens[r];
    request.kv_len = case_.kv_lens[r];
    const int given = static_cast<int>(random_() % 400) - 150;
    request.q_offset = case_.offset == AttentionOffset::kBottomRight
                           ? request.kv_len - request.q_len
                       : case_.offset == AttentionOffset::kTopLeft ? 0
                                                                   : given;
    q_offsets_.push_back(request.q_offset);
    request.q = model_rows(q_, r, case_.q_heads, request.q_len);
    request.k = model_rows(k_, r, case_.kv_heads, request.kv_len);
    request.v = model_rows(v_, r, case_.kv_heads, request.kv_len);
    using Kind = attention::Threshold::Kind;
    const bool factor = case_.source == Source::kFactor || case_.source == Source::kFactors;
    if (case_.source != Source::kOff)
      request.threshold = {factor ? Kind::kScaleFactor : Kind::kLambda, case_.thresholds[r]};
    p.requests.push_back(request);
  }
}

Status GpuProblem::upload() {
  memory_.clear();
  call_ = {};
  const auto put = [&](const auto& host) -> Expected<void*> {
    const std::size_t bytes = host.size() * sizeof(host[0]);
    ASSAY_TRY(DeviceMemory memory, DeviceMemory::make(std::max<std::size_t>(bytes, 16), "a test"));
    ASSAY_CHECK(copy_to_device(memory.data(), host.data(), bytes, "uploading"));
    void* const data = memory.data();
    memory_.push_back(std::move(memory));
    return data;
  };
  const auto rows = [&](const HostRows& host, int heads) -> Expected<AttentionRows> {
    AttentionRows r;
    ASSAY_TRY(r.data, put(host.bytes));
    r.rows = host.rows;
    r.row_stride = std::int64_t{heads} * case_.head_dim;
    r.head_stride = case_.head_dim;
    r.request_stride = host.rows * r.row_stride;
    return r;
  };
  AttentionCall& c = call_;
  c.dtype = case_.dtype;
  c.out_dtype = out_dtype();
  c.requests = static_cast<int>(requests());
  c.q_heads = case_.q_heads;
  c.kv_heads = case_.kv_heads;
  c.head_dim = case_.head_dim;
  ASSAY_TRY(c.q, rows(q_, case_.q_heads));
  ASSAY_TRY(c.k, rows(k_, case_.kv_heads));
  ASSAY_TRY(c.v, rows(v_, case_.kv_heads));
  if (case_.k_head_stride != 0) ASSAY_CHECK(spread_heads(c.k));
  const auto ints = [](void* data) { return static_cast<const std::int32_t*>(data); };
  ASSAY_TRY(void* q_lengths, put(packed_q() ? first_q_ : case_.q_lens));
  (packed_q() ? c.lengths.first_q : c.lengths.q_len) = ints(q_lengths);
  ASSAY_TRY(void* kv_lengths, put(packed_kv() ? first_kv_ : case_.kv_lens));
  (packed_kv() ? c.lengths.first_kv : c.lengths.kv_len) = ints(kv_lengths);
  if (case_.layout == Layout::kPaged) {
    ASSAY_TRY(void* pages, put(pages_));
    ASSAY_TRY(void* table, put(table_));
    const std::int64_t part = std::int64_t{case_.page_rows} * case_.kv_heads * case_.head_dim;
    c.k.data = pages;
    c.v.data = static_cast<std::uint8_t*>(pages) + part * element_bytes();
    c.k.rows = c.v.rows = case_.page_rows;
    c.k.request_stride = c.v.request_stride = 2 * part;
    c.pages = {ints(table), table_stride_, num_pages_};
  }
  if (case_.offset == AttentionOffset::kGiven) {
    ASSAY_TRY(void* offsets, put(q_offsets_));
    c.lengths.q_offset = ints(offsets);
  }
  c.offset = case_.offset;
  c.mask = case_.mask;
  c.mask_size = case_.mask_size;
  c.scale = problem_.scale;
  c.threshold = case_.source == Source::kOff ? AttentionThreshold::kOff
                : case_.source == Source::kFactor || case_.source == Source::kFactors
                    ? AttentionThreshold::kFactor
                    : AttentionThreshold::kLambda;
  c.threshold_value = case_.thresholds[0];
  if (case_.source == Source::kFactors || case_.source == Source::kLambdas) {
    ASSAY_TRY(void* thresholds, put(case_.thresholds));
    c.threshold_values = static_cast<const float*>(thresholds);
  }
  const std::size_t elements = q_.bytes.size() / static_cast<std::size_t>(element_bytes());
  out_.assign(elements, kPoison);
  lse_.assign(elements / static_cast<std::size_t>(case_.head_dim), kPoisonLse);
  counters_.assign(static_cast<std::size_t>(unit_heads()) * 2, 0);
  ASSAY_TRY(out_device_, put(out_));
  c.out = c.q;
  c.out.data = out_device_;
  if (case_.lse) {
    ASSAY_TRY(lse_device_, put(lse_));
    c.lse.data = lse_device_;
    c.lse.rows = q_.rows;
    c.lse.row_stride = case_.q_heads;
    c.lse.head_stride = 1;
    c.lse.request_stride = q_.rows * case_.q_heads;
  }
  ASSAY_TRY(counters_device_, put(counters_));
  c.counters = static_cast<std::uint64_t*>(counters_device_);
  // A bound of 0 would be none.
  const bool has_bounds = longest(case_.q_lens) > 0 && longest(case_.kv_lens) > 0;
  if ((case_.decisions || (case_.decode && case_.bounds)) && has_bounds) {
    c.lengths.q_len_max = static_cast<std::int32_t>(longest(case_.q_lens));
    c.lengths.kv_len_max = static_cast<std::int32_t>(longest(case_.kv_lens));
  }
  if (case_.decisions) {
    const std::int64_t q_most = has_bounds ? c.lengths.q_len_max : q_.rows;
    const std::int64_t kv_most =
        has_bounds ? c.lengths.kv_len_max
                   : std::max(c.k.rows, c.pages.table_stride * std::int64_t{case_.page_rows});
    c.decision_units = static_cast<std::int32_t>((q_most * packed() + 63) / 64 + 1);
    c.decision_tiles = static_cast<std::int32_t>((kv_most + tile() - 1) / tile() + 1);
    decisions_.assign(requests() * static_cast<std::size_t>(unit_heads()) *
                          static_cast<std::size_t>(c.decision_units * c.decision_tiles),
                      0xEE);
    ASSAY_TRY(decisions_device_, put(decisions_));
    c.decisions = static_cast<std::uint8_t*>(decisions_device_);
  }
  c.workspace_bytes = case_.decode ? decode_workspace_bytes(c) : kAttentionWorkspaceBytes;
  ASSAY_TRY(c.workspace, put(std::vector<std::uint8_t>(c.workspace_bytes, kNan)));
  c.timeout_ns = 2'000'000'000;
  c.record = record();
  return Done{};
}

// Moves the heads of k far apart, each with its rows one behind the other.
Status GpuProblem::spread_heads(AttentionRows& k) {
  const auto bytes = static_cast<std::size_t>(element_bytes());
  const std::size_t row = static_cast<std::size_t>(case_.head_dim) * bytes;
  const std::size_t head = static_cast<std::size_t>(case_.k_head_stride) * bytes;
  const std::size_t rows = static_cast<std::size_t>(k.rows);
  const auto heads = static_cast<std::size_t>(case_.kv_heads);
  ASSAY_TRY(DeviceMemory memory,
            DeviceMemory::make((heads - 1) * head + rows * row, "spread keys"));
  for (std::size_t h = 0; h < heads; ++h)
    ASSAY_CUDA(
        cudaMemcpy2D(static_cast<std::byte*>(memory.data()) + h * head, row,
                     k_.bytes.data() + h * row, heads * row, row, rows, cudaMemcpyHostToDevice),
        "uploading keys");
  ASSAY_CUDA(cudaStreamSynchronize(cudaStreamLegacy), "uploading keys");
  k.data = memory.data();
  k.row_stride = case_.head_dim;
  k.head_stride = case_.k_head_stride;
  memory_.push_back(std::move(memory));
  return Done{};
}

Status GpuProblem::finish(cudaStream_t stream) const {
  const Status waited = wait_for(stream, std::chrono::seconds(20), "the attention kernel");
  const WaitRecord* const told = record();
  if (waited || told == nullptr || told->filled == 0) return waited;
  return waited.error().within(
      fmt::format("a wait gave up: site {} stage {} parity {} block {} "
                  "thread {}",
                  told->site, told->stage, told->parity, told->block, told->thread));
}

Status GpuProblem::download() {
  const auto get = [](auto& host, const void* device) -> Status {
    ASSAY_CUDA(
        cudaMemcpy(host.data(), device, host.size() * sizeof(host[0]), cudaMemcpyDeviceToHost),
        "downloading");
    return Done{};
  };
  ASSAY_CHECK(get(out_, out_device_));
  if (case_.lse) ASSAY_CHECK(get(lse_, lse_device_));
  ASSAY_CHECK(get(counters_, counters_device_));
  if (case_.decisions) ASSAY_CHECK(get(decisions_, decisions_device_));
  return Done{};
}

std::string GpuProblem::compare(const attention::Emulator& emulator,
                                const attention::Emulation& expected) const {
  const auto heads = static_cast<std::size_t>(case_.q_heads);
  const auto dim = static_cast<std::size_t>(case_.head_dim);
  std::vector<bool> written(out_.size() / dim, false);
  std::size_t row = 0;  // among the model's
  for (std::size_t r = 0; r < requests(); ++r) {
    for (int token = 0; token < case_.q_lens[r]; ++token, ++row) {
      for (std::size_t head = 0; head < heads; ++head) {
        const std::size_t ours = static_cast<std::size_t>(q_.first[r]) / dim +
                                 static_cast<std::size_t>(token) * heads + head;
        const std::size_t theirs = row * heads + head;
        written[ours] = true;
        const auto place = [&] { return fmt::format("request {} row {} head {}", r, token, head); };
        for (std::size_t d = 0; d < dim; ++d) {
          const std::uint16_t got = out_[ours * dim + d], want = expected.out[theirs * dim + d];
          if (got != want)
            return fmt::format("out of {} element {}: got {:04x}, expected {:04x}", place(), d, got,
                               want);
        }
        if (case_.lse && lse_[ours] != expected.lse[theirs].bits)
          return fmt::format("lse of {}: got {:08x}, expected {:08x}", place(), lse_[ours],
                             expected.lse[theirs].bits);
      }
    }
  }
  for (std::size_t i = 0; i < written.size(); ++i) {
    if (written[i]) continue;
    for (std::size_t d = 0; d < dim; ++d)
      if (out_[i * dim + d] != kPoison) return fmt::format("row {} is nobody's and written", i);
    if (case_.lse && lse_[i] != kPoisonLse) return fmt::format("lse {} is nobody's and written", i);
  }
  return compare_decisions(emulator, expected);
}

std::string GpuProblem::compare_decisions(const attention::Emulator& emulator,
                                          const attention::Emulation& expected) const {
  std::vector<std::uint64_t> counters(counters_.size(), 0);
  std::vector<std::uint8_t> decisions(decisions_.size(), 0);
  for (std::size_t i = 0; i < expected.units.size(); ++i) {
    const attention::Unit& unit = emulator.units()[i];
    const auto head = static_cast<std::size_t>(unit.head);
    for (const attention::TileTrace& tile : expected.units[i].tiles) {
      ++counters[2 * head];
      counters[2 * head + 1] += tile.decision == Decision::kSkipped;
      if (decisions.empty()) continue;
      const std::size_t at = ((unit.request * static_cast<std::size_t>(unit_heads()) + head) *
                                  static_cast<std::size_t>(call_.decision_units) +
                              static_cast<std::size_t>(unit.index)) *
                                 static_cast<std::size_t>(call_.decision_tiles) +
                             static_cast<std::size_t>(tile.tile);
      decisions[at] = static_cast<std::uint8_t>(tile.decision);
    }
  }
  for (std::size_t i = 0; i < decisions.size(); ++i) {
    if (decisions[i] == decisions_[i]) continue;
    const auto tiles = static_cast<std::size_t>(call_.decision_tiles);
    return fmt::format("decision of unit row {} tile {}: got {}, expected {}", i / tiles, i % tiles,
                       decisions_[i], decisions[i]);
  }
  for (std::size_t i = 0; i < counters.size(); ++i)
    if (counters[i] != counters_[i])
      return fmt::format("head {}: {} tiles {}, expected {}", i / 2, counters_[i],
                         i % 2 == 0 ? "visited" : "skipped", counters[i]);
  return "";
}

}  // namespace assay::cuda::testing
