// Compares the model of model/numerics with the GPU that this program runs on. The model's own
// headers are compiled for the device, so what is compared is the text that the CPU oracle uses:
//   * exhaustive sweeps of special functions, conversions and 16-bit additions (sweeps.cuh), and
//     products and fused sums where results are flushed (flushing.cuh);
//   * matrix instructions on random, adversarial and raw-bit tiles (mma_check.cuh): wgmma on sm_90,
//     mma.sync everywhere.
// Prints a table, writes JSON, and exits with 0 if nothing differed and 1 otherwise.
//
//   numerics_probe [--json FILE] [--results N] [--dump DIRECTORY]
//
// --results: results per wgmma type and style in the main run (default 10 M). --dump: also writes
// what tables are recovered from, the 16-bit forms of ex2 and tanh and a part of tanh.approx.f32.
#include <unistd.h>

#include <cstring>
#include <ctime>
#include <fstream>
#include <map>
#include <sstream>

#include "cuda/launch/driver_version.hpp"
#include "cuda/probe/dump.cuh"
#include "cuda/probe/flushing.cuh"
#include "cuda/probe/mma_check.cuh"
#include "cuda/probe/sweeps.cuh"

namespace assay::probe {
namespace {

struct Options {
  std::string json, dump;
  std::uint64_t results = 10'000'000;
};

std::string hex(unsigned long long value, int digits) {
  char text[32];
  std::snprintf(text, sizeof text, "0x%0*llx", digits, value);
  return text;
}

std::string first_mismatches(const Comparison& c) {
  std::string text = "[";
  for (unsigned i = 0; i < c.shown && i < kShownMismatches; ++i) {
    text += (i ? ", " : "") + std::string("{\"input\": \"") + hex(c.input[i], 8) +
            "\", \"second\": \"" + hex(c.second[i], 8) + "\", \"hardware\": \"" +
            hex(c.hardware[i], 8) + "\", \"model\": \"" + hex(c.model[i], 8) + "\"}";
  }
  return text + "]";
}

class Report {
 public:
  void add(const SweepResult& r) {
    const unsigned long long wrong = r.comparison.mismatches[0];
    if (r.name.compare(0, 11, "hypothesis:") != 0) {  // those are not the model's
      cases_ += r.inputs;
      mismatches_ += wrong;
    }
    std::printf("%-40s %12llu inputs  %10s mismatches  hash %s\n", r.name.c_str(),
                static_cast<unsigned long long>(r.inputs), std::to_string(wrong).c_str(),
                hex(r.comparison.hash, 16).c_str());
    std::fflush(stdout);
    sweeps_ << (sweeps_.tellp() > 0 ? ",\n" : "") << "    {\"name\": \"" << r.name
            << "\", \"inputs\": " << r.inputs << ", \"mismatches\": " << wrong << ", \"hash\": \""
            << hex(r.comparison.hash, 16) << "\", \"first\": " << first_mismatches(r.comparison)
            << "}";
  }

  void add(const MmaResult& r) {
    const unsigned long long wrong = r.comparison.mismatches[0];
    cases_ += r.results;
    mismatches_ += wrong;
    Line& line = lines_[r.instruction];
    line.results += r.results;
    line.mismatches += wrong;
    if (r.with_rules) {
      for (int i = 0; i < kMaxRules; ++i) line.rules[i][r.style] = r.comparison.mismatches[i];
      line.results_of_style[r.style] = r.results;
    }
    if (wrong) {
      std::printf("%s n %d steps %d style %d %s %s scale-d %d: %llu of %llu wrong\n",
                  r.instruction.c_str(), r.n, r.steps, r.style, r.a_in_registers ? "rs" : "ss",
                  r.b_transposed ? "B transposed" : "", r.scale_d, wrong,
                  static_cast<unsigned long long>(r.results));
      for (unsigned i = 0; i < r.comparison.shown && i < kShownMismatches; ++i)
        std::printf("  result %u c %08x: hardware %08x model %08x\n", r.comparison.input[i],
                    r.comparison.second[i], r.comparison.hardware[i], r.comparison.model[i]);
    }
    mma_ << (mma_.tellp() > 0 ? ",\n" : "") << "    {\"instruction\": \"" << r.instruction
         << "\", \"n\": " << r.n << ", \"k_steps\": " << r.steps << ", \"style\": " << r.style
         << ", \"a\": \"" << (r.a_in_registers ? "registers" : "shared")
         << "\", \"b_transposed\": " << (r.b_transposed ? "true" : "false")
         << ", \"scale_d\": " << r.scale_d << ", \"results\": " << r.results
         << ", \"mismatches\": " << wrong << ", \"hash\": \"" << hex(r.comparison.hash, 16)
         << "\", \"first\": " << first_mismatches(r.comparison);
    if (r.with_rules) {
      mma_ << ", \"rules\": {";
      for (int i = 1; i < kMaxRules; ++i)
        mma_ << (i > 1 ? ", " : "") << "\"" << kRuleNames[i]
             << "\": " << r.comparison.mismatches[i];
      mma_ << "}";
    }
    mma_ << "}";
  }

