// Published throughput of data-parallel training (reports/evidence/published/throughput.json), and
// the estimate of the same run.
#pragma once

#include <string>
#include <vector>

#include "models/run_spec.h"
#include "planner/time/step_time.h"
#include "tools/published/answers.h"

namespace plimsoll::tests {

struct ThroughputRow {
  std::string id, model, gpu;
  std::string command;  // `plimsoll fit …` that asks it; "": refused, and estimated by time alone
  std::size_t source = 0;  // of the document's sources
  models::Strategy strategy;
  models::Batch batch;
  double published = 0;  // tokens/s of one GPU
  double estimated = 0;
  bool in_sample = false;  // constants were fitted on it
  double error() const { return estimated / published - 1; }
};

// One program on few and on many GPUs.
struct ScalingRow {
  std::string what;
  ThroughputRow from, to;
  bool in_sample() const { return to.in_sample; }
  // Of each GPU's tokens/s, what is left: 0.98 for a loss of 2 %.
  double published() const { return to.published / from.published; }
  double estimated() const { return to.estimated / from.estimated; }
};

struct ThroughputRows {
  tools::PublishedAnswers published;
  std::vector<ThroughputRow> rows;
  std::vector<ScalingRow> scaling;
};

ThroughputRows throughput_rows();

// The median of |error|, 0.06 for 6 %.
double median_error(const std::vector<const ThroughputRow*>& rows);

// By how much the estimate misses the ratio of two published runs that do the same by different
// strategies, for all such pairs, least first; logarithms, 0.06 for about 6 %. A kind is a stack
// and a stage of ZeRO.
struct Comparisons {
  std::vector<double> one_kind, two_kinds;
  std::vector<double> flattery_of_sharding;  // signed: of the sharded run against one that is not
};
Comparisons comparisons(const ThroughputRows& rows);

// reports/accuracy.md.
std::string accuracy_page(const ThroughputRows& rows);

}  // namespace plimsoll::tests
