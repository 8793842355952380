#include "models/decisions/requires_grad.h"

namespace plimsoll::models::decisions {

namespace {

class Derivation {
 public:
  Derivation(const LayerOps& layer, std::span<const Trained> trained, Keeps keeps,
             Attention attention)
      : layer_(layer), trained_(trained), keeps_(keeps), flash_(attention == Attention::flash) {}

  RequiresGrad run(bool input) {
    r_.values[kBlockInput] = input;
    for (at_ = 0; at_ < layer_.ops.size(); ++at_) {
      const LayerOp& op = layer_.ops[at_];
      switch (op.kind) {
        case LayerOpKind::norm:
          norm(op);
          break;
        case LayerOpKind::gemms:
          gemms(op);
          break;
        case LayerOpKind::rotary:
          break;  // in place
        case LayerOpKind::attention:
          attention(op);
          break;
        case LayerOpKind::activation:
          activation(op);
          break;
        case LayerOpKind::experts:
          experts(op);
          break;
        case LayerOpKind::residual:
          set(op.out, input_requires(op));
          break;
      }
    }
    return r_;
  }

 private:
  void set(ValueId value, bool requires_grad) {
    r_.values[static_cast<std::size_t>(value)] = requires_grad;
  }
  const Trained& trained(std::int16_t module) const {
    return trained_[static_cast<std::size_t>(module)];
  }
  bool input_requires(const LayerOp& op) const {
    return r_.value(op.in[0].value) || r_.value(op.in[1].value) || r_.value(op.in[2].value);
  }
  void leaves() { r_.last = static_cast<std::int8_t>(at_); }
  void save(ValueId value) {
    r_.saved[static_cast<std::size_t>(value)] = true;
    r_.last = std::max(r_.last, layer_.values[static_cast<std::size_t>(value)].producer);
  }

  void norm(const LayerOp& op) {
    const bool wanted = r_.value(op.in[0].value) || trained(op.module).any();
    set(op.out, wanted);
    if (!wanted) return;
    save(op.in[0].value);
    r_.beside[at_] = true;
    leaves();
  }

  void gemms(const LayerOp& op) {
    const ValueId x = op.in[0].value;
    bool reads = false;
    for (const GemmOp& gemm : op.gemms) {
      const Trained& own = trained(gemm.module);
      set(gemm.out, r_.value(x) || own.any());
      reads = reads || own.reads_input();
      if (own.adapter) leaves();
    }
    if (reads) read(x);
  }
  // A weight's gradient does.
  void read(ValueId x) {
    if (made_again(x))
      r_.again[static_cast<std::size_t>(x)] = true;
    else
      save(x);
  }

  // An activation's backward makes its result again in passing; a norm's result is made again where
  // its own backward keeps its input.
  bool made_again(ValueId x) const {
    const std::int8_t producer = layer_.values[static_cast<std::size_t>(x)].producer;
    if (producer < 0) return false;
    const LayerOp& op = layer_.ops[static_cast<std::size_t>(producer)];
    if (op.kind == LayerOpKind::activation) return r_.value(x);
    return op.kind == LayerOpKind::norm && !keeps_.norm_outputs && r_.value(x);
  }

  void attention(const LayerOp& op) {
    set(op.out, input_requires(op));
    if (!r_.value(op.out)) return;
    for (const ValuePart& part : op.in) save(part.value);
    if (flash_) save(op.out);
    r_.beside[at_] = flash_ || keeps_.probabilities;
    leaves();
  }

  void activation(const LayerOp& op) {
    set(op.out, input_requires(op));
    if (!r_.value(op.out)) return;
    save(op.in[0].value);
    if (op.in[1]) save(op.in[1].value);
  }

  void experts(const LayerOp& op) {
    const Trained& own = trained(op.module);
    set(op.out, input_requires(op) || own.any());
    if (!r_.value(op.out)) return;
    if (own.weight) read(op.in[1].value);
    if (r_.value(op.in[0].value) && !op.normalizes) save(op.in[0].value);
    r_.beside[at_] = true;
    leaves();
  }

  const LayerOps& layer_;
  std::span<const Trained> trained_;
  Keeps keeps_;
  bool flash_;
  std::size_t at_ = 0;
  RequiresGrad r_;
};

}  // namespace

ExpertsGradients experts_gradients(const RequiresGrad& r, const LayerOp& op,
                                   const Trained& trained) {
  const bool scores = r.value(op.in[0].value), input = r.value(op.in[1].value);
  return {.product = trained.weight || input || scores, .gate_up = trained.weight || input};
}

RequiresGrad requires_grad(const LayerOps& layer, std::span<const Trained> trained, bool input,
                           Keeps keeps, Attention attention) {
  return Derivation(layer, trained, keeps, attention).run(input);
}

}  // namespace plimsoll::models::decisions
