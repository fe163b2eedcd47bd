// Channel 1 of three for things that go wrong: mistakes of the caller and bad files. A function
// that can meet one returns Expected<T>; the Error carries a whole sentence with the offending
// value and what is allowed. (Channel 2, our own mistakes: contract.hpp. Channel 3, a wrong kernel:
// a Mismatch in verify/compare, which is a value and not an error.)
#pragma once

#include <string>
#include <utility>
#include <variant>

#include "model/core/contract.hpp"

namespace assay {

enum class ErrorKind {
  kBadInput,     // bad usage or input: exit code 2
  kUnsupported,  // a legal request that this build or machine cannot serve: exit code 3
};

// `sentence` names the offending value and what is allowed, e.g.
// "ep is 0; allowed are 1 to 256". It ends without a full stop.
struct Error {
  ErrorKind kind = ErrorKind::kBadInput;
  std::string sentence;

  // Adds where it happened in front: "trace.csv line 7: <sentence>". A sentence that begins with
  // the place already, as those of whoever opened the file do, keeps it once.
  Error within(const std::string& place) const {
    const std::string front = place + ": ";
    return {kind, sentence.compare(0, front.size(), front) == 0 ? sentence : front + sentence};
  }
};

inline Error bad_input(std::string sentence) {
  return {ErrorKind::kBadInput, std::move(sentence)};
}
inline Error unsupported(std::string sentence) {
  return {ErrorKind::kUnsupported, std::move(sentence)};
}

// Either a T or an Error. (std::expected needs C++23, which nvcc 13.0 refuses.)
template <class T>
class [[nodiscard]] Expected {
 public:
  Expected(T value) : state_(std::in_place_index<0>, std::move(value)) {}       // NOLINT: implicit
  Expected(Error error) : state_(std::in_place_index<1>, std::move(error)) {}  // NOLINT: implicit

  bool has_value() const { return state_.index() == 0; }
  explicit operator bool() const { return has_value(); }

  const T& value() const& {
    CONTRACT(has_value(), std::get<1>(state_).sentence);
    return std::get<0>(state_);
  }
  T& value() & {
    CONTRACT(has_value(), std::get<1>(state_).sentence);
    return std::get<0>(state_);
  }
  T&& value() && {
    CONTRACT(has_value(), std::get<1>(state_).sentence);
    return std::get<0>(std::move(state_));
  }
  const T& operator*() const& { return value(); }
  T& operator*() & { return value(); }
  T&& operator*() && { return std::move(*this).value(); }
  const T* operator->() const { return &value(); }
  T* operator->() { return &value(); }

  const Error& error() const {
    CONTRACT(!has_value(), "error() of an Expected that holds a value");
    return std::get<1>(state_);
  }

 private:
  std::variant<T, Error> state_;
};

struct Done {};  // the value of an Expected that has nothing to say but success
using Status = Expected<Done>;

}  // namespace assay

// Unwraps an Expected or returns its Error from the enclosing function:
//   ASSAY_TRY(auto file, open_file(path));
#define ASSAY_TRY(declaration, expression) ASSAY_TRY_1(declaration, expression, __LINE__)
#define ASSAY_TRY_1(declaration, expression, line) ASSAY_TRY_2(declaration, expression, line)
#define ASSAY_TRY_2(declaration, expression, line)          \
  auto assay_try_##line = (expression);                     \
  if (!assay_try_##line) return assay_try_##line.error();   \
  declaration = *std::move(assay_try_##line)
// The same for a Status, whose value nobody wants.
#define ASSAY_CHECK(expression)                             \
  do {                                                      \
    auto assay_status = (expression);                       \
    if (!assay_status) return assay_status.error();         \
  } while (false)
