// The sum of the stream and a branch, with the branch's dropout.
#include "runtime/modules/layer_module.h"
#include "runtime/modules/sites.h"

namespace plimsoll::runtime {

namespace {

class Residual final : public LayerModule {
 public:
  Residual(LayerContext& context, std::size_t at)
      : LayerModule(context, at), stream_(op().in[0].value), branch_(op().in[1].value) {}

  // The branch's tensor becomes the sum.
  void forward(ForwardPass& pass) override {
    Op running(worker(), op().name);
    const Operand stream = pass.read(stream_, at_);
    Tensor sum = std::move(pass.value(branch_));
    if (op().scaled) worker().kernels.scale(settings().residual_scale, sum.view());
    worker().kernels.residual_add(stream.view, dropout(), sum.view());
    stream.read_by(running);
    // Where a layer is made again, what reads the first sum of a parallel residual is not.
    if (pass.nobody_reads(op().out))
      running.consume(std::move(sum));
    else
      pass.value(op().out) = std::move(sum);
  }

  // The stream's gradient is the sum's. The branch's is too, while it is not changed; behind
  // dropout or a scale it is a copy.
  void backward(BackwardPass& pass) override {
    Gradient d = std::move(pass.gradient(op().out));
    const bool stream = wants(stream_);
    if (stream && pass.gradient(stream_).own) return add_to_other(pass, std::move(d));
    if (wants(branch_)) {
      Gradient& branch = pass.gradient(branch_);
      if (op().dropout > 0 || op().scaled)
        branch = copied(d, !stream);
      else if (stream)
        branch = {{}, d.view};
      else
        branch = std::move(d);
    }
    if (stream) pass.gradient(stream_) = std::move(d);
  }

 private:
  // Another reader of the stream, which ran later, has left a gradient of it: the branch's takes
  // its place.
  void add_to_other(BackwardPass& pass, Gradient d) {
    Op running(worker(), op().name, Phase::backward);
    Gradient& other = pass.gradient(stream_);
    worker().kernels.residual_backward(dropout(), d.own.view(), other.own.view());
    pass.gradient(branch_) = std::exchange(other, std::move(d));
  }
  kernels::Dropout dropout() const {
    return dropout_at(worker(), op().dropout, stream_of(context_.index, op().site),
                      checked_multiply(worker().length, settings().decoder.hidden));
  }
  Gradient copied(Gradient& d, bool last) {
    namespace names = models::decisions;
    const bool scaled = op().scaled;
    Op running(worker(), scaled ? names::kResidualScale : names::kResidualDropout, Phase::backward);
    Tensor copy = running.make(scaled ? names::kResidualScaleOut : names::kResidualDropoutOut,
                               Category::temporaries, d.view.shape);
    worker().kernels.dropout(d.view, dropout(), false, copy.view());
    if (scaled) worker().kernels.scale(settings().residual_scale, copy.view());
    d.read(last).read_by(running);
    return Gradient::of(std::move(copy));
  }

  ValueId stream_, branch_;
};

}  // namespace

std::unique_ptr<LayerModule> residual_module(LayerContext& context, std::size_t at) {
  return std::make_unique<Residual>(context, at);
}

}  // namespace plimsoll::runtime
