#include "reports/strategy_text.h"

#include <fmt/format.h>

#include "models/decisions/layer.h"
#include "models/offload.h"
#include "models/run_names.h"
#include "models/storages.h"
#include "reports/adapters_text.h"

namespace plimsoll::reports {

namespace {
std::string packed_base_text(const models::Strategy& s) {
  if (!s.quantize) return "";
  return fmt::format(", base packed in {}{}", s.quantize->storage->name,
                     models::casts_behind_kbit(s) ? ", norms in fp32 (kbit-prep, kbit-casting)"
                     : models::kbit_prepared(s)   ? ", the rest in fp32 (kbit-prep)"
                                                  : "");
}
// DeepSpeed's engine casts the whole module, adapters too, where it is not sharded yet: a packed
// base is not before the engine takes it.
models::Lora as_trained(const models::Strategy& s) {
  models::Lora lora = *s.lora;
  using models::Precision;
  if (s.stack != models::Stack::deepspeed || (s.data.zero == 3 && !s.quantize)) return lora;
  if (s.precision == Precision::bf16_mixed || s.precision == Precision::bf16)
    lora.dtype = DType::bf16;
  if (s.precision == Precision::fp16_mixed) lora.dtype = DType::fp16;
  return lora;
}
}  // namespace

std::vector<std::string> strategy_lines(const models::Strategy& s) {
  std::vector<std::string> out;
  if (!models::is_transformers(s.code))
    out.push_back(fmt::format("the model of {}", name_of(s.code)));
  if (s.tp > 1) out.push_back(fmt::format("tensor parallelism over {} GPUs", s.tp));
  if (s.compile == models::Compile::block) out.emplace_back("each layer compiled by torch.compile");
  if (s.kernels != models::Kernels::eager)
    out.push_back(fmt::format("{} kernels", name_of(s.kernels)));
  if (const auto conf = text_of(s.allocator)) out.push_back("allocator " + *conf);
  if (models::decisions::reentrant_checkpoints(s)) out.emplace_back("checkpoints are reentrant");
  if (s.hold_outputs) out.emplace_back("the model's outputs are kept until after backward");
  if (s.offload.any())
    out.push_back(fmt::format("offloaded to {}: {}{}", s.offload.nvme ? "NVMe" : "the host",
                              models::text_of(s.offload), s.offload.pinned ? "" : ", not pinned"));
  if (s.lora) out.push_back(adapters_text(as_trained(s)) + packed_base_text(s));
  return out;
}

}  // namespace plimsoll::reports
