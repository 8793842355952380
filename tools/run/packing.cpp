#include "tools/run/packing.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "runtime/shard/packed_bytes.h"

namespace plimsoll::tools {

namespace {

namespace shard = runtime::shard;

shard::PackingLoss loss_of(const runtime::ModelParameter& parameter, DType compute,
                           const runtime::ReadParameter& read) {
  const std::int64_t columns = parameter.shape[parameter.shape.rank - 1];
  const std::int64_t all = parameter.shape.elements() / columns;
  const std::int64_t rows = std::clamp(kTriedValues / columns, std::int64_t{1}, all);
  std::vector<float> values(static_cast<std::size_t>(rows * columns));
  read(parameter, 0, values);
  return shard::packing_loss(values, compute,
                             shard::packed_places(*parameter.packed, {rows, columns}));
}

}  // namespace

std::string packing_note(const models::ModelSpec& model, const models::Strategy& strategy,
                         DType compute, const runtime::ReadParameter& read) {
  if (!strategy.quantize) return "";
  shard::PackingLoss sums;
  const runtime::ModelLayout layout = runtime::layout_of(model, strategy);
  for (const runtime::LayerLayout& layer : layout.layers)
    for (const runtime::ModelParameter& parameter : layer.parameters) {
      if (parameter.packed == nullptr) continue;
      const shard::PackingLoss one = loss_of(parameter, compute, read);
      sums.lost += one.lost;
      sums.all += one.all;
    }
  if (sums.all == 0) return "";
  return fmt::format(
      "{} loses {:.2g} % of the base's packed weights (root mean square, the first rows of each)",
      strategy.quantize->storage->name, 100 * std::sqrt(sums.lost / sums.all));
}

}  // namespace plimsoll::tools
