// Planted curves come back, and the published tables of calibrated factors are fitted again.
#include "model/attention/calibration_fit.hpp"

#include <array>
#include <cmath>
#include <vector>

#include "model/core/testing.hpp"

using namespace assay;
using namespace assay::attention;
using assay::testing::prop;

namespace {

// Relative to what is expected.
double differ(double got, double expected) { return std::abs(got / expected - 1); }

Fit fitted(FitForm form, const std::vector<FitPoint>& points) {
  const Expected<Fit> fit = fit_factors(form, points);
  INFO((fit ? std::string() : fit.error().sentence));
  REQUIRE(fit.has_value());
  return *fit;
}

std::vector<FitPoint> rows(double first_sparsity, const std::vector<double>& factors) {
  std::vector<FitPoint> points;
  for (std::size_t i = 0; i < factors.size(); ++i)
    points.push_back({first_sparsity + 0.1 * static_cast<double>(i), factors[i]});
  return points;
}

// TensorRT-LLM's blog 16 at 0cedc792, Qwen3-30B-A3B-Instruct-2507: target sparsity 0.1 to 0.9.
const std::vector<double> kPrefill = {18.76,   44.37,   104.97,  248.40,  587.18,
                                      1390.63, 3293.04, 7799.91, 18471.56};
const std::vector<double> kDecode = {0.32, 0.86, 2.30, 6.17, 16.52, 44.26, 118.62, 317.99, 852.20};
// Its early draft at 8b11dfb9, the same model: 0.5 to 0.9.
const std::vector<double> kDraftPrefill = {85.97, 333.81, 469.03, 718.14, 1418.14};
const std::vector<double> kDraftDecode = {55.48, 118.90, 254.23, 418.73, 863.14};

}  // namespace

TEST_CASE("a planted curve comes back", "[ATT-8.5]") {
  prop("both forms, any coefficients", [] {
    const FitForm form = *rc::gen::element(FitForm::kExponential, FitForm::kPower);
    Fit planted;
    planted.form = form;
    planted.a = std::exp(0.01 * *rc::gen::inRange(-500, 1000));
    planted.b = 0.01 * *rc::gen::inRange(10, 1500);
    std::vector<FitPoint> points;
    const int count = *rc::gen::inRange(2, 40);
    for (int i = 0; i < count; ++i) {
      const double s = 0.1 + 0.8 * i / (count - 1.0);
      points.push_back({s, planted.factor(s)});
    }
    const Expected<Fit> fit = fit_factors(form, points);
    RC_ASSERT(fit.has_value());
    RC_ASSERT(std::abs(fit->a / planted.a - 1) < 1e-9);
    RC_ASSERT(std::abs(fit->b - planted.b) < 1e-9 * (1 + planted.b));
    RC_ASSERT(fit->r2 > 1 - 1e-9);
    RC_ASSERT(fit->max_relative_error < 1e-9);
    RC_ASSERT(std::abs(fit->sparsity(fit->factor(0.37)) - 0.37) < 1e-9);
  });
}

TEST_CASE("errors of points around a curve come out as r2 and relative error", "[ATT-8.5]") {
  // Factors 10 % above and below in turn: a curve through the middle, and no better one, because
  // both groups lie evenly over the sparsities.
  std::vector<FitPoint> points;
  for (int i = 0; i < 8; ++i) {
    const double s = 0.1 * (1 + i / 2);
    points.push_back({s, 5 * std::exp(6 * s) * (i % 2 == 0 ? 1.1 : 1 / 1.1)});
  }
  const Fit fit = fitted(FitForm::kExponential, points);
  CHECK(differ(fit.a, 5) <= 1e-9);
  CHECK(differ(fit.b, 6) <= 1e-9);
  CHECK(differ(fit.max_relative_error, 0.1) <= 1e-9);
  // By hand: ln 1.1 squared times 8, over that plus 2 * 6^2 * (0.15^2 + 0.05^2) * 2.
  const double residual = 8 * std::log(1.1) * std::log(1.1);
  const double explained = 36 * 4 * (0.15 * 0.15 + 0.05 * 0.05);
  CHECK(differ(fit.r2, explained / (explained + residual)) <= 1e-9);
}

TEST_CASE("points that fix no curve are refused", "[ATT-8.5]") {
  using Points = std::vector<FitPoint>;
  const auto refuses = [](const Points& points, const std::string& says) {
    const Expected<Fit> fit = fit_factors(FitForm::kExponential, points);
    REQUIRE(!fit.has_value());
    INFO(fit.error().sentence);
    CHECK(fit.error().sentence.find(says) != std::string::npos);
  };
  refuses({}, "0 points");
  refuses({{0.5, 3}}, "1 points");
  refuses({{0.5, 3}, {0.5, 4}}, "different sparsity");
  refuses({{0.5, 3}, {1.0, 4}}, "1; allowed");
  refuses({{0.5, 3}, {std::nan(""), 4}}, "nan");
  refuses({{0.5, 0}, {0.6, 4}}, "factor is 0");
  refuses({{0.5, 3}, {0.6, HUGE_VAL}}, "factor is inf");
}

TEST_CASE("the published table is one exponential, row by row", "[ATT-8.7]") {
  const Fit prefill = fitted(FitForm::kExponential, rows(0.1, kPrefill));
  CHECK(std::abs(prefill.a - 7.92) <= 5e-3);
  CHECK(std::abs(prefill.b - 8.615) <= 5e-4);
  CHECK(prefill.r2 > 0.999999);
  CHECK(prefill.max_relative_error < 0.0015);
  const Fit decode = fitted(FitForm::kExponential, rows(0.1, kDecode));
  CHECK(std::abs(decode.a - 0.1196) <= 5e-4);
  CHECK(std::abs(decode.b - 9.857) <= 5e-4);
  CHECK(decode.max_relative_error < 0.002);
  // With all nine rows the older form is far off, so the table was made with this one.
  CHECK(fitted(FitForm::kPower, rows(0.1, kPrefill)).max_relative_error > 0.3);
}

TEST_CASE("the draft's table is no exponential, and no power either", "[ATT-8.7]") {
  const Fit prefill = fitted(FitForm::kExponential, rows(0.5, kDraftPrefill));
  const Fit decode = fitted(FitForm::kExponential, rows(0.5, kDraftDecode));
  CHECK(prefill.r2 < 0.96);
  CHECK(prefill.max_relative_error > 0.3);
  CHECK(decode.r2 > 0.99);
  CHECK(decode.max_relative_error > 0.05);
  CHECK(fitted(FitForm::kPower, rows(0.5, kDraftPrefill)).max_relative_error > 0.3);
}

TEST_CASE("the two published tables differ by up to 13 times in prefill", "[ATT-8.7]") {
  const std::array<double, 5> ratios = {6.8, 4.2, 7.0, 10.9, 13.0};
  for (std::size_t i = 0; i < ratios.size(); ++i)
    CHECK(std::abs(kPrefill[4 + i] / kDraftPrefill[i] - ratios[i]) <= 0.05);
}

TEST_CASE("with the published factors lambda crosses 1 at these lengths", "[ATT-8.6]") {
  // lambda = F / L: at 16k and 90 % it is 1.127, at 8k and 80 % 0.952.
  CHECK(std::abs(kPrefill[8] / 16384 - 1.127) <= 5e-4);
  CHECK(std::abs(kPrefill[7] / 8192 - 0.952) <= 5e-4);
}
