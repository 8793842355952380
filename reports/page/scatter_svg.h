// Planned against measured figures as a picture: a panel for each figure, both axes logarithmic, a
// point a run, the line where they agree. Light or dark as the reader's system is.
#pragma once

#include <string>
#include <vector>

namespace plimsoll::reports {

struct ScatterPoint {
  double measured, planned;  // above zero
  bool in_sample = false;  // constants were fitted on it: drawn hollow
};

struct ScatterPanel {
  std::string title;
  std::string unit;  // of what the axes show
  double scale = 1;  // figures are divided by it
  std::vector<ScatterPoint> points;
};

// A self-contained SVG file; panels without points are left out. "" where none has any.
std::string scatter_svg(const std::string& title, const std::vector<ScatterPanel>& panels);

}  // namespace plimsoll::reports
