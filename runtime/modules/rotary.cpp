// Rotation of queries and keys, in place both ways.
#include <algorithm>

#include "models/decisions/unit_names.h"
#include "runtime/modules/rotary_tables.h"

namespace plimsoll::runtime {

namespace {

class Rotary final : public LayerModule {
 public:
  using LayerModule::LayerModule;

  void forward(ForwardPass& pass) override {
    Op running(worker(), op().name);
    for (const ValuePart& part : op().in)
      if (part) rotate(pass.value(part.value), part, false);
  }

  void backward(BackwardPass& pass) override {
    bool any = false;
    for (const ValuePart& part : op().in) any = any || (part && pass.gradient(part.value).own);
    if (!any) return;
    Op running(worker(), op().name, Phase::backward);
    for (const ValuePart& part : op().in)
      if (part && pass.gradient(part.value).own) rotate(pass.gradient(part.value).own, part, true);
  }

 private:
  void rotate(Tensor& tensor, const ValuePart& part, bool backward) {
    worker().kernels.rotary(context_.rotary_table, backward, columns(tensor.view(), part));
  }
};

}  // namespace

RotaryTables::RotaryTables(Worker& worker, const ModelSettings& settings) {
  if (!settings.rotates()) return;
  worker.prefix.clear();
  const auto table = [&](const char* name, const kernels::RotaryFrequencies& frequencies) {
    Tensor made = worker.memory.allocate(name, Category::workspace, models::decisions::kStatistics,
                                         {2, worker.length, settings.decoder.rotated() / 2});
    worker.kernels.rotary_table(frequencies, made.view());
    return made;
  };
  table_ = table(models::decisions::kRotaryTable, settings.rotary);
  if (settings.decoder.has_both_rotaries())
    local_ = table(models::decisions::kLocalRotaryTable, settings.local_rotary);
}

ConstTensorView RotaryTables::of(const LayerOps& layer) const {
  const bool slides = std::ranges::any_of(layer.ops, &LayerOp::sliding);
  return (slides && local_ ? local_ : table_).view();
}

std::unique_ptr<LayerModule> rotary_module(LayerContext& context, std::size_t at) {
  return std::make_unique<Rotary>(context, at);
}

}  // namespace plimsoll::runtime
