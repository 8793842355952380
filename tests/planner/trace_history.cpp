#include "tests/planner/trace_history.h"

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <utility>

namespace plimsoll::tests {

using nlohmann::json;

namespace {

// The recorder watches operators through a TorchDispatchMode, and under one autograd does not add
// gradients in place (input_buffer.cpp, can_accumulate_inplace, isTensorSubclassLike): each of its
// sums is a new tensor for a moment. Without it the first operand becomes the sum, unless it is a
// view: a GEMM's gradient, made for [tokens, width]. Returns the allocations (operand, sum) that
// are one. With them the history is that of the same step unwatched, allocation by allocation. A
// gradient that is put among zeros (index_backward) is likewise a new tensor beside them: TRL's
// head is planned without (experts and padded rows are planned with it, as they were watched).
std::map<std::size_t, std::size_t> sums_in_place(const json& trace) {
  const json &ops = trace["ops"], &rows = trace["allocations"];
  const json& operators = trace["names"]["operators"];
  const auto operator_of = [&](const json& op) {
    return op.is_null() ? std::string()
                        : operators[ops[op.get<std::size_t>()][2].get<int>()].get<std::string>();
  };
  const bool tiled = trace["workload"]["strategy"]["loss"] == "tiled";
  std::map<std::size_t, std::vector<std::size_t>> released;
  for (std::size_t i = 0; i < rows.size(); ++i)
    if (!rows[i][6].is_null()) released[rows[i][6]].push_back(i);
  std::map<std::size_t, std::size_t> sums;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const json& row = rows[i];
    const bool puts = tiled && operator_of(row[5]) == "aten.index_put";
    if (!puts && operator_of(row[5]) != "aten.add.Tensor") continue;
    const std::string phase = ops[row[5].get<std::size_t>()][0];
    if (!phase.starts_with("backward")) continue;
    if (puts) {
      for (const std::size_t j : released[row[5]])
        if (rows[j][2] == row[2] && operator_of(rows[j][5]) == "aten.new_zeros") sums[j] = i;
      continue;
    }
    std::vector<std::size_t> operands;
    for (const std::size_t j : released[row[5]])
      if (rows[j][2] == row[2] && rows[j][0] < row[0] && rows[j][1] > row[0]) operands.push_back(j);
    if (operands.size() != 2) continue;
    const std::size_t first =
        rows[operands[0]][0] < rows[operands[1]][0] ? operands[0] : operands[1];
    const std::string made = operator_of(rows[first][5]);
    if (made != "aten.mm" && made != "aten.bmm") sums[first] = i;
  }
  return sums;
}

// FSDP1 holds the sharded gradients, which zero_grad takes from the parameters, until the next step
// begins, and lets go of them before anything else: here they go at the end of their own step.
bool is_carried_over(const json& trace, const json& initial) {
  return trace["workload"]["stack"]["fsdp_version"] == 1 &&
         trace["workload"]["strategy"]["zero"] >= 2 && initial[4] == "gradient";
}

}  // namespace

History history_of(const json& trace) {
  const std::map<std::size_t, std::size_t> sums = sums_in_place(trace);
  std::set<std::size_t> are_sums;
  for (const auto& [operand, sum] : sums) are_sums.insert(sum);
  std::map<std::int64_t, std::int64_t> change;  // by position
  const json& rows = trace["allocations"];
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const std::int64_t bytes = rows[i][2];
    if (!are_sums.contains(i)) change[rows[i][0]] = bytes;
    if (!rows[i][1].is_null() && !sums.contains(i)) change[rows[i][1]] = -bytes;
  }
  std::int64_t last = 0, carried = 0;
  for (const json& row : trace["initial"]) {
    const std::int64_t bytes = row[1];
    if (is_carried_over(trace, row))
      carried += bytes;
    else if (!row[0].is_null())
      change[row[0]] = -bytes;
  }
  for (const json& phase : trace["phases"])
    last = std::max(last, phase["step"].get<std::int64_t>());
  change[trace["phases"].back()["end"].get<std::int64_t>() - 1] -= carried;
  History out;
  bool first = true;
  std::int64_t live = 0;
  for (const json& phase : trace["phases"]) {
    if (phase["step"] != last) continue;
    if (std::exchange(first, false))
      live = out.resident = phase["begin_bytes"].get<std::int64_t>() - carried;
    const std::string name = phase["phase"];  // "saved" ends a forward
    const bool forward = name.starts_with("forward") || name == "saved";
    const int index = forward ? 0 : name.starts_with("backward") ? 1 : 2;
    const std::int64_t end = phase["end"];
    for (auto at = change.lower_bound(phase["begin"]); at != change.end() && at->first < end;
         ++at) {
      out.level.push_back(live += at->second);
      out.phase.push_back(index);
    }
  }
  return out;
}

}  // namespace plimsoll::tests
