// Candidate executions of a litmus test, and PTX's axioms on them. Section numbers are those of
// the PTX ISA 9.0, "Memory Consistency Model".
#include "model/machine/litmus/axioms.hpp"

#include <algorithm>

#include "model/machine/litmus/event_graph.hpp"

namespace assay::machine::litmus {

namespace {

class Candidates final : private EventGraph {
 public:
  Candidates(const Test& test, Boundary boundary) : EventGraph(test, boundary) {}

  AxiomaticResult evaluate() {
    choose_reads(0);
    return std::move(result_);
  }

 private:
  // ---- candidates ------------------------------------------------------------------------------

  void choose_reads(std::size_t i) {
    if (i == reads_.size()) {
      if (compute_values()) choose_coherence(0);
      return;
    }
    const Event& read = events_[reads_[i]];
    reads_from_[reads_[i]] = kInitial;
    choose_reads(i + 1);
    for (std::uint32_t w = 0; w < n_; ++w) {
      if (events_[w].kind != Event::Kind::kWrite || events_[w].word != read.word) continue;
      if (read.partner && *read.partner == w) continue;
      reads_from_[reads_[i]] = w;
      choose_reads(i + 1);
    }
  }

  // Fails when a value would come out of thin air, an await would not end, or a compare-and-swap
  // that does not write is read from.
  bool compute_values() {
    value_.fill(~0u);
    for (std::uint32_t w = 0; w < n_; ++w) {
      const Event& e = events_[w];
      exists_[w] = true;
      if (e.kind == Event::Kind::kWrite && !e.partner)
        value_[w] = e.instruction->value[e.lane_word];
    }
    // Atomics take their value from what they read; n_ rounds reach every end of a chain.
    for (std::size_t round = 0; round <= n_; ++round)
      for (const std::uint32_t r : reads_) {
        const Event& read = events_[r];
        value_[r] = reads_from_[r] == kInitial ? 0 : value_[reads_from_[r]];
        if (!read.partner || value_[r] == ~0u) continue;
        const Instruction& i = *read.instruction;
        const bool cas = i.op == Op::kAtomCas;
        exists_[*read.partner] = !cas || value_[r] == i.value[1];
        value_[*read.partner] = cas ? i.value[0] : value_[r] + i.value[0];
      }
    for (const std::uint32_t r : reads_) {
      if (value_[r] == ~0u) return false;
      if (reads_from_[r] != kInitial && !exists_[reads_from_[r]]) return false;
      const Instruction& i = *events_[r].instruction;
      if (i.op == Op::kAwait && (value_[r] == i.value[0]) != i.until_equal) return false;
    }
    return true;
  }

  void choose_coherence(std::uint32_t word) {
    if (word == num_words_) {
      std::vector<std::uint32_t> order = sc_fences_;
      std::sort(order.begin(), order.end());
      do consider(order);
      while (std::next_permutation(order.begin(), order.end()));
      return;
    }
    std::vector<std::uint32_t> writes;
    for (std::uint32_t w = 0; w < n_; ++w)
      if (events_[w].kind == Event::Kind::kWrite && events_[w].word == word && exists_[w])
        writes.push_back(w);
    do {
      for (std::uint32_t i = 0; i < writes.size(); ++i) position_[writes[i]] = i;
      last_write_[word] = writes.empty() ? kInitial : writes.back();
      choose_coherence(word + 1);
    } while (std::next_permutation(writes.begin(), writes.end()));
  }

  // ---- the axioms ------------------------------------------------------------------------------

  void consider(const std::vector<std::uint32_t>& sc_order) {
    ++result_.candidates;
    if (!atomic() || !coherent_per_location()) return;
    compute_causality(sc_order);
    if (!causality_holds(sc_order)) return;
    ++result_.consistent;
    result_.race |= has_race();
    Outcome outcome = 0;
    for (std::uint32_t i = 0; i < test_.observables.size(); ++i)
      outcome = with_value(outcome, i, observed(test_.observables[i]));
    result_.outcomes.insert(outcome);
    if (sequential()) result_.sequential.insert(outcome);
  }

