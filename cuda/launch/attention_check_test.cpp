// What attention calls are refused for, without a GPU.
#include <cmath>
#include <functional>
#include <string>

#include "cuda/launch/decode_sizes.hpp"
#include "model/core/testing.hpp"

namespace assay::cuda {
namespace {

void* at(std::uintptr_t address) { return reinterpret_cast<void*>(address); }

AttentionRows rows(std::int64_t count, int heads, int dim) {
  AttentionRows r;
  r.data = at(0x1000);
  r.rows = count;
  r.row_stride = std::int64_t{heads} * dim;
  r.head_stride = dim;
  r.request_stride = count * r.row_stride;
  return r;
}

// Two padded requests that nothing is wrong with.
AttentionCall good() {
  AttentionCall c;
  c.requests = 2;
  c.q_heads = 8;
  c.kv_heads = 2;
  c.head_dim = 128;
  c.q = rows(100, 8, 128);
  c.k = c.v = rows(300, 2, 128);
  c.out = rows(100, 8, 128);
  c.scale = 0.088f;
  c.workspace = at(0x100);
  return c;
}

AttentionCall with(const std::function<void(AttentionCall&)>& change) {
  AttentionCall c = good();
  change(c);
  return c;
}

std::string told(const std::function<void(AttentionCall&)>& change) {
  const Status status = check_prefill(with(change));
  return status ? "" : status.error().sentence;
}

using Call = AttentionCall&;

TEST_CASE("calls of every layout are accepted", "[CUD-6.5]") {
  CHECK(told([](Call) {}) == "");
  CHECK(told([](Call c) { c.dtype = Dtype::kF8E4m3; }) == "");
  CHECK(told([](Call c) { c.requests = 0; }) == "");
  CHECK(told([](Call c) { c.q.rows = c.out.rows = 0; }) == "");
  CHECK(told([](Call c) { c.k.rows = c.v.rows = 0; }) == "");
  CHECK(told([](Call c) { c.q.row_stride = std::int64_t{1} << 33; }) == "");
  CHECK(told([](Call c) {
          c.lengths.first_q = static_cast<std::int32_t*>(at(64));
          c.q.request_stride = c.out.request_stride = 1;  // not used
        }) == "");
  CHECK(told([](Call c) {
          c.kv_heads = c.q_heads = 1;
          c.k.head_stride = c.v.head_stride = c.q.head_stride = c.out.head_stride = 0;  // likewise
        }) == "");
  for (const std::int64_t page_rows : {8, 16, 32, 64, 128, 256, 1024})
    CHECK(told([&](Call c) {
            c.pages = {static_cast<std::int32_t*>(at(64)), 10, 99};
            c.k.rows = c.v.rows = page_rows;
            c.lengths.kv_len = static_cast<std::int32_t*>(at(128));
          }) == "");
  CHECK(told([](Call c) {
          c.decisions = static_cast<std::uint8_t*>(at(7));
          c.decision_units = 2;
          c.decision_tiles = 3;
        }) == "");
}

TEST_CASE("what is refused is told with its value and what is allowed", "[CUD-6.5]") {
  const auto begins = [&](const std::function<void(AttentionCall&)>& change,
                          const std::string& sentence) {
    const std::string got = told(change);
    INFO(got);
    CHECK(got.rfind(sentence, 0) == 0);
  };
  begins([](Call c) { c.dtype = Dtype::kF32; },
         "q, k and v are F32; the prefill kernel has BF16, F16");
  begins([](Call c) { c.out_dtype = Dtype::kF16; }, "out is F16 and the inputs BF16");
  begins([](Call c) { c.out_dtype = Dtype::kF32; }, "out is F32; the prefill kernel writes BF16");
  begins(
      [](Call c) {
        c.dtype = Dtype::kF8E4m3;
        c.head_dim = 64;
      },
      "head_dim is 64; the prefill kernel has 128 and 256");
  begins(
      [](Call c) {
        c.dtype = Dtype::kF8E4m3;
        c.k.row_stride = 264;
      },
      "the row stride of k is 264 elements; allowed are multiples of 16 from 16 to");
  begins([](Call c) { c.requests = -1; }, "-1 requests; allowed are 0 and more");
  begins([](Call c) { c.kv_heads = 3; }, "8 query heads and 3 key heads; allowed are");
  begins([](Call c) { c.head_dim = 96; }, "head_dim is 96; the prefill kernel has 64, 128 and 256");
  begins([](Call c) { c.mask = attention::MaskKind::kWindow; }, "the window mask's size is 0");
  for (const float scale : {0.0f, -1.0f, NAN, INFINITY, 1e-40f, 3e38f})
    begins([&](Call c) { c.scale = scale; }, "scale is ");
  for (const float scale : {0.0f, -1.0f, NAN, INFINITY})
    begins([&](Call c) { c.v_scale = scale; }, "v_scale is ");
  for (const float value : {-1.0f, NAN})
    begins(
        [&](Call c) {
          c.threshold = AttentionThreshold::kLambda;
          c.threshold_value = value;
        },
        "threshold is ");
  begins([](Call c) { c.q.rows = -1; }, "q has -1 rows; allowed are 0 to 21474");
  begins([](Call c) { c.q.data = nullptr; }, "q is null");
  begins([](Call c) { c.q.data = at(0x1008); },
         "q is at 0x1008; allowed are multiples of 16 bytes");
  begins([](Call c) { c.k.row_stride = 260; },
         "the row stride of k is 260 elements; allowed are multiples of 8 from 8 to");
  begins([](Call c) { c.v.head_stride = 0; }, "the head stride of v is 0 elements");
  begins([](Call c) { c.q.request_stride = -8; }, "the request stride of q is -8 elements");
  begins([](Call c) { c.q.row_stride = std::int64_t{1} << 40; }, "the row stride of q is 1099511");
  begins([](Call c) { c.v.rows = 200; }, "k has 300 rows and v 200; they must be equal");
  begins([](Call c) { c.out.rows = 99; }, "out has 99 rows and q 100; they must be equal");
  begins([](Call c) { c.offset = AttentionOffset::kGiven; }, "offsets are to be given");
  begins([](Call c) { c.lengths.kv_len_max = -1; }, "q_len_max is 0 and kv_len_max -1");
  begins([](Call c) { c.lse = {at(0x1002), 100, 8, 1, 800}; }, "lse is at 0x1002");
  begins([](Call c) { c.lse = {at(0x1000), 99, 8, 1, 800}; }, "lse has 99 rows and q 100");
  begins([](Call c) { c.lse = {at(0x1000), 100, -8, 1, 800}; }, "lse has row stride -8");
  begins([](Call c) { c.counters = static_cast<std::uint64_t*>(at(4)); }, "counters is at 0x4");
  begins([](Call c) { c.workspace = nullptr; }, "workspace is null");
  begins([](Call c) { c.requests = 1 << 28; }, "268435456 query tiles of 8 heads; at most 2^30");
  const auto paged = [](Call c) {
    c.pages = {static_cast<std::int32_t*>(at(64)), 10, 99};
    c.k.rows = c.v.rows = 64;
    c.lengths.kv_len = static_cast<std::int32_t*>(at(128));
  };
  for (const std::int64_t page_rows : {0, 4, 12, 24, 192})
    begins(
        [&](Call c) {
          paged(c);
          c.k.rows = c.v.rows = page_rows;
        },
        "pages hold " + std::to_string(page_rows) +
            " rows; the prefill kernel has 8, 16 and so on");
  begins(
      [&](Call c) {
        paged(c);
        c.v.rows = 32;
      },
      "pages hold 64 rows of k and 32 of v; they must be equal");
  begins(
      [&](Call c) {
        paged(c);
        c.pages.num_pages = 0;
      },
      "there are 0 pages; allowed are 1 to");
  begins(
      [&](Call c) {
        paged(c);
        c.pages.table_stride = 0;
      },
      "the block table has 0 entries per request");
  begins(
      [&](Call c) {
        paged(c);
        c.lengths.kv_len = nullptr;
      },
      "keys lie in pages, and neither lengths.kv_len nor lengths.kv_len_max is given");
  begins(
      [](Call c) {
        c.decisions = static_cast<std::uint8_t*>(at(64));
        c.decision_units = 1;
        c.decision_tiles = 3;
      },
      "decisions have 1 units and 3 tiles a head; q_len up to 100 and kv_len up to 300 need 2 and "
      "3");
}

// Two requests of one token, at most 5000 keys, four rows a unit.
AttentionCall good_decode() {
  AttentionCall c = good();
  c.q.rows = c.out.rows = 1;
  c.k = c.v = rows(5000, 2, 128);
  c.workspace_bytes = decode_workspace_bytes(c);
  return c;
}
std::string told_of_decode(const std::function<void(AttentionCall&)>& change) {
  AttentionCall c = good_decode();
  change(c);
  const Status status = check_decode(c);
  return status ? "" : status.error().sentence;
}

TEST_CASE("a decode's workspace holds every chunk that may have to wait", "[CUD-7.5]") {
  // Two requests, two key heads, three chunks, four rows of O and of two numbers.
  CHECK(good_decode().workspace_bytes == 256 + 2 * 2 * 3 * 4 * (128 * 4 + 8));
  AttentionCall c = good_decode();
  c.lengths.kv_len_max = 2048;  // one chunk waits for nobody
  CHECK(decode_workspace_bytes(c) == 256);
  c.lengths.kv_len_max = 2049;
  c.q.rows = c.out.rows = 100;  // four hundred rows in seven units
  CHECK(decode_workspace_bytes(c) == 256 + 2 * 2 * 2 * 7 * 64 * (128 * 4 + 8));
  c.lengths.q_len_max = 3;
  CHECK(decode_workspace_bytes(c) == 256 + 2 * 2 * 2 * 12 * (128 * 4 + 8));
  c.pages = {static_cast<std::int32_t*>(at(64)), 10, 99};
  c.k.rows = c.v.rows = 640;
  c.lengths.kv_len_max = 0;
  CHECK(decode_workspace_bytes(c) == 256 + 2 * 2 * 4 * 12 * (128 * 4 + 8));
}

TEST_CASE("pieces of work are whole units where these keep the blocks busy", "[CUD-7.2]") {
  CHECK(decode_chunks_per_piece(256, 8, 264) == 8);
  CHECK(decode_chunks_per_piece(4, 32, 264) == 1);
  CHECK(decode_chunks_per_piece(300, 8, 264) == 2);  // 36 whole units would run alone
  CHECK(decode_chunks_per_piece(5000, 8, 264) == 8);
  CHECK(decode_chunks_per_piece(1, 1, 264) == 1);
  for (int units = 1; units < 600; units += 7)
    for (int chunks = 1; chunks < 40; chunks += 3) {
      const std::int64_t each = decode_chunks_per_piece(units, chunks, 132);
      CHECK(each >= 1);
      CHECK(each <= chunks);
    }
}

TEST_CASE("a decode is refused in its own words", "[CUD-7.5]") {
  const auto begins = [&](const std::function<void(AttentionCall&)>& change,
                          const std::string& sentence) {
    const std::string got = told_of_decode(change);
    INFO(got);
    CHECK(got.rfind(sentence, 0) == 0);
  };
  CHECK(told_of_decode([](Call) {}) == "");
  CHECK(told_of_decode([](Call c) { c.requests = 0; }) == "");
  begins([](Call c) { c.dtype = Dtype::kF32; }, "q, k and v are F32; the decode kernel has BF16");
  begins([](Call c) { c.head_dim = 96; }, "head_dim is 96; the decode kernel has 64, 128 and 256");
  begins([](Call c) { c.kv_heads = 0; }, "8 query heads and 0 key heads; allowed are");
  begins([](Call c) { --c.workspace_bytes; },
         "workspace has 25215 bytes; 2 requests of q_len up to 1 and kv_len up to 5000 need 25216");
  begins([](Call c) { c.workspace = at(0x104); },
         "workspace is at 0x104; allowed are multiples of 16 bytes");
  begins([](Call c) { c.q.rows = c.out.rows = 1 << 29; },
         "q_len up to 536870912 for each of 4 heads that share keys; at most 2^30");
  begins([](Call c) { c.requests = 1 << 28; },
         "268435456 requests of 2 key heads, 1 units and 3 chunks each; at most 2^30");
  begins(
      [](Call c) {
        c.pages = {static_cast<std::int32_t*>(at(64)), 10, 99};
        c.k.rows = c.v.rows = 96;
        c.lengths.kv_len = static_cast<std::int32_t*>(at(128));
      },
      "pages hold 96 rows; the decode kernel has 8, 16 and so on up to its tile of 64 keys");
  begins(
      [](Call c) {
        c.decisions = static_cast<std::uint8_t*>(at(64));
        c.q.rows = c.out.rows = 20;
        c.decision_units = 1;
        c.decision_tiles = 79;
      },
      "decisions have 1 units and 79 tiles a head; q_len up to 20 and kv_len up to 5000 need 2 "
      "and 79");
}

}  // namespace
}  // namespace assay::cuda
