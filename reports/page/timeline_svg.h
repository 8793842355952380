// Memory over one step as a picture: a stacked area for each category, the phases below, the
// capacity as a line, the peak marked. Light or dark as the reader's system is.
#pragma once

#include <array>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "reports/record.h"

namespace plimsoll::reports {

// What is drawn: one step of the picture for each point, and in it the bytes by category at the
// point's high-water mark.
struct Timeline {
  std::string model;
  std::vector<TimelinePoint> points;
  Place peak_place;
  Bytes peak;
  ByCategory at_peak{};
  std::optional<Bytes> room;  // for tensors: the card less what does not go through the allocator
};
Timeline timeline_of(const Plan& plan);

// Where the points lie, side by side, in the picture's units.
struct PlotArea {
  double left, width, top, height;
};
constexpr PlotArea kPlotArea{64, 700, 56, 340};

// A self-contained SVG file. "" where there is no point (model states only).
std::string timeline_svg(const Timeline& timeline);

// "#rrggbb" of a category, the same in every picture.
const char* colour_of(models::Category category);

// `text` for an element or an attribute in double quotes of XML or HTML: names come from files.
std::string xml_escaped(std::string_view text);

}  // namespace plimsoll::reports
