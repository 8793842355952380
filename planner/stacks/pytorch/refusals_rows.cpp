// What is not modelled of rows that hold padding or several samples.
#include <algorithm>
#include <string>

#include "models/model_spec.h"
#include "models/run_names.h"
#include "planner/stacks/pytorch/refusals.h"

namespace plimsoll::planner::pytorch {

namespace {

// The families whose masks were seen as Transformers makes them of such rows.
constexpr std::string_view kRowsSeen[] = {"llama",  "mistral", "qwen2",       "qwen3",  "gemma",
                                          "gemma2", "phi",     "gemma3_text", "phi3",   "granite",
                                          "olmo2",  "gpt2",    "gpt_neox",    "mixtral"};

}  // namespace

void refuse_rows(const models::ModelSpec& model, const models::Strategy& s) {
  using models::Rows;
  if (s.rows == Rows::full) return;
  const auto refuse_if = [&](bool it_is, const std::string& what) {
    check(!it_is, ErrorKind::unsupported,
          [&] { return std::string(models::option_of(s.rows)) + " " + what; });
  };
  refuse_if(models::is_torchtitan(s.code), "is not of torchtitan, whose rows are full");
  refuse_if(models::is_litgpt(s.code),
            "is not of LitGPT, which pads to each batch's longest sample without a mask");
  refuse_if(models::is_torchtune(s.code),
            "is not modelled yet with torchtune's code, which runs packed rows through "
            "flex_attention");
  refuse_if(s.transformers != models::kTransformers,
            "is modelled with Transformers " + models::text_of(models::kTransformers) + " alone");
  refuse_if(s.attention == models::Attention::math, "with --attention math is not modelled yet");
  refuse_if(s.attention == models::Attention::flash_1,
            "with --attention flash-1 is not modelled yet");
  const bool packaged = models::is_flash_package(s.attention);
  const std::string kind = "with --attention " + std::string(models::name_of(s.attention));
  refuse_if(packaged && s.recompute.kind == models::RecomputeKind::selective,
            kind + " --recompute selective is not modelled yet");
  refuse_if(std::ranges::find(kRowsSeen, model.model_type) == std::end(kRowsSeen),
            "is not modelled yet for " + model.model_type);
  // One such run took three times what is planned, and was not understood.
  refuse_if(s.rows == Rows::padded && s.lora && s.kernels == models::Kernels::liger,
            "with --kernels liger and --lora-rank is not modelled yet");
  // Queries or values whose heads do not stand side by side are copied for these kernels.
  const bool strided = model.model_type == "phi" || model.model_type == "phi3" ||
                       model.model_type == "gpt_neox" ||
                       (model.model_type == "gpt2" && s.rows == Rows::flattened);
  refuse_if(strided && packaged, kind + " is not modelled yet for " + model.model_type);
}

}  // namespace plimsoll::planner::pytorch
