// Plots as SVG text: panels side by side, a logarithmic x axis, y in percent, points and lines with
// a legend. Decides how they look. Self-contained: no scripts, styles from elsewhere, fonts or
// links; equal plots give equal bytes.
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace assay::tools {

struct PlotSeries {
  std::string name;  // in the legend; empty: not there
  enum class Style { kPoints, kLine, kDashed } style = Style::kPoints;
  std::vector<std::pair<double, double>> xy;  // x positive; y from 0 to 1
};

struct PlotPanel {
  std::string title;
  std::string x_label;
  std::string y_label;
  std::vector<PlotSeries> series;
};

// What is not finite, or has an x that is not positive, is left out; lines end at 0 and 1.
std::string svg_plot(const std::string& title, const std::vector<PlotPanel>& panels);

}  // namespace assay::tools
