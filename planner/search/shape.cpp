#include "planner/search/shape.h"

#include "models/decisions/mesh.h"
#include "planner/stacks/stack_info.h"

namespace plimsoll::planner::search {

std::int64_t shards_of(const models::Strategy& strategy) {
  return models::decisions::mesh_of(strategy)[models::decisions::Axis::shard].ranks;
}

// FSDP2 allocates the same whether or not there are several groups. Model code of its own may be
// refused in groups.
models::Strategy shape_of(const models::Strategy& strategy) {
  const bool fsdp2 =
      stack_info(strategy.stack).has_fsdp && strategy.data.zero >= 2 && !models::is_fsdp1(strategy);
  if (!fsdp2 || !is_transformers(strategy.code) || shards_of(strategy) == 1) return strategy;
  models::Strategy shape = strategy;
  shape.data.shard_group = 0;
  shape.gpus = 2;
  return shape;
}

}  // namespace plimsoll::planner::search
