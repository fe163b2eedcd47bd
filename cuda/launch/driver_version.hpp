// The NVIDIA driver's version as nvidia-smi shows it, "580.159.04". Decides where it is read, for
// every file of evidence: the driver says it in /proc, so neither NVML nor a CUDA context is needed
// (SPEC CUD-9.1). cudaDriverGetVersion is another number, of the newest CUDA which it serves.
#pragma once

#include <fstream>
#include <istream>
#include <sstream>
#include <string>

namespace assay::cuda {

// Of a file with a line like "NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.159.04  Tue ...":
// its first word of digits and dots. "unknown" where there is none; other lines, such as GCC's
// version, do not count.
inline std::string driver_version_in(std::istream& file) {
  for (std::string line; std::getline(file, line);) {
    if (line.rfind("NVRM version:", 0) != 0) continue;
    std::istringstream words(line);
    for (std::string word; words >> word;)
      if (word.find_first_not_of("0123456789.") == std::string::npos &&
          word.find('.') != std::string::npos)
        return word;
  }
  return "unknown";
}

// "unknown" on a machine that does not tell, such as one without a driver.
inline std::string driver_version() {
  std::ifstream file("/proc/driver/nvidia/version");
  return driver_version_in(file);
}

}  // namespace assay::cuda
