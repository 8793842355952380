// A mixture of experts: routing, the experts' two GEMMs with their gate between, and the sum of
// a token's rows (models/decisions/layer.h).
#include "kernels/expert_kernels.h"
#include "runtime/modules/layer_module.h"
#include "runtime/modules/linear.h"

namespace plimsoll::runtime {

namespace {

using models::decisions::ExpertsGradients;
using models::decisions::ExpertsNames;

class Experts final : public LayerModule {
 public:
  Experts(LayerContext& context, std::size_t at)
      : LayerModule(context, at),
        module_(context.layer.modules[static_cast<std::size_t>(op().module)]),
        parameters_(context.parameters.experts[module_.place]),
        names_(op().experts),
        gradients_(models::decisions::experts_gradients(
            context.requires_grad, op(),
            {.weight = parameters_.gate_up.trains(), .down = parameters_.down.trains()})),
        logits_(op().in[0].value),
        x_(op().in[1].value) {}

  void forward(ForwardPass& pass) override {
    RoutedSaved& kept = pass.saved.routed[at_];
    const bool saves = pass.saves && wants(op().out);
    route(pass, kept);
    Tensor gate_up = first_product(pass, kept);
    if (saves && gradients_.product) {
      kept.gate_up = std::move(gate_up);
      if (pass.ends_with(at_)) return;
    }
    const bool keeps_gate = static_cast<bool>(kept.gate_up);
    Tensor p =
        gate(kept, keeps_gate ? reading(kept.gate_up, false) : reading_last(gate_up), !keeps_gate);
    if (saves && !keeps_gate) {
      kept.product = std::move(p);
      if (pass.ends_with(at_)) return;
    }
    const bool keeps_product = static_cast<bool>(kept.product);
    Tensor rows =
        second_product(kept, keeps_product ? reading(kept.product, false) : reading_last(p));
    Op running(worker(), names_.sum);
    Tensor& y = pass.value(op().out);
    y = running.make(value(op().out).name, Category::activations, {worker().tokens(), module_.in});
    worker().kernels.experts_sum(routes(kept), rows.view(), false, y.view());
    running.consume(std::move(rows));
    if (!saves) running.consume(std::move(kept.routes));
  }

  void backward(BackwardPass& pass) override {
    if (!wants(op().out)) return;
    RoutedSaved& kept = pass.saved.routed[at_];
    Gradient& d = pass.gradient(op().out);
    if (gradients_.product) {
      Tensor d_p = product_gradient(kept, d);
      gate_backward(kept, std::move(d_p));
    }
    if (parameters_.down.trains()) down_gradient(kept, d);
    if (parameters_.gate_up.trains()) gate_up_gradient(pass, kept);
    if (wants(x_)) input_gradient(pass, kept);
    if (wants(logits_)) route_backward(pass, kept);
  }

  Bytes workspace() const override { return gemm_scratch(worker()); }

 private:
  const models::decisions::LayerValue& value(ValueId id) const {
    return context_.layer.values[static_cast<std::size_t>(id)];
  }
  std::int64_t rows() const { return checked_multiply(worker().tokens(), module_.active); }
  kernels::Routes routes(RoutedSaved& kept) const {
    return kernels::routes_in(kept.routes.view(), module_.experts, module_.active);
  }

  // Forward.
  void route(ForwardPass& pass, RoutedSaved& kept);
  Tensor first_product(ForwardPass& pass, RoutedSaved& kept);
  Tensor gate(RoutedSaved& kept, Operand gate_up, bool last_of_scores);
  Tensor second_product(RoutedSaved& kept, Operand p);

  // Backward. `kept.GEMM` is p once more where its weight reads it.
  Tensor product_gradient(RoutedSaved& kept, Gradient& d);
  void gate_backward(RoutedSaved& kept, Tensor d_p);
  void down_gradient(RoutedSaved& kept, Gradient& d);
  void gate_up_gradient(BackwardPass& pass, RoutedSaved& kept);
  void input_gradient(BackwardPass& pass, RoutedSaved& kept);
  void route_backward(BackwardPass& pass, RoutedSaved& kept);

