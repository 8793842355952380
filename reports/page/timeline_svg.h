// Memory over one step as a picture: a stacked area for each category, the phases below, the
// capacity as a line, the peak marked. One self-contained SVG file, light or dark as the reader's
// system is.
#pragma once

#include <string>

#include "reports/record.h"

namespace plimsoll::reports {

// The timeline of the plan, one step of the picture for each of its points: by category, the bytes
// at the point's high-water mark. "" where the plan has no timeline (model states only).
std::string timeline_svg(const Plan& plan);

// `text` for an element or an attribute in double quotes of XML or HTML: names come from files.
std::string xml_escaped(std::string_view text);

}  // namespace plimsoll::reports
