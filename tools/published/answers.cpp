#include "tools/published/answers.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "models/base/error.h"
#include "models/config_reader.h"
#include "models/model_reader.h"
#include "reports/plan_table.h"

namespace plimsoll::tools {

namespace {
template <class Planned, class Published>
std::optional<double> error_of(const std::optional<Published>& published, Planned planned) {
  if (!published) return std::nullopt;
  const double figure = planned();
  if constexpr (std::is_same_v<Published, Bytes>)
    return figure / published->real() - 1;
  else
    return figure / *published - 1;
}

std::optional<double> real(const std::optional<Bytes>& bytes) {
  return bytes ? std::optional(bytes->real()) : std::nullopt;
}
}  // namespace

Bytes PublishedAnswer::planned_reserved() const {
  return plan->flushing ? plan->flushing->reserved : plan->reserved;
}

Bytes PublishedAnswer::planned_device() const {
  return plan->flushing ? plan->flushing->reserved + plan->overhead.total() : plan->device;
}

std::optional<double> PublishedAnswer::peak_error() const {
  if (!plan || upper_bound) return std::nullopt;
  return error_of(peak, [&] { return plan->peak.real(); });
}

std::optional<double> PublishedAnswer::reserved_error() const {
  if (!plan || upper_bound) return std::nullopt;
  return error_of(reserved, [&] { return planned_reserved().real(); });
}

std::optional<double> PublishedAnswer::device_error() const {
  if (!plan || upper_bound) return std::nullopt;
  return error_of(device, [&] { return planned_device().real(); });
}

std::optional<double> PublishedAnswer::speed_error() const {
  if (!plan || upper_bound || !plan->time.tokens_per_second_per_gpu) return std::nullopt;
  return error_of(speed, [&] { return *plan->time.tokens_per_second_per_gpu; });
}

Request published_request(const PublishedRow& row, const Options& options, Sources& sources) {
  if (!row.config.empty()) sources.models.add(row.model, row.config);
  Request request = request_from(row.model, options, sources);
  request.question.detail = planner::Detail::none;
  request.question.remedies = false;
  return request;
}

PublishedAnswer answered(const PublishedRow& row, Sources& sources) {
  PublishedAnswer out{row};
  try {
    out.plan = answer(published_request(row, row.options, sources));
  } catch (const Error& error) {
    if (error.kind() == ErrorKind::internal) throw;
    out.refusal = error.message();
  }
  return out;
}

PublishedAnswers published_answers(PublishedDocument document) {
  PublishedAnswers out;
  for (const PublishedRow& row : document.rows) {
    Sources sources;  // its own: a name is a configuration of one row's
    out.answers.push_back(answered(row, sources));
  }
  out.document = std::move(document);
  return out;
}

const std::vector<PublishedFigure>& published_figures() {
  using Answer = PublishedAnswer;
  static const std::vector<PublishedFigure> kFigures{
      {"peak_bytes", "peak allocated", &Answer::peak_error,
       [](const Answer& a) { return real(a.peak); },
       [](const Answer& a) { return a.plan->peak.real(); }},
      {"reserved_bytes", "reserved", &Answer::reserved_error,
       [](const Answer& a) { return real(a.reserved); },
       [](const Answer& a) { return a.planned_reserved().real(); }},
      {"device_bytes", "nvidia-smi", &Answer::device_error,
       [](const Answer& a) { return real(a.device); },
       [](const Answer& a) { return a.planned_device().real(); }},
      {"tokens_per_second_per_gpu", "throughput", &Answer::speed_error,
       [](const Answer& a) { return a.speed; },
       [](const Answer& a) { return a.plan->time.tokens_per_second_per_gpu.value_or(0); }}};
  return kFigures;
}

std::optional<bool> bound_holds(const PublishedAnswer& row, const PublishedFigure& figure) {
  const std::optional<double> published = figure.published(row);
  if (!row.upper_bound || !row.plan || !published) return std::nullopt;
  return figure.planned(row) >= *published;
}

ErrorSummary summary_of(std::vector<double> errors) {
  ErrorSummary out{.rows = errors.size()};
  if (errors.empty()) return out;
  for (double& error : errors) error = std::abs(error);
  std::ranges::sort(errors);
  const std::size_t n = errors.size();
  out.median = (errors[(n - 1) / 2] + errors[n / 2]) / 2;
  out.p95 = errors[(95 * n + 99) / 100 - 1];
  out.largest = errors.back();
  return out;
}

ErrorSummary summary_of(const std::vector<PublishedAnswers>& all, const PublishedFigure& figure,
                        bool in_sample) {
  std::vector<double> errors;
  for (const PublishedAnswers& one : all)
    for (const PublishedAnswer& row : one.answers)
      if (row.in_sample == in_sample)
        if (const std::optional<double> error = (row.*figure.error)()) errors.push_back(*error);
  return summary_of(std::move(errors));
}

PublishedCounts counts_of(const PublishedAnswers& answers) {
  PublishedCounts out;
  out.published = answers.document.figures();
  for (const auto& [why, count] : answers.document.left_out)
    out.refused[why] += static_cast<std::size_t>(count);
  for (const PublishedAnswer& row : answers.answers) {
    if (!row.plan) {
      ++out.refused[row.refusal];
      continue;
    }
    if (row.stand_in) {
      ++out.by_stand_in;
      continue;
    }
    ++out.answered;
    for (const PublishedFigure& figure : published_figures())
      if (const std::optional<bool> holds = bound_holds(row, figure)) {
        ++out.bounds;
        if (*holds) ++out.bounds_hold;
      }
    if (row.upper_bound) continue;  // a shorter run may fit where the longest does not
    const bool fits = row.plan->verdict != reports::Verdict::does_not_fit;
    const bool is_barely =
        row.plan->verdict == reports::Verdict::borderline || reports::fits_barely(*row.plan);
    ++(row.out_of_memory ? out.failed : out.ran);
    if (row.out_of_memory && fits) ++out.failed_planned_to_fit;
    if (row.out_of_memory && fits && is_barely) ++out.failed_planned_barely;
    if (!row.out_of_memory && !fits) ++out.ran_planned_not_to_fit;
  }
  return out;
}

PublishedCounts counts_of(const std::vector<PublishedAnswers>& all) {
  PublishedCounts out;
  for (const PublishedAnswers& one : all) {
    const PublishedCounts part = counts_of(one);
    out.published += part.published;
    out.answered += part.answered;
    out.by_stand_in += part.by_stand_in;
    for (const auto& [why, count] : part.refused) out.refused[why] += count;
    out.ran += part.ran;
    out.ran_planned_not_to_fit += part.ran_planned_not_to_fit;
    out.failed += part.failed;
    out.failed_planned_to_fit += part.failed_planned_to_fit;
    out.failed_planned_barely += part.failed_planned_barely;
    out.bounds += part.bounds;
    out.bounds_hold += part.bounds_hold;
  }
  return out;
}

std::string goal_lines(const std::vector<PublishedAnswers>& all,
                       const std::vector<std::string>& figures) {
  const PublishedCounts counts = counts_of(all);
  const auto percent = [&](std::size_t count) {
    return 100.0 * static_cast<double>(count) / static_cast<double>(counts.published);
  };
  std::string text = fmt::format("* answered as stated: {} of {} published figures, {:.0f} %",
                                 counts.answered, counts.published, percent(counts.answered));
  text += counts.by_stand_in == 0 ? "\n"
                                  : fmt::format("; by a stand-in for their program: {}, {:.0f} %\n",
                                                counts.by_stand_in, percent(counts.by_stand_in));
  for (const PublishedFigure& figure : published_figures()) {
    if (std::ranges::find(figures, figure.key) == figures.end()) continue;
    const ErrorSummary errors = summary_of(all, figure, false);
    text += errors.rows == 0
                ? fmt::format("* {}: no row that is answered states it\n", figure.name)
                : fmt::format("* {}: median error {:.3g} %, 95th percentile {:.3g} % ({} rows)\n",
                              figure.name, 100 * errors.median, 100 * errors.p95, errors.rows);
  }
  if (counts.bounds > 0)
    text += fmt::format(
        "* bounds, of runs whose sequences are no longer than is asked: {} figures, {} not above "
        "the plan\n",
        counts.bounds, counts.bounds_hold);
  if (counts.failed > 0)
    text += fmt::format(
        "* ran out of memory: {} rows, {} of them planned to fit, barely {}; ran: {} rows, {} of "
        "them planned not to\n",
        counts.failed, counts.failed_planned_to_fit, counts.failed_planned_barely, counts.ran,
        counts.ran_planned_not_to_fit);
  return text;
}

}  // namespace plimsoll::tools
