#include "planner/stacks/pytorch/sdpa_kernel.h"

#include "models/prompt_adapters.h"
#include "models/run_names.h"
#include "planner/plan.h"
#include "planner/stacks/pytorch/regime.h"
#include "planner/stacks/pytorch/sdpa_workspaces.h"

namespace plimsoll::planner::pytorch {

// Which kernels SDPA may choose, as far as the card decides.
Rules::Sdpa sdpa_of(const models::Gpu& gpu, const std::vector<models::Overhead>& overheads) {
  const std::string& capability = gpu.compute_capability;
  const bool old = gpu.vendor == "nvidia" && capability.size() == 3 && capability.front() < '8';
  if (old) return Rules::Sdpa::efficient;
  const bool cudnn = models::find_overhead(overheads, "cudnn_sdpa_backward") != nullptr;
  return cudnn ? Rules::Sdpa::cudnn : Rules::Sdpa::flash;
}

namespace {
const char* kernel_name(Rules::Sdpa sdpa, models::Precision precision) {
  switch (sdpa) {
    case Rules::Sdpa::flash:
      return "\"flash\"";
    case Rules::Sdpa::cudnn:
      return "\"cudnn\"";
    case Rules::Sdpa::efficient:
      break;
  }
  return low_dtype(precision) == DType::bf16 ? "\"math\"" : "\"efficient\"";
}

}  // namespace

// That cuDNN's is first on Hopper and Blackwell follows from the order of backends alone; of torch
// 2.11 the scratch of its backward was seen in the peaks of an H100's steps, too.
reports::Assumption kernel_of_sdpa(const Rules& rules, std::int64_t head_dim,
                                   const Question& question, const std::string& torch) {
  const models::Strategy& s = question.strategy;
  const std::string& capability = question.cluster.gpu->compute_capability;
  const Rules::Sdpa sdpa = rules.sdpa;
  const bool has = cudnn_has(head_dim, question.batch.seq_len, rules.gpu);
  const bool named = models::is_sdpa_kernel(s.attention);
  const bool cudnn =
      named ? s.attention == models::Attention::cudnn : sdpa == Rules::Sdpa::cudnn && has;
  const bool seen = cudnn && capability == "9.0" && s.torch == models::kTorch;
  const std::string what = "kernel behind scaled_dot_product_attention";
  std::string source = named ? "asked for by name (sdpa_kernel)"
                             : torch + "'s order of backends on compute capability " + capability;
  if (!named && sdpa == Rules::Sdpa::cudnn && !has)
    source += ", where cuDNN's takes no head of this size";
  if (cudnn)
    source += seen ? ", and its scratch in steps on an H100 "
                     "(reports/evidence/2026-11-26-h100-80gb-hbm3)"
                   : "; its scratch is of cuDNN 9.19's own plans for such a GPU";
  if (!named && !cudnn && models::prefix_tokens(s) > 0)
    return {what, "\"efficient\"", "derived",
            "keys in front of a sequence's own come with a mask, which FlashAttention does not "
            "take"};
  const std::string name = named ? "\"" + std::string(models::name_of(s.attention)) + "\""
                                 : kernel_name(cudnn                        ? Rules::Sdpa::cudnn
                                               : sdpa == Rules::Sdpa::cudnn ? Rules::Sdpa::flash
                                                                            : sdpa,
                                               s.precision);
  return {what, name, seen ? "calibrated" : "derived", source};
}

reports::Assumption kernel_of_flex(const std::string& torch) {
  return {"kernel of attention", "\"flex_attention\"", "derived",
          torch +
              ", _inductor/kernel/flex/flex_attention.py: one Triton kernel forward and one "
              "backward, whichever of its tiles autotuning takes; block masks compiled"};
}

reports::Assumption kernel_of_xformers() {
  return {"kernel of attention", "\"xformers, PyTorch's memory-efficient kernel\"", "derived",
          "xformers 0.0.29 to 0.0.35, ops/fmha/cutlass.py: aten::_efficient_attention_forward and "
          "_backward below compute capability 8.0; in a checkpoint's forward one kernel for each "
          "head of keys, on streams of their own"};
}

}  // namespace plimsoll::planner::pytorch
