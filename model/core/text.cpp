// Quoting for sentences, and the UTF-8 check behind it. See text.hpp.
#include "model/core/text.hpp"

#include <fmt/format.h>

namespace assay {
namespace {

// Length of the well-formed UTF-8 sequence that starts at text[at], 0 if there is none. The second
// byte's range carries the exclusions of RFC 3629 section 4 (overlong forms, surrogates, >
// U+10FFFF).
std::size_t utf8_sequence_bytes(std::string_view text, std::size_t at) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[at + i]); };
  const unsigned lead = byte(0);
  if (lead < 0x80) return 1;
  if (lead < 0xC2 || lead > 0xF4) return 0;
  const std::size_t length = lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
  if (text.size() - at < length) return 0;
  const unsigned low = lead == 0xE0 ? 0xA0 : lead == 0xF0 ? 0x90 : 0x80;
  const unsigned high = lead == 0xED ? 0x9F : lead == 0xF4 ? 0x8F : 0xBF;
  if (byte(1) < low || byte(1) > high) return 0;
  for (std::size_t i = 2; i < length; ++i) {
    if (byte(i) < 0x80 || byte(i) > 0xBF) return 0;
  }
  return length;
}

}  // namespace

std::size_t utf8_prefix_bytes(std::string_view text) {
  std::size_t at = 0;
  while (at < text.size()) {
    const std::size_t length = utf8_sequence_bytes(text, at);
    if (length == 0) return at;
    at += length;
  }
  return at;
}

std::string in_quotes(std::string_view text, std::size_t bytes_max) {
  std::string out = "\"";
  std::size_t at = 0;
  while (at < text.size() && at < bytes_max) {
    const unsigned char byte = static_cast<unsigned char>(text[at]);
    const std::size_t length = utf8_sequence_bytes(text, at);
    // C1 controls (U+0080 to U+009F, 0xC2 0x80 to 0xC2 0x9F) move terminals too.
    const bool c1 = length == 2 && byte == 0xC2 && static_cast<unsigned char>(text[at + 1]) < 0xA0;
    if (byte == '"' || byte == '\\') {
      out += '\\';
      out += static_cast<char>(byte);
    } else if (byte == '\n') {
      out += "\\n";
    } else if (length == 0 || byte < 0x20 || byte == 0x7F || c1) {
      out += fmt::format("\\x{:02x}", byte);
      ++at;
      continue;
    } else {
      out += text.substr(at, length);
    }
    at += length;
  }
  out += '"';
  if (at < text.size()) out += fmt::format("... ({} bytes)", text.size());
  return out;
}

}  // namespace assay
