// Rotation of queries and keys, in place both ways.
#include "runtime/modules/layer_module.h"

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

std::unique_ptr<LayerModule> rotary_module(LayerContext& context, std::size_t at) {
  return std::make_unique<Rotary>(context, at);
}

}  // namespace plimsoll::runtime
