// See device_subject.hpp.
#include "verify/attention/device_subject.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace assay::verify {
namespace {

using attention::Problem;
using attention::Profile;

constexpr std::string_view kProfiles[] = {profile_of(DeviceKernel::kPrefill),
                                          profile_of(DeviceKernel::kDecode)};

AttentionRun declined(std::string why) {
  return {AttentionRun::State::kUnsupported, std::move(why), {}};
}
AttentionRun failed(std::string why) { return {AttentionRun::State::kFailed, std::move(why), {}}; }

class DeviceSubject : public AttentionSubject {
 public:
  DeviceSubject(std::string name, std::unique_ptr<CallDevice> device)
      : name_(std::move(name)), device_(std::move(device)) {}
  std::string name() const override { return name_; }
  std::span<const std::string_view> profiles() const override {
    const std::span<const std::string_view> all = kProfiles;
    const auto one = device_->only();
    if (!one) return all;
    return all.subspan(one->kernel == DeviceKernel::kPrefill ? 0 : 1, 1);
  }
  AttentionCase served(const AttentionCase& c) const override {
    return served_case(c, device_->only());
  }
  AttentionCase drawn(const AttentionCase& c) const override {
    return drawn_case(c, device_->only());
  }
  std::int32_t served_page(std::int32_t rows) const override { return verify::served_page(rows); }

  AttentionRun run(const Profile& profile, const Problem& problem, int) const override {
    if (!lost_.empty())
      return declined(fmt::format("the device is lost since an earlier call: {}", lost_));
    auto call = DeviceCall::make(profile, problem);
    if (!call) return declined(call.error().sentence);
    if (const auto one = device_->only(); one && one->kernel != call->kernel())
      return declined(fmt::format("this is a wrong kernel of {}, and the profile is {}",
                                  profile_of(one->kernel), profile_of(call->kernel())));
    for (const bool traced : {true, false}) {
      const Status served = device_->check(call->kernel(), call->nowhere(traced));
      if (!served) return declined(served.error().sentence);
    }
    if (!call->has_rows()) return {};
    AttentionRun with_decisions = run_once(*call, true);
    if (with_decisions.state != AttentionRun::State::kOk) return with_decisions;
    const AttentionRun without = run_once(*call, false);
    if (without.state != AttentionRun::State::kOk) return without;
    const std::string difference =
        difference_of(*call, problem, with_decisions.answer, without.answer);
    return difference.empty() ? with_decisions : failed(difference);
  }

 private:
  AttentionRun run_once(const DeviceCall& call, bool traced) const {
    const auto bytes = device_->run(call, traced);
    if (bytes) return call.answer(*bytes, traced);
    if (!device_->usable()) lost_ = bytes.error().sentence;
    // A launch that this device has no kernel for is no failure of one.
    return bytes.error().kind == ErrorKind::kUnsupported && device_->usable()
               ? declined(bytes.error().sentence)
               : failed(bytes.error().sentence);
  }

  static std::string difference_of(const DeviceCall& call, const Problem& problem,
                                   const AttentionAnswer& a, const AttentionAnswer& b) {
    const auto dim = static_cast<std::size_t>(problem.v_dim);
    const auto heads = static_cast<std::size_t>(problem.q_heads);
    const auto place = [&](std::size_t row) {
      return fmt::format("row {} head {}", row / heads, row % heads);
    };
    const std::string words =
        call.kernel() == DeviceKernel::kPrefill
            ? "asked for decisions, the kernel gives other bits than without: "
            : fmt::format(
                  "asked for decisions and for {} splits, the kernel gives other bits than without "
                  "and cut as the launcher does: ",
                  call.splits());
    for (std::size_t i = 0; i < a.out.size(); ++i)
      if (a.out[i] != b.out[i])
        return fmt::format("{}out at {} element {} is {:04x} and {:04x}", words, place(i / dim),
                           i % dim, a.out[i], b.out[i]);
    for (std::size_t i = 0; i < a.lse.size(); ++i)
      if (a.lse[i].bits != b.lse[i].bits)
        return fmt::format("{}lse at {} is {:08x} and {:08x}", words, place(i), a.lse[i].bits,
                           b.lse[i].bits);
    if (a.visited != b.visited || a.skipped != b.skipped)
      return fmt::format("{}{} tiles visited and {} skipped, and {} and {}", words, *a.visited,
                         *a.skipped, *b.visited, *b.skipped);
    return "";
  }

  std::string name_;
  std::unique_ptr<CallDevice> device_;
  mutable std::string lost_;  // why no further call is run
};

}  // namespace

std::unique_ptr<AttentionSubject> device_subject(std::string name,
                                                 std::unique_ptr<CallDevice> device) {
  return std::make_unique<DeviceSubject>(std::move(name), std::move(device));
}

std::int32_t served_page(std::int32_t rows) {
  std::int32_t page = 8;
  while (page < rows && page < 64) page *= 2;
  return page;
}

AttentionCase drawn_case(AttentionCase c, const std::optional<OneKernel>& only) {
  if (c.seed % 8 == 0) c.dim = 256;
  // Random cases have up to 300 keys: up to 1200 and, one in sixteen, 4800, three chunks of a
  // decode.
  for (std::int32_t& keys : c.kv) keys *= c.seed / 8 % 16 == 0 ? 16 : 4;
  return served_case(std::move(c), only);
}

AttentionCase served_case(AttentionCase c, const std::optional<OneKernel>& only) {
  const int larger = std::max(c.dim, c.v_dim);
  c.dim = larger <= 64 && c.dtype != Dtype::kF8E4m3 ? 64 : larger <= 128 ? 128 : 256;
  if (only) c.dtype = only->dtype, c.dim = only->head_dim;
  c.v_dim = c.dim;
  if (c.page > 0) c.page = served_page(c.page);
  return c;
}

}  // namespace assay::verify
