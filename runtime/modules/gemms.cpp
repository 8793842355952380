// GEMMs of one input.
#include <algorithm>

#include "runtime/modules/layer_module.h"
#include "runtime/modules/linear.h"
#include "runtime/modules/sites.h"

namespace plimsoll::runtime {

namespace {

using models::decisions::GemmOp;

class Gemms final : public LayerModule {
 public:
  Gemms(LayerContext& context, std::size_t at) : LayerModule(context, at), x_(op().in[0].value) {
    for (const GemmOp& gemm : op().gemms) {
      const models::Module& module = context.layer.modules[static_cast<std::size_t>(gemm.module)];
      parts_.push_back({Linear(context.worker, gemm.names, context.parameters.linears[module.place],
                               stream_of(context.index, gemm.site)),
                        gemm.out, module.place});
    }
  }

  void forward(ForwardPass& pass) override {
    const bool results = !pass.ends_with(at_) || results_stay(pass);
    const auto reads = [&](const Gemm& p) {
      return !p.linear.in_float8() && (results || p.linear.adapted());
    };
    Float8Cast x8;
    if (results && eight(0) != nullptr)
      x8 = eight(0)->linear.input8(std::ranges::none_of(parts_, reads)
                                       ? pass.read(x_, at_)
                                       : reading(std::as_const(pass.value(x_))),
                                   worker().phase, {.straight = true});
    for (std::size_t i = 0; i < parts_.size(); ++i) {
      Gemm& p = parts_[i];
      if (p.linear.in_float8()) {
        if (results) pass.value(p.out) = p.linear.forward8(x8, eight(i + 1) == nullptr, name_of(p));
        continue;
      }
      const bool leaves = pass.saves && p.linear.adapted();
      if (!results && !leaves) continue;
      const bool last =
          std::none_of(parts_.begin() + static_cast<std::ptrdiff_t>(i) + 1, parts_.end(), reads);
      const Operand x = last ? pass.read(x_, at_) : reading(std::as_const(pass.value(x_)));
      Tensor a;
      if (results)
        pass.value(p.out) = p.linear.forward(x, name_of(p), leaves, a);
      else
        a = p.linear.adapter(x);
      pass.saved.adapters[p.place] = std::move(a);
    }
  }

  // Weights before the input, which may die with them; where the op before makes the input again,
  // the other way round.
  void backward(BackwardPass& pass) override {
    const models::decisions::RequiresGrad& r = context_.requires_grad;
    const bool reads =
        std::ranges::any_of(parts_, [](const Gemm& p) { return p.linear.reads_input(); });
    if (reads && r.makes_again(x_) && !pass.value(x_)) pass.modules[producer()]->again(pass);
    if (waits_for_input()) return backward_input_first(pass);
    const Gemm* reader = nullptr;
    for (const Gemm& p : parts_)
      if (!p.linear.in_float8() && p.linear.reads_input()) reader = &p;
    Gemm* reader8 = nullptr;
    for (Gemm& p : parts_)
      if (trains_in_float8(p)) reader8 = &p;
    Float8Cast x8;
    if (reader8 != nullptr)
      x8 = eight(0)->linear.input8(
          reader == nullptr ? pass.read(x_, at_) : reading(std::as_const(pass.value(x_))),
          Phase::backward, {.turned = true});
    for (Gemm& p : parts_) {
      if (!wants(p.out)) continue;
      if (p.linear.in_float8()) {
        p.d8 = p.linear.gradient8(pass.gradient(p.out).read(true), wants(x_));
        p.linear.backward_weight8(pass.gradient(p.out).read(true), p.d8, x8, &p == reader8);
        continue;
      }
      p.d_a = p.linear.backward_parameters(
          pass.gradient(p.out),
          &p == reader ? pass.read(x_, at_) : reading(std::as_const(pass.value(x_))),
          std::move(pass.saved.adapters[p.place]), wants(x_));
    }
    if (!wants(x_)) return;
    for (Gemm& p : parts_) input_gradient(pass, p, true);
  }

  void backward_late(BackwardPass& pass) override {
    Gemm& p = parts_.front();
    if (!p.linear.in_float8())
      return p.linear.backward_weight(pass.gradient(p.out).read(true), reading_last(pass.value(x_)),
                                      reading_last(p.d_a));
    Float8Cast x8;
    if (p.linear.trains_weight())
      x8 = p.linear.input8(reading_last(pass.value(x_)), Phase::backward, {.turned = true});
    p.linear.backward_weight8(pass.gradient(p.out).read(true), p.d8, x8, true);
  }

  Bytes workspace() const override {
    Bytes most;
    for (const Gemm& p : parts_) most = std::max(most, p.linear.workspace());
    return most;
  }

 private:
  struct Gemm {
    Linear linear;
    ValueId out;
    std::size_t place;
    Tensor d_a;  // of x · A, until x's gradient has it
    Float8Cast d8{};  // of the result's gradient, until both GEMMs have read it
  };

  // The first from `i` on whose products have operands of 8 bits.
  Gemm* eight(std::size_t i) {
    for (; i < parts_.size(); ++i)
      if (parts_[i].linear.in_float8()) return &parts_[i];
    return nullptr;
  }
  bool trains_in_float8(const Gemm& p) const {
    return p.linear.in_float8() && p.linear.trains_weight() && wants(p.out);
  }

  const models::decisions::LayerValue& value(ValueId id) const {
    return context_.layer.values[static_cast<std::size_t>(id)];
  }
  const char* name_of(const Gemm& p) const { return value(p.out).name; }
  std::size_t producer() const { return static_cast<std::size_t>(value(x_).producer); }
  bool results_stay(const ForwardPass& pass) const {
    return std::ranges::any_of(parts_, [&](const Gemm& p) { return pass.keeps(p.out); });
  }
  bool waits_for_input() const {
    return value(x_).producer >= 0 && wants(x_) &&
           context_.layer.ops[producer()].kind == models::decisions::LayerOpKind::activation;
  }

  void backward_input_first(BackwardPass& pass) {
    Gemm& p = parts_.front();
    if (p.linear.in_float8()) p.d8 = p.linear.gradient8(pass.gradient(p.out).read(true), true);
    p.d_a = p.linear.backward_adapter(pass.gradient(p.out).read(false),
                                      std::move(pass.saved.adapters[p.place]));
    input_gradient(pass, p, !p.linear.trains_own());
    pass.waits = this;
  }

  void input_gradient(BackwardPass& pass, Gemm& p, bool last_of_d) {
    Gradient& d_x = pass.gradient(x_);
    if (p.linear.in_float8())
      p.linear.backward_input8(p.d8, value(x_).gradient, d_x.own);
    else
      p.linear.backward_input(pass.gradient(p.out).read(last_of_d),
                              reading(p.d_a, !waits_for_input() || !p.linear.adapted()),
                              value(x_).gradient, d_x.own);
    d_x.view = std::as_const(d_x.own).view();
  }

  ValueId x_;
  std::vector<Gemm> parts_;
};

}  // namespace

std::unique_ptr<LayerModule> gemms_module(LayerContext& context, std::size_t at) {
  return std::make_unique<Gemms>(context, at);
}

}  // namespace plimsoll::runtime
