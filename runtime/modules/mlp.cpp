#include "runtime/modules/mlp.h"

#include <algorithm>

#include "runtime/modules/sites.h"

namespace plimsoll::runtime {

Mlp::Mlp(Worker& worker, const ModelSettings& settings, const models::decisions::LayerNames& names,
         const LayerParameters& parameters, std::int64_t index)
    : worker_(worker),
      settings_(settings),
      names_(names),
      gate_(worker, names_.gate, parameters.gate, stream_of(index, Site::gate)),
      up_(worker, names_.up, parameters.up, stream_of(index, Site::up)),
      down_(worker, names_.down, parameters.down, stream_of(index, Site::down)) {}

// Forward -----------------------------------------------------------------------------------------

Tensor Mlp::forward(Operand normalized, const Wants& wants, bool to_last_saved, MlpSaved& saved) {
  Tensor gate;
  if (gate_)
    gate = gate_.forward({normalized.view}, names_.gate.out, wants.gate, saved.gate_adapter);
  Tensor up = up_.forward(normalized, names_.up.out, wants.up, saved.up_adapter);
  const bool keeps_product = wants.down.reads_input() && !wants.activation;
  if (to_last_saved && !wants.down.lora_b && !keeps_product) {
    saved.gate = std::move(gate);
    saved.up = std::move(up);
    return {};
  }
  Tensor product = activate(gate, up, wants.activation);
  saved.gate = std::move(gate);
  saved.up = std::move(up);
  Tensor y;
  if (!to_last_saved)
    y = down_.forward(reading(product, !keeps_product), names_.out, wants.down, saved.down_adapter);
  else if (wants.down.lora_b)
    saved.down_adapter = down_.adapter(reading(product, !keeps_product));
  saved.product = std::move(product);
  return y;
}

Tensor Mlp::activate(Tensor& gate, Tensor& up, bool keeps) {
  Op op(worker_, names_.activation);
  Tensor product;
  if (keeps)
    product = op.make(names_.product, Category::activations, up.view().shape);
  else
    product = std::move(gate_ ? gate : up);
  if (gate_)
    worker_.kernels.swiglu_forward(keeps ? gate.view() : product.view(), up.view(), product.view());
  else
    worker_.kernels.activation_forward(settings_.activation, keeps ? up.view() : product.view(),
                                       product.view());
  if (!keeps) op.consume(std::move(up));
  return product;
}

// Backward ----------------------------------------------------------------------------------------

void Mlp::backward(Gradient d_y, MlpSaved& saved, const Wants& wants) {
  const LinearWants& w = wants.down;
  if (!w.input) {
    down_.backward_parameters(d_y, reading_last(saved.product), std::move(saved.down_adapter), w);
    return;
  }
  Tensor d_a = down_.backward_adapter(d_y.read(false), std::move(saved.down_adapter), w);
  Tensor d_product;
  down_.backward_input(d_y.read(!w.weight && !w.bias), reading(d_a, !w.lora_a),
                       names_.down.input_grad, d_product);
  backward_activation(d_product, saved, wants);
  down_.backward_weight(d_y.read(true), reading_last(d_product), reading_last(d_a), w);
}

void Mlp::backward_activation(Tensor& d_product, MlpSaved& saved, const Wants& wants) {
  Op op(worker_, names_.activation, Phase::backward);
  if (gate_)
    worker_.kernels.swiglu_backward(saved.gate.view(), saved.up.view(), d_product.view());
  else
    worker_.kernels.activation_backward(settings_.activation, saved.up.view(), d_product.view());
  if (!wants.gate.any()) op.consume(std::move(saved.gate));
  if (!wants.up.any()) op.consume(std::move(saved.up));
  if (!wants.down.reads_input()) op.consume(std::move(d_product));
}

Tensor Mlp::backward_products(Operand normalized, MlpSaved& saved, const Wants& wants) {
  Gradient d_gate = Gradient::of(std::move(saved.gate)), d_up = Gradient::of(std::move(saved.up));
  Tensor gate_a, up_a, d_normalized;
  if (wants.gate.any())
    gate_a = gate_.backward_parameters(
        d_gate, wants.up.reads_input() ? Operand{normalized.view} : normalized,
        std::move(saved.gate_adapter), wants.gate);
  if (wants.up.any())
    up_a = up_.backward_parameters(d_up, normalized, std::move(saved.up_adapter), wants.up);
  const char* name = names_.post_norm.out_grad;
  if (wants.gate.input)
    gate_.backward_input(d_gate.read(true), reading_last(gate_a), name, d_normalized);
  if (wants.up.input) up_.backward_input(d_up.read(true), reading_last(up_a), name, d_normalized);
  return d_normalized;
}

Bytes Mlp::workspace(const Wants& wants) const {
  return std::max(
      {gate_.workspace(wants.gate), up_.workspace(wants.up), down_.workspace(wants.down)});
}

}  // namespace plimsoll::runtime
