// See svg.hpp.
#include "tools/cli/svg.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <string_view>

namespace assay::tools {
namespace {

// In pixels of the picture's own units.
constexpr double kPanelWidth = 480, kPlotHeight = 280, kTop = 64, kLegendLine = 18;
constexpr double kLeft = 62, kRight = 18, kBelow = 52;
// Okabe and Ito's colours for people who see them differently, without yellow, which is faint.
constexpr std::string_view kColours[] = {"#0072b2", "#d55e00", "#009e73",
                                         "#cc79a7", "#56b4e9", "#000000"};

std::string escaped(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if (c == '&')
      out += "&amp;";
    else if (c == '<')
      out += "&lt;";
    else if (c == '>')
      out += "&gt;";
    else if (c == '"')
      out += "&quot;";
    else if (static_cast<unsigned char>(c) < 0x20)
      out += ' ';  // XML 1.0 has no spelling for most control characters
    else
      out += c;
  }
  return out;
}

bool drawable(const std::pair<double, double>& p) {
  return std::isfinite(p.first) && p.first > 0 && std::isfinite(p.second);
}

// Whole decades around all points.
struct Axis {
  int low = 0, high = 1;

  explicit Axis(const PlotPanel& panel) {
    double least = HUGE_VAL, most = -HUGE_VAL;
    for (const PlotSeries& s : panel.series) {
      for (const auto& p : s.xy) {
        if (!drawable(p)) continue;
        least = std::min(least, std::log10(p.first));
        most = std::max(most, std::log10(p.first));
      }
    }
    if (!(least <= most)) return;
    low = static_cast<int>(std::floor(least));
    high = std::max(low + 1, static_cast<int>(std::ceil(most)));
  }
  double at(double x) const {
    const double share = (std::log10(x) - low) / (high - low);
    return kLeft + share * (kPanelWidth - kLeft - kRight);
  }
};

double height_at(double y) { return kTop + (1 - y) * kPlotHeight; }

std::string text(double x, double y, std::string_view anchor, std::string_view extra,
                 std::string_view words) {
  return fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"{}\"{}>{}</text>\n", x, y,
                     anchor, extra, escaped(words));
}

std::string grid(const Axis& axis) {
  std::string out;
  for (int percent = 0; percent <= 100; percent += 20) {
    const double y = height_at(percent / 100.0);
    out += fmt::format("<path d=\"M{:.1f} {:.1f}H{:.1f}\" stroke=\"#ddd\"/>\n", kLeft, y,
                       kPanelWidth - kRight);
    out += text(kLeft - 8, y + 4, "end", "", fmt::format("{} %", percent));
  }
  // Labels at every decade, or every second or so where they would touch.
  const int step = (axis.high - axis.low + 7) / 8;
  for (int decade = axis.low; decade <= axis.high; ++decade) {
    const double x = axis.at(std::pow(10.0, decade));
    out += fmt::format("<path d=\"M{:.1f} {:.1f}V{:.1f}\" stroke=\"#ddd\"/>\n", x, height_at(0),
                       height_at(1));
    if ((decade - axis.low) % step == 0)
      out += text(x, height_at(0) + 18, "middle", "",
                  decade >= -3 && decade <= 5 ? fmt::format("{:g}", std::pow(10.0, decade))
                                              : fmt::format("1e{}", decade));
  }
  return out;
}

std::string points(const PlotSeries& s, const Axis& axis, std::string_view colour) {
  std::string out = fmt::format("<g fill=\"{}\" fill-opacity=\"0.75\">\n", colour);
  for (const auto& p : s.xy)
    if (drawable(p))
      out += fmt::format("<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"3\"/>\n", axis.at(p.first),
                         height_at(std::clamp(p.second, 0.0, 1.0)));
  return out + "</g>\n";
}

std::string_view dashes(const PlotSeries& s) {
  return s.style == PlotSeries::Style::kDashed ? " stroke-dasharray=\"6 4\"" : "";
}

std::string line(const PlotSeries& s, const Axis& axis, std::string_view colour) {
  std::string path;
  for (const auto& p : s.xy) {
    if (!drawable(p) || p.second < 0 || p.second > 1) continue;
    path += fmt::format("{}{:.1f} {:.1f}", path.empty() ? "M" : "L", axis.at(p.first),
                        height_at(p.second));
  }
  if (path.empty()) return "";
  return fmt::format("<path d=\"{}\" fill=\"none\" stroke=\"{}\" stroke-width=\"2\"{}/>\n", path,
                     colour, dashes(s));
}

std::string panel_text(const PlotPanel& panel) {
  const Axis axis(panel);
  std::string out = text(kLeft, kTop - 14, "start", " font-weight=\"bold\"", panel.title);
  out += grid(axis);
  double legend = kTop + kPlotHeight + kBelow + 8;
  std::size_t colour_index = 0;
  for (const PlotSeries& s : panel.series) {
    const std::string_view colour = kColours[colour_index++ % std::size(kColours)];
    const bool dots = s.style == PlotSeries::Style::kPoints;
    out += dots ? points(s, axis, colour) : line(s, axis, colour);
    if (s.name.empty()) continue;
    out += dots
               ? fmt::format("<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"3\" fill=\"{}\"/>\n",
                             kLeft + 12, legend - 4, colour)
               : fmt::format("<path d=\"M{:.1f} {:.1f}h24\" stroke=\"{}\" stroke-width=\"2\"{}/>\n",
                             kLeft, legend - 4, colour, dashes(s));
    out += text(kLeft + 32, legend, "start", "", s.name);
    legend += kLegendLine;
  }
  out += fmt::format("<path d=\"M{:.1f} {:.1f}V{:.1f}H{:.1f}\" fill=\"none\" stroke=\"#333\"/>\n",
                     kLeft, height_at(1), height_at(0), kPanelWidth - kRight);
  out += text((kLeft + kPanelWidth - kRight) / 2, height_at(0) + 40, "middle", "", panel.x_label);
  out +=
      text(0, 0, "middle",
           fmt::format(" transform=\"translate(14 {:.1f}) rotate(-90)\"", kTop + kPlotHeight / 2),
           panel.y_label);
  return out;
}

}  // namespace

std::string svg_plot(const std::string& title, const std::vector<PlotPanel>& panels) {
  std::size_t entries = 0;
  for (const PlotPanel& panel : panels) {
    const auto named = std::count_if(panel.series.begin(), panel.series.end(),
                                     [](const PlotSeries& s) { return !s.name.empty(); });
    entries = std::max(entries, static_cast<std::size_t>(named));
  }
  const double width = kPanelWidth * static_cast<double>(std::max<std::size_t>(1, panels.size()));
  const double height =
      kTop + kPlotHeight + kBelow + kLegendLine * static_cast<double>(entries) + 8;
  std::string out = fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{0:g}\" height=\"{1:g}\" "
      "viewBox=\"0 0 {0:g} {1:g}\" role=\"img\" font-family=\"sans-serif\" font-size=\"13\" "
      "fill=\"#222\">\n<title>{2}</title>\n<rect width=\"{0:g}\" height=\"{1:g}\" "
      "fill=\"#fff\"/>\n",
      width, height, escaped(title));
  out += text(kLeft, 26, "start", " font-size=\"15\"", title);
  for (std::size_t i = 0; i < panels.size(); ++i)
    out += fmt::format("<g transform=\"translate({:g} 0)\">\n{}</g>\n",
                       kPanelWidth * static_cast<double>(i), panel_text(panels[i]));
  return out + "</svg>\n";
}

}  // namespace assay::tools
