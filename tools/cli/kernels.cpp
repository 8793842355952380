#include "tools/cli/kernels.h"

#include "tools/cli/values.h"

namespace plimsoll::tools {

using models::Kernels;

// liger_kernel 0.8.5, transformers/monkey_patch.py: fused_linear_cross_entropy is true by default,
// and raises for Granite, whose logits are scaled.
void set_kernels(const Options& options, const models::ModelSpec& model,
                 models::Strategy& strategy) {
  const std::string* text = options.find("kernels");
  if (text == nullptr) return;
  strategy.kernels = choice<Kernels>("kernels", *text);
  if (strategy.kernels != Kernels::liger) return;
  if (strategy.stack == models::Stack::plimsoll)
    refuse_value("kernels", *text,
                 "Liger patches Transformers' models (--stack pytorch, deepspeed)");
  const bool fuses = !model.decoder || !model.decoder->scaled_logits;
  if (!options.has("loss") && fuses) strategy.loss = models::Loss::fused;
}

}  // namespace plimsoll::tools
