// Pictures, line by line: where each thing of them stands follows from the sizes beside it.
#include <doctest/doctest.h>

#include "reports/page/scatter_svg.h"
#include "reports/page/timeline_svg.h"
#include "tests/reports/made_up_plan.h"

using namespace plimsoll;
using namespace plimsoll::reports;

namespace {
// Without its style.
std::string drawn(const std::string& svg) {
  const std::size_t begin = svg.find("<style>"), end = svg.find("</style>\n");
  REQUIRE(end != std::string::npos);
  return svg.substr(0, begin) + svg.substr(end + 9);
}

// 10 GiB of parameters throughout; activations of 20 and 5 GiB, then 2 GiB of gradients; the room
// is 40 GiB.
Timeline timeline() {
  Timeline out{.model = "tiny-llama",
               .points = {{.op = "layers.0", .phase = "forward", .high_water = 30_GiB},
                          {.op = "layers.0", .phase = "recompute", .high_water = 15_GiB},
                          {.op = "layers.0", .phase = "backward", .high_water = 12_GiB}},
               .peak_place = {.rank = 0, .phase = "forward", .where = "layers.0"},
               .peak = 30_GiB,
               .at_peak = {10_GiB, 0_B, 0_B, 20_GiB},
               .room = 40_GiB};
  out.points[0].by_category = {10_GiB, 0_B, 0_B, 20_GiB};
  out.points[1].by_category = {10_GiB, 0_B, 0_B, 5_GiB};
  out.points[2].by_category = {10_GiB, 2_GiB};
  return out;
}
}  // namespace

