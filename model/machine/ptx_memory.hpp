// The memory of the PTX ISA's memory consistency model (PTX ISA 9.1, chapter 8; SPEC MAC-6): a load
// may return any write that nothing forbids it, a store may land anywhere in coherence order where
// nothing forbids it, and a data race is a fault with a sentence. Decides which writes an operation
// may choose from and what it orders; which of them it takes is the Scheduler's choice, in which 0
// is always the newest, so that a schedule of zeros is sequentially consistent.
//
//   MachineParts parts;
//   parts.make_memory_model = ptx_memory(config.boundary);
//   Machine machine(config, std::move(parts));
//
// Read next: clock.hpp (what is before what), ptx_memory_history.hpp (the writes of a location).
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "model/machine/clock.hpp"
#include "model/machine/memory_model.hpp"
#include "model/machine/ptx_memory_history.hpp"
#include "model/machine/run.hpp"

namespace assay::machine {

class PtxMemory final : public MemoryModel {
 public:
  PtxMemory(Memory& memory, Scheduler& scheduler, Boundary boundary);

  bool splits_vectors() const override { return false; }
  MaybeFault load(const MemoryEvent& event, std::byte* value) override;
  MaybeFault store(const MemoryEvent& event, const std::byte* value) override;
  MaybeFault rmw(const MemoryEvent& event, Rmw op, std::uint64_t operand, std::uint64_t compare,
                 std::uint64_t& old) override;
  void fence(const MemoryEvent& event) override;
  MaybeFault await(const MemoryEvent& event, const Await& await, Look look, bool& satisfied,
                   std::uint64_t& seen) override;

  void host_wrote(Address first, std::uint64_t bytes) override;
  std::uint32_t enqueue_ticket() override;
  void stream_wakes(RankId rank, std::uint32_t stream) override;
  void stream_rests(RankId rank, std::uint32_t stream) override;
  void host_node_begin(RankId rank, std::uint32_t stream, std::uint32_t ticket) override;
  void host_node_end(RankId rank, std::uint32_t stream) override;
  void grid_begin(const GridPlace& place) override;
  void grid_end(RankId rank, std::uint32_t stream, std::uint64_t grid) override;
  void grid_waited(ThreadSlot slot) override;
  void thread_begin(ThreadSlot slot, const ThreadPlace& place) override;
  void thread_end(ThreadSlot slot) override;
  void barrier(std::span<const ThreadSlot> threads) override;
  void run_ended() override;

  // How much is remembered: writes and reads. For tests of boundedness.
  std::size_t num_records() const { return history_.num_records(); }

 private:
  static constexpr std::uint32_t kHostThread = ~std::uint32_t{0};

  struct Place {
    ThreadPlace at;
    std::uint32_t kernel = 0;  // index into kernel_names_
  };
  struct Actor {  // a running thread, or the host node that is running
    bool live = false;
    std::uint32_t place = 0;
    ClockId id = 0;
    VectorClock clock;
    SharedSnapshot start;  // what the end of kernels has ordered before it
    ReleaseHeads fences;   // of its release fences, widest and oldest first
    struct ReleaseOperation {
      std::uint64_t address;
      std::uint32_t bytes;
      ReleaseHead head;
    };
    std::vector<ReleaseOperation> releases;
    struct Acquirable {  // a release that a strong read of these bytes has seen
      std::uint64_t address;
      std::uint32_t bytes;
      ReleaseHead head;
    };
    std::vector<Acquirable> acquirable;  // for a later acquire, of the same bytes or by a fence
    std::size_t acquirable_limit = 64;
  };
  struct Grid {
    SharedSnapshot start;
    VectorClock end;  // of the threads that have ended
    std::uint32_t kernel = 0;
    std::vector<Stamp> ended;  // their clock ids
  };
  struct Stream {
    bool busy = false;
    VectorClock clock;           // after the nodes that are over
    SharedSnapshot start;        // of the last node that waited for everything before it
    std::deque<Stamp> free_ids;  // of ended threads, with their last ticks
  };
  // One element of an access.
  struct Element {
    Actor& actor;
    Page& page;
    std::uint64_t raw;  // the bytes' own address
    Address address;    // as the body gave it
    const char* verb;   // "load"
    AccessRecord access;
  };
  enum class Does : std::uint8_t { kRead, kWrite };

