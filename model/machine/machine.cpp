// The public face: checks set-up and hands everything to the engine.
#include "model/machine/machine.hpp"

#include "model/machine/engine.hpp"

namespace assay::machine {

const char* run_status_name(RunStatus status) {
  switch (status) {
    case RunStatus::kOk:
      return "ok";
    case RunStatus::kDeadlock:
      return "deadlock";
    case RunStatus::kBudgetExhausted:
      return "budget exhausted";
    case RunStatus::kFault:
      return "fault";
    case RunStatus::kBarrierDivergence:
      return "barrier divergence";
    case RunStatus::kAbandoned:
      return "abandoned";
  }
  return "unknown status";
}

Machine::Machine(const MachineConfig& config, MachineParts parts)
    : engine_(std::make_unique<Engine>(config, std::move(parts))) {}
Machine::~Machine() = default;

Address Machine::allocate(RankId rank, const std::string& name, std::uint64_t bytes,
                          std::uint64_t alignment, Fill fill) {
  return engine_->memory().allocate(rank, name, bytes, alignment, fill);
}
Window Machine::allocate_window(const std::string& name, std::uint64_t bytes_per_rank,
                                std::uint64_t alignment, Fill fill) {
  return engine_->memory().allocate_window(name, bytes_per_rank, alignment, fill);
}
Address Machine::alias(Address allocation) { return engine_->memory().alias(allocation); }
Window Machine::alias(Window window) { return engine_->memory().alias(window); }
void Machine::release(Address allocation) { engine_->memory().release(allocation); }
void Machine::release(Window window) { engine_->memory().release(window); }

void Machine::write(Address to, std::span<const std::byte> bytes) {
  engine_->memory().write(to, bytes);
  engine_->host_wrote(to, bytes.size());
}
void Machine::fill(Address to, std::uint64_t bytes, std::byte value) {
  engine_->memory().fill(to, bytes, value);
  engine_->host_wrote(to, bytes);
}
Status Machine::read(Address from, std::span<std::byte> bytes) {
  engine_->model().host_reads(from, bytes.size());
  return engine_->memory().read(from, bytes);
}
bool Machine::peek(Address from, std::span<std::byte> bytes) {
  engine_->model().host_reads(from, bytes.size());
  return engine_->memory().peek(from, bytes);
}
std::uint64_t Machine::count_written(Address from, std::uint64_t bytes) {
  engine_->model().host_reads(from, bytes);
  return engine_->memory().count_written(from, bytes);
}
void Machine::forget(Address from, std::uint64_t bytes) {
  engine_->memory().forget(from, bytes);
  engine_->host_wrote(from, bytes);
}
void Machine::name_parts(const std::vector<NamedPart>* parts) {
  engine_->memory().name_parts(parts);
}

StreamId Machine::add_stream(RankId rank) { return engine_->add_stream(rank); }
void Machine::enqueue(RankId rank, StreamId stream, Kernel kernel) {
  CONTRACT(kernel.num_ctas >= 1 && kernel.body != nullptr, kernel.name, kernel.num_ctas);
  std::string name = kernel.name;
  engine_->enqueue(rank, stream, Node{std::move(name), nullptr, std::move(kernel)});
}
void Machine::enqueue_host(RankId rank, StreamId stream, std::string name,
                           std::function<void()> node) {
  CONTRACT(node != nullptr, name);
  engine_->enqueue(rank, stream, Node{std::move(name), std::move(node), {}});
}

RunResult Machine::run() { return engine_->run(); }

}  // namespace assay::machine
