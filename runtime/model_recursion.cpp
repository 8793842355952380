// Layers that are run again recursively, from the inputs of a few.
#include <algorithm>

#include "models/decisions/recursion.h"
#include "runtime/model.h"

namespace plimsoll::runtime {

namespace decisions = models::decisions;

// Which layers' inputs the forward keeps, and what each of them leaves to reverse.
void Model::find_reversals(const models::Recompute& recompute) {
  for (const Layer& layer : layers_) keeps_input_.push_back(layer.saves());
  reversed_from_ = layers_.size();
  if (recompute.kind != models::RecomputeKind::recursive) return;
  reversed_from_ = 0;
  while (reversed_from_ < layers_.size() && !layers_[reversed_from_].saves()) ++reversed_from_;
  std::int64_t kept = recompute.layers;
  std::size_t first = reversed_from_, steps = layers_.size() - first + 1;
  while (steps > 1) {
    const auto ahead =
        static_cast<std::size_t>(decisions::steps_ahead(static_cast<std::int64_t>(steps), kept));
    std::fill_n(keeps_input_.begin() + static_cast<std::ptrdiff_t>(first) + 1, ahead - 1, 0);
    reversals_.push_back({first, ahead, kept--});
    first += ahead;
    steps -= ahead;
  }
}

void Model::visit(const Reversal& part, const Visitor& visitor) {
  if (part.steps == 1) return visitor.reverse(part.first);
  const auto ahead = static_cast<std::size_t>(
      decisions::steps_ahead(static_cast<std::int64_t>(part.steps), part.kept));
  visitor.run_ahead(part.first, ahead);
  visit({part.first + ahead, part.steps - ahead, part.kept - 1}, visitor);
  visit({part.first, ahead, part.kept}, visitor);
}

void Model::visit_reversals(const Visitor& visitor) const {
  for (auto part = reversals_.rbegin(); part != reversals_.rend(); ++part) visit(*part, visitor);
}

// The input of the layer behind them is kept, and that of the first one still is.
void Model::run_ahead(std::size_t first, std::size_t layers) {
  Tensor x = std::move(input_of(saved_[first]));
  for (std::size_t i = first; i < first + layers; ++i) {
    begin_use(*layer_units_[i], Phase::recompute);
    x = layers_[i].forward(std::move(x),
                           i == first ? Layer::Forward::keeps_input : Layer::Forward::keeps_nothing,
                           saved_[i]);
    end_use(*layer_units_[i], Phase::recompute);
  }
  input_of(saved_[first + layers]) = std::move(x);
}

void Model::reverse_layers(Tensor& d) {
  visit_reversals(
      {.run_ahead = [&](std::size_t first, std::size_t layers) { run_ahead(first, layers); },
       .reverse =
           [&](std::size_t layer) {
             recompute({layer, 1, true});
             backward_layer(layer, d);
           }});
}

}  // namespace plimsoll::runtime