  // elements of accesses
  MaybeFault locate(const MemoryEvent& event, const char* verb, Memory::Located& at);
  Element element(const MemoryEvent& event, const char* verb, const Memory::Located& at,
                  std::uint32_t offset, std::uint32_t bytes);
  History::Overlap touch(const Element& element);
  MaybeFault load_element(const Element& element, std::uint64_t& value);
  MaybeFault store_element(const Element& element, std::uint64_t value);
  bool load_quad(const Element& words, std::byte* value, MaybeFault& fault);
  void ask_about_quad(Choice kind, const Element& words);
  bool store_quad(const Element& words, const std::byte* value, MaybeFault& fault);
  MaybeFault load_mixed(const Element& element, const History::Overlap& parts,
                        std::uint64_t& value);
  void collect_readable(const Actor& actor, HistoryIndex location);
  HistoryIndex choose_write(Choice kind, const Element& element,
                            const std::vector<HistoryIndex>& candidates);
  void drop_taken();
  void take(const Element& element, HistoryIndex write, std::uint32_t num_elements = 1);
  void acquire_location(const Element& element);
  void note_acquirable(const Element& first, std::uint32_t num_elements, const ReleaseHeads& heads);
  HistoryIndex perform_write(const Element& element, HistoryIndex location, HistoryIndex after,
                             std::uint64_t value, bool is_atomic);

  // races
  bool is_settled(const Element& element, const AccessRecord& other, Stamp last) const;
  bool morally_strong(const AccessRecord& a, const AccessRecord& b) const;
  Reach distance(std::uint32_t place, std::uint32_t other) const;
  bool is_witnessed(const Actor& actor, const WriteRecord& write);
  bool is_observed(const Actor& actor, HistoryIndex newest_atomic, HistoryIndex write);
  MaybeFault find_race(const Element& element, const History::Overlap& parts, Does does);
  MaybeFault race(const Element& element, const AccessRecord& other, const char* verb) const;
  MaybeFault never_written(const Element& element) const;
  std::string place_sentence(std::uint32_t place) const;

  // order
  void tick(Actor& actor) { actor.clock.set(actor.id, actor.clock.of(actor.id) + 1); }
  Stamp now(const Actor& actor) const { return {actor.id, actor.clock.of(actor.id)}; }
  SharedSnapshot hand_out(Actor& actor);
  void acquire(Actor& actor, const ReleaseHead& head, Reach reach);
  void fence(Actor& actor, Order order, Reach reach);
  void fence_sc(Actor& actor, Reach reach);
  void publish_sc(Actor& actor, const Snapshot& snapshot, Reach reach);
  ReleaseHeads heads_of_write(const Element& element);
  ReleaseHeads pass_on(const Element& element, ReleaseHeads own, const WriteRecord& read) const;
  bool is_superseded(const ReleaseHead& old, const ReleaseHead& by) const;

  // structure
  Stream& stream_of(RankId rank, std::uint32_t stream);
  void begin_actor(Actor& actor, const ThreadPlace& place, std::uint32_t kernel, Stream& stream,
                   const SharedSnapshot& start);
  SharedSnapshot snapshot_of(const VectorClock& clock) const;
  void trim(HistoryIndex location);
  void compute_floor();

  Memory& memory_;
  Scheduler& scheduler_;
  Boundary boundary_;
  History history_;
  std::vector<Actor> actors_;  // by slot
  Actor host_;
  std::vector<Place> places_;
  std::vector<std::string> kernel_names_;
  std::map<std::pair<std::int32_t, std::uint32_t>, Stream> streams_;
  std::unordered_map<std::uint64_t, Grid> grids_;
  std::vector<SharedSnapshot> tickets_;
  ClockId next_id_ = 1;

  // Everything that fences.sc have handed on, by how far they reach (SPEC MAC-6.9).
  VectorClock sc_everywhere_;
  std::map<std::int32_t, VectorClock> sc_of_rank_;
  using CtaKey = std::pair<std::uint64_t, std::uint32_t>;  // grid, CTA
  std::map<CtaKey, VectorClock> sc_of_cta_;
  std::map<CtaKey, std::uint32_t> running_threads_;

  VectorClock floor_;  // every running thread and busy stream has at least this
  std::uint64_t since_floor_ = 0;
  std::vector<HistoryIndex> candidates_;
  std::vector<std::uint64_t> written_at_;
};

// For MachineParts::make_memory_model.
inline auto ptx_memory(Boundary boundary) {
  return [boundary](Memory& memory, Scheduler& scheduler) -> std::unique_ptr<MemoryModel> {
    return std::make_unique<PtxMemory>(memory, scheduler, boundary);
  };
}

}  // namespace assay::machine
