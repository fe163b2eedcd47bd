// How a broken contract ends the process. See contract.hpp (SPEC COR-1.2).
#include "model/core/contract.hpp"

#include <cstdio>
#include <cstdlib>

namespace assay::contract_detail {

// _Exit and not abort: a broken contract is exit code 4 for a script, and destructors of a process
// whose invariants are gone must not run.
void broken(const char* condition, const char* file, int line, const std::string& values) {
  std::fflush(stdout);
  std::fprintf(stderr, "assay: broken contract: %s at %s:%d%s%s\nThis is a bug of Assay itself.\n",
               condition, file, line, values.empty() ? "" : ": ", values.c_str());
  std::fflush(stderr);
  std::_Exit(4);
}

}  // namespace assay::contract_detail