  bool alive(std::uint32_t e) const { return exists_[e]; }
  bool co(std::uint32_t a, std::uint32_t b) const {
    return events_[a].word == events_[b].word && position_[a] < position_[b];
  }
  bool fr(std::uint32_t r, std::uint32_t w) const {
    if (events_[r].word != events_[w].word || !alive(w)) return false;
    if (reads_from_[r] == w || (events_[r].partner && *events_[r].partner == w)) return false;
    return reads_from_[r] == kInitial || co(reads_from_[r], w);
  }

  // 8.10.3. Atomics that are not morally strong with a write may be split by it.
  bool atomic() const {
    for (const std::uint32_t r : reads_) {
      if (!events_[r].partner || !alive(*events_[r].partner)) continue;
      const std::uint32_t own = *events_[r].partner;
      if (reads_from_[r] != kInitial && !co(reads_from_[r], own)) return false;
      for (std::uint32_t w = 0; w < n_; ++w)
        if (w != own && events_[w].kind == Event::Kind::kWrite && fr(r, w) && co(w, own) &&
            strong_.has(r, w) && strong_.has(w, own))
          return false;
    }
    return true;
  }

  // 8.10.5: among morally strong operations of one word, communication does not contradict program
  // order.
  bool coherent_per_location() const {
    Relation cycle;
    for (std::uint32_t a = 0; a < n_; ++a)
      for (std::uint32_t b = 0; b < n_; ++b) {
        const Event& x = events_[a];
        const Event& y = events_[b];
        if (a == b || !is_memory(x) || !is_memory(y) || x.word != y.word) continue;
        if (!is_strong(x) || !is_strong(y) || !strong_.has(a, b) || !alive(a) || !alive(b))
          continue;
        const bool x_writes = x.kind == Event::Kind::kWrite;
        const bool y_writes = y.kind == Event::Kind::kWrite;
        if (po_.has(a, b) || (x_writes && y_writes && co(a, b)) ||
            (x_writes && !y_writes && reads_from_[b] == a) || (!x_writes && y_writes && fr(a, b)))
          cycle.add(a, b);
      }
    cycle.close(n_);
    for (std::size_t e = 0; e < n_; ++e)
      if (cycle.has(e, e)) return false;
    return true;
  }

  // 8.9.2, 8.9.4 and 8.9.5.
  void compute_causality(const std::vector<std::uint32_t>& sc_order) {
    observation_ = Relation{};
    // Along a chain of atomics: at most n_ links.
    for (const std::uint32_t r : reads_) {
      std::uint32_t reader = r;
      for (std::size_t link = 0; link < n_; ++link) {
        const std::uint32_t w = reads_from_[reader];
        if (w == kInitial || !strong_.has(w, reader)) break;
        observation_.add(w, r);
        if (!events_[w].partner) break;
        reader = *events_[w].partner;
      }
    }
    base_ = po_;
    for (std::size_t e = 0; e < n_; ++e) base_.row[e] |= structure_.row[e];
    for (std::size_t i = 0; i < sc_order.size(); ++i)
      for (std::size_t j = i + 1; j < sc_order.size(); ++j)
        if (strong_.has(sc_order[i], sc_order[j])) base_.add(sc_order[i], sc_order[j]);
    for (std::uint32_t w = 0; w < n_; ++w)
      for (std::uint32_t r = 0; r < n_; ++r)
        if (observation_.has(w, r)) add_synchronisation(w, r);
    base_.close(n_);
    causality_ = Relation{};
    for (std::uint32_t a = 0; a < n_; ++a)
      for (std::uint32_t b = 0; b < n_; ++b)
        if (base_.has(a, b) && proxy_preserved(a, b)) causality_.add(a, b);
    Relation through = causality_;
    for (std::uint32_t w = 0; w < n_; ++w)
      for (std::uint32_t r = 0; r < n_; ++r)
        if (observation_.has(w, r)) through.row[w] |= causality_.row[r];
    causality_ = through;
  }

