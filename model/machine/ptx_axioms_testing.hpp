// For tests: the axioms of the PTX memory consistency model (PTX ISA 9.1, chapter 8), checked by
// brute force on small straight-line programs. It enumerates which write every read returns, every
// coherence order and every Fence-SC order, and keeps the executions that the axioms allow. It is
// written from the text and shares nothing with the simulated memory, which it judges. Executions
// with a cycle in program order, reads-from and Fence-SC order (load buffering) are left out, as
// the machine leaves them out (SPEC MAC-6.16). Accesses of two sizes are judged word by word: of a
// wide one each word returns a write of its own, and what forbids torn values are the axioms.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "model/machine/ptx_axioms_program.hpp"

namespace assay::machine::axioms {

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
      if (may_read(a)) {
        readers_.push_back(a);
        for (int h = 0; h < halves(a); ++h) reads_.push_back({a, h});
      }
  }

  Verdict run() {
    choose_reads(0);
    return std::move(verdict_);
  }

 private:
  struct Event {
    int thread;
    Instruction is;
    // By half; a narrow one has the first only.
    std::array<int, 2> reads_from{-1, -1};
    std::array<std::uint32_t, 2> seen{};     // of a read
    std::array<std::uint32_t, 2> written{};  // of a write
    bool writes = false;
  };
  Event& at(int e) { return events_[static_cast<std::size_t>(e)]; }
  const Event& at(int e) const { return events_[static_cast<std::size_t>(e)]; }

  bool is_fence(int e) const { return at(e).is.kind == Instruction::kFence; }
  bool is_atomic(int e) const { return axioms::is_atomic(at(e).is); }
  bool may_read(int e) const {
    return at(e).is.kind == Instruction::kLoad || at(e).is.kind == Instruction::kWait ||
           is_atomic(e);
  }
  bool may_write(int e) const { return at(e).is.kind == Instruction::kStore || is_atomic(e); }
  bool is_strong(int e) const { return is_fence(e) || at(e).is.order != Order::kWeak; }
  int halves(int e) const { return at(e).is.wide ? 2 : 1; }
  int word(int e, int half) const { return half == 0 ? at(e).is.location : kBehindX; }
  bool touches(int e, int location) const {
    return !is_fence(e) &&
           (at(e).is.location == location || (at(e).is.wide && location == kBehindX));
  }
  bool overlap(int a, int b) const {
    for (int location = 0; location < kLocations; ++location)
      if (touches(a, location) && touches(b, location)) return true;
    return false;
  }
  // All bytes are the same.
  bool same_location(int a, int b) const {
    return !is_fence(a) && !is_fence(b) && at(a).is.location == at(b).is.location &&
           at(a).is.wide == at(b).is.wide;
  }
  bool reads_from(int reader, int write) const {
    const auto& sources = at(reader).reads_from;
    return std::find(sources.begin(), sources.end(), write) != sources.end();
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
    if (next == reads_.size()) {
      if (compute_values()) choose_fence_order();
      return;
    }
    const auto [read, half] = reads_[next];
    for (int write = 0; write < n_; ++write) {
      if (write == read || !may_write(write) || !touches(write, word(read, half))) continue;
      if (at(write).thread == at(read).thread && write > read) continue;
      at(read).reads_from[static_cast<std::size_t>(half)] = write;
      choose_reads(next + 1);
    }
  }

  // Follows values along reads-from; false if they go in circles, a failed swap is read, or a wait
  // has not ended.
  bool compute_values() {
    std::vector<bool> done(static_cast<std::size_t>(n_), false);
    for (int round = 0, left = n_; left > 0; ++round) {
      if (round > n_) return false;
      for (int e = 0; e < n_; ++e) {
        Event& event = at(e);
        if (done[static_cast<std::size_t>(e)]) continue;
        bool known = true;
        for (std::size_t h = 0; h < 2 && event.reads_from[h] >= 0; ++h) {
          const int source = event.reads_from[h];
          known = known && done[static_cast<std::size_t>(source)];
          if (!known) break;
          if (!at(source).writes) return false;
          const int location = word(e, static_cast<int>(h));
          event.seen[h] = written_to(source, location);
        }
        if (!known) continue;
        const Instruction& is = event.is;
        if (is.kind == Instruction::kWait && event.seen[0] != is.compare) return false;
        const bool swaps = event.seen[0] == is.compare && (!is.wide || event.seen[1] == is.compare);
        event.writes = is.kind == Instruction::kStore || is.kind == Instruction::kAdd ||
                       (is.kind == Instruction::kCas && swaps);
        for (std::size_t h = 0; h < 2; ++h)
          event.written[h] = is.kind == Instruction::kAdd ? event.seen[h] + is.value : is.value;
        done[static_cast<std::size_t>(e)] = true;
        --left;
      }
    }
    return true;
  }

  std::uint32_t written_to(int write, int location) const {
    return at(write).written[location == at(write).is.location ? 0 : 1];
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
    for (const auto& [r, half] : reads_) {
      const int source = at(r).reads_from[static_cast<std::size_t>(half)];
      no_speculation.add(source, r);
      if (morally_strong(source, r)) observation.add(source, r);
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
        if (base.has(a, b) && overlap(a, b)) cause_.add(a, b);
        for (int z = 0; z < n_; ++z)
          if (observation.has(a, z) && base.has(z, b) && overlap(z, b)) cause_.add(a, b);
      }
    // 8.10.2
    for (int a = 0; a < n_; ++a)
      for (int b = 0; b < n_; ++b)
        if (is_fence(a) && is_fence(b) && at(a).is.order == Order::kSc &&
            at(b).is.order == Order::kSc && morally_strong(a, b) && base.has(a, b) &&
            !sc_.has(a, b))
          return false;
    // 8.10.6, part 1
    for (const auto& [r, half] : reads_)
      if (cause_.has(r, at(r).reads_from[static_cast<std::size_t>(half)])) return false;
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
      if (touches(e, location) && at(e).writes) writes.push_back(e);
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
      if (allowed && coherence_.is_irreflexive()) choose_coherence(location + 1, newest);
    } while (std::next_permutation(writes.begin(), writes.end()));
    coherence_ = before;
  }

  void judge(const std::array<int, kLocations>& newest) {
    for (const auto& [r, half] : reads_) {
      const int source = at(r).reads_from[static_cast<std::size_t>(half)];
      for (int w = 0; w < n_; ++w) {
        if (!at(w).writes || !touches(w, word(r, half)) || w == r) continue;
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
    for (const auto& [r, half] : reads_)
      outcome.push_back(at(r).seen[static_cast<std::size_t>(half)]);
    for (int location = 0; location < kLocations; ++location)
      outcome.push_back(written_to(newest[static_cast<std::size_t>(location)], location));
    verdict_.outcomes.insert(outcome);
  }

  bool communicates(int a, int b) const {
    if (may_read(b) && reads_from(b, a)) return true;
    if (at(a).writes && at(b).writes && coherence_.has(a, b)) return true;
    if (!may_read(a) || !at(b).writes || a == b) return false;
    for (int h = 0; h < halves(a); ++h)
      if (touches(b, word(a, h)) &&
          coherence_.has(at(a).reads_from[static_cast<std::size_t>(h)], b))
        return true;
    return false;
  }
  // 8.10.5, for every pairwise morally strong set of operations on the location.
  bool is_sequential(int location) const {
    std::vector<int> operations;
    for (int e = kLocations; e < n_; ++e)
      if (touches(e, location)) operations.push_back(e);
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
        if (at(a).thread != at(b).thread && overlap(a, b) && (at(a).writes || at(b).writes) &&
            !morally_strong(a, b) && !cause_.has(a, b) && !cause_.has(b, a))
          return true;
    return false;
  }

  const Program& program_;
  std::vector<Event> events_;
  std::vector<int> readers_;
  std::vector<std::pair<int, int>> reads_;  // with the half
  int n_ = 0;
  Relation po_, sc_, cause_, coherence_;
  Verdict verdict_;
};

}  // namespace assay::machine::axioms
