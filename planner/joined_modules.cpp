#include "planner/joined_modules.h"

#include <algorithm>

#include "models/decisions/layer_modules.h"

namespace plimsoll::planner {

using models::JoinedModules;
using models::LoraModule;
using models::TrainableRow;
using models::decisions::parameter_name;

namespace {

// Which of the parts a row is of; as many as there are: none.
std::size_t part_of_row(const JoinedModules& joined, const std::string& name) {
  const auto found = std::ranges::find(joined.of, parameter_name(name).module);
  return static_cast<std::size_t>(found - joined.of.begin());
}

const JoinedModules& joined_of(const models::OtherForward* forward) {
  static const JoinedModules none;
  return forward == nullptr ? none : forward->joined;
}

std::int64_t width_of(const models::ModelSpec& model, const LoraModule& module) {
  return model.parameters[module.base].shape.axes[0];
}

// A of all parts one under the other, and so B.
void join(PlacedAdapter& whole, const LoraModule& next, std::int64_t width) {
  whole.joined.widths[static_cast<std::size_t>(whole.joined.parts++)] = width;
  if (whole.joined.parts == 1) return;
  whole.module.a.shape.axes[0] += next.a.shape.axes[0];
  whole.module.b.shape.axes[0] += next.b.shape.axes[0];
}

}  // namespace

std::vector<TrainableRow> joined_rows(std::vector<TrainableRow> rows,
                                      const models::OtherForward* forward) {
  if (forward != nullptr && forward->own_head)
    for (TrainableRow& entry : rows)
      if (entry.row.module == models::ModuleKind::head) entry.row.tied = false;
  const JoinedModules& joined = joined_of(forward);
  if (joined.name.empty()) return rows;
  std::vector<TrainableRow> out;
  for (TrainableRow& entry : rows) {
    const std::size_t part = part_of_row(joined, entry.row.name);
    if (part < joined.of.size()) {
      const std::string_view leaf = parameter_name(entry.row.name).leaf;
      const std::string whole = std::string(joined.name) + "." + std::string(leaf);
      if (part > 0) {
        const auto first = std::ranges::find_if(
            out, [&](const TrainableRow& r) { return r.row.name.ends_with("." + whole); });
        first->row.shape.axes[0] += entry.row.shape.axes[0];
        continue;
      }
      entry.row.name.replace(entry.row.name.find(joined.of[0]), entry.row.name.npos, whole);
    }
    out.push_back(std::move(entry));
  }
  return out;
}

std::vector<PlacedAdapter> placed_adapters(const models::ModelSpec& model, const models::Lora& lora,
                                           const models::OtherForward* forward) {
  const JoinedModules& joined = joined_of(forward);
  std::vector<PlacedAdapter> out;
  std::size_t whole = 0;  // behind the place of the joined one
  for (const LoraModule& module : models::lora_modules(model, lora)) {
    const std::string& name = model.parameters[module.base].name;
    if (part_of_row(joined, name) == joined.of.size() || joined.name.empty()) {
      out.push_back({module, std::string(parameter_name(name).module), {}});
      continue;
    }
    if (whole == 0) {
      out.push_back({module, std::string(joined.name), {.rank = lora.rank}});
      whole = out.size();
    }
    join(out[whole - 1], module, width_of(model, module));
  }
  if (whole == 0) return out;
  JoinedAdapter& of = out[whole - 1].joined;
  // Of the model: what its forward calls keys may be as many as its queries.
  of.grouped = model.decoder->heads == model.decoder->kv_heads;
  of.pads = of.parts < static_cast<std::int64_t>(joined.of.size());
  return out;
}

}  // namespace plimsoll::planner
