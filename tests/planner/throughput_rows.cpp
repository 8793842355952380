#include "tests/planner/throughput_rows.h"

#include <algorithm>
#include <cmath>

#include "planner/plan.h"

namespace plimsoll::tests {

namespace {

using tools::PublishedAnswer, tools::PublishedRow;

// The row without what `fit` does not take, which is known to the estimate of time alone.
tools::Options without_compile(const PublishedRow& row) {
  tools::Options options;
  for (const auto& [name, value] : row.options.given())
    if (name != "compile") options.add(name, value);
  return options;
}

// Seconds of a step whose memory is not planned: the estimate of time alone.
void estimate_alone(const PublishedRow& row, ThroughputRow& out) {
  tools::Sources sources;
  const tools::Request request = published_request(row, without_compile(row), sources);
  const planner::Question& question = request.question;
  out.strategy = question.strategy;
  out.strategy.compile = models::Compile::model;
  out.batch = question.batch;
  const planner::TimeModel model(planner::model_parts(*question.model, out.strategy),
                                 question.cluster);
  out.estimated = static_cast<double>(out.batch.tokens()) *
                  static_cast<double>(out.batch.grad_accum) / model(out.strategy, out.batch).step;
}

ThroughputRow row_of(const PublishedAnswer& answer) {
  ThroughputRow r;
  r.id = answer.id;
  r.model = answer.model;
  r.gpu = answer.gpu;
  r.source = answer.source;
  r.in_sample = answer.in_sample;
  r.published = answer.speed.value();
  if (!answer.plan) {
    estimate_alone(answer, r);
    return r;
  }
  r.command = answer.command();
  r.strategy = answer.plan->strategy;
  r.batch = answer.plan->batch;
  r.estimated = answer.plan->time.tokens_per_second_per_gpu.value();
  return r;
}

ThroughputRow asked(const PublishedRow& row) {
  tools::Sources sources;
  return row_of(tools::answered(row, sources));
}

}  // namespace

ThroughputRows throughput_rows() {
  ThroughputRows rows;
  rows.published = tools::published_answers(
      tools::read_published(tools::published_throughput_text(), "throughput"));
  for (const PublishedAnswer& answer : rows.published.answers) rows.rows.push_back(row_of(answer));
  for (const tools::PublishedScaling& pair : rows.published.document.scaling)
    rows.scaling.push_back({pair.what, asked(pair.from), asked(pair.to)});
  return rows;
}

double median_error(const std::vector<const ThroughputRow*>& rows) {
  std::vector<double> errors;
  for (const ThroughputRow* row : rows) errors.push_back(row->error());
  return tools::summary_of(std::move(errors)).median;
}

}  // namespace plimsoll::tests
