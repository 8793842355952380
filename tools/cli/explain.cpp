#include "tools/cli/explain.h"

#include <algorithm>
#include <array>

#include "planner/time/op_times.h"
#include "reports/explain.h"
#include "tools/cli/host_memory.h"

namespace plimsoll::tools {

namespace {
using Given = std::vector<std::pair<std::string, std::string>>;

class Asker {
 public:
  Asker(const std::string& model, const Options& options) : model_(model), options_(options) {}

  // The question with other values; nothing where that cannot be asked.
  std::optional<reports::Replanned> with(const Given& changes) {
    Options options;
    std::string text;
    for (const auto& [name, value] : options_.given())
      if (std::ranges::none_of(changes, [&](const auto& c) { return c.first == name; }))
        options.add(name, value, options_.origin(name));
    for (const auto& [name, value] : changes) {
      options.add(find_plan_option(name)->name, value);
      text += (text.empty() ? "--" : " --") + name + " " + value;
    }
    try {
      const reports::Plan plan = whole(request_from(model_, options, sources_));
      return reports::Replanned{text, plan.peak, plan.device, reports::tensor_groups(plan)};
    } catch (const Error&) {
      return std::nullopt;
    }
  }

  static reports::Plan whole(Request request) {
    use_host_memory(request.question);
    request.question.detail = planner::Detail::full;
    request.question.remedies = false;
    return answer(request);
  }

 private:
  const std::string& model_;
  const Options& options_;
  Sources sources_;
};

std::vector<reports::Replanned> changes_of(Asker& asker, const Request& request) {
  const models::Strategy& s = request.question.strategy;
  const models::Batch& batch = request.question.batch;
  std::vector<Given> all{{{"recompute", "selective"}},  {{"recompute", "full"}},
                         {{"loss", "chunked"}},         {{"loss", "fused"}},
                         {{"optimizer-impl", "fused"}}, {{"precision", "bf16"}}};
  for (const char* stage : {"1", "2", "3"}) {
    if (s.gpus > 1) all.push_back({{"zero", stage}});
    if (s.gpus == 1 && *stage == '3') all.push_back({{"gpus", "8"}, {"zero", stage}});
  }
  if (batch.micro_batch > 1)
    all.push_back({{"micro-batch", std::to_string(batch.micro_batch / 2)}});
  if (batch.seq_len > 1) all.push_back({{"seq-len", std::to_string(batch.seq_len / 2)}});
  std::vector<reports::Replanned> out;
  for (const Given& change : all)
    if (auto found = asker.with(change)) out.push_back(std::move(*found));
  return out;
}
}  // namespace

std::string explained(const std::string& model, const Options& options, const Request& request,
                      const std::string& asked, const reports::Terminal& terminal) {
  const reports::Plan plan = Asker::whole(request);
  check(!plan.timeline.empty(), ErrorKind::bad_input,
        "--explain: model states alone have no tensors to explain");
  if (asked == "time") {
    std::vector<reports::OpTimeLine> lines;
    for (const planner::OpTime& op : planner::op_times(request.question))
      lines.push_back({op.op, op.phase, op.times, op.flops, op.bytes, op.kernels, op.seconds});
    return reports::time_explanation(plan, lines, terminal);
  }
  Asker asker(model, options);
  if (asked == "all") return reports::explanation(plan, changes_of(asker, request), terminal);
  const std::vector<reports::TensorGroup> groups =
      reports::groups_called(reports::tensor_groups(plan), asked);
  const models::Batch& batch = request.question.batch;
  std::vector<reports::TokenGrowth> growth;
  if (auto found = asker.with({{"micro-batch", std::to_string(2 * batch.micro_batch)}}))
    growth.push_back({std::move(*found), 2});
  if (auto found = asker.with({{"seq-len", std::to_string(2 * batch.seq_len)}}))
    growth.push_back({std::move(*found), 2});
  else if (batch.seq_len % 2 == 0)  // the model takes no longer ones
    if (auto shorter = asker.with({{"seq-len", std::to_string(batch.seq_len / 2)}}))
      growth.push_back({std::move(*shorter), 0.5});
  return reports::tensor_explanation(plan, groups, growth, changes_of(asker, request), terminal);
}

}  // namespace plimsoll::tools
