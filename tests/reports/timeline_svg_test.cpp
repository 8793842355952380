#include "reports/page/timeline_svg.h"

#include <doctest/doctest.h>

#include "tests/reports/made_up_plan.h"

using namespace plimsoll;
using namespace plimsoll::reports;

namespace {
bool has(const std::string& text, std::string_view part) {
  return text.find(part) != std::string::npos;
}

std::size_t count(const std::string& text, std::string_view part) {
  std::size_t n = 0;
  for (std::size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++n;
  return n;
}

// Two points: 10 GiB of parameters throughout, beside them 20 GiB of activations in the first.
Plan two_steps() {
  Plan plan = made_up_plan();
  plan.usable.reset();
  plan.peak = 30_GiB;
  plan.timeline = {{.op = "layers.0", .phase = "forward", .high_water = 30_GiB},
                   {.op = "layers.0", .phase = "backward", .high_water = 10_GiB}};
  plan.timeline[0].by_category = {10_GiB, 0_B, 0_B, 20_GiB};
  plan.timeline[1].by_category = {10_GiB};
  return plan;
}
}  // namespace

TEST_CASE("a category is stacked on those before it, one step wide for each point") {
  const std::string svg = timeline_svg(timeline_of(two_steps()));
  // The plot is 700 wide from x = 64 and 340 high from y = 56; its top is 1.06 · 30 GiB. So
  // 10 GiB are 340 / 3.18 = 106.9 high (y = 396 - 106.9 = 289.1), 30 GiB 320.8 (y = 75.2).
  CHECK(has(svg,
            "d=\"M64.0 396.0L64.0 289.1L414.0 289.1L414.0 289.1L764.0 289.1"
            "L764.0 396.0L414.0 396.0L414.0 396.0L64.0 396.0Z\""));
  CHECK(has(svg,
            "d=\"M64.0 289.1L64.0 75.2L414.0 75.2L414.0 289.1L764.0 289.1"
            "L764.0 289.1L414.0 289.1L414.0 289.1L64.0 289.1Z\""));
  // Nothing is drawn for the six categories that no point has.
  CHECK(count(svg, "<path fill=") == 2);
}

TEST_CASE("a document without a peak has its highest level for a top, and some lines") {
  Plan plan = two_steps();
  plan.peak = 0_B;
  CHECK(has(timeline_svg(timeline_of(plan)), "L414.0 75.2L414.0 289.1"));  // as above
  plan.timeline[0] = plan.timeline[1] = {.op = "nothing", .phase = "forward"};
  const std::size_t lines = count(timeline_svg(timeline_of(plan)), "class=\"grid\"");
  CHECK(lines > 1);
  CHECK(lines <= 7);
}

TEST_CASE("the capacity is a line where the peak comes near it, and words where it does not") {
  Plan plan = two_steps();
  plan.usable = 41_GiB;  // less 1 GiB outside the allocator
  CHECK(has(timeline_svg(timeline_of(plan)), "class=\"capacity\""));
  CHECK(has(timeline_svg(timeline_of(plan)), ">40.0 GiB<"));
  plan.usable = 62_GiB;  // 30 of 61 GiB: less than half
  CHECK_FALSE(has(timeline_svg(timeline_of(plan)), "class=\"capacity\""));
  CHECK(has(timeline_svg(timeline_of(plan)), "of 61.0 GiB available"));
}

TEST_CASE("recomputation belongs to the backward pass") {
  Plan plan = two_steps();
  CHECK(has(timeline_svg(timeline_of(plan)), ">backward<"));
  plan.timeline.push_back(plan.timeline[1]);
  plan.timeline[1].phase = "recompute";
  CHECK(has(timeline_svg(timeline_of(plan)), ">backward, with recomputation<"));
  CHECK_FALSE(has(timeline_svg(timeline_of(plan)), ">recompute<"));
}

TEST_CASE("names from files are text in a picture, never markup") {
  Plan plan = two_steps();
  plan.model_name = "<script>alert(\"1\")</script>&";
  plan.peak_place.where = "\x1b[31m\"><a>";
  const std::string svg = timeline_svg(timeline_of(plan));
  CHECK_FALSE(has(svg, "<script"));
  CHECK_FALSE(has(svg, "<a>"));
  CHECK_FALSE(has(svg, "\x1b"));
  CHECK(has(svg, "&lt;script&gt;alert(&quot;1&quot;)&lt;/script&gt;&amp;"));
}

TEST_CASE("model states alone have no picture") {
  Plan plan = made_up_plan();
  plan.timeline.clear();
  CHECK(timeline_svg(timeline_of(plan)).empty());
}
