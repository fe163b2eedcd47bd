// For tests only: one spelling of Catch2 2 (Debian 12) and 3 (Ubuntu 24.04), and RapidCheck
// properties that print how to replay them. Decides nothing about Assay.
//
//   TEST_CASE("a slot is never taken twice", "[MOE-3.1]") {
//     prop("any routing", [](const Case& c) { RC_ASSERT(...); });
//   }
//
// Test names are sentences; tags are clauses of model/SPEC.md. `prop` runs a RapidCheck property as
// one assertion; on failure it prints the shrunk counterexample and the RC_PARAMS line that replays
// it. The default seed is fixed by the build (meson test sets RC_PARAMS), so a run can be repeated.
#pragma once

#if __has_include(<catch2/catch_test_macros.hpp>)
#include <catch2/catch_approx.hpp>
#include <catch2/catch_message.hpp>
#include <catch2/catch_test_macros.hpp>
#else
#include <catch2/catch.hpp>
#endif

#include <rapidcheck.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <type_traits>
#include <vector>

// The generators that most properties draw from are compiled once, in testing.cpp. Otherwise they
// are half of the code of a test that has a property, and of the time that it takes a sanitizer.
#define ASSAY_GENERATED(EXTERN, T)  \
  EXTERN template class rc::Gen<T>; \
  EXTERN template class rc::Shrinkable<T>;
#define ASSAY_GENERATED_NUMBER(EXTERN, T)                                                    \
  ASSAY_GENERATED(EXTERN, T)                                                                 \
  ASSAY_GENERATED(EXTERN, std::vector<T>)                                                    \
  EXTERN template rc::Gen<T> rc::gen::inRange<T>(T, T);                                      \
  EXTERN template rc::Gen<std::vector<T>> rc::gen::container<std::vector<T>, T>(std::size_t, \
                                                                                rc::Gen<T>);
#define ASSAY_GENERATED_TYPES(EXTERN)                                                      \
  EXTERN template class rc::detail::ImplicitParam<rc::gen::detail::param::CurrentHandler>; \
  ASSAY_GENERATED(EXTERN, rc::detail::Any)                                                 \
  ASSAY_GENERATED(EXTERN, bool)                                                            \
  ASSAY_GENERATED(EXTERN, std::string)                                                     \
  ASSAY_GENERATED_NUMBER(EXTERN, std::int32_t)                                             \
  ASSAY_GENERATED_NUMBER(EXTERN, std::uint32_t)                                            \
  ASSAY_GENERATED_NUMBER(EXTERN, std::int64_t)                                             \
  ASSAY_GENERATED_NUMBER(EXTERN, std::uint64_t)
ASSAY_GENERATED_TYPES(extern)

namespace assay::testing {

// Runs `property` under RapidCheck and makes its result a Catch2 assertion. Discarded too often
// counts as failure: a property that checked nothing has not passed.
void run_property(const std::string& description, const std::function<void()>& property);

// run_property for a callable whose arguments, if any, are RapidCheck's arbitrary values.
template <class Testable>
void prop(const std::string& description, const Testable& testable) {
  static_assert(std::is_void_v<rc::detail::ReturnType<Testable>>,
                "a property says RC_ASSERT; what it returned would be lost");
  run_property(description, [&testable] {
    rc::gen::detail::execWithArguments(testable, rc::detail::ArgTypes<Testable>());
  });
}

}  // namespace assay::testing