  const models::Module& module_;
  const ExpertsParameters& parameters_;
  const ExpertsNames& names_;
  ExpertsGradients gradients_;
  ValueId logits_, x_;
};

// Forward -----------------------------------------------------------------------------------------

void Experts::route(ForwardPass& pass, RoutedSaved& kept) {
  Op running(worker(), names_.route);
  kept.scores =
      running.make(names_.scores, Category::activations, models::decisions::kStatistics, {rows()});
  kept.routes = running.make(names_.routes, Category::activations, DType::int32,
                             {kernels::routes_elements(module_.experts, rows())});
  const Operand logits = pass.read(logits_, at_);
  worker().kernels.route(logits.view, op().normalizes, routes(kept), kept.scores.view());
  logits.read_by(running);
}

Tensor Experts::first_product(ForwardPass& pass, RoutedSaved& kept) {
  Op running(worker(), names_.gate_up.gemm);
  Tensor out = running.make(names_.gate_up.out, Category::activations, {rows(), 2 * module_.out});
  const Operand x = pass.read(x_, at_);
  worker().kernels.experts_forward(routes(kept), {x.view, true}, parameters_.gate_up.value(),
                                   out.view(), gemm_panels(worker()));
  x.read_by(running);
  return out;
}

Tensor Experts::gate(RoutedSaved& kept, Operand gate_up, bool last_of_scores) {
  Op running(worker(), names_.act);
  Tensor p = running.make(names_.product, Category::activations, {rows(), module_.out});
  worker().kernels.scored_gate_forward(kernels::Activation::silu, routes(kept), gate_up.view,
                                       kept.scores.view(), p.view());
  gate_up.read_by(running);
  if (last_of_scores) running.consume(std::move(kept.scores));
  return p;
}

Tensor Experts::second_product(RoutedSaved& kept, Operand p) {
  Op running(worker(), names_.down.gemm);
  Tensor out = running.make(names_.down.out, Category::activations, {rows(), module_.in});
  worker().kernels.experts_forward(routes(kept), {p.view}, parameters_.down.value(), out.view(),
                                   gemm_panels(worker()));
  p.read_by(running);
  return out;
}

// Backward ----------------------------------------------------------------------------------------

Tensor Experts::product_gradient(RoutedSaved& kept, Gradient& d) {
  Op running(worker(), names_.down.input_grad, Phase::backward);
  Tensor d_p = running.make(names_.down.input_grad, Category::temporaries, {rows(), module_.out});
  worker().kernels.experts_backward_input(routes(kept), {d.view, true}, parameters_.down.value(),
                                          d_p.view(), gemm_panels(worker()));
  d.read(!parameters_.down.trains()).read_by(running);
  return d_p;
}

void Experts::gate_backward(RoutedSaved& kept, Tensor d_p) {
  Op running(worker(), names_.act, Phase::backward);
  if (wants(logits_))
    kept.scores_grad = running.make(names_.scores_grad, Category::temporaries,
                                    models::decisions::kStatistics, {rows()});
  worker().kernels.scored_gate_backward(kernels::Activation::silu, routes(kept),
                                        kept.gate_up.view(), kept.scores.view(), d_p.view(),
                                        kept.scores_grad ? kept.scores_grad.view() : TensorView{});
  if (parameters_.down.trains())
    kept.product = std::move(d_p);
  else
    running.consume(std::move(d_p));
  if (!wants(logits_)) running.consume(std::move(kept.scores));
  if (!gradients_.gate_up) running.consume(std::move(kept.gate_up));
}

void Experts::down_gradient(RoutedSaved& kept, Gradient& d) {
  Op running(worker(), names_.down.weight_grad, Phase::backward);
  worker().kernels.experts_backward_weight(routes(kept), {d.view, true}, {kept.product.view()},
                                           parameters_.down.gradient(), gemm_panels(worker()));
  d.read(true).read_by(running);
  running.consume(std::move(kept.product));
  if (!wants(logits_) && !parameters_.gate_up.trains()) running.consume(std::move(kept.routes));
}

void Experts::gate_up_gradient(BackwardPass& pass, RoutedSaved& kept) {
  if (context_.requires_grad.makes_again(x_) && !pass.value(x_))
    pass.modules[static_cast<std::size_t>(value(x_).producer)]->again(pass);
  Op running(worker(), names_.gate_up.weight_grad, Phase::backward);
  const Operand x = pass.read(x_, at_);
  worker().kernels.experts_backward_weight(routes(kept), {kept.gate_up.view()}, {x.view, true},
                                           parameters_.gate_up.gradient(), gemm_panels(worker()));
  x.read_by(running);
  if (!wants(x_)) running.consume(std::move(kept.gate_up));
  if (!wants(logits_)) running.consume(std::move(kept.routes));
}

// Of each row, and then of the tokens.
void Experts::input_gradient(BackwardPass& pass, RoutedSaved& kept) {
  Tensor d_rows;
  {
    Op running(worker(), names_.gate_up.input_grad, Phase::backward);
    d_rows = running.make(names_.gate_up.input_grad, Category::temporaries, {rows(), module_.in});
    worker().kernels.experts_backward_input(routes(kept), {kept.gate_up.view()},
                                            parameters_.gate_up.value(), d_rows.view(),
                                            gemm_panels(worker()));
    running.consume(std::move(kept.gate_up));
  }
  Op running(worker(), names_.sum, Phase::backward);
  Gradient& d_x = pass.gradient(x_);
  const bool adds = static_cast<bool>(d_x.own);
  if (!adds)
    d_x = Gradient::of(
        running.make(value(x_).gradient, Category::temporaries, {worker().tokens(), module_.in}));
  worker().kernels.experts_sum(routes(kept), d_rows.view(), adds, d_x.own.view());
  running.consume(std::move(d_rows));
}

void Experts::route_backward(BackwardPass& pass, RoutedSaved& kept) {
  Op running(worker(), names_.route, Phase::backward);
  Tensor d_logits = running.make(value(logits_).gradient, Category::temporaries,
                                 {worker().tokens(), module_.experts});
  const Operand logits = op().normalizes ? Operand{} : pass.read(logits_, at_);
  worker().kernels.route_backward(logits.view, op().normalizes, routes(kept), kept.scores.view(),
                                  std::as_const(kept.scores_grad).view(), d_logits.view());
  logits.read_by(running);
  for (Tensor* tensor : {&kept.scores, &kept.scores_grad, &kept.routes})
    running.consume(std::move(*tensor));
  pass.gradient(logits_) = Gradient::of(std::move(d_logits));
}

}  // namespace

std::unique_ptr<LayerModule> experts_module(LayerContext& context, std::size_t at) {
  return std::make_unique<Experts>(context, at);
}

}  // namespace plimsoll::runtime
