#include "reports/plot.h"

#include <doctest/doctest.h>

#include <sstream>

using namespace plimsoll;
using namespace plimsoll::reports;

namespace {
Timeline two_points() {
  Timeline timeline;
  timeline.peak = 16_GiB;
  timeline.points = {{.op = "a", .phase = "forward", .high_water = 16_GiB},
                     {.op = "b", .phase = "backward", .high_water = 4_GiB}};
  timeline.points[0].by_category = {4_GiB, 0_B, 0_B, 12_GiB};
  timeline.points[1].by_category = {4_GiB};
  return timeline;
}

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  return lines;
}
}  // namespace

TEST_CASE(
    "a plot has a row for each sixteenth of the peak and a column for each part of the step") {
  // 16 rows of 1 GiB, 70 columns for two points: 12 rows of activations over the first 35 columns,
  // then 4 rows of parameters over all 70.
  const auto lines = lines_of(timeline_plot(two_points(), {.columns = 80}));
  REQUIRE(lines.size() == 20);  // a blank line, the title, 16 rows, the phases, the legend
  CHECK(lines[2] == "16.0 GiB |" + std::string(35, 'A'));
  CHECK(lines[13] == "         |" + std::string(35, 'A'));
  CHECK(lines[14] == "         |" + std::string(70, 'P'));
  CHECK(lines[17] == "1.00 GiB |" + std::string(70, 'P'));
  CHECK(lines[18] == std::string(10, ' ') + "|forward" + std::string(27, ' ') + "|backward" +
                         std::string(26, ' '));
  CHECK(lines[19] == std::string(10, ' ') + "P=parameters  A=activations");
}

TEST_CASE("where points are many, a column shows the highest of its own") {
  Timeline timeline = two_points();
  timeline.points.resize(1000, timeline.points[1]);
  timeline.points[999].high_water = 16_GiB;
  timeline.points[999].by_category = {16_GiB};
  const auto lines = lines_of(timeline_plot(timeline, {.columns = 80}));
  CHECK(lines[2] == "16.0 GiB |A" + std::string(68, ' ') + "P");
}

TEST_CASE("no plot of model states alone") {
  CHECK(timeline_plot({}, {}).empty());
}
