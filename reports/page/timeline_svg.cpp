#include "reports/page/timeline_svg.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>

#include "reports/text.h"

namespace plimsoll::reports {

namespace {

constexpr double kWidth = 960, kHeight = 440;
constexpr double kLeft = kPlotArea.left, kTop = kPlotArea.top;
constexpr double kPlotWidth = kPlotArea.width, kPlotHeight = kPlotArea.height;
constexpr double kBottom = kHeight - kTop - kPlotHeight;
// The capacity is drawn where the peak takes at least this share of it; otherwise it would flatten
// the picture, and stands in the title.
constexpr double kLeastShare = 0.5;

// Okabe and Ito's colours, which stay apart for colour-blind readers (jfly.uni-koeln.de/color,
// 2008), in the order of models::Category; grey for the workspace.
constexpr std::array<const char*, models::kCategories> kColours{
    "#0072b2", "#e69f00", "#56b4e9", "#009e73", "#cc79a7", "#d55e00", "#f0e442", "#999999"};

constexpr const char* kStyle =
    "text{font:13px system-ui,sans-serif;fill:#1f2328}"
    ".title{font-weight:600;font-size:15px}.faint{fill:#59636e}"
    ".grid{stroke:#d1d9e0;stroke-width:1}.mark{stroke:#1f2328;fill:none}"
    ".capacity{stroke:#cf222e;stroke-width:1.5;stroke-dasharray:6 4}.red{fill:#cf222e}"
    ".back{fill:#fff}"
    "@media(prefers-color-scheme:dark){text{fill:#f0f6fc}.faint{fill:#9198a1}"
    ".grid{stroke:#3d444d}.mark{stroke:#f0f6fc}.capacity{stroke:#ff7b72}.red{fill:#ff7b72}"
    ".back{fill:#0d1117}}";

std::string text_at(double x, double y, std::string_view text, const char* more = "") {
  return fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\"{}>{}</text>\n", x, y, more,
                     xml_escaped(text));
}

class Picture {
 public:
  explicit Picture(const Timeline& timeline) : timeline_(timeline), points_(timeline.points) {
    const std::optional<Bytes>& room = timeline.room;
    if (room && *room > Bytes(0) && timeline.peak.real() > kLeastShare * room->real())
      capacity_ = room->real();
    top_ = std::max(timeline.peak.real(), capacity_.value_or(0));
    if (top_ <= 0)  // a document without a peak
      for (const TimelinePoint& point : points_) top_ = std::max(top_, point.high_water.real());
    top_ = 1.06 * std::max(1.0, top_);
  }

  std::string draw() {
    open();
    grid();
    for (std::size_t c = 0; c < models::kCategories; ++c) area(c);
    phases();
    if (capacity_) capacity_line();
    peak_mark();
    legend();
    out_ += "</svg>\n";
    return std::move(out_);
  }

 private:
  double x(std::size_t point) const {
    return kLeft + kPlotWidth * static_cast<double>(point) / static_cast<double>(points_.size());
  }
  double y(double bytes) const { return kTop + kPlotHeight * (1 - bytes / top_); }
  void add(const std::string& text) { out_ += text; }

  void open() {
    std::string title = fmt::format("{}: memory of rank {} over one training step", timeline_.model,
                                    timeline_.peak_place.rank);
    if (timeline_.room && !capacity_)
      title += fmt::format(", of {} available", bytes_text(*timeline_.room));
    add(
        fmt::format("<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {} {}\" role=\"img\" "
                    "aria-label=\"{}, peak {} in {}, {}\">\n<style>{}</style>\n"
                    "<rect class=\"back\" width=\"{}\" height=\"{}\"/>\n",
                    kWidth, kHeight, xml_escaped(title), bytes_text(timeline_.peak),
                    xml_escaped(timeline_.peak_place.phase),
                    xml_escaped(timeline_.peak_place.where), kStyle, kWidth, kHeight));
    add(text_at(kLeft, 24, title, " class=\"title\""));
  }

  // A line for each 1, 2 or 5 · 10^n GiB (or MiB, KiB), five at most.
  void grid() {
    double unit = 1;
    const char* name = "B";
    for (const char* larger : {"KiB", "MiB", "GiB", "TiB"}) {
      if (top_ < 1024 * unit) break;
      unit *= 1024;
      name = larger;
    }
    const double rough = top_ / unit / 5, power = std::pow(10, std::floor(std::log10(rough)));
    double step = 10 * power;
    for (const double nice : {5.0, 2.0, 1.0})
      if (nice * power >= rough) step = nice * power;
    for (double value = 0; value * unit <= top_; value += step) {
      const double at = y(value * unit);
      add(fmt::format("<line class=\"grid\" x1=\"{}\" x2=\"{}\" y1=\"{:.1f}\" y2=\"{:.1f}\"/>\n",
                      kLeft, kLeft + kPlotWidth, at, at));
      add(text_at(kLeft - 8, at + 4, fmt::format("{:.4g} {}", value, name),
                  " text-anchor=\"end\" class=\"faint\""));
    }
  }

  // What lies below category `c` at a point, `c` itself counted where `with`.
  double level(std::size_t point, std::size_t c, bool with) const {
    Bytes bytes;
    for (std::size_t i = 0; i < c + (with ? 1 : 0); ++i) bytes += points_[point].by_category[i];
    return bytes.real();
  }

