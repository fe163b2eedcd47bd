// Quoting: no text from outside can break a line or a terminal.
#include "model/core/text.hpp"

#include <algorithm>

#include "model/core/testing.hpp"

using namespace assay;

TEST_CASE("quoted text has no control bytes and bounded length", "[COR-1.3]") {
  testing::prop("any bytes", [](const std::string& text) {
    const std::string q = in_quotes(text, 20);
    RC_ASSERT(
        std::none_of(q.begin(), q.end(), [](unsigned char c) { return c < 0x20 || c == 0x7f; }));
    RC_ASSERT(utf8_prefix_bytes(q) == q.size());
    RC_ASSERT(q.size() < 20u * 4 + 60);
  });
  CHECK(in_quotes("a\"b\\c\nd\x1b\x7f") == "\"a\\\"b\\\\c\\nd\\x1b\\x7f\"");
  CHECK(in_quotes("\xc2\x9b"
               "31m") == "\"\\xc2\\x9b31m\"");  // C1 control sequence introducer
  CHECK(in_quotes("aaaa", 3) == "\"aaa\"... (4 bytes)");
  CHECK(in_quotes("h\xc3\xa4\xff") == "\"h\xc3\xa4\\xff\"");
}

TEST_CASE("UTF-8 is judged by RFC 3629", "[COR-1.3]") {
  // Every code point's encoding is accepted whole; surrogates and what lies beyond are not.
  const auto encode = [](unsigned c) {
    std::string s;
    const auto tail = [&](unsigned shift) { s += static_cast<char>(0x80 | ((c >> shift) & 0x3f)); };
    if (c < 0x80) {
      s += static_cast<char>(c);
    } else if (c < 0x800) {
      s += static_cast<char>(0xc0 | (c >> 6));
      tail(0);
    } else if (c < 0x10000) {
      s += static_cast<char>(0xe0 | (c >> 12));
      tail(6), tail(0);
    } else {
      s += static_cast<char>(0xf0 | (c >> 18));
      tail(12), tail(6), tail(0);
    }
    return s;
  };
  bool right = true;
  for (unsigned c = 0; c < 0x120000; ++c) {
    const std::string s = encode(c);
    const bool legal = (c < 0xd800 || c > 0xdfff) && c <= 0x10ffff;
    right &= (utf8_prefix_bytes(s) == s.size()) == legal;
    right &= utf8_prefix_bytes(s.substr(0, s.size() - 1)) == 0 || s.size() == 1;
  }
  REQUIRE(right);
  for (const std::string overlong : {"\xc0\xaf", "\xe0\x80\xaf", "\xf0\x80\x80\xaf", "\xc1\xbf"}) {
    CHECK(utf8_prefix_bytes(overlong) == 0);
  }
}
