// A run as Chrome trace events (Google, "Trace Event Format", JSON object format), which Perfetto
// reads. A thread's lane shows its operations and waits; arrows lead from writes to reads.
#include <nlohmann/json.hpp>

#include "model/machine/timeline.hpp"

namespace assay::machine {

namespace {

using nlohmann::ordered_json;
using Happening = RunRecord::Happening;
using Kind = RunRecord::Kind;

constexpr const char* kOrderNames[] = {"weak", "relaxed", "acquire", "release", "acq_rel", "sc"};
constexpr const char* kScopeNames[] = {"none", "cta", "cluster", "gpu", "sys"};

// Happening i begins at i microseconds and takes one; a lane never overlaps itself.
ordered_json at(const RunRecord& record, const char* phase, std::size_t happening) {
  const std::size_t lane = record.happenings()[happening].lane;
  return {
      {"ph", phase}, {"ts", happening}, {"pid", record.lanes()[lane].rank.value()}, {"tid", lane}};
}

void name_lanes(const RunRecord& record, ordered_json& events) {
  std::vector<RankId> named;
  for (std::size_t lane = 0; lane < record.lanes().size(); ++lane) {
    const RunRecord::Lane& place = record.lanes()[lane];
    if (std::find(named.begin(), named.end(), place.rank) == named.end()) {
      named.push_back(place.rank);
      events.push_back({{"ph", "M"},
                        {"name", "process_name"},
                        {"pid", place.rank.value()},
                        {"args", {{"name", "rank " + std::to_string(place.rank.value())}}}});
    }
    std::string name = "stream " + std::to_string(place.stream);
    name += place.is_host
                ? " host"
                : " cta " + std::to_string(place.cta) + " thread " + std::to_string(place.thread);
    events.push_back({{"ph", "M"},
                      {"name", "thread_name"},
                      {"pid", place.rank.value()},
                      {"tid", lane},
                      {"args", {{"name", name}}}});
  }
}

std::string name_of(const Happening& what) {
  switch (what.kind) {
    case Kind::kBegin:
      return "begin " + what.kernel;
    case Kind::kEnd:
      return "end";
    case Kind::kHost:
      return what.kernel;
    case Kind::kOperation:
    case Kind::kWaitBegins:
    case Kind::kBarrier:
      break;
  }
  return site_name(what.event.site);
}

ordered_json slice(const RunRecord& record, std::size_t i) {
  const Happening& what = record.happenings()[i];
  // A wait is one slice, from where it began.
  const std::size_t begin = what.waited_since != RunRecord::kNone ? what.waited_since : i;
  ordered_json event = at(record, "X", begin);
  event["dur"] = i - begin + 1;
  event["name"] = name_of(what);
  event["cat"] = what.kind == Kind::kOperation ? "operation" : "structure";
  ordered_json args = {{"step", what.step}};
  if (what.kind == Kind::kOperation) {
    args["order"] = kOrderNames[static_cast<std::size_t>(what.event.order)];
    args["scope"] = kScopeNames[static_cast<std::size_t>(what.event.scope)];
  }
  if (!what.where.empty()) args["where"] = what.where;
  if (!what.value.empty()) args["value"] = what.value;
  if (what.reads_old) args["old"] = true;
  if (what.lands_early) args["lands_early"] = true;
  if (what.timed_out) args["timed_out"] = true;
  event["args"] = std::move(args);
  return event;
}

}  // namespace

std::string chrome_trace(const RunRecord& record) {
  ordered_json events = ordered_json::array();
  name_lanes(record, events);
  const std::vector<Happening>& all = record.happenings();
  std::vector<bool> ended(all.size(), false);  // waits that have
  for (const Happening& what : all)
    if (what.waited_since != RunRecord::kNone) ended[what.waited_since] = true;
  std::uint64_t flow = 0;
  for (std::size_t i = 0; i < all.size(); ++i) {
    if (all[i].kind == Kind::kWaitBegins && ended[i]) continue;
    events.push_back(slice(record, i));
    if (all[i].kind == Kind::kWaitBegins) {  // to the end of the run
      events.back()["dur"] = all.size() - i;
      events.back()["cat"] = "never ended";
    }
    for (const std::size_t write : all[i].reads_from) {
      ++flow;
      for (const bool begins : {true, false}) {
        ordered_json arrow = at(record, begins ? "s" : "f", begins ? write : i);
        arrow["id"] = flow;
        arrow["name"] = "reads";
        arrow["cat"] = all[i].reads_old ? "old" : "newest";
        if (!begins) arrow["bp"] = "e";
        events.push_back(std::move(arrow));
      }
    }
  }
  const ordered_json trace = {
      {"displayTimeUnit", "ms"},
      {"otherData",
       {{"status", run_status_name(record.result().status)}, {"report", record.result().report}}},
      {"traceEvents", std::move(events)}};
  return trace.dump(1) + "\n";
}

}  // namespace assay::machine
