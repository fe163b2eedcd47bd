// Streams, grids, threads and host nodes: who starts with which clock, and what can be forgotten.
#include "model/machine/ptx_memory.hpp"

namespace assay::machine {

PtxMemory::Stream& PtxMemory::stream_of(RankId rank, std::uint32_t stream) {
  return streams_[{rank.value(), stream}];
}

// A clock of no thread in particular; to be joined as a whole.
SharedSnapshot PtxMemory::snapshot_of(const VectorClock& clock) const {
  return SharedSnapshot::make(Snapshot{clock, {}});
}

// A new node may begin before what is running knows of anything that has been forgotten.
void PtxMemory::stream_wakes(RankId rank, std::uint32_t stream) {
  Stream& woken = stream_of(rank, stream);
  woken.busy = true;
  woken.clock.join(floor_);
}
void PtxMemory::stream_rests(RankId rank, std::uint32_t stream) {
  stream_of(rank, stream).busy = false;
}

// Completion of a task synchronises with the start of the next one in its stream, and the call that
// enqueues a task with its start (PTX ISA 9.1, 8.9.4, API synchronization; SPEC MAC-6.11). A
// programmatic launch is after what the kernel before it was after.
void PtxMemory::grid_begin(const GridPlace& place) {
  Stream& stream = stream_of(place.rank, place.stream);
  if (!place.programmatic) stream.start = snapshot_of(stream.clock);
  if (place.ticket != 0) {
    VectorClock clock = stream.start->clock;
    clock.join(tickets_[place.ticket - 1]->clock);
    stream.start = snapshot_of(clock);
  }
  Grid& grid = grids_[place.grid];
  grid.start = stream.start;
  grid.kernel = static_cast<std::uint32_t>(kernel_names_.size());
  kernel_names_.push_back(place.kernel);
}

void PtxMemory::grid_end(RankId rank, std::uint32_t stream_index, std::uint64_t number) {
  Stream& stream = stream_of(rank, stream_index);
  const auto grid = grids_.find(number);
  CONTRACT(grid != grids_.end(), number);
  stream.clock.join(grid->second.end);
  stream.free_ids.insert(stream.free_ids.end(), grid->second.ended.begin(),
                         grid->second.ended.end());
  grids_.erase(grid);
  sc_of_cta_.erase(sc_of_cta_.lower_bound({number, 0}), sc_of_cta_.lower_bound({number + 1, 0}));
}

// Everything before the thread's grid in its stream is over (SPEC MAC-6.13).
void PtxMemory::grid_waited(ThreadSlot slot) {
  Actor& actor = actors_[slot];
  const ThreadPlace& at = places_[actor.place].at;
  const Stream& stream = stream_of(at.rank, at.stream);
  actor.clock.join(stream.clock);
  if (boundary_ == Boundary::kPdl) actor.start = snapshot_of(stream.clock);
}

void PtxMemory::begin_actor(Actor& actor, const ThreadPlace& place, std::uint32_t kernel,
                            Stream& stream, const SharedSnapshot& start) {
  actor = Actor{};
  actor.live = true;
  actor.place = static_cast<std::uint32_t>(places_.size());
  places_.push_back({place, kernel});
  actor.start = start;
  actor.clock = start->clock;
  // A clock id passes to a thread that comes after its last owner's end.
  Stamp last{next_id_, 0};
  if (!stream.free_ids.empty() && actor.clock.has(stream.free_ids.front())) {
    last = stream.free_ids.front();
    stream.free_ids.pop_front();
  } else {
    ++next_id_;
  }
  actor.id = last.id;
  actor.clock.set(last.id, last.tick + 1);
}

void PtxMemory::thread_begin(ThreadSlot slot, const ThreadPlace& place) {
  if (slot >= actors_.size()) actors_.resize(slot + 1);
  Actor& actor = actors_[slot];
  const Grid& grid = grids_.at(place.grid);
  begin_actor(actor, place, grid.kernel, stream_of(place.rank, place.stream), grid.start);
  ++running_threads_[{place.grid, place.cta}];
  if (boundary_ == Boundary::kFlush) fence(actor, Order::kAcqRel, Reach::kSys);
}

void PtxMemory::thread_end(ThreadSlot slot) {
  Actor& actor = actors_[slot];
  const ThreadPlace& at = places_[actor.place].at;
  if (boundary_ == Boundary::kFlush) fence(actor, Order::kAcqRel, Reach::kSys);
  Grid& grid = grids_.at(at.grid);
  grid.end.join(actor.clock);
  grid.ended.push_back(now(actor));
  const auto running = running_threads_.find({at.grid, at.cta});
  if (--running->second == 0) running_threads_.erase(running);
  actor = Actor{};
}

// ---- the host ----------------------------------------------------------------------------------

void PtxMemory::host_node_begin(RankId rank, std::uint32_t stream_index, std::uint32_t ticket) {
  Stream& stream = stream_of(rank, stream_index);
  if (ticket != 0) stream.clock.join(tickets_[ticket - 1]->clock);
  begin_actor(host_, ThreadPlace{rank, stream_index, ~std::uint64_t{0}, 0, kHostThread}, 0, stream,
              snapshot_of(stream.clock));
}

void PtxMemory::host_node_end(RankId rank, std::uint32_t stream_index) {
  Stream& stream = stream_of(rank, stream_index);
  stream.clock.join(host_.clock);
  stream.free_ids.push_back(now(host_));
  host_ = Actor{};
}

std::uint32_t PtxMemory::enqueue_ticket() {
  if (!host_.live) return 0;
  tickets_.push_back(hand_out(host_));
  return static_cast<std::uint32_t>(tickets_.size());
}

// Between runs the host comes after everything, and nothing is remembered. Within a node its writes
// are weak ones of a thread of their own. The host is trusted: it is not told that it races, but
// whoever does not come after it is (SPEC MAC-6.12).
void PtxMemory::host_wrote(Address first, std::uint64_t bytes) {
  if (!host_.live) return;
  AccessRecord access;
  access.place = host_.place;
  first = memory_.canonical(first);
  for (std::uint64_t done = 0; done < bytes;) {
    const std::uint64_t raw = first.raw + done;
    const std::uint64_t left = bytes - done;
    Page& page = memory_.page_at(Address{raw});
    if (raw % kPageBytes == 0 && left >= kPageBytes) {
      history_.overwrite_page(page, now(host_), access);
      done += kPageBytes;
      continue;
    }
    std::uint32_t here = 4;
    while (raw % here != 0 || left < here) here /= 2;
    access.bytes = static_cast<std::uint8_t>(here);
    access.at = static_cast<std::uint8_t>(raw % 16);
    const HistoryIndex location = history_.reshape(page, raw, here);
    WriteRecord write;
    write.value = read_word(page, raw % kPageBytes, here);
    write.unwritten = !all_written(page, raw % kPageBytes, here);
    write.access = access;
    write.by = now(host_);
    const HistoryIndex newest = history_.location(location).newest;
    history_.drop_older_than(location, history_.add_write(location, newest, std::move(write)));
    done += here;
  }
}

// The host has waited for all streams: what comes next comes after everything (PTX ISA 9.1, 8.9.4,
// API synchronization 6).
void PtxMemory::run_ended() {
  history_.clear();
  actors_.clear();
  places_.resize(1);
  kernel_names_.resize(1);
  streams_.clear();
  grids_.clear();
  tickets_.clear();
  next_id_ = 1;
  sc_everywhere_.clear();
  sc_of_rank_.clear();
  sc_of_cta_.clear();
  running_threads_.clear();
  floor_.clear();
  since_floor_ = 0;
}

// ---- what can be forgotten ---------------------------------------------------------------------

void PtxMemory::compute_floor() {
  since_floor_ = 0;
  bool any = false;
  VectorClock floor;
  const auto meet = [&](const VectorClock& clock) {
    if (any)
      floor.meet(clock);
    else
      floor = clock;
    any = true;
  };
  for (const Actor& actor : actors_)
    if (actor.live) meet(actor.clock);
  if (host_.live) meet(host_.clock);
  for (const auto& [number, grid] : grids_) meet(grid.start->clock);
  for (const auto& [place, stream] : streams_) {
    if (!stream.busy) continue;
    meet(stream.clock);
    if (boundary_ == Boundary::kPdl && stream.start) meet(stream.start->clock);
  }
  floor_ = std::move(floor);
}

}  // namespace assay::machine
