#include "models/storages.h"

#include <algorithm>
#include <array>

namespace plimsoll::models {

namespace {
constexpr std::array<PackedStorage, 13> kPackedStorages{{
    {.name = "nf4", .type = "nf4", .in_runtime = true},
    {.name = "nf4-dq",
     .scale = DType::uint8,
     .scale_block = 256,
     .scale_table = 256,
     .offsets = 1,
     .type = "nf4",
     .in_runtime = true},
    {.name = "fp4", .type = "fp4"},
    {.name = "int8",
     .bits = 8,
     .gemm = PackedGemm::int8,
     .block = 0,
     .table = 0,
     .in_runtime = true},
    // Of the runtime alone, in blocks of 256 as Q-GaLore has them (Zhang et al., arXiv 2407.08296).
    {.name = "int8-affine",
     .bits = 8,
     .block = 256,
     .table = 0,
     .in_runtime = true,
     .in_packages = false,
     .affine = true},
    {.name = "gptq",
     .gemm = PackedGemm::gptq,
     .block = 128,
     .scale = DType::fp16,
     .table = 0,
     .type = "gptq",
     .grouped = true},
    {.name = "gptq-row",  // group_size -1
     .gemm = PackedGemm::gptq,
     .block = 0,
     .scale = DType::fp16,
     .table = 0,
     .type = "gptq",
     .grouped = true},
    {.name = "awq",
     .gemm = PackedGemm::awq,
     .block = 128,
     .scale = DType::fp16,
     .table = 0,
     .type = "awq",
     .grouped = true},
    {.name = "hqq", .gemm = PackedGemm::hqq, .scale = DType::bf16, .table = 0},
    {.name = "torchao-int8",
     .bits = 8,
     .gemm = PackedGemm::torchao,
     .block = 0,
     .table = 0,
     .converts_bias = false},
    // transformers 5.17, quantizers/quantizer_*.py, is_trainable.
    {.name = "torchao-int4",
     .refusal = "Transformers trains on torchao's 8-bit weights alone, and PEFT stops with "
                "\"TorchaoLoraLinear only supports int8 weights for now.\""},
    {.name = "fp8", .refusal = "Transformers does not train on weights in FP8"},
    {.name = "mxfp4",
     .refusal = "Transformers does not train on weights in MXFP4, but on what it unpacks them to "
                "as it loads them (Mxfp4Config(dequantize=True)): without --quantize"},
}};
}  // namespace

const PackedStorage* find_packed_storage(std::string_view name) {
  const auto* found = std::ranges::find(kPackedStorages, name, &PackedStorage::name);
  return found == kPackedStorages.end() ? nullptr : found;
}

void check_in_packages(const PackedStorage& storage) {
  check(storage.in_packages, ErrorKind::bad_input, [&] {
    return "--quantize " + std::string(storage.name) +
           " is plimsoll's runtime's own (--stack plimsoll); 8 bits that packages of PyTorch have "
           "are int8 and torchao-int8";
  });
}

std::string packed_storage_names() {
  std::string names;
  for (const PackedStorage& storage : kPackedStorages)
    if (storage.refusal.empty()) names += (names.empty() ? "" : ", ") + std::string(storage.name);
  return names;
}

namespace {
// Integers of 32 bits hold values and zero points. Where floats hold them, they are sharded
// together (fms-acceleration, autogptq_utils.py, PATCH_FOR_FSDP_TRITON_V2).
std::vector<PackedTensor> grouped_tensors(const PackedStorage& of, PackedShape weight,
                                          DType held_in) {
  const std::int64_t groups = of.block == 0 ? 1 : ceil_divide(weight.in, of.block);
  const std::int64_t scales = checked_multiply(groups, weight.out);
  const auto held = [&](std::int64_t values) { return values * of.bits / bits(held_in); };
  const bool joins = held_in != DType::uint8;
  std::vector<PackedTensor> all{
      {".qweight", Count(held(weight.values()) + (joins ? held(scales) : 0)), held_in}};
  if (!joins) all.push_back({".qzeros", Count(held(scales)), held_in});
  all.push_back({".scales", Count(scales), of.scale});
  if (of.gemm == PackedGemm::gptq) all.push_back({".g_idx", Count(weight.in), DType::int32});
  return all;
}
}  // namespace

std::vector<PackedTensor> packed_tensors(const PackedStorage& of, PackedShape weight,
                                         DType held_in) {
  if (of.grouped) return grouped_tensors(of, weight, held_in);
  const std::int64_t n = weight.values();
  if (of.gemm == PackedGemm::hqq)
    return {{".W_q", Count(n / 2), DType::uint8},
            {".scale", Count(n / of.block), of.scale},
            {".zero", Count(n / of.block), of.scale}};
  if (of.gemm == PackedGemm::torchao)
    return {{".qdata", Count(n), DType::int8},
            {".scale", Count(weight.out), of.scale},
            {".zero_point", Count(weight.out), DType::int8}};
  if (of.block == 0) return {{"", Count(n), DType::int8}, {".SCB", Count(weight.out), of.scale}};
  const std::int64_t blocks = ceil_divide(n, of.block);
  if (of.affine)
    return {{"", Count(n), DType::uint8},
            {".scale", Count(blocks), of.scale},
            {".zero", Count(blocks), DType::uint8}};
  // quantize_4bit, cuda: (n + 1) // (2 * itemsize) elements.
  const std::int64_t packed = (n + 1) / (bits(held_in) / of.bits);
  std::vector<PackedTensor> all{{"", Count(packed), held_in},
                                {".absmax", Count(blocks), of.scale},
                                {".quant_map", Count(of.table), DType::fp32}};
  if (!of.doubly_quantized()) return all;
  all.push_back({".nested_absmax", Count(ceil_divide(blocks, of.scale_block)), DType::fp32});
  all.push_back({".nested_quant_map", Count(of.scale_table), DType::fp32});
  all.push_back({".nested_offset", Count(of.offsets), DType::fp32});
  return all;
}

bool kbit_prepared(const Strategy& s) {
  if (!s.quantize || s.quantize->storage->grouped ||
      s.quantize->storage->gemm == PackedGemm::torchao ||
      s.quantize->storage->gemm == PackedGemm::hqq)
    return false;
  // DeepSpeed's engine casts the whole module, and what PEFT made fp32 back with it.
  if (s.stack == Stack::deepspeed) return false;
  // Unsloth has a prepare_model_for_kbit_training of its own, which casts adapters alone.
  const bool usual = s.kernels != Kernels::unsloth && s.stack != Stack::plimsoll &&
                     s.data.zero < 2 && is_mixed(s.precision);
  return s.quantize->kbit_prep.value_or(usual);
}

bool casts_behind_kbit(const Strategy& s) {
  return kbit_prepared(s) && s.quantize->kbit_casting;
}

}  // namespace plimsoll::models
