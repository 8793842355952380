// What the planner says to published rows, each asked as its source states it; and how far off it
// is.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "reports/record.h"
#include "tools/cli/request.h"
#include "tools/published/rows.h"

namespace plimsoll::tools {

struct PublishedAnswer : PublishedRow {
  std::optional<reports::Plan> plan;
  std::string refusal;  // why there is no plan

  // As the allocator would have it within the card, cached segments given back.
  Bytes planned_reserved() const;
  Bytes planned_device() const;
  // Planned / published − 1; none where the row has no such figure, or no plan, or is a bound.
  std::optional<double> peak_error() const;
  std::optional<double> reserved_error() const;
  std::optional<double> device_error() const;
  std::optional<double> speed_error() const;
};

// The row's question, with `options` in place of its own. Errors as request_from.
Request published_request(const PublishedRow& row, const Options& options, Sources& sources);

PublishedAnswer answered(const PublishedRow& row, Sources& sources);

struct PublishedAnswers {
  PublishedDocument document;  // `rows` are in `answers`, too
  std::vector<PublishedAnswer> answers;
};

PublishedAnswers published_answers(PublishedDocument document);

// A figure that rows publish.
struct PublishedFigure {
  const char *key, *name;  // of documents; for reading
  std::optional<double> (PublishedAnswer::*error)() const;
  std::optional<double> (*published)(const PublishedAnswer&);
  double (*planned)(const PublishedAnswer&);  // where there is a plan
};

const std::vector<PublishedFigure>& published_figures();

// Of a figure that such a row publishes: that the plan is no less; none where there is no plan.
std::optional<bool> bound_holds(const PublishedAnswer& row, const PublishedFigure& figure);

// Sizes of errors; `p95`: at least 95 of 100 are no larger. Zero where there is no row.
struct ErrorSummary {
  std::size_t rows = 0;
  double median = 0, p95 = 0, largest = 0;
};
ErrorSummary summary_of(std::vector<double> errors);

// Of the rows that constants were fitted on, or of the others.
ErrorSummary summary_of(const std::vector<PublishedAnswers>& all, const PublishedFigure& figure,
                        bool in_sample);

struct PublishedCounts {
  std::size_t published = 0, answered = 0;  // as stated
  std::size_t by_stand_in = 0;  // answered, but of another program
  std::map<std::string, std::size_t> refused;  // by reason: those left out, and refusals
  // Of rows answered as stated: runs, and how many of them are planned otherwise.
  std::size_t ran = 0, ran_planned_not_to_fit = 0, failed = 0, failed_planned_to_fit = 0;
  std::size_t failed_planned_barely = 0;  // of these: not at the high end of the overheads
  // Of rows that bound what they publish: figures, and how many are not above what is planned.
  std::size_t bounds = 0, bounds_hold = 0;
};
PublishedCounts counts_of(const PublishedAnswers& answers);
PublishedCounts counts_of(const std::vector<PublishedAnswers>& all);

// The goals' figures, for the first lines of a page: share answered, then each of `figures`'
// errors.
std::string goal_lines(const std::vector<PublishedAnswers>& all,
                       const std::vector<std::string>& figures);

}  // namespace plimsoll::tools
