#include "tools/cli/adapters.h"

#include <fmt/format.h>

#include "models/storages.h"
#include "tools/cli/values.h"

namespace plimsoll::tools {

namespace {

void set_lora(const Options& options, models::Strategy& s) {
  const bool given = options.has("lora-rank");
  for (const char* option : {"lora-alpha", "lora-targets", "lora-dropout", "adapter-dtype",
                             "modules-to-save", "lora-bias", "use-dora"})
    if (const std::string* value = options.find(option); value != nullptr && !given)
      refuse_value(option, *value, "needs --lora-rank");
  if (!given) return;
  models::Lora& lora = s.lora.emplace();
  lora.rank = whole("lora-rank", *options.find("lora-rank"), 1, 1 << 20);
  if (const std::string* text = options.find("lora-alpha"))
    lora.alpha = real_value("lora-alpha", *text, 0, 1e9);
  if (const std::string* text = options.find("lora-dropout"))
    lora.dropout = real_value("lora-dropout", *text, 0, 0.999);
  if (const std::string* text = options.find("lora-targets"))
    lora.targets = comma_list("lora-targets", *text);
  if (const std::string* text = options.find("modules-to-save"))
    lora.modules_to_save = comma_list("modules-to-save", *text);
  if (const std::string* text = options.find("lora-bias"))
    lora.bias = yes_or_no("lora-bias", *text);
  if (const std::string* text = options.find("use-dora")) lora.dora = yes_or_no("use-dora", *text);
  if (const std::string* text = options.find("adapter-dtype")) {
    lora.dtype = float_dtype("adapter-dtype", *text);
    if (lora.dtype == DType::fp16) refuse_value("adapter-dtype", *text, "must be fp32 or bf16");
  }
}

// A packed base is loaded in the dtype of its checkpoint, 16 bits: backwards unpack it to that.
void set_quantization(const Options& options, models::Strategy& s) {
  const std::string* kind = options.find("quantize");
  const std::string *held_in = options.find("quant-storage"), *prepared = options.find("kbit-prep");
  if (kind == nullptr) {
    if (held_in != nullptr) refuse_value("quant-storage", *held_in, "needs --quantize");
    if (prepared != nullptr) refuse_value("kbit-prep", *prepared, "needs --quantize");
    return;
  }
  const models::PackedStorage* storage = models::find_packed_storage(*kind);
  if (storage == nullptr)
    refuse_value("quantize", *kind, "must be " + models::packed_storage_names());
  check(storage->refusal.empty(), ErrorKind::unsupported, [&] {
    return fmt::format("--quantize {}: {} ({} are planned)", *kind, storage->refusal,
                       models::packed_storage_names());
  });
  if (!s.lora)
    refuse_value("quantize", *kind,
                 "a packed base is frozen, and adapters are trained: needs --lora-rank");
  models::Quantization& q = s.quantize.emplace(models::Quantization{.storage = storage});
  if (held_in != nullptr && *held_in != name_of(DType::uint8))
    q.held_in = float_dtype("quant-storage", *held_in);
  if (prepared != nullptr) q.kbit_prep = yes_or_no("kbit-prep", *prepared);
  if (is_mixed(s.precision) && !s.param_dtype)
    s.param_dtype = s.precision == models::Precision::bf16_mixed ? DType::bf16 : DType::fp16;
}

}  // namespace

void set_adapters(const Options& options, models::Strategy& s) {
  s.freeze = options.all("freeze");
  s.train = options.all("train");
  if (!s.train.empty() && s.freeze.empty())
    refuse_value("train", *options.find("train"),
                 "makes exceptions from --freeze, which is missing");
  set_lora(options, s);
  set_quantization(options, s);
}

}  // namespace plimsoll::tools