  void add_synchronisation(std::uint32_t write, std::uint32_t read) {
    for (std::uint32_t first = 0; first < n_; ++first)
      for (std::uint32_t last = 0; last < n_; ++last)
        if (release_.has(first, write) && acquire_.has(read, last) && first != last &&
            strong_or_same(first, last))
          base_.add(first, last);
  }

  // The ends of a synchronisation: scopes only, as the overlap is that of the write and the read.
  bool strong_or_same(std::uint32_t a, std::uint32_t b) const {
    const Event& x = events_[a];
    const Event& y = events_[b];
    return x.thread == y.thread ||
           (is_strong(x) && is_strong(y) && includes(x, y.thread) && includes(y, x.thread));
  }

  bool proxy_preserved(std::uint32_t a, std::uint32_t b) const {
    const Event& x = events_[a];
    const Event& y = events_[b];
    if (!is_memory(x) || !is_memory(y)) return true;
    if (x.word != y.word || x.name == y.name) return true;
    for (std::uint32_t f = 0; f < n_; ++f)
      if (events_[f].kind == Event::Kind::kAliasFence && base_.has(a, f) && base_.has(f, b))
        return true;
    return false;
  }

  // 8.10.1, 8.10.2 and 8.10.6.
  bool causality_holds(const std::vector<std::uint32_t>& sc_order) const {
    for (std::size_t i = 0; i < sc_order.size(); ++i)
      for (std::size_t j = i + 1; j < sc_order.size(); ++j)
        if (strong_.has(sc_order[i], sc_order[j]) && causality_.has(sc_order[j], sc_order[i]))
          return false;
    for (std::uint32_t a = 0; a < n_; ++a)
      for (std::uint32_t b = 0; b < n_; ++b) {
        if (!causality_.has(a, b) || !alive(a) || !alive(b)) continue;
        const Event& x = events_[a];
        const Event& y = events_[b];
        if (!is_memory(x) || !is_memory(y) || x.word != y.word) continue;
        const bool x_writes = x.kind == Event::Kind::kWrite;
        const bool y_writes = y.kind == Event::Kind::kWrite;
        if (x_writes && y_writes && !co(a, b)) return false;
        if (x_writes && !y_writes && fr(b, a)) return false;
        if (!x_writes && y_writes && reads_from_[a] == b) return false;
      }
    return true;
  }

  // One order of all accesses explains the candidate.
  bool sequential() const {
    Relation order = po_;
    for (std::size_t e = 0; e < n_; ++e) order.row[e] |= structure_.row[e];
    order.close(n_);
    Relation cycle;
    for (std::uint32_t a = 0; a < n_; ++a)
      for (std::uint32_t b = 0; b < n_; ++b) {
        const Event& x = events_[a];
        const Event& y = events_[b];
        if (a == b || !is_memory(x) || !is_memory(y) || !alive(a) || !alive(b)) continue;
        const bool x_writes = x.kind == Event::Kind::kWrite;
        const bool y_writes = y.kind == Event::Kind::kWrite;
        if (order.has(a, b) || (x_writes && y_writes && co(a, b)) ||
            (x_writes && !y_writes && reads_from_[b] == a) || (!x_writes && y_writes && fr(a, b)))
          cycle.add(a, b);
      }
    cycle.close(n_);
    for (std::size_t e = 0; e < n_; ++e)
      if (cycle.has(e, e)) return false;
    return true;
  }

