#include "planner/stacks/pytorch/sdpa_kernel.h"

#include "models/prompt_adapters.h"
#include "planner/stacks/pytorch/regime.h"

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

// That cuDNN's is first on Hopper follows from the order of backends alone; of torch 2.11 the
// scratch of its backward was seen in the peaks of an H100's steps, too.
reports::Assumption kernel_of_sdpa(Rules::Sdpa sdpa, const models::Strategy& s,
                                   const std::string& torch, const std::string& capability) {
  if (models::prefix_tokens(s) > 0) {
    const bool cudnn = sdpa == Rules::Sdpa::cudnn;
    return {"kernel behind scaled_dot_product_attention", "\"efficient\"",
            cudnn ? "assumed" : "derived",
            std::string("keys in front of a sequence's own come with a mask, which "
                        "FlashAttention does not take") +
                (cudnn ? "; whether cuDNN's kernel takes it was not seen" : "")};
  }
  const bool seen = capability == "9.0" && s.torch == models::kTorch;
  std::string source = torch + "'s order of backends on compute capability " + capability;
  if (sdpa == Rules::Sdpa::cudnn && seen)
    source += ", and its scratch in steps on an H100 (reports/evidence/2026-11-26-h100-80gb-hbm3)";
  return {"kernel behind scaled_dot_product_attention", kernel_name(sdpa, s.precision),
          sdpa != Rules::Sdpa::cudnn ? "derived"
          : seen                     ? "calibrated"
                                     : "assumed",
          source};
}

}  // namespace plimsoll::planner::pytorch
