// For tests: the axioms of the PTX memory consistency model (PTX ISA 9.1, chapter 8), checked by
// brute force on small straight-line programs. It enumerates which write every read returns, every
// coherence order and every Fence-SC order, and keeps the executions that the axioms allow. It is
// written from the text and shares nothing with the simulated memory, which it judges. Executions
// with a cycle in program order, reads-from and Fence-SC order (load buffering) are left out, as
// the machine leaves them out (SPEC MAC-6.16).
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <functional>
#include <ostream>
#include <set>
#include <string>
#include <vector>

#include "model/core/ops.hpp"

namespace assay::machine::axioms {

struct Instruction {
  enum Kind { kLoad, kStore, kAdd, kCas, kFence };
  Kind kind = kLoad;
  Order order = Order::kRelaxed;
  Scope scope = Scope::kSys;
  int location = 0;
  std::uint32_t value = 0;    // stored, added, or swapped in
  std::uint32_t compare = 0;  // kCas
};
struct Thread {
  std::int32_t rank = 0;
  std::uint32_t cta = 0;
  std::vector<Instruction> instructions;
};
using Program = std::vector<Thread>;
inline constexpr int kLocations = 2;  // both are 0 at first

// What the reads returned, thread by thread, and what the locations hold in the end.
using Outcome = std::vector<std::uint32_t>;
struct Verdict {
  std::set<Outcome> outcomes;
  bool has_race = false;  // in some execution; the outcomes then say nothing
};

inline std::ostream& operator<<(std::ostream& out, const Program& program) {
  static const char* const kinds[] = {"ld", "st", "add", "cas", "fence"};
  static const char* const orders[] = {"weak", "relaxed", "acquire", "release", "acq_rel", "sc"};
  static const char* const scopes[] = {"", ".cta", ".cluster", ".gpu", ".sys"};
  for (const Thread& thread : program) {
    out << "\n  rank " << thread.rank << " cta " << thread.cta << ":";
    for (const Instruction& i : thread.instructions) {
      out << " " << kinds[i.kind] << "." << orders[static_cast<int>(i.order)]
          << scopes[static_cast<int>(i.scope)];
      if (i.kind != Instruction::kFence)
        out << "["
            << "xy"[i.location] << "]";
      if (i.kind == Instruction::kCas) out << "," << i.compare;
      if (i.kind != Instruction::kFence && i.kind != Instruction::kLoad) out << "," << i.value;
      out << ";";
    }
  }
  return out;
}

// A relation over at most 16 events.
class Relation {
 public:
  void add(int from, int to) { rows_[from] |= static_cast<std::uint16_t>(1u << to); }
  bool has(int from, int to) const { return (rows_[from] >> to & 1) != 0; }
  void close() {
    for (int via = 0; via < 16; ++via)
      for (int from = 0; from < 16; ++from)
        if (has(from, via)) rows_[from] |= rows_[via];
  }
  bool is_irreflexive() const {
    for (int e = 0; e < 16; ++e)
      if (has(e, e)) return false;
    return true;
  }

 private:
  std::array<std::uint16_t, 16> rows_{};
};

class Checker {
 public:
  explicit Checker(const Program& program) : program_(program) {
    for (int location = 0; location < kLocations; ++location)  // the initial writes
      events_.push_back(
          Event{-1, Instruction{Instruction::kStore, Order::kWeak, Scope::kNone, location, 0, 0}});
    for (int t = 0; t < static_cast<int>(program.size()); ++t)
      for (const Instruction& instruction : program[static_cast<std::size_t>(t)].instructions)
        events_.push_back(Event{t, instruction});
    n_ = static_cast<int>(events_.size());
    for (int a = 0; a < n_; ++a)
      for (int b = a + 1; b < n_; ++b)
        if (at(a).thread == -1 ? at(b).thread != -1 : at(a).thread == at(b).thread) po_.add(a, b);
    for (int a = 0; a < n_; ++a)
      if (may_read(a)) readers_.push_back(a);
  }

  Verdict run() {
    choose_reads(0);
    return std::move(verdict_);
  }

