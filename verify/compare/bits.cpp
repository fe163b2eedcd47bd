// Spelling and distances of values, over the formats of model/numerics.
#include "verify/compare/bits.hpp"

#include <fmt/format.h>

#include <cmath>
#include <cstring>

#include "model/core/contract.hpp"
#include "model/numerics/numerics.hpp"

namespace assay::verify {

namespace {

using numerics::Format;

struct FormatFacts {
  std::string_view name;
  std::int64_t bytes;
};

FormatFacts facts(ElementFormat format) {
  switch (format) {
    case ElementFormat::kBytes:
      return {"bytes", 1};
    case ElementFormat::kInt32:
      return {"int32", 4};
    case ElementFormat::kBf16:
      return {"bf16", 2};
    case ElementFormat::kF16:
      return {"f16", 2};
    case ElementFormat::kF32:
      return {"f32", 4};
    case ElementFormat::kE4m3:
      return {"e4m3", 1};
    case ElementFormat::kE5m2:
      return {"e5m2", 1};
    case ElementFormat::kE2m1:
      return {"e2m1", 1};
    case ElementFormat::kUe8m0:
      return {"ue8m0", 1};
  }
  CONTRACT(false, static_cast<int>(format));
}

bool is_float(ElementFormat format) {
  return format != ElementFormat::kBytes && format != ElementFormat::kInt32 &&
         format != ElementFormat::kUe8m0;
}

// Calls `use` with the bit type of a floating format.
template <class Use>
auto as_float_type(ElementFormat format, std::uint32_t bits, Use use) {
  switch (format) {
    case ElementFormat::kBf16:
      return use(Bf16{static_cast<std::uint16_t>(bits)});
    case ElementFormat::kF16:
      return use(F16{static_cast<std::uint16_t>(bits)});
    case ElementFormat::kF32:
      return use(F32{bits});
    case ElementFormat::kE4m3:
      return use(E4m3{static_cast<std::uint8_t>(bits)});
    case ElementFormat::kE5m2:
      return use(E5m2{static_cast<std::uint8_t>(bits)});
    case ElementFormat::kE2m1:
      return use(E2m1{static_cast<std::uint8_t>(bits)});
    case ElementFormat::kBytes:
    case ElementFormat::kInt32:
    case ElementFormat::kUe8m0:
      break;
  }
  CONTRACT(false, static_cast<int>(format));
}

template <class T>
std::int64_t place_on_line(T x) {
  const auto size = static_cast<std::int64_t>(numerics::magnitude(x));
  return numerics::is_negative(x) ? -size : size;
}

bool is_zero(ElementFormat format, std::uint32_t bits) {
  return as_float_type(format, bits, [](auto x) { return numerics::is_zero(x); });
}

bool is_infinite(ElementFormat format, std::uint32_t bits) {
  return as_float_type(format, bits, [](auto x) { return numerics::is_infinite(x); });
}

}  // namespace

std::string_view format_name(ElementFormat format) { return facts(format).name; }
std::int64_t format_bytes(ElementFormat format) { return facts(format).bytes; }

ElementFormat format_of(moe::Dtype dtype) {
  switch (dtype) {
    case moe::Dtype::kBf16:
      return ElementFormat::kBf16;
    case moe::Dtype::kF16:
      return ElementFormat::kF16;
    case moe::Dtype::kF32:
      return ElementFormat::kF32;
    case moe::Dtype::kE4m3:
      return ElementFormat::kE4m3;
  }
  CONTRACT(false, static_cast<int>(dtype));
}

std::uint32_t load_element(ElementFormat format, const std::byte* elements, std::int64_t index) {
  if (format == ElementFormat::kE2m1)
    return static_cast<std::uint32_t>(elements[index / 2]) >> (index % 2 * 4) & 15u;
  const std::int64_t bytes = format_bytes(format);
  std::uint32_t bits = 0;
  std::memcpy(&bits, elements + index * bytes, static_cast<std::size_t>(bytes));
  return bits;
}

bool is_nan(ElementFormat format, std::uint32_t bits) {
  return is_float(format) &&
         as_float_type(format, bits, [](auto x) { return numerics::is_nan(x); });
}

std::string show_value(ElementFormat format, std::uint32_t bits) {
  if (format == ElementFormat::kInt32) return fmt::format("{}", static_cast<std::int32_t>(bits));
  const std::string hex = fmt::format("0x{:0{}x}", bits, 2 * format_bytes(format));
  if (format == ElementFormat::kBytes) return hex;
  if (format == ElementFormat::kUe8m0)
    return bits == numerics::kUe8m0Nan
               ? hex + " (NaN)"
               : fmt::format("{} (2^{})", hex, static_cast<std::int32_t>(bits) - 127);
  if (is_nan(format, bits)) return hex + " (NaN)";
  const float value =
      as_float_type(format, bits, [](auto x) { return numerics::to_float(numerics::widen(x)); });
  if (std::isinf(value)) return hex + (value < 0 ? " (-Inf)" : " (+Inf)");
  return fmt::format("{} ({:a}, {:.9g})", hex, value, value);
}

std::int64_t ulp_distance(ElementFormat format, std::uint32_t got, std::uint32_t expected) {
  CONTRACT(is_float(format) && !is_nan(format, got) && !is_nan(format, expected), got, expected);
  const auto place = [&](std::uint32_t bits) {
    return as_float_type(format, bits, [](auto x) { return place_on_line(x); });
  };
  return place(got) - place(expected);
}

std::string show_distance(ElementFormat format, std::uint32_t got, std::uint32_t expected) {
  if (got == expected) return "equal bits";
  if (!is_float(format)) {
    const auto number = [](std::uint32_t bits) {
      return std::int64_t{static_cast<std::int32_t>(bits)};
    };
    if (format == ElementFormat::kBytes) return "another byte";
    return fmt::format("off by {:+}", number(got) - number(expected));
  }
  const bool got_nan = is_nan(format, got);
  const bool expected_nan = is_nan(format, expected);
  if (got_nan && expected_nan) return "NaN with other bits";
  if (got_nan) return is_infinite(format, expected) ? "NaN for Inf" : "NaN for a number";
  if (expected_nan) return "a number for NaN";
  if (is_zero(format, got) && is_zero(format, expected)) {
    return as_float_type(format, got, [](auto x) { return numerics::is_negative(x); })
               ? "-0 for +0"
               : "+0 for -0";
  }
  return fmt::format("{:+} ulp {}", ulp_distance(format, got, expected), format_name(format));
}

void UlpHistogram::add(ElementFormat format, std::uint32_t got, std::uint32_t expected) {
  Bin bin = kMore;
  if (got == expected) {
    bin = kEqual;
  } else if (!is_float(format)) {
    bin = kMore;
  } else if (is_nan(format, got) || is_nan(format, expected) || is_infinite(format, got) ||
             is_infinite(format, expected)) {
    bin = kNan;
  } else {
    const std::int64_t distance = std::abs(ulp_distance(format, got, expected));
    bin = distance == 0   ? kZeroSign
          : distance == 1 ? kOne
          : distance == 2 ? kTwo
          : distance <= 8 ? kFew
                          : kMore;
  }
  ++count[bin];
}

std::int64_t UlpHistogram::total() const {
  std::int64_t sum = 0;
  for (const std::int64_t n : count) sum += n;
  return sum;
}

UlpHistogram& UlpHistogram::operator+=(const UlpHistogram& other) {
  for (std::size_t bin = 0; bin < count.size(); ++bin) count[bin] += other.count[bin];
  return *this;
}

std::string UlpHistogram::print() const {
  return fmt::format("0:{} 1:{} 2:{} 3-8:{} >8:{} sign:{} nan/inf:{}", count[kEqual], count[kOne],
                     count[kTwo], count[kFew], count[kMore], count[kZeroSign], count[kNan]);
}

}  // namespace assay::verify
