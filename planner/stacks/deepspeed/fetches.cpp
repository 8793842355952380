#include "planner/stacks/deepspeed/fetches.h"

#include <string>

#include "planner/stacks/deepspeed/coordinator.h"

namespace plimsoll::planner::deepspeed {

void add_fetches(const ModelParts& parts, const FlatLayout& layout, const Engine& engine,
                 const models::Strategy& strategy, Messages& out) {
  Messages fetches;
  Coordinator(trace_of(parts, layout, engine, strategy), engine, strategy).run(fetches);
  out.insert(out.end(), fetches.begin(), fetches.end());
}

void refuse_few_buffers(const ModelParts& parts, const FlatLayout& layout, const Engine& engine,
                        const models::Strategy& strategy) {
  if (!engine.offload.nvme || !engine.offload.params) return;
  Coordinator coordinator(trace_of(parts, layout, engine, strategy), engine, strategy);
  if (!coordinator.has_files()) return;
  const std::int64_t count = engine.options.nvme.param_buffer_count;
  const std::string why = coordinator.refused(count);
  if (why.empty()) return;
  constexpr std::int64_t most = 200;
  std::int64_t other = 1;
  while (other <= most && !coordinator.refused(other).empty()) ++other;
  std::string accepted = other <= most ? std::to_string(other) + " are enough" : "";
  if (!strategy.lora)
    accepted += (accepted.empty() ? "" : "; ") +
                ("--offload-param-max-in-cpu " + std::to_string(layout.shards().trained)) +
                " takes all of them out of their files";
  fail(ErrorKind::bad_input, "--offload-param-buffer-count " + std::to_string(count) +
                                 ": with these DeepSpeed's prefetching fails (\"" + why +
                                 "\"), where every parameter that was read from its file has a "
                                 "buffer until it is released" +
                                 (accepted.empty() ? "" : "; " + accepted));
}

}  // namespace plimsoll::planner::deepspeed