 private:
  struct Event {
    int thread;
    Instruction is;
    int reads_from = -1;
    std::uint32_t seen = 0;     // of a read
    std::uint32_t written = 0;  // of a write
    bool writes = false;
  };
  Event& at(int e) { return events_[static_cast<std::size_t>(e)]; }
  const Event& at(int e) const { return events_[static_cast<std::size_t>(e)]; }

  bool is_fence(int e) const { return at(e).is.kind == Instruction::kFence; }
  bool is_atomic(int e) const {
    return at(e).is.kind == Instruction::kAdd || at(e).is.kind == Instruction::kCas;
  }
  bool may_read(int e) const { return at(e).is.kind == Instruction::kLoad || is_atomic(e); }
  bool may_write(int e) const { return at(e).is.kind == Instruction::kStore || is_atomic(e); }
  bool is_strong(int e) const { return is_fence(e) || at(e).is.order != Order::kWeak; }
  bool same_location(int a, int b) const {
    return !is_fence(a) && !is_fence(b) && at(a).is.location == at(b).is.location;
  }
  bool releases(int e) const {
    const Order order = at(e).is.order;
    if (is_fence(e))
      return order == Order::kRelease || order == Order::kAcqRel || order == Order::kSc;
    return at(e).writes && (order == Order::kRelease || order == Order::kAcqRel);
  }
  bool acquires(int e) const {
    const Order order = at(e).is.order;
    if (is_fence(e))
      return order == Order::kAcquire || order == Order::kAcqRel || order == Order::kSc;
    return may_read(e) && (order == Order::kAcquire || order == Order::kAcqRel);
  }

  // 8.5: whether the scope of `e` includes the thread of `other`.
  bool scope_includes(int e, int other) const {
    if (at(e).thread < 0 || at(other).thread < 0) return false;
    const Thread& mine = program_[static_cast<std::size_t>(at(e).thread)];
    const Thread& theirs = program_[static_cast<std::size_t>(at(other).thread)];
    switch (at(e).is.scope) {
      case Scope::kNone:
        return false;
      case Scope::kCta:
      case Scope::kCluster:
        return mine.rank == theirs.rank && mine.cta == theirs.cta;
      case Scope::kGpu:
        return mine.rank == theirs.rank;
      case Scope::kSys:
        return true;
    }
    return false;
  }
  // 8.7
  bool morally_strong(int a, int b) const {
    if (!is_fence(a) && !is_fence(b) && !same_location(a, b)) return false;
    if (po_.has(a, b) || po_.has(b, a)) return true;
    return is_strong(a) && is_strong(b) && scope_includes(a, b) && scope_includes(b, a);
  }

  void choose_reads(std::size_t next) {
    if (next == readers_.size()) {
      if (compute_values()) choose_fence_order();
      return;
    }
    const int read = readers_[next];
    for (int write = 0; write < n_; ++write) {
      if (write == read || !may_write(write) || !same_location(read, write)) continue;
      if (at(write).thread == at(read).thread && write > read) continue;
      at(read).reads_from = write;
      choose_reads(next + 1);
    }
  }

  // Follows values along reads-from; false if they go in circles or a failed swap is read.
  bool compute_values() {
    std::vector<bool> done(static_cast<std::size_t>(n_), false);
    for (int round = 0, left = n_; left > 0; ++round) {
      if (round > n_) return false;
      for (int e = 0; e < n_; ++e) {
        Event& event = at(e);
        if (done[static_cast<std::size_t>(e)]) continue;
        if (event.reads_from >= 0) {
          if (!done[static_cast<std::size_t>(event.reads_from)]) continue;
          if (!at(event.reads_from).writes) return false;
          event.seen = at(event.reads_from).written;
        }
        const Instruction& is = event.is;
        event.writes = is.kind == Instruction::kStore || is.kind == Instruction::kAdd ||
                       (is.kind == Instruction::kCas && event.seen == is.compare);
        event.written = is.kind == Instruction::kAdd ? event.seen + is.value : is.value;
        done[static_cast<std::size_t>(e)] = true;
        --left;
      }
    }
    return true;
  }

