// The eager modules put together without units, ranks or an optimizer: one micro-batch forward and
// backward, with every parameter and gradient a plain tensor.
#pragma once

#include <deque>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "models/model_spec.h"
#include "models/run_spec.h"
#include "runtime/model_layout.h"
#include "runtime/modules/embedding.h"
#include "runtime/modules/head.h"
#include "runtime/modules/layer.h"
#include "runtime/modules/rotary_tables.h"

namespace plimsoll::runtime::test {

std::vector<double> values_of(ConstTensorView view);
void set_values(TensorView view, const std::vector<double>& values);

// Gradients of all of its parameters are allocated by the op that adds to the first.
class PlainStore final : public ParameterStore {
 public:
  PlainStore(Worker& worker, const std::vector<ModelParameter>& parameters);
  ConstTensorView value(std::size_t index) const override { return values_[index].view(); }
  TensorView gradient(std::size_t index) override;
  TensorView stored(std::size_t index) { return values_[index].view(); }
  void drop_gradients() { gradients_.clear(); }
  void allocate_gradients();  // 0

 private:
  Worker& worker_;
  std::vector<ModelParameter> parameters_;
  std::vector<Tensor> values_, gradients_;
};

struct Batch {
  std::int64_t sequences = 1, length = 1;
  std::vector<std::int32_t> ids, targets;
};

class TinyModel {
 public:
  // The workspace is as large as the modules say, and memory is poisoned.
  TinyModel(models::ModelSpec spec, const models::Strategy& strategy, Batch batch);

  Worker& worker() { return worker_; }
  // Gradients carry this; a power of two.
  void set_loss_scale(double scale) { loss_scale_ = scale; }
  // Of all parameters, or of those that are trained.
  std::vector<std::string> names(bool trained = false) const;
  std::vector<double> values(const std::string& name);
  void set(const std::string& name, const std::vector<double>& values);
  // Norms' weights around 1, the rest around 0; the same for a name whatever else there is.
  void set_random(double deviation = 0.3);

  std::vector<double> logits();
  // Forward alone: the mean of the tokens' losses.
  double loss();
  // Forward and backward, as a step of its own. `gradients_before`: they are there when it begins.
  double step(bool gradients_before = false);
  std::vector<double> gradient(const std::string& name);  // without the loss scale
  const StepRecord& record() const { return record_; }  // of the last step

 private:
  struct Place {
    PlainStore* store = nullptr;
    std::size_t index = 0;
    bool trained = false;
    std::int64_t first = 0, elements = 0;  // of the store's tensor: a piece, or all of it

    template <class View>
    View in(View whole) const {
      return whole.as({whole.elements()}).rows(first, elements);
    }
  };
  using Group = std::pair<std::size_t, std::size_t>;  // layers that are made again together
  void add_layers(const std::optional<models::Lora>& lora);
  PlainStore& add_store(const std::vector<ModelParameter>& parameters);
  std::vector<Group> groups() const;
  Tensor forward(bool saves);
  void forward_again(const Group& group);
  void backward(Tensor d);
  void allocate_workspace();
  LossFactors factors() const;

  models::ModelSpec spec_;
  models::Strategy strategy_;
  Batch batch_;
  double loss_scale_ = 1;
  Worker worker_;
  ModelLayout layout_;
  ModelSettings settings_;
  std::deque<PlainStore> stores_;
  std::map<std::string, Place> places_;
  RotaryTables rotary_;
  Tensor ids_, targets_, loss_;
  std::optional<Embedding> embedding_;
  std::optional<Head> head_;
  std::deque<Layer> layers_;
  std::vector<LayerSaved> saved_;
  StepRecord record_;
};

}  // namespace plimsoll::runtime::test
