#include "planner/loading/loading.h"

#include <algorithm>

#include "models/storages.h"
#include "planner/loading/device.h"
#include "planner/loading/from_pretrained.h"
#include "planner/loading/peft.h"
#include "planner/loading/refusals.h"
#include "planner/stacks/pytorch/regime.h"

namespace plimsoll::planner {

using loading::Device;
using loading::LoadedModel;

DType loaded_dtype(const models::ModelSpec& model, const models::Strategy& s) {
  if (s.param_dtype) return *s.param_dtype;
  if (!is_mixed(s.precision))
    return s.precision == models::Precision::fp32 ? DType::fp32 : pytorch::low_dtype(s.precision);
  // What the step is planned with is fp32 either way. Transformers 5 takes dtype "auto", the
  // checkpoint's; before, bitsandbytes' quantizers force fp16 (update_dtype).
  if (!models::kbit_prepared(s)) return DType::fp32;
  if (s.transformers < loading::kLoadsInOrder) return DType::fp16;
  return model.checkpoint_dtype.value_or(pytorch::low_dtype(s.precision));
}

namespace {

enum class WarmUp : bool { no, yes };

// What a script that trains does before its first step.
void make_ready(const Question& question, bool on_device, LoadedModel& model, Device& device) {
  const models::Strategy& s = question.strategy;
  if (models::kbit_prepared(s)) {
    device.begin("prepare_model_for_kbit_training");
    loading::prepare_for_kbit(model, device);
  }
  if (s.lora && on_device) {
    device.begin("get_peft_model");
    loading::add_adapters(question, model, device);
  }
  if (!on_device) {
    device.begin("model.to");
    loading::move_to_device(question, model, device);
  }
}

// What a script does that merges an adapter that was trained.
void merge(const Question& question, LoadedModel& model, loading::Packer& packer, Device& device) {
  device.begin("PeftModel.from_pretrained");
  const loading::Adapters adapters = loading::load_adapters(question, model, device);
  device.begin("merge_and_unload");
  loading::merge_adapters(question, model, adapters, packer, device);
}

reports::Load replay_of(const Question& question, DType dtype, WarmUp warm_up) {
  const models::Strategy& s = question.strategy;
  Device device(s.allocator);
  LoadedModel model{.weights = loading::weights_of(*question.model, s), .dtype = dtype};
  loading::Packer packer(s.quantize, device);
  const bool by_bitsandbytes = s.quantize && !s.quantize->storage->grouped;
  const bool on_device = by_bitsandbytes || question.load.device_map;
  if (on_device) {
    device.begin("from_pretrained");
    if (warm_up == WarmUp::yes) loading::warm_up(question, model, device);
    loading::from_pretrained(question, model, packer, device);
  }
  if (question.load.merges)
    merge(question, model, packer, device);
  else
    make_ready(question, on_device, model, device);
  return device.finished();
}

}  // namespace

reports::Load load_of(const Question& question) {
  loading::refuse_load(question);
  const DType dtype = loaded_dtype(*question.model, question.strategy);
  reports::Load load = replay_of(question, dtype, WarmUp::yes);
  load.needed = std::min(load.reserved, replay_of(question, dtype, WarmUp::no).reserved);
  load.dtype = dtype;
  load.merges = question.load.merges;
  return load;
}

}  // namespace plimsoll::planner
