// How text from outside (names in files, arguments, cells) appears in our sentences: always quoted,
// never longer than a line, with every byte that could disturb a terminal or a log escaped. Decides
// spelling only, no meaning (SPEC COR-1.3).
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <type_traits>

namespace assay {

// Bytes of `text` up to the first that is not part of well-formed UTF-8 (RFC 3629: no overlong
// forms, no surrogates, nothing over U+10FFFF); text.size() when all of it is.
std::size_t utf8_prefix_bytes(std::string_view text);

// `text` in double quotes: control bytes, quotes, backslashes and ill-formed UTF-8 become \n, \",
// \\ or \xNN; what is longer than `bytes_max` bytes is cut and its length is told.
std::string in_quotes(std::string_view text, std::size_t bytes_max = 80);

// "a, b, c" from any range of texts or numbers. (fmt::join makes GCC 12 warn at -O3.)
template <class Range>
std::string joined(const Range& items, std::string_view separator = ", ") {
  std::string out;
  bool first = true;
  for (const auto& item : items) {
    if (!first) out += separator;
    first = false;
    if constexpr (std::is_convertible_v<decltype(item), std::string_view>)
      out += item;
    else
      out += std::to_string(item);
  }
  return out;
}

}  // namespace assay
