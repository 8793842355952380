// The pages of each kind of document, and what they have in common.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "reports/page/html.h"

namespace plimsoll::reports {

using Json = nlohmann::ordered_json;

void plan_page(const Json& plan, Html& html);
void recommendation_page(const Json& recommendation, Html& html);
void measurement_page(const Json& measurement, Html& html);
void comparison_page(const Json& comparison, Html& html);
void snapshot_page(const Json& comparison, Html& html);
void fleet_page(const Json& fleet, Html& html);
void models_page(const Json& document, Html& html);
void gpus_page(const Json& document, Html& html);

// The sections of a plan below its title: `level` of their headings.
void plan_sections(const Json& plan, int level, Html& html);
// What would make a plan fit; what each technique saves.
void remedies(const Json& plan, int level, Html& html);
void savings(const Json& plan, int level, Html& html);
// "pytorch FSDP2 full shard, LoRA rank 16".
std::string strategy_text(const Json& plan);
// The verdict in one line, with its colour.
void verdict_line(const Json& plan, Html& html);

// A member that may be missing or null.
std::optional<double> number(const Json& object, const char* key);
std::optional<Bytes> bytes(const Json& object, const char* key);
std::string text(const Json& object, const char* key);
// A member that its schema asks for. Json::exception: it is missing, null or of another type.
double number_of(const Json& object, const char* key);
Bytes bytes_of(const Json& object, const char* key);
// "12.3 %".
std::string percent(double share);
// "12,345" of a rate or a count.
std::string whole_number(double value);
ByCategory by_category(const Json& object);
// A timeline as a picture, with what the page's script reads out.
void timeline_figure(const Timeline& timeline, Html& html);
inline constexpr std::size_t kMostPoints = 4000;
std::vector<TimelinePoint> timeline_points(const Json& timeline);

}  // namespace plimsoll::reports