// The plot is 700 wide from x = 64 and 340 high from y = 56, in 960 x 440; its top is 1.06 · 40
// GiB, so that G GiB stand at y = 396 - 340 G / 42.4. A point is 233.3 wide. Five lines at most:
// 42.4 / 5 = 8.48, and the next of 1, 2, 5, 10 is 10. The legend has 18 a line, from 440 - 44 - 8 ·
// 18 + 10 = 262 down.
TEST_CASE("a timeline's picture, from the first line to the last") {
  CHECK(
      drawn(timeline_svg(timeline())) ==
      R"--(<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 960 440" role="img" aria-label="tiny-llama: memory of rank 0 over one training step, peak 30.0 GiB in forward, layers.0">
<rect class="back" width="960" height="440"/>
<text x="64.0" y="24.0" class="title">tiny-llama: memory of rank 0 over one training step</text>
<line class="grid" x1="64" x2="764" y1="396.0" y2="396.0"/>
<text x="56.0" y="400.0" text-anchor="end" class="faint">0 GiB</text>
<line class="grid" x1="64" x2="764" y1="315.8" y2="315.8"/>
<text x="56.0" y="319.8" text-anchor="end" class="faint">10 GiB</text>
<line class="grid" x1="64" x2="764" y1="235.6" y2="235.6"/>
<text x="56.0" y="239.6" text-anchor="end" class="faint">20 GiB</text>
<line class="grid" x1="64" x2="764" y1="155.4" y2="155.4"/>
<text x="56.0" y="159.4" text-anchor="end" class="faint">30 GiB</text>
<line class="grid" x1="64" x2="764" y1="75.2" y2="75.2"/>
<text x="56.0" y="79.2" text-anchor="end" class="faint">40 GiB</text>
<path fill="#0072b2" d="M64.0 396.0L64.0 315.8L297.3 315.8L297.3 315.8L530.7 315.8L530.7 315.8L764.0 315.8L764.0 396.0L530.7 396.0L530.7 396.0L297.3 396.0L297.3 396.0L64.0 396.0Z"/>
<path fill="#e69f00" d="M64.0 315.8L64.0 315.8L297.3 315.8L297.3 315.8L530.7 315.8L530.7 299.8L764.0 299.8L764.0 315.8L530.7 315.8L530.7 315.8L297.3 315.8L297.3 315.8L64.0 315.8Z"/>
<path fill="#009e73" d="M64.0 315.8L64.0 155.4L297.3 155.4L297.3 275.7L530.7 275.7L530.7 299.8L764.0 299.8L764.0 299.8L530.7 299.8L530.7 315.8L297.3 315.8L297.3 315.8L64.0 315.8Z"/>
<path class="mark" d="M65.0 400.0v6H296.3v-6"/>
<text x="180.7" y="423.0" text-anchor="middle">forward</text>
<path class="mark" d="M298.3 400.0v6H763.0v-6"/>
<text x="530.7" y="423.0" text-anchor="middle">backward, with recomputation</text>
<line class="capacity" x1="64" x2="764" y1="75.2" y2="75.2"/>
<text x="772.0" y="79.2" class="red">available to tensors</text>
<text x="772.0" y="95.2" class="red">40.0 GiB</text>
<path class="mark" d="M180.7 154.4l-5 -8h10z"/>
<text x="190.7" y="150.4">peak 30.0 GiB: forward, layers.0</text>
<text x="772.0" y="244.0" class="faint">at the peak</text>
<rect x="772" y="252.0" width="11" height="11" fill="#999999"/>
<text x="788.0" y="262.0">workspace</text>
<text x="954.0" y="262.0" text-anchor="end" class="faint">0 B</text>
<rect x="772" y="270.0" width="11" height="11" fill="#f0e442"/>
<text x="788.0" y="280.0">communication</text>
<text x="954.0" y="280.0" text-anchor="end" class="faint">0 B</text>
<rect x="772" y="288.0" width="11" height="11" fill="#d55e00"/>
<text x="788.0" y="298.0">temporaries</text>
<text x="954.0" y="298.0" text-anchor="end" class="faint">0 B</text>
<rect x="772" y="306.0" width="11" height="11" fill="#cc79a7"/>
<text x="788.0" y="316.0">logits</text>
<text x="954.0" y="316.0" text-anchor="end" class="faint">0 B</text>
<rect x="772" y="324.0" width="11" height="11" fill="#009e73"/>
<text x="788.0" y="334.0">activations</text>
<text x="954.0" y="334.0" text-anchor="end" class="faint">20.0 GiB</text>
<rect x="772" y="342.0" width="11" height="11" fill="#56b4e9"/>
<text x="788.0" y="352.0">optimizer</text>
<text x="954.0" y="352.0" text-anchor="end" class="faint">0 B</text>
<rect x="772" y="360.0" width="11" height="11" fill="#e69f00"/>
<text x="788.0" y="370.0">gradients</text>
<text x="954.0" y="370.0" text-anchor="end" class="faint">0 B</text>
<rect x="772" y="378.0" width="11" height="11" fill="#0072b2"/>
<text x="788.0" y="388.0">parameters</text>
<text x="954.0" y="388.0" text-anchor="end" class="faint">10.0 GiB</text>
</svg>
)--");
}

TEST_CASE(
    "a peak in the right half has its words on the left; axes of every unit have round figures") {
  Timeline late = timeline();
  late.peak_place = {.rank = 3, .phase = "backward", .where = "lm_head"};
  late.room.reset();
  // The last of three points: its middle is 64 + 700 · 5 / 6 = 647.3; the top is 31.8 GiB, and 30
  // GiB stand at 396 - 340 · 30 / 31.8 = 75.2.
  late.points[2].high_water = 31_GiB;
  const std::string svg = drawn(timeline_svg(late));
  CHECK(svg.find("<path class=\"mark\" d=\"M647.3 74.2l-5 -8h10z\"/>\n"
                 "<text x=\"637.3\" y=\"70.2\" text-anchor=\"end\">peak 30.0 GiB: backward, "
                 "lm_head</text>") != svg.npos);
  CHECK(svg.find("memory of rank 3 over") != svg.npos);
  const auto axis = [](Bytes peak) {
    Timeline other = timeline();
    other.room.reset();
    other.peak = peak;
    const std::string text = timeline_svg(other);
    std::string out;
    const std::string mark = " text-anchor=\"end\" class=\"faint\">";
    const std::size_t end = text.find("<path");
    for (std::size_t at = text.find(mark); at < end; at = text.find(mark, at + 1)) {
      const std::size_t from = at + mark.size();
      out += (out.empty() ? "" : ", ") + text.substr(from, text.find('<', from) - from);
    }
    return out;
  };
  // Up to 1.06 of the peak; a step is the least of 1, 2, 5 · 10^n that makes no more than five.
  CHECK(axis(900_B) == "0 B, 200 B, 400 B, 600 B, 800 B");
  CHECK(axis(1000_B) == "0 KiB, 0.5 KiB, 1 KiB");
  CHECK(axis(4_KiB) == "0 KiB, 1 KiB, 2 KiB, 3 KiB, 4 KiB");
  CHECK(axis(40_MiB) == "0 MiB, 10 MiB, 20 MiB, 30 MiB, 40 MiB");
  CHECK(axis(10_GiB) == "0 GiB, 5 GiB, 10 GiB");
  CHECK(axis(2048_GiB) == "0 TiB, 0.5 TiB, 1 TiB, 1.5 TiB, 2 TiB");
}

