// The record of a run, and its lanes.
#include "model/machine/timeline.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

namespace assay::machine {

namespace {

std::string hex(std::span<const std::byte> bytes) {
  std::string text;
  for (std::size_t begin = 0; begin < bytes.size(); begin += 4) {
    const std::size_t n = bytes.size() <= 8 ? bytes.size() : 4;
    std::uint64_t value = 0;
    std::memcpy(&value, bytes.data() + begin, n);
    text += fmt::format("{}{:#x}", begin > 0 ? "," : "", value);
    if (n > 4) break;
  }
  return text;
}

std::string instruction(const MemoryEvent& event) {
  static constexpr const char* kOrders[] = {"weak",    "relaxed", "acquire",
                                            "release", "acq_rel", "sc"};
  static constexpr const char* kScopes[] = {"", ".cta", ".cluster", ".gpu", ".sys"};
  const char* name = "";
  switch (event.operation) {
    case Operation::kLoad:
      name = "ld";
      break;
    case Operation::kStore:
      name = "st";
      break;
    case Operation::kRmw:
      name = "atom";
      break;
    case Operation::kFence:
      name = "fence";
      break;
    case Operation::kAwait:
      name = "wait";
      break;
    case Operation::kNone:
    case Operation::kBarrier:
    case Operation::kLaunchDependents:
    case Operation::kWaitForGrid:
      break;
  }
  return fmt::format("{}.{}{}", name, kOrders[static_cast<std::size_t>(event.order)],
                     kScopes[static_cast<std::size_t>(event.scope)]);
}

}  // namespace

// ---- recording ---------------------------------------------------------------------------------

RunRecord::Happening& RunRecord::add(Kind kind, std::size_t lane) {
  Happening happening;
  happening.kind = kind;
  happening.step = step_;
  happening.lane = lane;
  happenings_.push_back(std::move(happening));
  return happenings_.back();
}

void RunRecord::step_began(std::uint64_t step, RunnableId) { step_ = step; }

void RunRecord::performed(const Performed& what) {
  Happening& now = add(Kind::kOperation, lane_of_slot_[what.event.slot]);
  now.event = what.event;
  now.timed_out = what.timed_out;
  if (what.event.bytes != 0) now.where = memory_->place_name(what.event.address);
  now.value = hex(what.read);
  now.writes = !what.written.empty();
  if (now.writes) now.value += (now.value.empty() ? "" : " -> ") + hex(what.written);
  std::size_t& wait = wait_of_slot_[what.event.slot];
  if (what.event.operation == Operation::kAwait) now.waited_since = std::exchange(wait, kNone);
  link_reads(now, what);
  if (now.writes)
    writes_.push_back({what.canonical.raw, what.event.bytes, step_, happenings_.size() - 1});
}

// The model says which write was taken; a model without histories has taken the last.
void RunRecord::link_reads(Happening& reader, const Performed& what) {
  const auto link = [&](std::size_t write) {
    if (write != kNone && std::find(reader.reads_from.begin(), reader.reads_from.end(), write) ==
                              reader.reads_from.end())
      reader.reads_from.push_back(write);
  };
  for (const WriteTaken& taken : what.taken) {
    if (taken.kind == Choice::kPlaceWrite) {
      reader.lands_early = reader.lands_early || taken.index > 0;
      continue;
    }
    reader.reads_old = reader.reads_old || taken.index > 0;
    const std::uint64_t first = what.canonical.raw + (taken.address.raw - what.event.address.raw);
    if (taken.written_at != 0) link(last_write(first, taken.bytes, taken.written_at));
  }
  if (what.taken.empty() && !what.read.empty())
    link(last_write(what.canonical.raw, what.event.bytes, 0));
}

// The newest write that overlaps; of step `step`, when that is not 0.
std::size_t RunRecord::last_write(std::uint64_t first, std::uint32_t bytes,
                                  std::uint64_t step) const {
  for (auto write = writes_.rbegin(); write != writes_.rend(); ++write)
    if (write->first < first + bytes && first < write->first + write->bytes &&
        (step == 0 || write->step == step))
      return write->happening;
  return kNone;
}

void RunRecord::wait_began(const MemoryEvent& event, const Await& await, std::uint64_t seen) {
  Happening& now = add(Kind::kWaitBegins, lane_of_slot_[event.slot]);
  now.event = event;
  now.where = memory_->place_name(event.address);
  now.value = fmt::format("{:#x}, needs {}{:#x}", seen,
                          await.until == Until::kEquals ? "" : "other than ", await.expected);
  wait_of_slot_[event.slot] = happenings_.size() - 1;
}

void RunRecord::barrier_arrived(ThreadSlot slot, Site site) {
  Happening& now = add(Kind::kBarrier, lane_of_slot_[slot]);
  now.event.operation = Operation::kBarrier;
  now.event.site = site;
}

void RunRecord::barrier_passed(std::span<const ThreadSlot> threads, Site) {
  happenings_.back().where = fmt::format("all {} threads pass", threads.size());
}

void RunRecord::grid_began(const ThreadPlace& place, const std::string& name, bool, bool) {
  if (place.grid >= kernel_of_grid_.size()) kernel_of_grid_.resize(place.grid + 1);
  kernel_of_grid_[place.grid] = name;
}

void RunRecord::thread_began(ThreadSlot slot, const ThreadPlace& place) {
  if (slot >= lane_of_slot_.size()) {
    lane_of_slot_.resize(slot + 1, 0);
    wait_of_slot_.resize(slot + 1, kNone);
  }
  lane_of_slot_[slot] = lane_of({place.rank, place.stream, place.cta, place.thread, false});
  wait_of_slot_[slot] = kNone;
  Happening& now = add(Kind::kBegin, lane_of_slot_[slot]);
  now.kernel = kernel_of_grid_[place.grid];
  now.event.slot = slot;
}

void RunRecord::thread_ended(ThreadSlot slot) { add(Kind::kEnd, lane_of_slot_[slot]); }

void RunRecord::host_node_ran(RankId rank, std::uint32_t stream, const std::string& name) {
  add(Kind::kHost, lane_of({rank, stream, 0, 0, true})).kernel = name;
}

std::size_t RunRecord::lane_of(const Lane& lane) {
  for (std::size_t i = 0; i < lanes_.size(); ++i)
    if (lanes_[i].rank == lane.rank && lanes_[i].stream == lane.stream &&
        lanes_[i].cta == lane.cta && lanes_[i].thread == lane.thread &&
        lanes_[i].is_host == lane.is_host)
      return i;
  lanes_.push_back(lane);
  return lanes_.size() - 1;
}

// ---- lanes -------------------------------------------------------------------------------------

namespace {

using Happening = RunRecord::Happening;
using Kind = RunRecord::Kind;

struct Row {
  std::size_t first = 0;  // happening
  std::size_t count = 1;  // of the same thread at the same site
  bool shown = true;
};

std::string text_of(const RunRecord& record, const Row& row) {
  const Happening& what = record.happenings()[row.first];
  const std::string times = row.count > 1 ? fmt::format(" (and {} more)", row.count - 1) : "";
  switch (what.kind) {
    case Kind::kBegin:
      return fmt::format("begins {} as t{}", what.kernel, what.event.slot);
    case Kind::kEnd:
      return "ends";
    case Kind::kHost:
      return fmt::format("host node {}", what.kernel);
    case Kind::kBarrier:
      return fmt::format("{} barrier{}", site_name(what.event.site),
                         what.where.empty() ? "" : ": " + what.where);
    case Kind::kWaitBegins:
      return fmt::format("{} waits: {} is {}", site_name(what.event.site), what.where, what.value);
    case Kind::kOperation:
      break;
  }
  std::string text = fmt::format("{} {}", site_name(what.event.site), instruction(what.event));
  if (what.event.bytes != 0)
    text += fmt::format(" {} {} {}", what.where,
                        what.event.operation == Operation::kStore ? "<-" : "is", what.value);
  if (what.reads_old) text += ", old";
  if (!what.reads_from.empty())
    text += fmt::format(", written in step {}", record.happenings()[what.reads_from.front()].step);
  if (what.lands_early) text += ", lands before an earlier write";
  if (what.timed_out) text += ", timed out";
  return text + times;
}

std::vector<Row> make_rows(const RunRecord& record) {
  std::vector<Row> rows;
  const std::vector<Happening>& all = record.happenings();
  for (std::size_t i = 0; i < all.size(); ++i) {
    if (!rows.empty()) {
      const Happening& before = all[rows.back().first];
      const bool same = all[i].kind == Kind::kOperation && before.kind == Kind::kOperation &&
                        all[i].lane == before.lane && all[i].event.site == before.event.site &&
                        all[i].event.operation == before.event.operation &&
                        all[i].reads_old == before.reads_old &&
                        all[i].lands_early == before.lands_early;
      if (same) {
        ++rows.back().count;
        continue;
      }
    }
    rows.push_back({i, 1, true});
  }
  return rows;
}

// Of too many rows: the last third, what is odd, and what these have read, newest first.
void choose_rows(const RunRecord& record, std::vector<Row>& rows, std::size_t most) {
  if (rows.size() <= most) return;
  for (Row& row : rows) row.shown = false;
  std::size_t left = most;
  const auto show = [&](std::size_t r) {
    if (left == 0 || rows[r].shown) return;
    rows[r].shown = true;
    --left;
  };
  const auto row_of = [&](std::size_t happening) {
    const auto after =
        std::upper_bound(rows.begin(), rows.end(), happening,
                         [](std::size_t value, const Row& row) { return value < row.first; });
    return static_cast<std::size_t>(after - rows.begin()) - 1;
  };
  const std::size_t tail = rows.size() - std::max<std::size_t>(most / 3, 1);
  for (std::size_t r = rows.size(); r-- > tail;) show(r);
  for (std::size_t r = rows.size(); r-- > 0;) {
    const Happening& what = record.happenings()[rows[r].first];
    if (what.reads_old || what.lands_early || what.timed_out) show(r);
  }
  for (std::size_t r = rows.size(); r-- > 0;)
    if (rows[r].shown)
      for (const std::size_t write : record.happenings()[rows[r].first].reads_from)
        show(row_of(write));
  for (std::size_t r = rows.size(); r-- > 0;) show(r);
}

}  // namespace

std::string print_timeline(const RunRecord& record, std::size_t max_rows) {
  std::vector<Row> rows = make_rows(record);
  choose_rows(record, rows, max_rows);
  // Lanes that nothing shown happens in take no room.
  std::vector<std::size_t> column(record.lanes().size(), RunRecord::kNone);
  std::vector<std::size_t> lanes;
  for (std::size_t lane = 0; lane < record.lanes().size(); ++lane)
    for (const Row& row : rows)
      if (row.shown && record.happenings()[row.first].lane == lane) {
        column[lane] = lanes.size();
        lanes.push_back(lane);
        break;
      }
  // Wide enough for the header "r0.c0.t0", narrower when there are many.
  const std::size_t width = lanes.size() <= 6 ? 11 : 3;
  std::string text = "  step  ";
  for (const std::size_t lane : lanes) {
    const RunRecord::Lane& at = record.lanes()[lane];
    const std::string name = at.is_host
                                 ? fmt::format("r{}.host", at.rank.value())
                                 : fmt::format("r{}.c{}.t{}", at.rank.value(), at.cta, at.thread);
    text += width > name.size() ? fmt::format("{:<{}}", name, width) : name + " ";
  }
  text += "\n";
  std::size_t hidden = 0;
  const auto tell_hidden = [&] {
    if (hidden > 0) text += fmt::format("   ...  {} rows\n", hidden);
    hidden = 0;
  };
  for (const Row& row : rows) {
    if (!row.shown) {
      ++hidden;
      continue;
    }
    tell_hidden();
    const Happening& what = record.happenings()[row.first];
    text += fmt::format("{:6}  ", what.step);
    for (std::size_t c = 0; c < column[what.lane]; ++c) text += fmt::format("{:<{}}", "|", width);
    text += text_of(record, row) + "\n";
  }
  tell_hidden();
  return text;
}

}  // namespace assay::machine
