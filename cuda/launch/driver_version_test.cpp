// The driver's version out of what its kernel module says.
#include "cuda/launch/driver_version.hpp"

#include <sstream>

#include "model/core/testing.hpp"

TEST_CASE("the driver's version is the kernel module's, or unknown", "[CUD-9.1]") {
  const auto in = [](const char* text) {
    std::istringstream file(text);
    return assay::cuda::driver_version_in(file);
  };
  constexpr const char* kGcc = "GCC version:  gcc version 12.2.0 (Debian 12.2.0-14+deb12u1)\n";
  CHECK(in((std::string("NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.159.04  Tue Oct 14 "
                        "23:57:16 UTC 2025\n") +
            kGcc)
               .c_str()) == "580.159.04");
  CHECK(in("NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.86  Release Build\n") ==
        "570.86");
  CHECK(in("NVRM version: none\nGCC version:  gcc version 12.2.0 (Debian)\n") == "unknown");
  CHECK(in(kGcc) == "unknown");
  CHECK(in("") == "unknown");
}
