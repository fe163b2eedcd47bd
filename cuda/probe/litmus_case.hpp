// A litmus test as litmus_generate.cpp writes it into the probe, and what a run of it is and shows.
// Decides nothing: outcomes are encoded as in model/machine/litmus/litmus.hpp, 4 bits for each
// observable, the first lowest.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace assay::litmus_probe {

struct KernelInfo {
  const void* function;
  std::uint32_t rank, kernel, ctas, threads;
};
struct LocationInfo {
  std::string name;
  std::uint32_t words;
};
struct NameInfo {
  std::uint32_t location;
  bool is_alias;
};
struct ObservableInfo {
  bool is_register;
  std::uint32_t thread, reg, name, word;
};
struct ComparisonInfo {
  std::uint32_t observable, value;
  bool equal;
};
// A test as generated. By kernel boundary: 0 ptx, 1 flush, 2 pdl.
struct CaseInfo {
  std::string name, file, source;
  int line = 0;
  std::uint32_t num_threads = 0;
  std::vector<LocationInfo> locations;
  std::vector<NameInfo> names;
  std::vector<ObservableInfo> observables;
  std::vector<std::string> texts;
  std::vector<ComparisonInfo> exists;
  std::string verdict[3];
  bool race[3] = {};
  std::vector<std::uint64_t> allowed[3];
  std::vector<std::uint64_t> sequential;
  std::vector<KernelInfo> kernels;
};

// One way to run a test, and what came out.
struct Configuration {
  int gpus = 1;
  bool programmatic = false;    // launches after the first of a stream may overlap the one before
  std::uint32_t placement = 0;  // bit l: location l lies on GPU 1
};
struct Seen {
  std::map<std::uint64_t, std::uint64_t> outcomes;
  std::uint64_t instances = 0, unfinished = 0;
};

}  // namespace assay::litmus_probe
