// How a frozen linear's weight is stored packed (--quantize): a row in storages.cpp for each way. A
// new one is its row; a GEMM of another kind also needs its rule in a stack.
//
// Sources: bitsandbytes 0.50.2, functional.py (quantize_4bit, QuantState) and nn/modules.py
// (Params4bit, Linear4bit, Int8Params, Linear8bitLt); transformers 5.17,
// integrations/bitsandbytes.py (replace_with_bnb_linear) and quantizers/base.py
// (get_keys_to_not_convert). Packed are linear modules and GPT-2's Conv1D. The head, embeddings,
// norms, biases, routers and the experts of a mixture (which Transformers 5 stacks in parameters of
// three axes) stay as they are.
// torchao 0.18: Int8Tensor (quantization/quantize_/workflows/int8/int8_tensor.py), which
// Int8WeightOnlyConfig makes of linear modules alone.
// hqq 0.2.8: HQQLinear (core/quantize.py) of HqqConfig's own 4 bits in groups of 64; scales and
// zeros are in the 16 bits that the model was loaded in.
// AWQ: WQLinear_GEMM of autoawq 0.2.9 (awq/modules/linear/gemm.py), AwqGEMMLinear of
// gptqmodel 7.3.4 and 7.7.0 (nn_modules/qlinear/gemm_awq.py): checkpoints of 4 bits in groups of
// 128. GPTQ: QuantLinear of AutoGPTQ's triton v2 kernels as fms-acceleration has it (@876e2ed,
// plugins/accelerated-peft, gptqmodel/nn_modules/qlinear/qlinear_tritonv2.py).
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "models/model_spec.h"
#include "models/run_spec.h"

namespace plimsoll::models {

// What a GEMM with the packed weight does.
enum class PackedGemm : std::uint8_t {
  dequantizes,  // makes the weight anew, for a moment, in the dtype it computes in
  int8,  // multiplies 8-bit integers with a quantized input
  gptq,  // makes the weight anew in fp16, however few the rows
  awq,  // the same, or multiplies few rows with the packed weight
  hqq,  // makes the weight anew, in three tensors, and autograd keeps the input
  torchao,  // multiplies with a copy in the input's dtype, which autograd keeps, and then scales
};

struct PackedStorage {
  std::string_view name;  // --quantize
  std::int64_t bits = 4;  // of a value
  PackedGemm gemm = PackedGemm::dequantizes;
  std::int64_t block = 64;  // values that share a scale; 0: a row of the weight
  DType scale = DType::fp32;
  std::int64_t table = 16;  // fp32 values that the packed ones stand for; each weight has its own
  // Double quantization: scales that share an fp32 scale, the values that packed scales stand for,
  // and fp32 values added to all.
  std::int64_t scale_block = 0, scale_table = 0, offsets = 0;
  std::string_view type;  // transformers' BitsAndBytesConfig: bnb_4bit_quant_type
  std::string_view refusal = {};  // why it is not planned; none: it is
  bool in_runtime = false;  // our own has kernels for it (kernels/packed_weights.h)
  bool in_packages = true;  // stacks pytorch and deepspeed have it
  bool affine = false;  // beside each scale stands the code of 0, in 8 bits
  // A checkpoint's: a block is inputs of one output; beside the scales stand packed zero points,
  // and with GPTQ each input's group (desc_act or not).
  bool grouped = false;
  bool converts_bias = true;  // to what it computes in; else a bias stays as it was loaded

  bool doubly_quantized() const { return scale_block > 0; }
  // Values that share a scale in a matrix of `columns`.
  std::int64_t block_of(std::int64_t columns) const { return block > 0 ? block : columns; }
};

// Of a layer: whether --quantize packs the weight of the module that the parameter belongs to.
inline bool packs_module(const ParameterRow& row) {
  return row.module == ModuleKind::linear && !row.bare && row.stacked.empty();
}

// nullptr: there is none of that name.
const PackedStorage* find_packed_storage(std::string_view name);
// "nf4, nf4-dq, fp4": those that are planned.
std::string packed_storage_names();

// Error{bad_input}: no package of PyTorch packs so, our own runtime alone does.
void check_in_packages(const PackedStorage& storage);

// A linear's weight before it is packed.
struct PackedShape {
  std::int64_t out = 0, in = 0;
  std::int64_t values() const { return checked_multiply(out, in); }
  bool operator==(const PackedShape&) const = default;
};

// The packed values, held in elements of `held_in`, then what belongs to them.
struct PackedTensor {
  std::string_view name;  // behind the weight's, in a checkpoint
  Count elements;
  DType dtype;
  Bytes bytes() const { return storage(elements, dtype); }
};
std::vector<PackedTensor> packed_tensors(const PackedStorage& storage, PackedShape weight,
                                         DType held_in);

// PEFT's prepare_model_for_kbit_training: all that is not packed is fp32. Its users call it before
// they add adapters; TRL does so where nothing is sharded (trl, trainer/utils.py,
// prepare_peft_model). Without autocast the model would compute in fp32. Of a GPTQ or
// HQQ base it casts nothing (peft, utils/other.py); that torchao's is packed TRL does not know.
bool kbit_prepared(const Strategy& strategy);

// Behind it TRL's trainers cast what PEFT made fp32 back to bf16, but for the norms (trl 0.12 to
// 0.24, trainer/utils.py, peft_module_casting_to_bf16).
bool casts_behind_kbit(const Strategy& strategy);

}  // namespace plimsoll::models
