#include "reports/page/scatter_svg.h"

#include <doctest/doctest.h>

using namespace plimsoll::reports;

TEST_CASE("a point stands where both logarithms are, hollow where constants were fitted on it") {
  // The axes run from 1 / 1.15 to 100 · 1.15, ln 100 + 2 ln 1.15 = 4.8847 long: 1 stands
  // 0.13976 / 4.8847 · 260 = 7.4 along, 10 in the middle, 100 at 252.6. The panel is 260 wide from
  // x = 64 and as high from y = 72.
  const std::string svg = scatter_svg(
      "A < B",
      {{"empty", "GiB", 1, {}}, {"one", "GiB", 10, {{10, 1000, false}, {100, 100, true}}}});
  CHECK(svg.find("<circle class=\"point\" cx=\"71.4\" cy=\"79.4\" r=\"3\"/>") != svg.npos);
  CHECK(svg.find("<circle class=\"sample\" cx=\"194.0\" cy=\"202.0\" r=\"3\"/>") != svg.npos);
  CHECK(svg.find("A &lt; B") != svg.npos);
  CHECK(svg.find("empty") == svg.npos);
}

TEST_CASE("where nothing is to be drawn there is no picture") {
  CHECK(scatter_svg("x", {{"empty", "GiB", 1, {}}}).empty());
}
