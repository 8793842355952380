// A document as a page for people: one HTML file without network, light or dark, for screen, phone
// and print. What it says is in the document; nothing is computed anew.
#pragma once

#include <string>
#include <string_view>

#include "reports/plan_json.h"

namespace plimsoll::reports {

// Of a plan, a recommendation, a measurement, a comparison (with a snapshot too) or a fleet.
// `source` names the document in messages. Error{bad_input}: none of these, or not as its schema
// says.
std::string page(std::string_view document, const std::string& source);

// What stands around a page's body, for those that are written as their rows come.
std::string page_head(std::string_view title);
std::string page_foot(std::string_view what, const Tool& tool);

// reports/page/style.css and page.js.
std::string_view page_style();
std::string_view page_script();

}  // namespace plimsoll::reports