  void area(std::size_t c) {
    const auto has = [&](const TimelinePoint& p) { return p.by_category[c] > Bytes(0); };
    if (std::ranges::none_of(points_, has)) return;
    std::string path = fmt::format("M{:.1f} {:.1f}", x(0), y(level(0, c, false)));
    const auto edge = [&](std::size_t from, std::size_t to, double bytes) {
      path += fmt::format("L{:.1f} {:.1f}L{:.1f} {:.1f}", x(from), y(bytes), x(to), y(bytes));
    };
    for (std::size_t i = 0; i < points_.size(); ++i) edge(i, i + 1, level(i, c, true));
    for (std::size_t i = points_.size(); i-- > 0;) edge(i + 1, i, level(i, c, false));
    add(fmt::format("<path fill=\"{}\" d=\"{}Z\"/>\n", kColours[c], path));
  }

  // A checkpointed block recomputes within the backward pass.
  std::string_view part_of(std::size_t point) const {
    const std::string& phase = points_[point].phase;
    return phase == name_of(models::Phase::recompute) ? name_of(models::Phase::backward)
                                                      : std::string_view(phase);
  }

  void phases() {
    for (std::size_t begin = 0, end = 0; begin < points_.size(); begin = end) {
      bool recomputes = false;
      for (; end < points_.size() && part_of(end) == part_of(begin); ++end)
        recomputes = recomputes || points_[end].phase != part_of(end);
      const double left = x(begin), right = x(end), at = kTop + kPlotHeight;
      add(fmt::format("<path class=\"mark\" d=\"M{:.1f} {:.1f}v6H{:.1f}v-6\"/>\n", left + 1, at + 4,
                      right - 1));
      const std::string name =
          std::string(part_of(begin)) + (recomputes ? ", with recomputation" : "");
      const bool last = end == points_.size();
      if (right - left > 7.5 * static_cast<double>(name.size()))
        add(text_at((left + right) / 2, at + 27, name, " text-anchor=\"middle\""));
      else if (last)
        add(text_at(left, at + 27, name));
    }
  }

  void capacity_line() {
    const double at = y(*capacity_);
    add(fmt::format("<line class=\"capacity\" x1=\"{}\" x2=\"{}\" y1=\"{:.1f}\" y2=\"{:.1f}\"/>\n",
                    kLeft, kLeft + kPlotWidth, at, at));
    add(text_at(kLeft + kPlotWidth + 8, at + 4, "available to tensors", " class=\"red\""));
    add(text_at(kLeft + kPlotWidth + 8, at + 20, bytes_text(Bytes(std::llround(*capacity_))),
                " class=\"red\""));
  }

  std::size_t peak_point() const {
    const auto most = std::ranges::max_element(points_, {}, &TimelinePoint::high_water);
    return static_cast<std::size_t>(most - points_.begin());
  }

  void peak_mark() {
    const double middle = (x(peak_point()) + x(peak_point() + 1)) / 2,
                 at = y(timeline_.peak.real());
    add(fmt::format("<path class=\"mark\" d=\"M{:.1f} {:.1f}l-5 -8h10z\"/>\n", middle, at - 1));
    const std::string text = fmt::format("peak {}: {}, {}", bytes_text(timeline_.peak),
                                         timeline_.peak_place.phase, timeline_.peak_place.where);
    const bool left = middle > kLeft + kPlotWidth / 2;
    add(text_at(left ? middle - 10 : middle + 10, at - 5, text,
                left ? " text-anchor=\"end\"" : ""));
  }

  // From the top as the areas lie, with the bytes at the peak.
  void legend() {
    double at = kHeight - kBottom - 18.0 * models::kCategories + 10;
    add(text_at(kLeft + kPlotWidth + 8, at - 18, "at the peak", " class=\"faint\""));
    for (std::size_t c = models::kCategories; c-- > 0; at += 18) {
      const std::string name = models::name_of(static_cast<models::Category>(c));
      add(fmt::format("<rect x=\"{}\" y=\"{:.1f}\" width=\"11\" height=\"11\" fill=\"{}\"/>\n",
                      kLeft + kPlotWidth + 8, at - 10, kColours[c]));
      add(text_at(kLeft + kPlotWidth + 24, at, name));
      add(text_at(kWidth - 6, at, bytes_text(timeline_.at_peak[c]),
                  " text-anchor=\"end\" class=\"faint\""));
    }
  }

  const Timeline& timeline_;
  const std::vector<TimelinePoint>& points_;
  std::optional<double> capacity_;
  double top_ = 0;
  std::string out_;
};

}  // namespace

std::string xml_escaped(std::string_view text) {
  std::string out;
  for (const char c : printable(text)) {
    switch (c) {
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '&':
        out += "&amp;";
        break;
      case '"':
        out += "&quot;";
        break;
      default:
        out += c;
    }
  }
  return out;
}

const char* colour_of(models::Category category) {
  return kColours[static_cast<std::size_t>(category)];
}

Timeline timeline_of(const Plan& plan) {
  Timeline out{plan.model_name, plan.timeline, plan.peak_place, plan.peak, plan.at_peak, {}};
  if (plan.usable) out.room = *plan.usable - plan.overhead.total();
  return out;
}

std::string timeline_svg(const Timeline& timeline) {
  return timeline.points.empty() ? "" : Picture(timeline).draw();
}

}  // namespace plimsoll::reports
