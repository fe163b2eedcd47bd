// A memory model that hands every question to another one: the base of those that change a few.
// Decides nothing.
#pragma once

#include <memory>
#include <utility>

#include "model/machine/memory_model.hpp"

namespace assay::machine::litmus {

class ForwardingMemory : public MemoryModel {
 public:
  explicit ForwardingMemory(std::unique_ptr<MemoryModel> inner) : inner_(std::move(inner)) {}

  bool splits_vectors() const override { return inner_->splits_vectors(); }
  MaybeFault load(const MemoryEvent& event, std::byte* value) override {
    return inner_->load(event, value);
  }
  MaybeFault store(const MemoryEvent& event, const std::byte* value) override {
    return inner_->store(event, value);
  }
  MaybeFault rmw(const MemoryEvent& event, Rmw op, std::uint64_t operand, std::uint64_t compare,
                 std::uint64_t& old) override {
    return inner_->rmw(event, op, operand, compare, old);
  }
  void fence(const MemoryEvent& event) override { inner_->fence(event); }
  MaybeFault await(const MemoryEvent& event, const Await& await, Look look, bool& satisfied,
                   std::uint64_t& seen) override {
    return inner_->await(event, await, look, satisfied, seen);
  }
  void host_wrote(Address first, std::uint64_t bytes) override { inner_->host_wrote(first, bytes); }
  void host_reads(Address first, std::uint64_t bytes) override { inner_->host_reads(first, bytes); }
  std::uint32_t enqueue_ticket() override { return inner_->enqueue_ticket(); }
  void stream_wakes(RankId rank, std::uint32_t stream) override {
    inner_->stream_wakes(rank, stream);
  }
  void stream_rests(RankId rank, std::uint32_t stream) override {
    inner_->stream_rests(rank, stream);
  }
  void host_node_begin(RankId rank, std::uint32_t stream, std::uint32_t ticket) override {
    inner_->host_node_begin(rank, stream, ticket);
  }
  void host_node_end(RankId rank, std::uint32_t stream) override {
    inner_->host_node_end(rank, stream);
  }
  void grid_begin(const GridPlace& place) override { inner_->grid_begin(place); }
  void grid_end(RankId rank, std::uint32_t stream, std::uint64_t grid) override {
    inner_->grid_end(rank, stream, grid);
  }
  void grid_waited(ThreadSlot slot) override { inner_->grid_waited(slot); }
  void thread_begin(ThreadSlot slot, const ThreadPlace& place) override {
    inner_->thread_begin(slot, place);
  }
  void thread_end(ThreadSlot slot) override { inner_->thread_end(slot); }
  void barrier(std::span<const ThreadSlot> threads) override { inner_->barrier(threads); }
  void run_ended() override { inner_->run_ended(); }

 private:
  std::unique_ptr<MemoryModel> inner_;
};

}  // namespace assay::machine::litmus