  void choose_fence_order() {
    std::vector<int> fences;
    for (int e = 0; e < n_; ++e)
      if (is_fence(e) && at(e).is.order == Order::kSc) fences.push_back(e);
    const std::vector<int> all = fences;
    std::set<std::vector<bool>> tried;  // orders that agree on all morally strong pairs are one
    do {
      sc_ = Relation{};
      std::vector<bool> key;
      for (std::size_t i = 0; i < fences.size(); ++i)
        for (std::size_t j = i + 1; j < fences.size(); ++j)
          if (morally_strong(fences[i], fences[j])) sc_.add(fences[i], fences[j]);
      for (const int a : all)
        for (const int b : all) key.push_back(sc_.has(a, b));
      if (tried.insert(key).second && compute_causality()) choose_coherence(0, {});
    } while (std::next_permutation(fences.begin(), fences.end()));
  }

  // 8.9.2, 8.9.4, 8.9.5. False when the axioms that need no coherence order are broken already.
  bool compute_causality() {
    Relation no_speculation = po_;
    Relation observation;
    for (const int r : readers_) {
      no_speculation.add(at(r).reads_from, r);
      if (morally_strong(at(r).reads_from, r)) observation.add(at(r).reads_from, r);
    }
    for (int a = 0; a < n_; ++a)
      for (int b = 0; b < n_; ++b)
        if (sc_.has(a, b)) no_speculation.add(a, b);
    no_speculation.close();
    if (!no_speculation.is_irreflexive()) return false;
    for (bool grows = true; grows;) {
      grows = false;
      for (int w = 0; w < n_; ++w)
        for (int z = 0; z < n_; ++z) {
          if (!observation.has(w, z) || !is_atomic(z) || !at(z).writes) continue;
          for (int r = 0; r < n_; ++r)
            if (observation.has(z, r) && !observation.has(w, r)) {
              observation.add(w, r);
              grows = true;
            }
        }
    }

    Relation base = po_;
    for (int a = 0; a < n_; ++a)
      for (int b = 0; b < n_; ++b)
        if (sc_.has(a, b)) base.add(a, b);
    for (int w = 0; w < n_; ++w)
      for (int r = 0; r < n_; ++r) {
        if (!observation.has(w, r) || !is_strong(w) || !is_strong(r)) continue;
        for (int first = 0; first < n_; ++first) {
          if (!is_release_pattern(first, w)) continue;
          for (int last = 0; last < n_; ++last)
            if (is_acquire_pattern(r, last) && at(first).thread != at(last).thread &&
                morally_strong_ends(first, last))
              base.add(first, last);
        }
      }
    base.close();
    if (!base.is_irreflexive()) return false;

    cause_ = Relation{};
    for (int a = 0; a < n_; ++a)
      for (int b = 0; b < n_; ++b) {
        if (base.has(a, b) && same_location(a, b)) cause_.add(a, b);
        for (int z = 0; z < n_; ++z)
          if (observation.has(a, z) && base.has(z, b) && same_location(z, b)) cause_.add(a, b);
      }
    // 8.10.2
    for (int a = 0; a < n_; ++a)
      for (int b = 0; b < n_; ++b)
        if (is_fence(a) && is_fence(b) && at(a).is.order == Order::kSc &&
            at(b).is.order == Order::kSc && morally_strong(a, b) && base.has(a, b) &&
            !sc_.has(a, b))
          return false;
    // 8.10.6, part 1
    for (const int r : readers_)
      if (cause_.has(r, at(r).reads_from)) return false;
    return true;
  }
  // The ends of two patterns on one location: fences, or operations on that location.
  bool morally_strong_ends(int a, int b) const {
    return is_strong(a) && is_strong(b) && scope_includes(a, b) && scope_includes(b, a);
  }
  // 8.8
  bool is_release_pattern(int first, int write) const {
    if (!releases(first) || !at(write).writes || !is_strong(write)) return false;
    if (first == write) return true;
    return po_.has(first, write) && (is_fence(first) || same_location(first, write));
  }
  bool is_acquire_pattern(int read, int last) const {
    if (!acquires(last) || !may_read(read) || !is_strong(read)) return false;
    if (read == last) return true;
    return po_.has(read, last) && (is_fence(last) || same_location(read, last));
  }

