// What explore() asks of a way to search: a scheduler for the next execution, and what to do after
// it. For explore.cpp and the files named explore_*; decides nothing.
#pragma once

#include <cstdint>
#include <memory>

#include "model/machine/observer.hpp"
#include "model/machine/schedule.hpp"

namespace assay::machine {

class Strategy {
 public:
  virtual ~Strategy() = default;
  // For the next execution; belongs to the strategy's state until the execution is over.
  virtual std::unique_ptr<Scheduler> scheduler() = 0;
  virtual Observer* observer() { return nullptr; }

  // After an execution, in this order. is_redundant: the strategy has abandoned it.
  virtual void conclude() {}
  virtual bool is_redundant() const { return false; }
  virtual Schedule schedule() const = 0;
  virtual std::uint64_t num_steps() const = 0;
  // Moves to the next execution; false when there is none.
  virtual bool advance() = 0;
};

}  // namespace assay::machine
