// An activation, and what its result is multiplied with.
#include "runtime/modules/layer_module.h"

namespace plimsoll::runtime {

namespace {

kernels::Activation kernel_of(models::Activation activation) {
  if (activation == models::Activation::silu) return kernels::Activation::silu;
  if (activation == models::Activation::gelu) return kernels::Activation::gelu_erf;
  if (activation == models::Activation::relu) return kernels::Activation::relu;
  return kernels::Activation::gelu_tanh;
}

class ActivationModule final : public LayerModule {
 public:
  ActivationModule(LayerContext& context, std::size_t at)
      : LayerModule(context, at), x_(op().in[0].value), factor_(op().in[1].value) {}

  void forward(ForwardPass& pass) override {
    Op running(worker(), op().name);
    Tensor& x = pass.value(x_);
    const bool keeps = pass.keeps(x_), makes = keeps || !op().may_replace;
    Tensor p =
        makes ? running.make(name(), Category::activations, {worker().tokens(), op().in[0].width})
              : std::move(x);
    const TensorView in = makes ? x.view() : p.view();
    if (gated())
      worker().kernels.gated_forward(
          kernel_of(op().activation), columns(in, op().in[0]),
          columns(joined() ? in : pass.value(factor_).view(), op().in[1]), p.view());
    else
      worker().kernels.activation_forward(kernel_of(op().activation), in, p.view());
    if (!keeps && makes) running.consume(std::move(x));
    if (!keeps && gated() && !joined()) running.consume(std::move(pass.value(factor_)));
    pass.value(op().out) = std::move(p);
  }

  // What it read becomes its gradients, and the result's gradient the result.
  void backward(BackwardPass& pass) override {
    if (!wants(op().out)) return;
    Op running(worker(), op().name, Phase::backward);
    Tensor d_p = std::move(pass.gradient(op().out).own);
    if (gated())
      worker().kernels.gated_backward(kernel_of(op().activation),
                                      columns(pass.value(x_).view(), op().in[0]),
                                      columns(pass.value(factor_).view(), op().in[1]), d_p.view());
    else
      worker().kernels.activation_backward(kernel_of(op().activation), pass.value(x_).view(),
                                           d_p.view());
    for (const ValueId id : {x_, factor_}) {
      if (id == models::kNoValue || (joined() && !pass.value(id))) continue;
      if (wants(id))
        pass.gradient(id) = Gradient::of(std::move(pass.value(id)));
      else
        running.consume(std::move(pass.value(id)));
    }
    if (context_.requires_grad.makes_again(op().out))
      pass.value(op().out) = std::move(d_p);
    else
      running.consume(std::move(d_p));
  }

 private:
  const char* name() const {
    return context_.layer.values[static_cast<std::size_t>(op().out)].name;
  }
  bool gated() const { return factor_ != models::kNoValue; }
  // Both are columns of one tensor.
  bool joined() const { return x_ == factor_; }

  ValueId x_, factor_;
};

}  // namespace

std::unique_ptr<LayerModule> activation_module(LayerContext& context, std::size_t at) {
  return std::make_unique<ActivationModule>(context, at);
}

}  // namespace plimsoll::runtime
