// Channel 2 of three for things that go wrong: our own mistakes. CONTRACT is always on. On the host
// it prints the condition, the values and the place, and ends the process with exit code 4 (our own
// bug) without unwinding; in device code it prints and traps.
//
//   CONTRACT(slot < capacity, "slot {} of {}");           // text only
//   CONTRACT(slot < capacity, slot, capacity);            // values, printed in order
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "model/core/platform.hpp"

namespace assay::contract_detail {

inline std::string show(std::string_view value) { return std::string(value); }
template <class T>
std::string show(const T& value) {
  if constexpr (requires { std::to_string(value); }) return std::to_string(value);
  else if constexpr (requires { value.value(); }) return std::to_string(value.value());
  else return "?";
}

// Prints "assay: broken contract: <condition> at file:line: <values>" and exits with code 4.
[[noreturn]] void broken(const char* condition, const char* file, int line,
                         const std::string& values);

template <class... Values>
[[noreturn]] void broken_with(const char* condition, const char* file, int line,
                              const Values&... values) {
  std::string text;
  ((text += (text.empty() ? "" : ", ") + show(values)), ...);
  broken(condition, file, line, text);
}

}  // namespace assay::contract_detail

#ifdef __CUDA_ARCH__
#include <cstdio>
#define CONTRACT(condition, ...)                                                          \
  do {                                                                                    \
    if (!(condition)) {                                                                   \
      printf("assay: broken contract: %s at %s:%d\n", #condition, __FILE__, __LINE__);    \
      __trap();                                                                           \
    }                                                                                     \
  } while (false)
#else
#define CONTRACT(condition, ...)                                                          \
  do {                                                                                    \
    if (!(condition)) [[unlikely]]                                                        \
      ::assay::contract_detail::broken_with(#condition, __FILE__,                         \
                                            __LINE__ __VA_OPT__(, ) __VA_ARGS__);         \
  } while (false)
#endif
