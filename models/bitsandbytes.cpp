#include "models/bitsandbytes.h"

#include <string_view>

#include "models/optimizers.h"
#include "models/storages.h"

namespace plimsoll::models {

bool packs_with_bitsandbytes(const PackedStorage& storage) {
  return storage.in_packages &&
         (storage.gemm == PackedGemm::dequantizes || storage.gemm == PackedGemm::int8);
}

bool packs_with_bitsandbytes(const Strategy& strategy) {
  return strategy.quantize && packs_with_bitsandbytes(*strategy.quantize->storage);
}

bool runs_bitsandbytes(const Strategy& strategy) {
  const char* const package = rule_of(strategy.optimizer).torch.package;
  const bool steps = package != nullptr && std::string_view(package) == "bitsandbytes";
  return steps || strategy.optimizer == Optimizer::galore8bit ||
         strategy.optimizer == Optimizer::q_galore || packs_with_bitsandbytes(strategy);
}

bool matmul_4bit_keeps_input(const Strategy& strategy) {
  return packs_with_bitsandbytes(strategy) &&
         strategy.quantize->storage->gemm == PackedGemm::dequantizes &&
         strategy.bitsandbytes < kMatMul4BitKeepsNoInput;
}

// nn/modules.py, Linear4bit: `compute_type_is_set` is false until 0.46.1 whatever was asked for.
bool computes_as_it_reads(const Strategy& strategy) {
  return strategy.bitsandbytes < Release{0, 47, 0};
}

// nn/modules.py, Linear4bit.forward.
bool stores_bias_as_it_reads(const Strategy& strategy) {
  return packs_with_bitsandbytes(strategy) &&
         (strategy.bitsandbytes < kFuses4Bit ||
          strategy.quantize->storage->gemm == PackedGemm::int8);
}

// functional.py, quantize_blockwise: `code.to(A.device, copy=True)` from 0.46.0 on.
bool shares_scale_table(const Strategy& strategy) {
  return strategy.bitsandbytes < Release{0, 46, 0};
}

bool contexts_keep_inputs(const Strategy& strategy) {
  return matmul_4bit_keeps_input(strategy) ||
         (strategy.quantize && strategy.quantize->storage->gemm == PackedGemm::int8);
}

}  // namespace plimsoll::models