// A panel is 260 x 260, the first from x = 64, the next 344 further on, all from y = 72; both axes
// are logarithmic from the least figure / 1.15 to the most · 1.15. Over more than two decades lines
// stand at powers of ten alone. The picture is 64 + 2 · 260 + 84 + 24 wide and 72 + 260 + 56 high.
TEST_CASE("a picture of two panels, from the first line to the last") {
  CHECK(
      drawn(scatter_svg("Two", {{"one", "GiB", 10, {{10, 1000, false}, {100, 100, true}}},
                                {"none", "s", 1, {}},
                                {"two", "ms", 1, {{3, 4, false}, {9, 30, false}}}})) ==
      R"--(<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 692 388" role="img" aria-label="Two">
<rect class="back" width="692" height="388"/>
<text x="64.0" y="26.0" class="title">Two</text>
<text x="64.0" y="60.0">one</text>
<path class="grid" d="M71.4 72.0v260.0M64.0 324.6h260.0"/>
<text x="71.4" y="348.0" text-anchor="middle" class="faint">1</text>
<text x="58.0" y="328.6" text-anchor="end" class="faint">1</text>
<path class="grid" d="M194.0 72.0v260.0M64.0 202.0h260.0"/>
<text x="194.0" y="348.0" text-anchor="middle" class="faint">10</text>
<text x="58.0" y="206.0" text-anchor="end" class="faint">10</text>
<path class="grid" d="M316.6 72.0v260.0M64.0 79.4h260.0"/>
<text x="316.6" y="348.0" text-anchor="middle" class="faint">100</text>
<text x="58.0" y="83.4" text-anchor="end" class="faint">100</text>
<path class="equal" d="M64.0 332.0L324.0 72.0"/>
<circle class="point" cx="71.4" cy="79.4" r="3"/>
<circle class="sample" cx="194.0" cy="202.0" r="3"/>
<text x="194.0" y="368.0" text-anchor="middle" class="faint">measured, GiB (planned: upwards)</text>
<text x="408.0" y="60.0">two</text>
<path class="grid" d="M473.5 72.0v260.0M408.0 266.5h260.0"/>
<text x="473.5" y="348.0" text-anchor="middle" class="faint">5</text>
<text x="402.0" y="270.5" text-anchor="end" class="faint">5</text>
<path class="grid" d="M543.3 72.0v260.0M408.0 196.7h260.0"/>
<text x="543.3" y="348.0" text-anchor="middle" class="faint">10</text>
<text x="402.0" y="200.7" text-anchor="end" class="faint">10</text>
<path class="grid" d="M613.1 72.0v260.0M408.0 126.9h260.0"/>
<text x="613.1" y="348.0" text-anchor="middle" class="faint">20</text>
<text x="402.0" y="130.9" text-anchor="end" class="faint">20</text>
<path class="equal" d="M408.0 332.0L668.0 72.0"/>
<circle class="point" cx="422.1" cy="289.0" r="3"/>
<circle class="point" cx="532.7" cy="86.1" r="3"/>
<text x="538.0" y="368.0" text-anchor="middle" class="faint">measured, ms (planned: upwards)</text>
</svg>
)--");
}
