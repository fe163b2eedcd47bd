// Start here: exact emulation of attention on a GPU, for problems too large for the host's cores.
// The text of a unit is model/attention's own (unit_run.hpp), so what comes back has the bits of
// attention::Emulator::run, and so have decisions and margins. Decides how many units are computed
// at a time and what is refused; no bit. Needs the CUDA runtime, not nvcc.
//
//   ASSAY_TRY(const auto emulator, DeviceEmulator::make(*profile, problem));  // device tensors
//   ASSAY_TRY(const auto units, emulator.run(some_units));
//
// Cost, derived from sm_90a machine code and not measured: a multiply-add of 16-bit inputs is 15
// instructions, eight of them on the integer pipe (64 lanes a clock) and 1.5 loads of 16 bytes from
// shared memory (8 lanes a clock), so that a warp's 32 need 6 clocks of a multiprocessor. A causal
// head of 65536 x 65536, d 128, has 5.5e11 without skipping: 0.45 s on 132 of them at 1.75 GHz if
// nothing else waited; a skipped tile saves the second half. Device memory: per resident block one
// tile of keys and values, the unit's rows and its pieces; per unit of a batch its outputs and one
// record a tile.
#pragma once

#include <chrono>
#include <span>
#include <vector>

#include "model/attention/emulate.hpp"
#include "model/core/expected.hpp"

namespace assay::cuda {

struct DeviceEmulateOptions {
  std::chrono::nanoseconds budget = std::chrono::minutes(10);  // for each batch of units
  double* kernel_ms = nullptr;  // if not null: the time that the kernels took is added
};

class DeviceEmulator {
 public:
  // `problem` must outlive this. Its tensors, block tables, masks, sinks and slopes lie in memory
  // of the device that is current, now and in run(); rows are aligned to their elements. Errors:
  // those of attention::Emulator::make.
  static Expected<DeviceEmulator> make(const attention::Profile& profile,
                                       const attention::Problem& problem);

  const attention::Emulator& emulator() const { return emulator_; }

  // Results in the order of `units`. Errors: CUDA's, and a batch that does not end within the
  // budget.
  Expected<std::vector<attention::UnitResult>> run(std::span<const attention::Unit> units,
                                                   const DeviceEmulateOptions& options = {}) const;
  // All units of the problem, as attention::emulate() gives them.
  Expected<attention::Emulation> run_all(const DeviceEmulateOptions& options = {}) const;

 private:
  explicit DeviceEmulator(attention::Emulator emulator) : emulator_(std::move(emulator)) {}
  attention::Emulator emulator_;
};

}  // namespace assay::cuda
