// What every candidate execution of a litmus test has in common, for axioms.cpp: the events, and
// the relations among them that do not depend on which write a read reads from (SPEC MAC-8.2).
// Section numbers are those of the PTX ISA 9.0, "Memory Consistency Model".
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <vector>

#include "model/machine/litmus/litmus.hpp"

namespace assay::machine::litmus {

// An event of a candidate execution. The read and the write of an atomic are two events; the words
// of a vector are one event each, with no program order among them (8.2.4).
struct Event {
  enum class Kind : std::uint8_t { kRead, kWrite, kFence, kAliasFence, kBarrier, kEnd };
  Kind kind = Kind::kFence;
  std::uint32_t thread = 0;
  std::uint32_t step = 0;  // instruction; the write of an atomic comes after its read
  const Instruction* instruction = nullptr;
  Order order = Order::kWeak;
  Scope scope = Scope::kNone;
  std::uint32_t word = 0;                // canonical word of memory
  std::uint32_t name = 0;                // virtual address
  std::uint32_t lane_word = 0;           // which element of a vector
  std::optional<std::uint32_t> partner;  // the other half of an atomic
  std::uint32_t meeting = 0;             // barrier: the how manyth
  bool is_red = false;
};

using Mask = std::uint64_t;
constexpr std::size_t kMaxEvents = 64;
constexpr std::uint32_t kInitial = ~0u;  // "reads from the initial value"

struct Relation {
  std::array<Mask, kMaxEvents> row{};
  bool has(std::size_t a, std::size_t b) const { return row[a] >> b & 1; }
  void add(std::size_t a, std::size_t b) { row[a] |= Mask{1} << b; }
  void close(std::size_t n) {
    for (std::size_t k = 0; k < n; ++k)
      for (std::size_t a = 0; a < n; ++a)
        if (has(a, k)) row[a] |= row[k];
  }
};

inline bool is_memory(const Event& e) {
  return e.kind == Event::Kind::kRead || e.kind == Event::Kind::kWrite;
}
inline bool is_fence(const Event& e) {
  return e.kind == Event::Kind::kFence || e.kind == Event::Kind::kEnd;
}
inline bool is_sc(const Event& e) { return e.kind == Event::Kind::kFence && e.order == Order::kSc; }
inline bool is_strong(const Event& e) {
  return is_memory(e) ? e.order != Order::kWeak : is_fence(e);
}
inline bool acquires(const Event& e) {
  return e.order == Order::kAcquire || e.order == Order::kAcqRel || e.order == Order::kSc;
}
inline bool releases(const Event& e) {
  return e.order == Order::kRelease || e.order == Order::kAcqRel || e.order == Order::kSc;
}

class EventGraph {
 protected:
  EventGraph(const Test& test, Boundary boundary);

  // Whether the scope of `e` includes the other thread.
  bool includes(const Event& e, std::uint32_t thread) const;

  const Test& test_;
  const Boundary boundary_;
  std::size_t n_ = 0;
  std::vector<Event> events_;
  std::vector<std::uint32_t> reads_, sc_fences_;
  std::vector<std::uint32_t> first_word_;  // of each location
  std::uint32_t num_words_ = 0;
  Relation po_;         // program order
  Relation strong_;     // morally strong (8.7)
  Relation structure_;  // barriers and streams (8.9.4)
  Relation release_;    // from the first operation of a release pattern to its write (8.8)
  Relation acquire_;    // from the read of an acquire pattern to its last operation (8.8)

 private:
  void make_events();
  void add_events(Event event, std::uint32_t& meeting);
  void place(Event& event, std::uint32_t lane_word) const;
  bool morally_strong(const Event& a, const Event& b) const;
  void make_relations();
  bool ordered_by_structure(const Event& x, const Event& y) const;
  bool is_release_pattern(std::uint32_t first, std::uint32_t write) const;
  bool is_acquire_pattern(std::uint32_t read, std::uint32_t last) const;
};

}  // namespace assay::machine::litmus