  void choose_coherence(int location, std::array<int, kLocations> newest) {
    if (location == kLocations) return judge(newest);
    std::vector<int> writes;
    for (int e = kLocations; e < n_; ++e)
      if (!is_fence(e) && at(e).writes && at(e).is.location == location) writes.push_back(e);
    const Relation before = coherence_;
    do {
      // 8.9.6: only writes that are morally strong or in causality order are related.
      coherence_ = before;
      bool allowed = true;
      for (std::size_t i = 0; i < writes.size(); ++i) {
        coherence_.add(location, writes[i]);
        for (std::size_t j = i + 1; j < writes.size(); ++j) {
          const int a = writes[i], b = writes[j];
          if (cause_.has(b, a)) allowed = false;  // 8.10.1
          if (cause_.has(a, b) || morally_strong(a, b)) coherence_.add(a, b);
        }
      }
      coherence_.close();
      newest[static_cast<std::size_t>(location)] = writes.empty() ? location : writes.back();
      if (allowed) choose_coherence(location + 1, newest);
    } while (std::next_permutation(writes.begin(), writes.end()));
    coherence_ = before;
  }

  void judge(const std::array<int, kLocations>& newest) {
    for (const int r : readers_) {
      const int source = at(r).reads_from;
      for (int w = 0; w < n_; ++w) {
        if (!at(w).writes || is_fence(w) || !same_location(r, w) || w == r) continue;
        // 8.10.6, part 2
        if (cause_.has(w, r) && coherence_.has(source, w)) return;
        // 8.10.3
        if (is_atomic(r) && at(r).writes && morally_strong(r, w) && coherence_.has(source, w) &&
            coherence_.has(w, r))
          return;
      }
    }
    for (int location = 0; location < kLocations; ++location)
      if (!is_sequential(location)) return;
    if (has_race()) {
      verdict_.has_race = true;
      return;
    }
    Outcome outcome;
    for (const int r : readers_) outcome.push_back(at(r).seen);
    for (const int w : newest) outcome.push_back(at(w).written);
    verdict_.outcomes.insert(outcome);
  }

  bool communicates(int a, int b) const {
    if (at(b).reads_from == a && may_read(b)) return true;
    if (at(a).writes && at(b).writes && coherence_.has(a, b)) return true;
    return may_read(a) && at(b).writes && coherence_.has(at(a).reads_from, b) && a != b;
  }
  // 8.10.5, for every pairwise morally strong set of operations on the location.
  bool is_sequential(int location) const {
    std::vector<int> operations;
    for (int e = kLocations; e < n_; ++e)
      if (!is_fence(e) && at(e).is.location == location) operations.push_back(e);
    for (std::uint32_t set = 1; set < 1u << operations.size(); ++set) {
      std::vector<int> members;
      for (std::size_t i = 0; i < operations.size(); ++i)
        if ((set >> i & 1) != 0) members.push_back(operations[i]);
      Relation order;
      bool pairwise = true;
      for (const int a : members)
        for (const int b : members) {
          if (a == b) continue;
          pairwise = pairwise && morally_strong(a, b);
          if (po_.has(a, b) || communicates(a, b)) order.add(a, b);
        }
      if (!pairwise) continue;
      order.close();
      if (!order.is_irreflexive()) return false;
    }
    return true;
  }
  // 8.7.1
  bool has_race() const {
    for (int a = kLocations; a < n_; ++a)
      for (int b = a + 1; b < n_; ++b)
        if (at(a).thread != at(b).thread && same_location(a, b) && (at(a).writes || at(b).writes) &&
            !morally_strong(a, b) && !cause_.has(a, b) && !cause_.has(b, a))
          return true;
    return false;
  }

  const Program& program_;
  std::vector<Event> events_;
  std::vector<int> readers_;
  int n_ = 0;
  Relation po_, sc_, cause_, coherence_;
  Verdict verdict_;
};

}  // namespace assay::machine::axioms
