// One process per GPU, as mpirun, srun or torchrun start it: joins the group, runs rounds and
// checks them, lets its last rank miss one, hears of it, recovers and goes on; then makes a group
// with other sizes at one rank, which all must refuse. Exit code 0 if all of that went as it
// should.
//
//   mpirun -n 4 process_check PATH        PATH: a place all processes share (SPEC CUD-1.2)
#include <cstdio>

#include "cuda/launch/small_rounds.hpp"

namespace assay::cuda {
namespace {

using testing::SmallRounds;

Status check(bool holds, const std::string& what) {
  if (holds) return Done{};
  return bad_input(what);
}

Status one_round(SmallRounds& rounds, std::int32_t tokens, std::int32_t shift) {
  ASSAY_CHECK(rounds.write(tokens, shift));
  ASSAY_CHECK(rounds.enqueue(tokens, 0, 1, 5'000'000'000));
  ASSAY_CHECK(rounds.wait());
  ASSAY_CHECK(rounds.group().check());
  return rounds.check(tokens, shift);
}

Status run(const std::string& path) {
  ASSAY_TRY(const Communicator communicator, Communicator::from_environment(path));
  const std::int32_t rank = communicator.local_ranks()[0].rank.value();
  std::fprintf(stderr, "rank %d has joined\n", rank);
  const std::int32_t last = communicator.ep_size() - 1;
  DeviceScope scope(communicator.local_ranks()[0].device);
  ASSAY_TRY(SmallRounds rounds, SmallRounds::make(communicator));
  for (std::int32_t round = 0; round < 20; ++round)
    ASSAY_CHECK(one_round(rounds, 1 + round % 8, round));

  ASSAY_CHECK(rounds.write(2, 0));
  if (rank != last) ASSAY_CHECK(rounds.enqueue(2, 0, 1, 200'000'000));
  ASSAY_CHECK(rounds.wait());
  const Status told = rounds.group().check();
  ASSAY_CHECK(check(
      !told && told.error().sentence.find("from rank " + std::to_string(last)) != std::string::npos,
      "the missing rank was not told"));
  ASSAY_CHECK(rounds.group().recover());
  for (std::int32_t round = 0; round < 5; ++round) ASSAY_CHECK(one_round(rounds, 3, round));

  one_sided::GroupCapacity other = SmallRounds::capacity(communicator.ep_size());
  if (rank == last) ++other.max_tokens_per_rank;
  ASSAY_TRY(const one_sided::Workspace workspace, one_sided::Workspace::make(other));
  const auto refused = OneSidedGroup::make(communicator, workspace, SmallRounds::request());
  ASSAY_CHECK(check(!refused && refused.error().sentence.find("rank " + std::to_string(last) +
                                                              " makes the group with another") == 0,
                    "different capacities were not refused"));
  std::printf("rank %d of %d: %s; %s\n", rank, last + 1, told.error().sentence.c_str(),
              refused.error().sentence.c_str());
  std::fflush(stdout);  // what a rank has to say does not wait for its peers' end
  return Done{};
}

}  // namespace
}  // namespace assay::cuda

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fputs("process_check PATH, under mpirun, srun or torchrun\n", stderr);
    return 2;
  }
  const assay::Status status = assay::cuda::run(argv[1]);
  if (status) return 0;
  std::fprintf(stderr, "process_check: %s\n", status.error().sentence.c_str());
  return status.error().kind == assay::ErrorKind::kUnsupported ? 3 : 1;
}
