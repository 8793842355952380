#include "planner/loading/refusals.h"

#include <algorithm>
#include <array>
#include <span>
#include <string>

#include "models/lora.h"
#include "models/mxfp4.h"
#include "models/run_names.h"
#include "models/storages.h"
#include "planner/loading/loading.h"
#include "planner/loading/peft.h"
#include "planner/stacks/stack_info.h"

namespace plimsoll::planner::loading {

namespace {

// Those that were loaded on the dry device, and planned to the byte
// (tests/golden/load_runs_*.json).
constexpr std::array<std::string_view, 12> kFamilies{"llama", "qwen2",  "mistral", "qwen3",
                                                     "gemma", "gemma2", "phi3",    "granite",
                                                     "opt",   "phi",    "gpt2",    "gpt_oss"};

// How many of them with which release.
struct MeasuredRelease {
  int major, minor;
  std::size_t families;
};
constexpr std::array<MeasuredRelease, 3> kReleases{{
    {4, 57, kFamilies.size() - 2},  // GPT-2's layers keep causal masks there
    {5, 17, kFamilies.size()},
    {5, 23, 2},
}};

class Refusals {
 public:
  explicit Refusals(const Question& question)
      : question_(question),
        s_(question.strategy),
        model_(*question.model),
        phase_(question.load.merges ? "merge" : "load") {}

  void check_all() const {
    if (question_.load.merges) refuse_merging();
    refuse_strategy();
    refuse_model();
    refuse_unpacking();
    refuse_adapters();
    refuse_packed();
  }

 private:
  [[noreturn]] void refuse(const std::string& what, const std::string& planned) const {
    fail(ErrorKind::unsupported, "--phase " + phase_ + " " + what + ": " + planned);
  }

  // Error{unsupported}: a release that was not measured.
  std::span<const std::string_view> families_of(const models::Release& release) const {
    for (const MeasuredRelease& known : kReleases)
      if (release.major == known.major && release.minor == known.minor)
        return std::span(kFamilies).first(known.families);
    refuse("with --transformers-version " + models::text_of(release),
           "each release loads in its own way; 4.57, 5.17 and 5.23 were read and measured");
  }

  void refuse_model() const {
    const models::Release& release = s_.transformers;
    const auto families = families_of(release);
    if (std::ranges::find(families, model_.model_type) != families.end() && model_.decoder) return;
    std::string names;
    for (const std::string_view name : families)
      names += (names.empty() ? "" : ", ") + std::string(name);
    refuse("of model_type '" + model_.model_type + "'", "Transformers " + models::text_of(release) +
                                                            " was measured with " + names +
                                                            "; others are not planned yet");
  }

  void refuse_strategy() const {
    if (!stack_info(s_.stack).has_fsdp)
      refuse("on --stack " + std::string(name_of(s_.stack)),
             "planned is what Transformers' from_pretrained does for stack pytorch");
    if (s_.data.zero >= 2)
      refuse("with --zero " + std::to_string(s_.data.zero),
             "FSDP loads on the host or on meta, and shards; planned are --zero 0 and 1");
    if (!models::is_transformers(s_.code))
      refuse("with --model-code " + std::string(name_of(s_.code)),
             "planned is what Transformers' from_pretrained does");
    if (s_.torch != models::kTorch)
      refuse("with --torch-version " + models::text_of(s_.torch),
             "loads were measured with " + models::text_of(models::kTorch) + " alone");
    if (s_.bitsandbytes != models::kBitsandbytes)
      refuse("with --bitsandbytes-version " + models::text_of(s_.bitsandbytes),
             "loads were measured with " + models::text_of(models::kBitsandbytes) + " alone");
    if (s_.offload.any()) refuse("with --offload", "is not planned yet");
    if (s_.kernels == models::Kernels::unsloth)
      refuse("with --kernels unsloth", "Unsloth's from_pretrained is not planned yet");
    if (s_.kernels == models::Kernels::fused)
      refuse("with --kernels fused", "fms-acceleration's own loader is not planned yet");
  }

  // What is unpacked becomes bf16, whatever the rest is loaded in.
  void refuse_unpacking() const {
    if (!models::is_published_in_mxfp4(model_.model_type)) return;
    if (loaded_dtype(model_, s_) != DType::bf16)
      refuse("of " + model_.model_type + " in " + std::string(name_of(loaded_dtype(model_, s_))),
             "its checkpoint, in MXFP4, is unpacked to bf16; --param-dtype bf16 is planned");
    if (s_.quantize)
      refuse(
          "of " + model_.model_type + " with --quantize " + std::string(s_.quantize->storage->name),
          "its checkpoint is in MXFP4, and Transformers packs what is packed not once more");
  }

  void refuse_adapters() const {
    if (!s_.lora) return;
    // PEFT casts adapters to fp32, or leaves them in what their base computes in.
    const DType made = adapters_made_in(s_, loaded_dtype(model_, s_));
    if (s_.lora->dtype != DType::fp32 && s_.lora->dtype != made)
      refuse("with --adapter-dtype " + std::string(name_of(s_.lora->dtype)),
             "get_peft_model makes these adapters in " + std::string(name_of(made)) +
                 ", and casts to fp32 alone");
    if (const char* further = models::further_option(*s_.lora))
      refuse("with " + std::string(further), "planned are LoRA's A and B alone");
  }

  // gptqmodel chooses linears by the device that from_pretrained has a map to
  // (utils/importer.py, hf_select_quant_linear_v2): on the host those that do not train as planned.
  void refuse_packed() const {
    using models::PackedGemm;
    const bool measured = s_.transformers.major == 5 && s_.transformers.minor == 17;
    const bool awq = s_.quantize && s_.quantize->storage->gemm == PackedGemm::awq;
    if ((question_.load.packed || awq) && !measured)
      refuse(
          "of a packed checkpoint with --transformers-version " + models::text_of(s_.transformers),
          "5.17 was read and measured");
    if (awq && !question_.load.device_map)
      refuse(
          "of --quantize awq without --device-map auto",
          "on the host gptqmodel chooses TorchAtenAwqLinear, which the step is not planned with; "
          "with --device-map auto AwqGEMMLinear");
    if (!s_.quantize || awq) return;
    const std::string name(s_.quantize->storage->name);
    if (s_.quantize->storage->gemm == PackedGemm::gptq)
      refuse("with --quantize " + name,
             "the planned linears are fms-acceleration's, whose own loader "
             "(load_checkpoint_in_model of accelerate) is not planned yet; awq is");
    if (s_.quantize->storage->gemm != PackedGemm::dequantizes &&
        s_.quantize->storage->gemm != PackedGemm::int8)
      refuse(
          "with --quantize " + name,
          "planned are weights that bitsandbytes packs as they are loaded, or packed before (nf4, "
          "nf4-dq, fp4, int8), and AWQ's");
  }

  // merge_and_unload adds what an adapter is to the weight below it.
  void refuse_merging() const {
    check(s_.lora.has_value(), ErrorKind::bad_input,
          "--phase merge without adapters: --lora-rank says which adapter is merged");
    if (s_.quantize && s_.quantize->storage->grouped)
      refuse("with --quantize " + std::string(s_.quantize->storage->name),
             "PEFT merges into weights that bitsandbytes packed, or that are not packed");
  }

  const Question& question_;
  const models::Strategy& s_;
  const models::ModelSpec& model_;
  std::string phase_;
};

}  // namespace

void refuse_load(const Question& question) {
  Refusals(question).check_all();
}

}  // namespace plimsoll::planner::loading
