// What one rank's steps were, in the words of the document.
#pragma once

#include "reports/measurement.h"
#include "runtime/trainer.h"

namespace plimsoll::tools {

reports::StepLedger ledger_of(const runtime::StepRecord& record);

// Steps of one rank; equal ledgers are kept once.
class Recorder {
 public:
  // `initial_reserved`: before the first step.
  // `in_backward`: the optimizer steps there.
  Recorder(std::int64_t rank, Bytes initial_reserved, bool in_backward = false);

  void add(std::int64_t step, const runtime::StepResult& result);
  // `reserved`: in the end.
  reports::MeasuredRank rank(Bytes reserved) const;

 private:
  struct Seen {
    std::vector<std::int64_t> steps;
    bool skipped = false;
    runtime::StepRecord record;
  };
  std::int64_t rank_;
  Bytes initial_reserved_;
  bool in_backward_;
  std::vector<Seen> seen_;
};

}  // namespace plimsoll::tools
