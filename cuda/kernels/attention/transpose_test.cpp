// The transposition of one-byte values, lane by lane on the host: every byte arrives, in the order
// of keys that P's fragment has, and no two lanes of a step meet in a bank.
#include <map>
#include <set>
#include <vector>

#include "cuda/kernels/attention/plan.hpp"
#include "cuda/kernels/attention/softmax_sm90.cuh"
#include "cuda/kernels/attention/transpose_sm90.cuh"
#include "model/core/testing.hpp"

namespace assay::attention_kernels {
namespace {

constexpr int kKeys = 128, kColumns = 128;

// What the value of a key and column is called.
std::uint8_t name(int key, int column) {
  return static_cast<std::uint8_t>(key * 37 + column * 101 + key * column);
}

struct HostMemory {
  std::vector<std::uint8_t> from = std::vector<std::uint8_t>(kKeys * 128);
  std::vector<std::uint8_t> to = std::vector<std::uint8_t>(kColumns * 128, 0xEE);
  std::vector<std::uint32_t> loads, stores;  // offsets, in order

  std::uint32_t load(std::uint32_t at) {
    loads.push_back(at);
    std::uint32_t word = 0;
    for (std::uint32_t b = 0; b < 4; ++b) word |= std::uint32_t{from[at + b]} << (8 * b);
    return word;
  }
  void store(std::uint32_t at, std::uint32_t word) {
    stores.push_back(at);
    for (std::uint32_t b = 0; b < 4; ++b) to[at + b] = static_cast<std::uint8_t>(word >> (8 * b));
  }
};

// The key that byte `at` of V^T's rows stands for, as P's fragment has it: of 16 keys, thread q's.
int key_of_byte(int at) {
  const int q = at % 16 / 4, j = at % 4;
  return at / 16 * 16 + 2 * q + j / 2 * 8 + j % 2;
}

TEST_CASE("transposed values lie where P's fragment has their keys", "[CUD-6.8]") {
  HostMemory memory;
  for (int key = 0; key < kKeys; ++key)
    for (int column = 0; column < kColumns; ++column)
      memory.from[swizzled_offset(key, column)] = name(key, column);
  for (int sixteen = 0; sixteen < kKeys / 16; ++sixteen) {
    for (int columns = 0; columns < kColumns; columns += 32) {
      std::vector<std::vector<std::uint32_t>> loads(4), stores(4);
      for (int lane = 0; lane < 32; ++lane) {
        memory.loads.clear();
        memory.stores.clear();
        transpose_step(memory, TransposeLane(lane), sixteen, columns);
        REQUIRE(memory.loads.size() == 4);
        REQUIRE(memory.stores.size() == 4);
        for (std::size_t i = 0; i < 4; ++i) {
          loads[i].push_back(memory.loads[i]);
          stores[i].push_back(memory.stores[i]);
        }
      }
      // 32 lanes, 32 banks of 4 bytes.
      for (const auto* accesses : {&loads, &stores}) {
        for (const auto& warp : *accesses) {
          std::set<std::uint32_t> banks;
          for (const std::uint32_t at : warp) {
            CHECK(at % 4 == 0);
            banks.insert(at / 4 % 32);
          }
          CHECK(banks.size() == 32);
        }
      }
    }
  }
  for (int column = 0; column < kColumns; ++column)
    for (int at = 0; at < kKeys; ++at)
      REQUIRE(memory.to[swizzled_offset(column, at)] == name(key_of_byte(at), column));
}

TEST_CASE("P's bytes stand for the keys of V^T's bytes", "[CUD-6.8]") {
  // A warpgroup's P whose value tells its key: 0 to 15 and a sign are exact in e4m3.
  for (int thread = 0; thread < 128; ++thread) {
    for (int wanted = 0; wanted < 8; ++wanted) {
      float s[64];
      for (int i = 0; i < 64; ++i) {
        const int key = fragment_column(thread, i);
        s[i] = key / 16 == wanted ? static_cast<float>(key % 16) : -1.0f;
      }
      std::uint32_t p[4][4];
      narrow_to_e4m3<128>(s, p);
      for (int k = 0; k < 4; ++k) {
        for (int j = 0; j < 4; ++j) {
          // Word j of the operand: bytes 4 q to 4 q + 3 of the first or, j being 2 or 3, second
          // sixteen of the instruction's 32 (PTX ISA 9, m64k32 with 8-bit types).
          for (int b = 0; b < 4; ++b) {
            const int at = 32 * k + j / 2 * 16 + thread % 4 * 4 + b;
            const int key = key_of_byte(at);
            const float expected = key / 16 == wanted ? static_cast<float>(key % 16) : -1.0f;
            const std::uint8_t code = static_cast<std::uint8_t>(p[k][j] >> (8 * b));
            REQUIRE(numerics::to_float(numerics::widen(E4m3{code})) == expected);
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace assay::attention_kernels
