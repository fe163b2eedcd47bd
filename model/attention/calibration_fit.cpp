// Least squares in the logarithm of the factor. Decides SPEC ATT-8.5.
#include "model/attention/calibration_fit.hpp"

#include <fmt/format.h>

#include <Eigen/Dense>
#include <algorithm>
#include <cmath>

#include "model/core/contract.hpp"

namespace assay::attention {
namespace {

double abscissa(FitForm form, double sparsity) {
  return form == FitForm::kExponential ? sparsity : -std::log1p(-sparsity);
}

Status check(std::span<const FitPoint> points) {
  double lowest = 1, highest = 0;
  for (const FitPoint& p : points) {
    if (!(p.sparsity >= 0 && p.sparsity < 1))
      return bad_input(fmt::format("a sparsity is {}; allowed are 0 to below 1", p.sparsity));
    if (!(p.factor > 0) || !std::isfinite(p.factor))
      return bad_input(fmt::format("a factor is {}; allowed are positive numbers", p.factor));
    lowest = std::min(lowest, p.sparsity);
    highest = std::max(highest, p.sparsity);
  }
  if (!(lowest < highest))
    return bad_input(fmt::format(
        "{} points of one sparsity fix no curve; allowed are two or more of different sparsity",
        points.size()));
  return Done{};
}

}  // namespace

std::string_view fit_form_name(FitForm form) {
  return form == FitForm::kExponential ? "a * exp(b * S)" : "a / (1 - S)^b";
}

double Fit::factor(double sparsity) const { return a * std::exp(b * abscissa(form, sparsity)); }

double Fit::sparsity(double factor) const {
  CONTRACT(b != 0, a, b);
  const double x = std::max(0.0, std::log(factor / a) / b);
  return form == FitForm::kExponential ? x : -std::expm1(-x);
}

Expected<Fit> fit_factors(FitForm form, std::span<const FitPoint> points) {
  ASSAY_CHECK(check(points));
  const auto n = static_cast<Eigen::Index>(points.size());
  Eigen::MatrixX2d design(n, 2);
  Eigen::VectorXd logs(n);
  for (Eigen::Index i = 0; i < n; ++i) {
    const FitPoint& p = points[static_cast<std::size_t>(i)];
    design.row(i) << 1, abscissa(form, p.sparsity);
    logs(i) = std::log(p.factor);
  }
  const Eigen::Vector2d solution = design.colPivHouseholderQr().solve(logs);
  Fit fit;
  fit.form = form;
  fit.a = std::exp(solution(0));
  fit.b = solution(1);
  fit.points = points.size();
  const double spread = (logs.array() - logs.mean()).square().sum();
  fit.r2 = spread > 0 ? 1 - (logs - design * solution).squaredNorm() / spread : 0;
  for (const FitPoint& p : points)
    fit.max_relative_error =
        std::max(fit.max_relative_error, std::abs(fit.factor(p.sparsity) / p.factor - 1));
  return fit;
}

}  // namespace assay::attention
