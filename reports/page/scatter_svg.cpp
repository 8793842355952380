#include "reports/page/scatter_svg.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "reports/page/timeline_svg.h"

namespace plimsoll::reports {

namespace {

constexpr double kSide = 260, kLeft = 64, kTop = 72, kGap = 84, kFoot = 56;

constexpr const char* kStyle =
    "text{font:12px system-ui,sans-serif;fill:#1f2328}"
    ".title{font-weight:600;font-size:15px}.faint{fill:#59636e}"
    ".grid{stroke:#d1d9e0;stroke-width:1}.equal{stroke:#59636e;stroke-dasharray:5 4}"
    ".point{fill:#0072b2;fill-opacity:.55}.sample{fill:none;stroke:#d55e00;stroke-width:1.3}"
    ".back{fill:#fff}"
    "@media(prefers-color-scheme:dark){text{fill:#f0f6fc}.faint{fill:#9198a1}"
    ".grid{stroke:#3d444d}.equal{stroke:#9198a1}.point{fill:#56b4e9}.sample{stroke:#e69f00}"
    ".back{fill:#0d1117}}";

std::string text_at(double x, double y, std::string_view text, const char* more) {
  return fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\"{}>{}</text>\n", x, y, more,
                     xml_escaped(text));
}

class Panel {
 public:
  Panel(const ScatterPanel& panel, double left) : panel_(panel), left_(left) {
    for (const ScatterPoint& point : panel.points)
      for (const double figure : {point.measured, point.planned}) {
        least_ = std::min(least_, figure / panel.scale);
        most_ = std::max(most_, figure / panel.scale);
      }
    least_ /= 1.15;
    most_ *= 1.15;
  }

  std::string draw() const {
    std::string out = text_at(left_, kTop - 12, panel_.title, "");
    for (const double value : lines()) {
      const double x = place(value), y = height(value);
      out +=
          fmt::format("<path class=\"grid\" d=\"M{:.1f} {:.1f}v{:.1f}M{:.1f} {:.1f}h{:.1f}\"/>\n",
                      x, kTop, kSide, left_, y, kSide);
      const std::string text = fmt::format("{:g}", value);
      out += text_at(x, kTop + kSide + 16, text, " text-anchor=\"middle\" class=\"faint\"");
      out += text_at(left_ - 6, y + 4, text, " text-anchor=\"end\" class=\"faint\"");
    }
    out += fmt::format("<path class=\"equal\" d=\"M{:.1f} {:.1f}L{:.1f} {:.1f}\"/>\n", left_,
                       kTop + kSide, left_ + kSide, kTop);
    for (const ScatterPoint& point : panel_.points)
      out += fmt::format("<circle class=\"{}\" cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"3\"/>\n",
                         point.in_sample ? "sample" : "point", place(point.measured / panel_.scale),
                         height(point.planned / panel_.scale));
    return out + text_at(left_ + kSide / 2, kTop + kSide + 36,
                         fmt::format("measured, {} (planned: upwards)", panel_.unit),
                         " text-anchor=\"middle\" class=\"faint\"");
  }

 private:
  double share(double value) const { return std::log(value / least_) / std::log(most_ / least_); }
  double place(double value) const { return left_ + kSide * share(value); }
  double height(double value) const { return kTop + kSide * (1 - share(value)); }

  // 1, 2 and 5 · 10^n; over more than two decades only 10^n.
  std::vector<double> lines() const {
    const bool few = most_ / least_ > 100;
    std::vector<double> out;
    for (int power = static_cast<int>(std::floor(std::log10(least_))); power < 18; ++power)
      for (const double digit : {1.0, 2.0, 5.0}) {
        const double value = digit * std::pow(10.0, power);
        if (value >= least_ && value <= most_ && (!few || digit == 1.0)) out.push_back(value);
      }
    return out;
  }

  const ScatterPanel& panel_;
  double left_;
  double least_ = std::numeric_limits<double>::infinity(), most_ = 0;
};

}  // namespace

std::string scatter_svg(const std::string& title, const std::vector<ScatterPanel>& panels) {
  std::string drawn;
  double left = kLeft;
  for (const ScatterPanel& panel : panels) {
    if (panel.points.empty()) continue;
    drawn += Panel(panel, left).draw();
    left += kSide + kGap;
  }
  if (drawn.empty()) return "";
  const double width = left - kGap + 24, height = kTop + kSide + kFoot;
  return fmt::format(
             "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {} {}\" role=\"img\" "
             "aria-label=\"{}\">\n<style>{}</style>\n"
             "<rect class=\"back\" width=\"{}\" height=\"{}\"/>\n",
             width, height, xml_escaped(title), kStyle, width, height) +
         text_at(kLeft, 26, title, " class=\"title\"") + drawn + "</svg>\n";
}

}  // namespace plimsoll::reports
