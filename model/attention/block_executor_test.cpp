// The text that a GPU runs, run by threads of the host in the place of a block's: its bits, LSE,
// decisions and margins are those of the host's executor, for every profile and any number of
// threads.
#include "model/attention/block_executor.hpp"

#include <barrier>
#include <cstring>
#include <map>
#include <thread>

#include "model/attention/attention_testing.hpp"

namespace {

using namespace assay;
using namespace assay::attention;
using namespace assay::attention::testing;

struct HostBlock {
  int thread = 0;
  int threads = 1;
  std::barrier<>* barrier = nullptr;
  int index() const { return thread; }
  int size() const { return threads; }
  void sync() const {
    if (threads > 1) barrier->arrive_and_wait();
  }
};

template <class T>
UnitResult run_as_block(const Unit& unit, const UnitView& view, int threads) {
  const UnitLayout layout(view);
  UnitScratch<T> scratch;
  // What is not written must not be read.
  std::vector<std::byte> memory(scratch.place(view, layout.rows(), layout.segments(), nullptr),
                                std::byte{0xA5});
  scratch.place(view, layout.rows(), layout.segments(), memory.data());
  const ProductTasks tasks(view.arithmetic, layout.rows(), threads);
  std::vector<numerics::BlockOperand> stage(tasks.stage_operands(view.arithmetic));
  UnitSpace space(layout, view.v_dim);
  const UnitOutput output = space.output();
  std::barrier<> barrier(threads);
  const auto work = [&](int thread) {
    const HostBlock block{thread, threads, &barrier};
    const BlockExecutor<HostBlock> executor(block, stage.data());
    UnitRun<T, BlockExecutor<HostBlock>>(view, layout, scratch, output, executor).run();
  };
  std::vector<std::thread> pool;
  for (int t = 1; t < threads; ++t) pool.emplace_back(work, t);
  work(0);
  for (std::thread& thread : pool) thread.join();
  return std::move(space).result(unit, layout);
}

UnitResult run_as_block(const Emulator& emulator, const Unit& unit, int threads) {
  const UnitView view = emulator.view(unit);
  return view.dtype == Dtype::kF8E4m3 ? run_as_block<std::uint8_t>(unit, view, threads)
                                      : run_as_block<std::uint16_t>(unit, view, threads);
}

// Empty, or what differs.
std::string difference(const UnitResult& a, const UnitResult& b) {
  if (a.out != b.out) return "out";
  if (a.rows.size() != b.rows.size() || a.tiles.size() != b.tiles.size()) return "sizes";
  for (std::size_t i = 0; i < a.rows.size(); ++i) {
    if (a.rows[i].lse.bits != b.rows[i].lse.bits) return "lse";
    if (a.rows[i].token != b.rows[i].token || a.rows[i].q_head != b.rows[i].q_head) return "rows";
  }
  for (std::size_t i = 0; i < a.tiles.size(); ++i) {
    const TileTrace &x = a.tiles[i], &y = b.tiles[i];
    if (x.tile != y.tile || x.decision != y.decision || x.zeroed != y.zeroed) return "decisions";
    if (x.asked != y.asked || x.near_tie != y.near_tie || x.row != y.row) return "trace";
    if (x.local_max.bits != y.local_max.bits || x.running_max.bits != y.running_max.bits)
      return "maxima";
    if (std::memcmp(&x.margin_log2, &y.margin_log2, sizeof(float)) != 0) return "margin";
  }
  return "";
}

}  // namespace

TEST_CASE("a block's text has the bits of the host's, for every profile", "[long][ATT-5.10]") {
  for (const Profile& profile : profiles()) {
    int skipped = 0, kept = 0;
    prop(std::string(profile.name), [&] {
      Case c = *cases(profile, {70, 400, 2, 2, true});
      if (*rc::gen::arbitrary<bool>()) {  // something to skip
        c.lambda = 0.3f;
        c.contrast = 8;
      }
      if (profile.skip.dense_only) c.lambda = -1;
      const auto built = build(c);
      Problem& p = built->problem;
      const std::vector<float> some(static_cast<std::size_t>(c.q_heads), 0.375f);
      const int extra = *rc::gen::inRange(0, 6);
      const bool biased = profile.biased && c.dtype != Dtype::kF8E4m3;
      if (extra == 0 && profile.softmax.sink != SinkForm::kNone) p.sinks = some;
      if (extra == 1 && biased) p.softcap = 3;
      if (extra == 2 && biased) p.alibi_slopes = some;
      if (extra == 3) p.v_scale = 0.75f;
      // Raw bits here and there: NaN and Inf, subnormal and huge numbers.
      if (extra == 4)
        for (int i = 0; i < 20; ++i) {
          Tensor& t = i % 2 == 0 ? built->k : built->v;
          if (!t.bytes.empty())
            t.bytes[*rc::gen::inRange<std::size_t>(0, t.bytes.size())] =
                static_cast<std::byte>(*rc::gen::inRange(0, 256));
        }
      const auto emulator = Emulator::make(profile, p);
      RC_ASSERT(emulator.has_value());
      if (emulator->units().empty()) return;
      const Unit unit = *rc::gen::elementOf(emulator->units());
      const UnitResult expected = emulator->run(unit);
      RC_ASSERT(difference(run_as_block(*emulator, unit, 1), expected) == "");
      for (const TileTrace& t : expected.tiles)
        ++(t.decision == Decision::kSkipped ? skipped : kept);
    });
    CAPTURE(profile.name, skipped, kept);
    REQUIRE(kept > 50);
    REQUIRE((skipped > 2 || profile.skip.dense_only));
  }
}

TEST_CASE("a block's bits do not depend on its number of threads", "[ATT-5.10]") {
  for (const Profile& profile : profiles()) {
    Case c;
    c.q_heads = 4;
    c.kv_heads = 2;
    c.v_dim = 24;
    c.q_lens = {profile.skip.packing == Packing::kGroupRows ? 3 : 75};
    c.kv_lens = {300};
    c.lambda = profile.skip.dense_only ? -1.0f : 0.3f;
    c.contrast = 8;
    c.splits = 3;
    for (const Dtype dtype : {Dtype::kBf16, Dtype::kF8E4m3}) {
      if (dtype == Dtype::kF8E4m3 && !profile.fp8) continue;
      c.dtype = dtype;
      const auto built = build(c);
      const auto emulator = Emulator::make(profile, built->problem);
      const Unit& unit = emulator->units().back();
      const UnitResult expected = emulator->run(unit);
      for (const int threads : {2, 7}) {
        CAPTURE(profile.name, threads);
        REQUIRE(difference(run_as_block(*emulator, unit, threads), expected) == "");
      }
    }
  }
}

TEST_CASE("a product is covered by tasks of any number of threads", "[ATT-5.10]") {
  const auto* bf16 = numerics::find_instruction("wgmma.k16.f32.bf16.bf16", numerics::Arch::kSm90a);
  for (const int threads : {1, 3, 32, 200, 256})
    for (const int rows : {1, 8, 63, 64, 128}) {
      const ProductTasks tasks(bf16->arithmetic, rows, threads);
      REQUIRE(tasks.row_tasks * tasks.groups <= threads);
      REQUIRE(tasks.groups >= 1);
      REQUIRE(tasks.stage_operands(bf16->arithmetic) * sizeof(numerics::BlockOperand) < 96 * 1024);
    }
}
