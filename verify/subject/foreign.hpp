// Shared libraries of somebody else: how they are opened, and how their functions are called.
// Decides what becomes of one that throws, ends the process or says more than a line (SPEC
// VER-1.6). Which functions there are and what they return is subject.hpp's and plugin.hpp's.
#pragma once

#include <exception>
#include <memory>
#include <new>
#include <string>
#include <string_view>
#include <type_traits>

#include "model/core/expected.hpp"
#include "verify/subject/subject.h"

namespace assay::verify {

// While one exists, a process that ends with exit or quick_exit says that `spec` ended it in
// `function`, and has status 1 whatever status was asked for.
class ForeignCall {
 public:
  ForeignCall(std::string_view spec, std::string_view function);
  ~ForeignCall();
  ForeignCall(const ForeignCall&) = delete;
  ForeignCall& operator=(const ForeignCall&) = delete;
};

// How the code of somebody else is spelled: "plugin:FILE" or "kernels:FILE".
inline constexpr std::string_view kPluginSpec = "plugin:", kKernelsSpec = "kernels:";
constexpr bool begins_with(std::string_view spec, std::string_view kind) {
  return spec.substr(0, kind.size()) == kind;
}
constexpr bool is_foreign(std::string_view spec) {
  return begins_with(spec, kPluginSpec) || begins_with(spec, kKernelsSpec);
}

Error thrown(std::string_view function, std::string_view what);

// What `call`, a function of a plugin, returns. Error: it threw. Out of memory is the machine's
// fault and passes; of a subject of ours everything does, since that is a bug of ours.
template <class Call>
Expected<std::invoke_result_t<Call>> call_foreign(std::string_view spec, std::string_view function,
                                                  const Call& call) {
  if (!is_foreign(spec)) return call();
  const ForeignCall during(spec, function);
  try {
    return call();
  } catch (const std::bad_alloc&) {
    throw;
  } catch (const std::exception& error) {
    return thrown(function, error.what());
  } catch (...) {
    return thrown(function, "");
  }
}

// A subject's words as one line: at most 1000 bytes of them and how many there were, control bytes
// and ill-formed UTF-8 escaped as in COR-1.3. Ends at the first zero, or with the array.
std::string text_of(const assay_message& message);
std::string one_line(std::string_view text);

struct Library {
  std::shared_ptr<void> owner;
  void* entry = nullptr;
};
// `spec` is "plugin:FILE" or "kernels:FILE". Errors name what is wrong: no file, no library, or
// `entry`, which `header` describes, not in it.
Expected<Library> open_plugin(const std::string& spec, const char* entry, std::string_view header);

}  // namespace assay::verify
