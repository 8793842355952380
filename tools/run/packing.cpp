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

// Of a source that has some packed.
void check_parameter(const runtime::ModelParameter& parameter, const models::PackedStorage* held,
                     bool packs, const std::string& origin) {
  const auto refuse = [&](std::string_view why) {
    fail(ErrorKind::bad_input, fmt::format("{}: {} {}", origin, parameter.name, why));
  };
  if (held == parameter.packed) return;
  if (held == nullptr)
    return refuse("is not packed, as others are: --quantize packs all linears of layers");
  if (parameter.packed == nullptr && packs)
    refuse(
        fmt::format("is packed as {}: --quantize packs linears of layers alone, no head and no "
                    "experts",
                    held->name));
  if (parameter.packed == nullptr)
    refuse(fmt::format("is packed: run it with --quantize {}", held->name));
  refuse(fmt::format("is packed as {}, --quantize says {}", held->name, parameter.packed->name));
}

}  // namespace

bool check_packing(const models::ModelSpec& model, const models::Strategy& strategy,
                   const runtime::io::WeightSource& weights) {
  const runtime::ModelLayout layout = runtime::layout_of(model, strategy);
  std::vector<const runtime::ModelParameter*> all;
  const auto add = [&](const std::vector<runtime::ModelParameter>& list) {
    for (const runtime::ModelParameter& parameter : list) {
      all.push_back(&parameter);
      for (const runtime::ModelParameter& piece : parameter.pieces) all.push_back(&piece);
    }
  };
  add(layout.embedding);
  add(layout.tail);
  for (const runtime::LayerLayout& layer : layout.layers) add(layer.parameters);
  const auto held = [&](const runtime::ModelParameter* parameter) {
    return weights.packed_as(parameter->name);
  };
  if (std::ranges::none_of(all, held)) return false;
  for (const runtime::ModelParameter* parameter : all)
    check_parameter(*parameter, held(parameter), strategy.quantize.has_value(), weights.origin());
  for (const runtime::LayerLayout& layer : layout.layers)
    for (const runtime::ModuleSlots& module : layer.modules)
      check(!module.transposed || layer.parameters[*module.weight].packed == nullptr,
            ErrorKind::unsupported, [&] {
              return fmt::format("{}: {} is packed by outputs, and stored [in, out] here",
                                 weights.origin(), layer.parameters[*module.weight].name);
            });
  return true;
}

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
