// Streams and grids: what stands in a stream, when it starts and when it is over (SPEC MAC-5.1,
// MAC-6.13). Which CTAs and threads of a grid run is engine.cpp.
#include <algorithm>

#include "model/machine/engine.hpp"

namespace assay::machine {

StreamId Engine::add_stream(RankId rank) {
  CONTRACT(rank.value() >= 0 && rank.value() < config_.num_ranks, rank, config_.num_ranks);
  auto& of_rank = streams_of_rank_[static_cast<std::size_t>(rank.value())];
  Stream stream;
  stream.rank = rank;
  stream.id = StreamId(static_cast<std::uint32_t>(of_rank.size()));
  of_rank.push_back(static_cast<std::uint32_t>(streams_.size()));
  streams_.push_back(std::move(stream));
  return streams_.back().id;
}

void Engine::enqueue(RankId rank, StreamId stream_id, Node node) {
  CONTRACT(rank.value() >= 0 && rank.value() < config_.num_ranks, rank, config_.num_ranks);
  const auto& of_rank = streams_of_rank_[static_cast<std::size_t>(rank.value())];
  CONTRACT(stream_id.value() < of_rank.size(), node.name, rank, stream_id);
  const std::uint32_t index = of_rank[stream_id.value()];
  Stream& stream = streams_[index];
  if (running_) node.ticket = model_->enqueue_ticket();
  if (!node.host) {
    // Under kPdl a grid may start while those before it run.
    const std::uint64_t before = config_.boundary == Boundary::kPdl ? stream.most_ctas : 0;
    stream.most_ctas = std::max<std::uint64_t>(stream.most_ctas, before + node.kernel.num_ctas);
  }
  stream.nodes.push_back(std::move(node));
  ++open_nodes_;
  if (!running_) return;
  if (stream.nodes.size() == 1) model_->stream_wakes(rank, stream_id.value());
  start_next(index);
}

void Engine::host_wrote(Address first, std::uint64_t bytes) {
  model_->host_wrote(first, bytes);
  if (observer_ != nullptr) observer_->host_wrote(first, bytes);
  recheck_watchers(first, bytes);
}

// What stands at the head of a stream may run, whatever other streams do (SPEC MAC-5.1). Under kPdl
// the kernel behind a kernel may as well, once every CTA of that one has ended or has said so
// (SPEC MAC-6.13).
void Engine::start_next(std::uint32_t stream_index) {
  Stream& stream = streams_[stream_index];
  if (stream.num_started == stream.nodes.size()) return;
  Node& node = stream.nodes[stream.num_started];
  const bool programmatic = config_.boundary == Boundary::kPdl && !node.host &&
                            node.kernel.programmatic && stream.after_kernel;
  if (stream.num_started > 0) {
    if (!programmatic) return;
    const Grid& before = *stream.grids.back();
    if (before.released_ctas < before.kernel->num_ctas) return;
  }
  ++stream.num_started;
  stream.after_kernel = !node.host;
  if (!node.host) return start_grid(stream_index, node, programmatic);
  stream.ready_position = static_cast<std::uint32_t>(ready_.size());
  ready_.push_back(kHostNodeBit | stream_index);
}

void Engine::start_grid(std::uint32_t stream_index, Node& node, bool programmatic) {
  Stream& stream = streams_[stream_index];
  auto grid = std::make_unique<Grid>();
  grid->stream = stream_index;
  grid->number = next_grid_++;
  grid->launch = stream.launches++;
  grid->rank = stream.rank;
  grid->kernel = &node.kernel;
  grid->group_size = node.kernel.group_size != 0 ? node.kernel.group_size : config_.group_size;
  grid->unstarted.resize(node.kernel.num_ctas);
  for (std::uint32_t c = 0; c < node.kernel.num_ctas; ++c) grid->unstarted[c] = c;
  model_->grid_begin(GridPlace{stream.rank, stream.id.value(), grid->number, node.kernel.name,
                               programmatic, node.ticket});
  if (observer_ != nullptr)
    observer_->grid_began(place_in(*grid, 0, 0), node.name, is_crowded(stream.rank), programmatic);
  stream.grids.push_back(grid.get());
  grids_of_rank_[static_cast<std::size_t>(stream.rank.value())].push_back(std::move(grid));
  admission_possible_ = true;
}

void Engine::finish_head(std::uint32_t stream_index) {
  Stream& stream = streams_[stream_index];
  stream.nodes.pop_front();
  --stream.num_started;
  --open_nodes_;
  if (stream.nodes.empty()) model_->stream_rests(stream.rank, stream.id.value());
}

void Engine::release_cta(Cta& cta) {
  if (cta.launched_dependents) return;
  cta.launched_dependents = true;
  Grid& grid = *cta.grid;
  if (++grid.released_ctas == grid.kernel->num_ctas) start_next(grid.stream);
}

// A grid is over when it and everything before it in its stream have ended; what runs behind it
// then passes wait_for_grid.
void Engine::finish_grids(std::uint32_t stream_index) {
  Stream& stream = streams_[stream_index];
  while (!stream.grids.empty() && stream.grids.front()->ended) {
    const Grid* grid = stream.grids.front();
    model_->grid_end(stream.rank, stream.id.value(), grid->number);
    if (observer_ != nullptr) observer_->grid_ended(place_in(*grid, 0, 0));
    stream.grids.pop_front();
    std::erase_if(grids_of_rank_[static_cast<std::size_t>(stream.rank.value())],
                  [&](const auto& g) { return g.get() == grid; });
    finish_head(stream_index);
  }
  start_next(stream_index);
  if (stream.grids.empty()) return;
  for (const auto& thread : threads_)
    if (thread->state == ThreadState::kAtGrid && thread->cta->grid == stream.grids.front())
      make_ready(*thread);
}

}  // namespace assay::machine
