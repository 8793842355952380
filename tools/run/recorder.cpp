#include "tools/run/recorder.h"

#include <algorithm>

namespace plimsoll::tools {

namespace {

// What lives after the last op before the optimizer: the states at the end of backward. Where that
// steps `in_backward`, after the last op.
reports::States states_of(const runtime::StepRecord& record, bool in_backward) {
  std::int64_t last = -1;
  for (std::size_t i = 0; i < record.ops.size(); ++i)
    if (in_backward || record.ops[i].phase != models::Phase::optimizer)
      last = static_cast<std::int64_t>(i);
  reports::ByCategory live{};
  for (const runtime::TensorRecord& tensor : record.tensors)
    if (tensor.born <= last && tensor.died > last)
      live[static_cast<std::size_t>(tensor.category)] += tensor.bytes;
  const auto of = [&](models::Category category) {
    return live[static_cast<std::size_t>(category)];
  };
  return {of(models::Category::parameters), of(models::Category::gradients),
          of(models::Category::optimizer)};
}

}  // namespace

reports::StepLedger ledger_of(const runtime::StepRecord& record) {
  reports::StepLedger out;
  const auto end = static_cast<std::int64_t>(record.ops.size());
  for (const runtime::OpRecord& op : record.ops)
    out.ops.push_back({op.name, name_of(op.phase), op.allocated, op.high_water});
  for (const runtime::TensorRecord& tensor : record.tensors)
    out.tensors.push_back({tensor.name, name_of(tensor.category), tensor.bytes, tensor.born,
                           std::min(tensor.died, end)});
  return out;
}

Recorder::Recorder(std::int64_t rank, Bytes initial_reserved, bool in_backward)
    : rank_(rank), initial_reserved_(initial_reserved), in_backward_(in_backward) {}

void Recorder::add(std::int64_t step, const runtime::StepResult& result) {
  for (Seen& seen : seen_) {
    if (seen.skipped != result.skipped || seen.record != result.memory) continue;
    seen.steps.push_back(step);
    return;
  }
  seen_.push_back({{step}, result.skipped, result.memory});
}

reports::MeasuredRank Recorder::rank(Bytes reserved) const {
  reports::MeasuredRank out;
  out.rank = rank_;
  out.reserved = reserved;
  out.initial_reserved = initial_reserved_;
  for (const Seen& seen : seen_)
    out.ledgers.push_back({seen.steps, seen.skipped, ledger_of(seen.record)});
  if (seen_.empty()) return out;
  const auto highest =
      std::ranges::max_element(seen_, {}, [](const Seen& seen) { return seen.record.peak; });
  const runtime::StepRecord& record = highest->record;
  out.peak = record.peak;
  out.resident = record.resident;
  out.at_peak = record.at_peak;
  out.states = states_of(record, in_backward_);
  if (record.peak_op < record.ops.size()) {
    out.peak_phase = name_of(record.ops[record.peak_op].phase);
    out.peak_where = record.ops[record.peak_op].name;
  }
  return out;
}

}  // namespace plimsoll::tools