  void print_mma_table() const {
    std::printf("\nresults that differ, per style 0 to %d\n", kStyles - 1);
    for (const auto& [name, line] : lines_) {
      std::printf("%s: %llu results in all shapes, %llu mismatches; with rules %llu per style\n",
                  name.c_str(), static_cast<unsigned long long>(line.results),
                  static_cast<unsigned long long>(line.mismatches),
                  static_cast<unsigned long long>(line.results_of_style[0]));
      for (int i = 1; i < kMaxRules; ++i) {
        std::printf("  %-22s", kRuleNames[i]);
        for (int style = 0; style < kStyles; ++style) std::printf(" %10llu", line.rules[i][style]);
        std::printf("\n");
      }
    }
  }

  bool write_json(const std::string& path, const std::string& gpu, int major, int minor) const {
    char date[32];
    const std::time_t now = std::time(nullptr);
    std::strftime(date, sizeof date, "%Y-%m-%d", std::gmtime(&now));
    const std::string temporary = path + ".tmp";
    std::ofstream file(temporary);
    file << "{\n  \"probe\": \"numerics\",\n  \"gpus\": [\"" << gpu
         << "\"],\n  \"compute_capability\": \"" << major << "." << minor << "\",\n  \"driver\": \""
         << cuda::driver_version() << "\",\n  \"cuda\": \"" << __CUDACC_VER_MAJOR__ << "."
         << __CUDACC_VER_MINOR__ << "." << __CUDACC_VER_BUILD__ << "\",\n  \"date\": \"" << date
         << "\",\n  \"cases\": " << cases_ << ",\n  \"mismatches\": " << mismatches_
         << ",\n  \"styles\": [\"normal(0,1)\", \"exponents over +-20 binades\", \"raw bit "
            "patterns\", "
            "\"equal magnitudes that cancel\", \"raw bit patterns without NaN and Inf\", "
            "\"large pairs that cancel, small rest\", \"zeros, subnormals, smallest products\"],\n "
            " \"sweeps\": [\n"
         << sweeps_.str() << "\n  ],\n  \"mma\": [\n"
         << mma_.str() << "\n  ]\n}\n";
    file.close();
    return file && std::rename(temporary.c_str(), path.c_str()) == 0;
  }

  std::uint64_t cases() const { return cases_; }
  std::uint64_t mismatches() const { return mismatches_; }

 private:
  struct Line {
    std::uint64_t results = 0, mismatches = 0, results_of_style[kStyles] = {};
    unsigned long long rules[kMaxRules][kStyles] = {};
  };
  std::uint64_t cases_ = 0, mismatches_ = 0;
  std::ostringstream sweeps_, mma_;
  std::map<std::string, Line> lines_;
};

int run(const Options& options) {
  cudaDeviceProp properties;
  ASSAY_CUDA(cudaGetDeviceProperties(&properties, 0));
  std::printf("%s, compute capability %d.%d, driver %s\n\n", properties.name, properties.major,
              properties.minor, cuda::driver_version().c_str());
  Report report;
  const auto sweep = [&](const SweepResult& r) { report.add(r); };
  const auto tile = [&](const MmaResult& r) { report.add(r); };
  if (!options.dump.empty()) dump_tables(options.dump);
  run_sweeps(properties.major, sweep);
  run_flushing(sweep);
  Buffers buffers;
  if (!options.dump.empty()) {
    buffers.tiles = std::fopen((options.dump + "/tiles.bin").c_str(), "wb");
    buffers.index = std::fopen((options.dump + "/tiles.txt").c_str(), "w");
    if (buffers.tiles == nullptr || buffers.index == nullptr) {
      std::fprintf(stderr, "cannot write to %s\n", options.dump.c_str());
      return 2;
    }
  }
  if (properties.major == 9) run_wgmma(buffers, options.results, tile);
  const Arch arch = properties.major == 9    ? Arch::kSm90a
                    : properties.major == 10 ? Arch::kSm100a
                                             : Arch::kSm120;
  run_mma_sync(arch, buffers, options.results / 5, tile);
  if (buffers.tiles) {
    std::fclose(buffers.tiles);
    std::fclose(buffers.index);
  }
  report.print_mma_table();
  std::printf("\n%llu cases, %llu mismatches\n", static_cast<unsigned long long>(report.cases()),
              static_cast<unsigned long long>(report.mismatches()));
  if (!options.json.empty() &&
      !report.write_json(options.json, properties.name, properties.major, properties.minor)) {
    std::fprintf(stderr, "cannot write %s\n", options.json.c_str());
    return 2;
  }
  return report.mismatches() == 0 ? 0 : 1;
}

}  // namespace
}  // namespace assay::probe

int main(int argc, char** argv) {
  alarm(280);  // a kernel that hangs must not hold the machine: the default action ends the process
  assay::probe::Options options;
  for (int i = 1; i < argc; ++i) {
    const std::string flag = argv[i];
    const bool has_value = i + 1 < argc;
    if (flag == "--json" && has_value)
      options.json = argv[++i];
    else if (flag == "--dump" && has_value)
      options.dump = argv[++i];
    else if (flag == "--results" && has_value)
      options.results = std::strtoull(argv[++i], nullptr, 10);
    else {
      std::fprintf(stderr,
                   "'%s' is not known; allowed are --json FILE, --results N, --dump DIRECTORY\n",
                   argv[i]);
      return 2;
    }
  }
  if (options.results < 1000 || options.results > 40'000'000) {
    std::fprintf(stderr, "--results is %llu; allowed are 1000 to 40000000\n",
                 static_cast<unsigned long long>(options.results));
    return 2;
  }
  return assay::probe::run(options);
}
