// The launchers' variables as a table, the innermost launcher first: mpirun under srun sees Slurm's
// variables too, and they describe the one task that mpirun itself is.
#include "cuda/launch/environment.hpp"

#include <fmt/format.h>

#include <cstdlib>

#include "model/core/case_text.hpp"
#include "model/core/text.hpp"

namespace assay::cuda {

namespace {

struct Launcher {
  const char* name;
  const char* rank;
  const char* size;
  const char* local_rank;  // nullptr: its environment does not say
};
constexpr Launcher kLaunchers[] = {
    {"torchrun", "RANK", "WORLD_SIZE", "LOCAL_RANK"},
    {"Open MPI", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK"},
    {"PMI", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID"},
    {"PMIx", "PMIX_RANK", "SLURM_NTASKS", "SLURM_LOCALID"},
    {"Slurm", "SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID"},
};

constexpr int kProcessesMax = 256;  // the kernels' limit of ranks

}  // namespace

Expected<ProcessPlace> place_in(const Variables& variables) {
  std::string incomplete;
  for (const Launcher& launcher : kLaunchers) {
    const char* rank = variables(launcher.rank);
    const char* size = variables(launcher.size);
    if (rank == nullptr || size == nullptr) {
      if (rank != nullptr && incomplete.empty())
        incomplete = fmt::format("; {} is set and {} is not", launcher.rank, launcher.size);
      continue;
    }
    ProcessPlace place;
    place.launcher = launcher.name;
    ASSAY_TRY(place.size, parse_integer<int>(launcher.size, size, 1, kProcessesMax));
    ASSAY_TRY(place.rank, parse_integer<int>(launcher.rank, rank, 0, place.size - 1));
    const char* local = launcher.local_rank == nullptr ? nullptr : variables(launcher.local_rank);
    place.local_rank = place.rank;
    if (local != nullptr) {
      ASSAY_TRY(place.local_rank, parse_integer<int>(launcher.local_rank, local, 0, place.rank));
    }
    return place;
  }
  return bad_input("no rank and size in the environment" + incomplete +
                   "; start this process under torchrun, mpirun or srun, or set RANK and "
                   "WORLD_SIZE");
}

Expected<ProcessPlace> place_in_environment() {
  return place_in([](const char* name) { return static_cast<const char*>(std::getenv(name)); });
}

}  // namespace assay::cuda
