// The curve through measured pairs of sparsity and threshold scale factor. Decides the two forms
// and the norm of the fit (SPEC ATT-8.5), to which published tables are held (SPEC ATT-8.7); where
// pairs come from is calibration.hpp's business.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "model/core/expected.hpp"

namespace assay::attention {

enum class FitForm : std::uint8_t {
  kExponential,  // a * exp(b * S), Model Optimizer's and TensorRT-LLM's
  kPower,        // a / (1 - S)^b, what Model Optimizer had before
};
std::string_view fit_form_name(FitForm form);  // "a * exp(b * S)", "a / (1 - S)^b"

struct FitPoint {
  double sparsity = 0;  // in [0, 1)
  double factor = 0;    // positive
};

struct Fit {
  FitForm form = FitForm::kExponential;
  double a = 0;
  double b = 0;
  double r2 = 0;                  // of ln(factor)
  double max_relative_error = 0;  // largest |fitted / given - 1| of a factor
  std::size_t points = 0;

  double factor(double sparsity) const;
  // The inverse; 0 below the smallest factor of the curve, and b is not 0.
  double sparsity(double factor) const;
};

// Least squares of ln(factor), which is linear in both forms. Errors: fewer than two points of
// different sparsity, a sparsity outside [0, 1), a factor that is not a positive number.
Expected<Fit> fit_factors(FitForm form, std::span<const FitPoint> points);

}  // namespace assay::attention
