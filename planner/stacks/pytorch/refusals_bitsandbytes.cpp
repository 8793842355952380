// What is not modelled of --bitsandbytes-version: what a release does not have, what it stops with,
// and what no run of it was compared with.
#include <string>

#include "models/bitsandbytes.h"
#include "models/optimizers.h"
#include "models/storages.h"
#include "planner/stacks/pytorch/refusals.h"
#include "planner/stacks/pytorch/stack.h"

namespace plimsoll::planner::pytorch {

namespace {

// The first of PyTorch with a Triton that has no triton.ops.
constexpr models::Release kWithoutTritonOps{2, 6, 0};

bool is_ademamix(models::Optimizer optimizer) {
  using models::Optimizer;
  return optimizer == Optimizer::ademamix || optimizer == Optimizer::ademamix8bit ||
         optimizer == Optimizer::paged_ademamix || optimizer == Optimizer::paged_ademamix8bit;
}

// q_galore_torch 1.0, q_galore_adamw8bit.py: update_step calls bitsandbytes' functions by position,
// as they were before AdEMAMix's beta3 and alpha, and reads config["percentile_clipping"], which
// 0.50 has no more.
void refuse_q_galore(const models::Strategy& s) {
  if (s.optimizer != models::Optimizer::q_galore) return;
  const char* const stops =
      s.bitsandbytes < models::kFuses4Bit
          ? "TypeError: optimizer_update_8bit_blockwise() missing 1 required positional argument"
          : "KeyError: 'percentile_clipping'";
  check(s.bitsandbytes < models::kBlocksOf256, ErrorKind::bad_input, [&] {
    return "--bitsandbytes-version " + models::text_of(s.bitsandbytes) +
           " with --optimizer q-galore: q_galore_torch 1.0 stops with \"" + stops +
           "\"; it steps with 0.43 and before: say --bitsandbytes-version 0.43.3, "
           "--torch-version 2.4.1 and --transformers-version 4.45.2";
  });
}

}  // namespace

void refuse_bitsandbytes(const models::Strategy& s) {
  refuse_q_galore(s);
  if (s.bitsandbytes == models::kBitsandbytes || !models::runs_bitsandbytes(s)) return;
  const models::Release& release = s.bitsandbytes;
  const auto refuse = [&](bool it_is, ErrorKind kind, const std::string& what) {
    check(!it_is, kind,
          [&] { return "--bitsandbytes-version " + models::text_of(release) + what; });
  };
  const bool packs = models::packs_with_bitsandbytes(s);
  refuse(packs && s.quantize->storage->gemm == models::PackedGemm::int8 &&
             release < models::kInt8WithoutLayouts,
         ErrorKind::unsupported,
         " with --quantize int8: LLM.int8() in the layouts of tensor cores (col_turing, "
         "col_ampere) is not modelled yet; " +
             models::text_of(models::kInt8WithoutLayouts) + " and later are");
  refuse(models::is_transformers(s.code) && s.transformers >= models::Release{5, 0, 0} &&
             release < models::kOldestForTransformers5,
         ErrorKind::bad_input,
         ": Transformers " + models::text_of(s.transformers) + " asks for " +
             models::text_of(models::kOldestForTransformers5) +
             " or later; say --transformers-version");
  refuse(s.torch >= kWithoutTritonOps && release <= models::kLastWithTritonOps,
         ErrorKind::bad_input,
         " with PyTorch " + models::text_of(s.torch) +
             ": its import stops with \"No module named 'triton.ops'\", which Triton has no more "
             "from PyTorch 2.6 on; say --torch-version");
  refuse(packs && s.quantize->held_in != DType::uint8 && release < models::kPacksAsLoaded,
         ErrorKind::bad_input,
         " has no bnb_4bit_quant_storage: it holds 4-bit values in uint8 alone (" +
             models::text_of(models::kPacksAsLoaded) + " has it)");
  refuse(
      packs && s.kernels == models::Kernels::fused && release < models::kPacksAsLoaded,
      ErrorKind::bad_input,
      " with --kernels fused: weights that are packed as halves stop fms-acceleration's step with "
      "\"expected mat1 and mat2 to have the same dtype\"");
  refuse(is_ademamix(s.optimizer) && release < models::kBlocksOf256, ErrorKind::bad_input,
         " has no AdEMAMix; " + models::text_of(models::kBlocksOf256) + " and later have");
  refuse(s.optimizer == models::Optimizer::galore8bit, ErrorKind::unsupported,
         " with --optimizer galore8bit is not modelled yet (" +
             models::text_of(models::kBitsandbytes) + " is)");
  refuse(s.kernels == models::Kernels::unsloth ||
             !(models::is_transformers(s.code) || models::is_litgpt_of_2024(s.code)),
         ErrorKind::unsupported,
         " with --kernels unsloth or --model-code is not modelled yet (" +
             models::text_of(models::kBitsandbytes) + " is)");
}

void assume_managed(Bytes managed, std::vector<reports::Assumption>& out) {
  if (managed == Bytes(0)) return;
  out.push_back({"paged optimizer states beside the device's figures, bytes",
                 std::to_string(managed.value()), "derived",
                 "bitsandbytes 0.50.2, get_state_buffer: managed memory, which the driver keeps on "
                 "the GPU while there is room and else moves from the host in every step (the time "
                 "is as though there were)"});
}

}  // namespace plimsoll::planner::pytorch
