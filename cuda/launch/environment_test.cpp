// Environments as launchers leave them, and broken ones.
#include "cuda/launch/environment.hpp"

#include <map>

#include "model/core/testing.hpp"

namespace assay::cuda {
namespace {

Expected<ProcessPlace> place(const std::map<std::string, std::string>& set) {
  return place_in([&](const char* name) {
    const auto found = set.find(name);
    return found == set.end() ? nullptr : found->second.c_str();
  });
}

TEST_CASE("every launcher's variables give rank, size and local rank", "[CUD-1.1]") {
  const std::map<std::string, std::string> environments[] = {
      {{"RANK", "5"}, {"WORLD_SIZE", "8"}, {"LOCAL_RANK", "1"}},
      {{"OMPI_COMM_WORLD_RANK", "5"},
       {"OMPI_COMM_WORLD_SIZE", "8"},
       {"OMPI_COMM_WORLD_LOCAL_RANK", "1"}},
      {{"PMI_RANK", "5"}, {"PMI_SIZE", "8"}, {"MPI_LOCALRANKID", "1"}},
      {{"PMIX_RANK", "5"}, {"SLURM_NTASKS", "8"}, {"SLURM_LOCALID", "1"}},
      {{"SLURM_PROCID", "5"}, {"SLURM_NTASKS", "8"}, {"SLURM_LOCALID", "1"}}};
  for (const auto& set : environments) {
    const auto got = place(set);
    REQUIRE(got.has_value());
    CHECK(got->rank == 5);
    CHECK(got->size == 8);
    CHECK(got->local_rank == 1);
  }
}

TEST_CASE("the innermost launcher counts", "[CUD-1.1]") {
  const auto got = place({{"SLURM_PROCID", "0"},
                          {"SLURM_NTASKS", "1"},
                          {"OMPI_COMM_WORLD_RANK", "3"},
                          {"OMPI_COMM_WORLD_SIZE", "4"}});
  REQUIRE(got.has_value());
  CHECK(got->launcher == "Open MPI");
  CHECK(got->rank == 3);
  CHECK(got->local_rank == 3);
}

TEST_CASE("variables that are missing, no numbers or out of range are named", "[CUD-1.1]") {
  const auto sentence = [](const std::map<std::string, std::string>& set) {
    const auto got = place(set);
    REQUIRE_FALSE(got.has_value());
    return got.error().sentence;
  };
  CHECK(sentence({}).find("torchrun, mpirun or srun") != std::string::npos);
  CHECK(sentence({{"RANK", "1"}}).find("RANK is set and WORLD_SIZE is not") != std::string::npos);
  CHECK(sentence({{"RANK", "one"}, {"WORLD_SIZE", "2"}}).find("RANK") != std::string::npos);
  CHECK(sentence({{"RANK", "2"}, {"WORLD_SIZE", "2"}}).find("0 to 1") != std::string::npos);
  CHECK(sentence({{"RANK", "0"}, {"WORLD_SIZE", "0"}}).find("WORLD_SIZE") != std::string::npos);
  CHECK(sentence({{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"LOCAL_RANK", "1"}}).find("LOCAL_RANK") !=
        std::string::npos);
}

}  // namespace
}  // namespace assay::cuda