  // 8.7.1: conflicting, neither ordered nor morally strong.
  bool has_race() const {
    for (std::uint32_t a = 0; a < n_; ++a)
      for (std::uint32_t b = a + 1; b < n_; ++b) {
        const Event& x = events_[a];
        const Event& y = events_[b];
        if (!is_memory(x) || !is_memory(y) || x.word != y.word || !alive(a) || !alive(b)) continue;
        if (x.kind != Event::Kind::kWrite && y.kind != Event::Kind::kWrite) continue;
        if (!strong_.has(a, b) && !causality_.has(a, b) && !causality_.has(b, a)) return true;
      }
    return false;
  }

  std::uint32_t observed(const Observable& what) const {
    if (!what.is_register) {
      const std::uint32_t w = last_write_[first_word_[what.location] + what.word];
      return w == kInitial ? 0 : value_[w];
    }
    return register_value(what.thread, what.reg, test_.threads[what.thread].code.size());
  }

  // The value that a register has before instruction `end`.
  std::uint32_t register_value(std::uint32_t thread, std::uint32_t reg, std::size_t end) const {
    const auto& code = test_.threads[thread].code;
    for (std::size_t i = end; i-- > 0;) {
      const Instruction& instruction = code[i];
      if (instruction.op == Op::kShuffle && instruction.reg[0] == reg)
        return lane_value(thread, i, instruction.lane);
      if (instruction.op == Op::kVoteAny && instruction.reg[0] == reg) {
        std::uint32_t any = 0;
        for (std::uint32_t lane = 0; lane < lanes_of(thread); ++lane)
          any |= lane_value(thread, i, lane) != 0;
        return any;
      }
      for (const std::uint32_t r : reads_) {
        const Event& e = events_[r];
        if (e.thread == thread && e.instruction == &instruction && !e.is_red &&
            instruction.op != Op::kAwait && instruction.reg[e.lane_word] == reg)
          return value_[r];
      }
    }
    return 0;
  }

  bool same_cta(std::uint32_t a, std::uint32_t b) const {
    const Place& x = test_.threads[a].place;
    const Place& y = test_.threads[b].place;
    return x.rank == y.rank && x.kernel == y.kernel && x.cta == y.cta;
  }
  std::uint32_t lanes_of(std::uint32_t thread) const {
    std::uint32_t lanes = 0;
    for (std::uint32_t t = 0; t < test_.threads.size(); ++t) lanes += same_cta(thread, t);
    return lanes;
  }

  // What `lane` brings to the meeting that is instruction `at` of `thread`.
  std::uint32_t lane_value(std::uint32_t thread, std::size_t at, std::uint32_t lane) const {
    const auto meets = [](const Instruction& i) {
      return i.op == Op::kShuffle || i.op == Op::kVoteAny;
    };
    std::size_t number = 0;
    for (std::size_t i = 0; i < at; ++i) number += meets(test_.threads[thread].code[i]);
    for (std::uint32_t t = 0; t < test_.threads.size(); ++t) {
      if (!same_cta(thread, t) || test_.threads[t].place.thread != lane) continue;
      const auto& code = test_.threads[t].code;
      for (std::size_t i = 0, seen = 0; i < code.size(); ++i)
        if (meets(code[i]) && seen++ == number) return register_value(t, code[i].source_reg, i);
    }
    return 0;
  }

  AxiomaticResult result_;
  // the candidate
  std::array<std::uint32_t, kMaxEvents> reads_from_{}, value_{}, position_{}, last_write_{};
  std::array<bool, kMaxEvents> exists_{};
  Relation observation_, base_, causality_;
};

}  // namespace

AxiomaticResult evaluate_axioms(const Test& test, Boundary boundary) {
  return Candidates(test, boundary).evaluate();
}

Verdict axiomatic_verdict(const Test& test, const AxiomaticResult& result) {
  if (result.race) return Verdict::kRace;
  const bool shown = std::any_of(result.outcomes.begin(), result.outcomes.end(),
                                 [&](Outcome outcome) { return satisfies_exists(test, outcome); });
  return shown ? Verdict::kAllowed : Verdict::kForbidden;
}

}  // namespace assay::machine::litmus
