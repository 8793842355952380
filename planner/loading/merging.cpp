// merge_and_unload: every adapter becomes part of the weight below it.
//
// peft 0.21.2, tuners/tuners_utils.py (_unload_and_optionally_merge), tuners/lora/layer.py
// (Linear.merge, get_delta_weight), tuners/lora/bnb.py (Linear4bit.merge, Linear8bitLt.merge);
// bitsandbytes 0.50.2, backends/cuda/ops.py (dequantize_4bit), _ops.py (int8_vectorwise_dequant).
#include <optional>
#include <utility>
#include <vector>

#include "models/overheads.h"
#include "models/run_names.h"
#include "models/stack_versions.h"
#include "models/storages.h"
#include "planner/loading/peft.h"

namespace plimsoll::planner::loading {

using Block = Device::Block;
using models::PackedGemm;

namespace {

bool is_int8(const Weight& weight) {
  return weight.packed->gemm == PackedGemm::int8;
}

// As torch adds two tensors of these dtypes.
DType sum_of(DType a, DType b) {
  return a == b ? a : DType::fp32;
}

class Merger {
 public:
  Merger(const Question& question, LoadedModel& model, Packer& packer, Device& device)
      : question_(question),
        model_(model),
        packer_(packer),
        device_(device),
        adapter_(question.strategy.lora->dtype) {}

  void merge(std::size_t i) {
    const Weight& weight = model_.weights[i];
    device_.at(weight.name);
    if (weight.packed != nullptr) return merge_packed(i);
    device_.free(delta(weight));  // `base_layer.weight.data += delta_weight`
  }

 private:
  // `transpose(weight_B @ weight_A, self.fan_in_fan_out) * self.scaling[adapter]`
  Block delta(const Weight& weight) {
    const Block product = device_.take(weight.elements, adapter_);
    take_workspace();
    const Block scaled = device_.take(weight.elements, adapter_);
    device_.free(product);
    return scaled;
  }

  // cuBLAS's, of the first GEMM, for good.
  void take_workspace() {
    if (std::exchange(has_workspace_, true) || !question_.cluster.gpu) return;
    const auto overheads =
        models::overheads_of(name_of(question_.strategy.stack), *question_.cluster.gpu,
                             models::text_of(question_.strategy.torch));
    const models::Overhead* entry = models::find_overhead(overheads, "cublas_workspace");
    if (entry != nullptr && entry->range) device_.take(Bytes(entry->range->typical));
  }

  // The weight unpacked, the adapter's product and their sum are there while the sum, which goes by
  // the host, is packed anew; what was packed before goes behind that.
  void merge_packed(std::size_t i) {
    const Weight& weight = model_.weights[i];
    const Block unpacked = unpack(weight);
    const Block product = delta(weight);
    // Beside 8 bits adapters are in fp32 (adapters_made_in), as what is unpacked of them.
    const DType sum = sum_of(is_int8(weight) ? DType::fp32 : model_.dtype, adapter_);
    const Block merged = device_.take(weight.elements, sum);
    std::vector<Block> blocks = packer_.pack(weight, sum, Packer::Source::copied);
    std::swap(blocks, model_.blocks[i]);
    for (const Block before : blocks) device_.free(before);
    for (const Block block : {unpacked, product, merged}) device_.free(block);
  }

  // dequantize_bnb_weight: of 8 bits in fp32 in two steps, of 4 bits as they were before they were
  // packed; packed scales are unpacked first.
  Block unpack(const Weight& weight) {
    if (is_int8(weight)) {
      const Block scaled = device_.take(weight.elements, DType::fp32);
      const Block values = device_.take(weight.elements, DType::fp32);
      device_.free(scaled);
      return values;
    }
    std::optional<Block> scales;
    if (weight.packed->doubly_quantized()) {
      const auto parts = models::packed_tensors(*weight.packed, weight.unpacked,
                                                question_.strategy.quantize->held_in);
      scales = device_.take(parts[1].elements, DType::fp32);
    }
    const Block values = device_.take(weight.elements, model_.dtype);
    if (scales) device_.free(*scales);
    return values;
  }

  const Question& question_;
  LoadedModel& model_;
  Packer& packer_;
  Device& device_;
  DType adapter_;
  bool has_workspace_ = false;
};

}  // namespace

// A module's adapter goes when the next module is looked at.
void merge_adapters(const Question& question, LoadedModel& model, const Adapters& adapters,
                    Packer& packer, Device& device) {
  Merger merger(question, model, packer, device);
  for (const Adapters::Pair& pair : adapters.pairs) {
    merger.merge(pair.weight);
    device.free(pair.a);
    device.free(pair.b);
  }
}

}  // namespace plimsoll::planner::loading
