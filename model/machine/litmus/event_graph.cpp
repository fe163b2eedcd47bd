// Events of a litmus test and what orders them whatever they read.
#include "model/machine/litmus/event_graph.hpp"

namespace assay::machine::litmus {

EventGraph::EventGraph(const Test& test, Boundary boundary) : test_(test), boundary_(boundary) {
  make_events();
  make_relations();
}

void EventGraph::make_events() {
  std::uint32_t next_word = 0;
  for (const Location& location : test_.locations) {
    first_word_.push_back(next_word);
    next_word += location.words;
  }
  num_words_ = next_word;
  for (std::uint32_t t = 0; t < test_.threads.size(); ++t) {
    std::uint32_t meeting = 0;
    const auto& code = test_.threads[t].code;
    for (std::uint32_t i = 0; i < code.size(); ++i) {
      Event event;
      event.thread = t;
      event.step = 2 * i;
      event.instruction = &code[i];
      event.order = code[i].order;
      event.scope = code[i].scope;
      add_events(event, meeting);
    }
    // The end of a kernel as a fence of system scope by each of its threads.
    Event end;
    end.kind = Event::Kind::kEnd;
    end.thread = t;
    end.step = 2 * static_cast<std::uint32_t>(code.size());
    end.order = Order::kAcqRel;
    end.scope = Scope::kSys;
    if (boundary_ == Boundary::kFlush) events_.push_back(end);
  }
  CONTRACT(events_.size() <= kMaxEvents, test_.name, events_.size());
  n_ = events_.size();
  for (std::uint32_t e = 0; e < n_; ++e) {
    if (events_[e].kind == Event::Kind::kRead) reads_.push_back(e);
    if (is_sc(events_[e])) sc_fences_.push_back(e);
  }
}

void EventGraph::add_events(Event event, std::uint32_t& meeting) {
  const Instruction& instruction = *event.instruction;
  switch (instruction.op) {
    case Op::kFence:
      event.kind = Event::Kind::kFence;
      events_.push_back(event);
      return;
    case Op::kAliasFence:
      event.kind = Event::Kind::kAliasFence;
      events_.push_back(event);
      return;
    case Op::kBarrier:
      event.kind = Event::Kind::kBarrier;
      event.meeting = meeting++;
      events_.push_back(event);
      return;
    case Op::kShuffle:
    case Op::kVoteAny:
    case Op::kLaunchDependents:
    case Op::kWaitForGrid:
      return;  // no memory operation; the wait is seen by position
    case Op::kLoad:
    case Op::kAwait:
    case Op::kStore:
      event.kind = instruction.op == Op::kStore ? Event::Kind::kWrite : Event::Kind::kRead;
      for (std::uint32_t w = 0; w < instruction.words; ++w) {
        place(event, w);
        events_.push_back(event);
      }
      return;
    case Op::kAtomAdd:
    case Op::kAtomCas:
    case Op::kRedAdd:
      place(event, 0);
      event.is_red = instruction.op == Op::kRedAdd;
      event.kind = Event::Kind::kRead;
      event.partner = static_cast<std::uint32_t>(events_.size() + 1);
      events_.push_back(event);
      event.kind = Event::Kind::kWrite;
      event.step += 1;
      event.partner = static_cast<std::uint32_t>(events_.size() - 1);
      events_.push_back(event);
      return;
  }
}

void EventGraph::place(Event& event, std::uint32_t lane_word) const {
  const Instruction& instruction = *event.instruction;
  event.name = instruction.name;
  event.lane_word = lane_word;
  event.word = first_word_[test_.names[instruction.name].location] + instruction.word + lane_word;
}

bool EventGraph::includes(const Event& e, std::uint32_t thread) const {
  const Place& a = test_.threads[e.thread].place;
  const Place& b = test_.threads[thread].place;
  const bool same_rank = a.rank == b.rank;
  switch (e.scope) {
    case Scope::kCta:
    case Scope::kCluster:  // a cluster here is one CTA
      return same_rank && a.kernel == b.kernel && a.cta == b.cta;
    case Scope::kGpu:
      return same_rank;
    default:
      return e.scope == Scope::kSys;
  }
}

// 8.7: in program order, or both strong with scopes that include each other; and complete
// overlap by the same proxy, which a second virtual address is not.
bool EventGraph::morally_strong(const Event& a, const Event& b) const {
  const bool related = a.thread == b.thread || (is_strong(a) && is_strong(b) &&
                                                includes(a, b.thread) && includes(b, a.thread));
  if (!related) return false;
  return !is_memory(a) || !is_memory(b) || (a.word == b.word && a.name == b.name);
}

void EventGraph::make_relations() {
  for (std::uint32_t a = 0; a < n_; ++a)
    for (std::uint32_t b = 0; b < n_; ++b) {
      if (a == b) continue;
      const Event& x = events_[a];
      const Event& y = events_[b];
      if (x.thread == y.thread && x.step < y.step) po_.add(a, b);
      if (morally_strong(x, y)) strong_.add(a, b);
      if (ordered_by_structure(x, y)) structure_.add(a, b);
    }
  for (std::uint32_t a = 0; a < n_; ++a)
    for (std::uint32_t b = 0; b < n_; ++b) {
      if (is_release_pattern(a, b)) release_.add(a, b);
      if (is_acquire_pattern(a, b)) acquire_.add(a, b);
    }
}

// 8.9.4: barriers, and the tasks of one stream.
bool EventGraph::ordered_by_structure(const Event& x, const Event& y) const {
  const Place& a = test_.threads[x.thread].place;
  const Place& b = test_.threads[y.thread].place;
  if (a.rank != b.rank) return false;
  if (x.kind == Event::Kind::kBarrier && y.kind == Event::Kind::kBarrier)
    return a.kernel == b.kernel && a.cta == b.cta && x.meeting == y.meeting;
  if (a.kernel >= b.kernel) return false;
  if (boundary_ != Boundary::kPdl) return true;
  // Programmatic launch: only what stands behind griddepcontrol.wait is behind the kernel before.
  const auto& code = test_.threads[y.thread].code;
  for (std::uint32_t i = 0; 2 * i < y.step && i < code.size(); ++i)
    if (code[i].op == Op::kWaitForGrid) return true;
  return false;
}

// 8.8, from the first operation of the pattern to its write.
bool EventGraph::is_release_pattern(std::uint32_t first, std::uint32_t write) const {
  const Event& f = events_[first];
  const Event& w = events_[write];
  if (w.kind != Event::Kind::kWrite || !is_strong(w) || !releases(f)) return false;
  if (is_fence(f)) {
    // A kernel that has ended has fenced for the kernels behind it in its stream.
    return po_.has(first, write) || (f.kind == Event::Kind::kEnd && structure_.has(first, write));
  }
  if (f.kind != Event::Kind::kWrite) return false;
  return first == write || (po_.has(first, write) && f.word == w.word && f.name == w.name);
}

// 8.8 and 8.11.1, from the read to the last operation of the pattern.
bool EventGraph::is_acquire_pattern(std::uint32_t read, std::uint32_t last) const {
  const Event& r = events_[read];
  const Event& l = events_[last];
  if (r.kind != Event::Kind::kRead || !is_strong(r) || !acquires(l) || r.is_red) return false;
  if (is_fence(l)) return po_.has(read, last);
  if (l.kind != Event::Kind::kRead) return false;
  return read == last || (po_.has(read, last) && r.word == l.word && r.name == l.name);
}

}  // namespace assay::machine::litmus
