// A layer's norm: of the stream, of a branch, or of queries and keys.
#include "runtime/modules/layer_module.h"
#include "runtime/modules/norm.h"

namespace plimsoll::runtime {

namespace {

models::NormKind kind_of(models::ModuleClass module) {
  switch (module) {
    case models::ModuleClass::layer_norm:
      return models::NormKind::layer_norm;
    case models::ModuleClass::rms_norm_one_plus:
      return models::NormKind::rms_norm_one_plus;
    default:
      return models::NormKind::rms_norm;
  }
}

class NormModule final : public LayerModule {
 public:
  NormModule(LayerContext& context, std::size_t at)
      : LayerModule(context, at),
        module_(context.layer.modules[static_cast<std::size_t>(op().module)]),
        norm_(context.worker, op().norm, context.parameters.norms[module_.place],
              kind_of(module_.kind), context.settings.norm_eps),
        x_(op().in[0].value) {}

  void forward(ForwardPass& pass) override {
    const bool leaves = pass.saves && wants(op().out);
    if (op().may_replace && !leaves && !pass.keeps(x_)) {
      norm_.forward_in_place(pass.value(x_));
      pass.value(op().out) = std::move(pass.value(x_));
      return;
    }
    // At a checkpoint's end nobody needs the result.
    pass.value(op().out) =
        norm_.forward(pass.read(x_, at_), value(op().out).name,
                      leaves ? &pass.saved.beside[at_] : nullptr, !pass.ends_with(at_));
  }

  void again(BackwardPass& pass) override {
    pass.value(op().out) =
        norm_.again(std::as_const(pass.value(x_)).view(), pass.saved.beside[at_].view());
  }

  // Into the gradient that x has, or into that of the result, or into a new one.
  void backward(BackwardPass& pass) override {
    if (!wants(op().out)) return;
    Gradient d_y = std::move(pass.gradient(op().out));
    Gradient& d_x = pass.gradient(x_);
    const Operand x = pass.read(x_, at_);
    Tensor statistics = std::move(pass.saved.beside[at_]);
    if (d_x.own || !d_y.own) {
      norm_.backward(x, std::move(statistics), d_y.read(true), d_x.own, wants(x_),
                     value(x_).gradient);
      d_x.view = std::as_const(d_x.own).view();
      return;
    }
    norm_.backward_in_place(x, std::move(statistics), d_y.own, wants(x_));
    if (wants(x_)) d_x = std::move(d_y);
  }

  Bytes workspace() const override { return wants(op().out) ? norm_.workspace() : Bytes(0); }

 private:
  const models::decisions::LayerValue& value(ValueId id) const {
    return context_.layer.values[static_cast<std::size_t>(id)];
  }
  const models::Module& module_;
  Norm norm_;
  ValueId x_;
};

}  // namespace

std::unique_ptr<LayerModule> norm_module(LayerContext& context, std::size_t at) {
  return std::make_unique<NormModule>(context, at);
}

}  // namespace plimsoll::runtime
