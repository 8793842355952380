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

bool says(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
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

TEST_CASE("in colour each row has two heights, of the picture's colours") {
  // 32 heights of 0.5 GiB: 4 GiB of parameters are 8 of them, 12 GiB of activations 24. With 4.5
  // GiB the fifth row from below is half full.
  Timeline timeline = two_points();
  timeline.points[1].by_category = {4608_MiB};
  const auto lines = lines_of(timeline_plot(timeline, {.colour = true, .columns = 20}));
  const auto run = [](const char* codes, const char* block) {
    std::string out = std::string("\x1b[") + codes + "m";
    for (int i = 0; i < 5; ++i) out += block;
    return out + "\x1b[0m";
  };
  CHECK(lines[2] == "16.0 GiB |" + run("38;5;36", "█"));
  CHECK(lines[13] == "         |" + run("38;5;36", "█") + run("38;5;25", "▄"));
  CHECK(lines[14].starts_with("         |\x1b[38;5;25m██████████"));
  CHECK(lines.back() == std::string(10, ' ') + "\x1b[38;5;36m█\x1b[0m activations");
  timeline.points[0].by_category = {4608_MiB, 0_B, 0_B, 12_GiB};
  CHECK(says(timeline_plot(timeline, {.colour = true, .columns = 20}),
             "|" + run("38;5;36;48;5;25", "▀") + run("38;5;25", "▄") + "\n"));
  // A terminal without UTF-8: letters, in colour.
  CHECK(says(timeline_plot(timeline, {.colour = true, .utf8 = false, .columns = 20}),
             "16.0 GiB |" + run("38;5;36", "A") + "\n"));
}

// Levels of the cube of 256 colours: 0, 95, 135, 175, 215, 255. #0072b2 is nearest to 0, 95, 175:
// 16
// + 6 + 3 = 25; so are the others of timeline_svg.cpp but the yellow (#f0e442), which is a step
// greener.
TEST_CASE("each category has its own of the picture's colours") {
  Timeline timeline = two_points();
  timeline.points[0].by_category.fill(2_GiB);
  const std::string text = timeline_plot(timeline, {.colour = true, .columns = 120});
  const std::pair<const char*, int> colours[] = {
      {"parameters", 25},   {"gradients", 178}, {"optimizer", 74},  {"activations", 36},
      {"temporaries", 166}, {"logits", 175},    {"workspace", 246}, {"communication", 227}};
  for (const auto& [name, code] : colours)
    CHECK_MESSAGE(says(text, "\x1b[38;5;" + std::to_string(code) + "m█\x1b[0m " + name), name,
                  text);
}

TEST_CASE("the phases keep to the columns, one of a single column too") {
  Timeline timeline = two_points();
  timeline.points.push_back({.op = "c", .phase = "optimizer", .high_water = 4_GiB});
  timeline.points.resize(140, timeline.points[0]);
  timeline.points.push_back(timeline.points[2]);
  for (const std::string& line : lines_of(timeline_plot(timeline, {.columns = 80})))
    CHECK(line.size() <= 80);
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
