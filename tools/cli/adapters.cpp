#include "tools/cli/adapters.h"

#include <fmt/format.h>

#include <algorithm>

#include "models/lora.h"
#include "models/prompt_adapters.h"
#include "models/storages.h"
#include "models/vector_adapters.h"
#include "tools/cli/values.h"

namespace plimsoll::tools {

namespace {

using models::AdapterKind;

// Options of another kind of adapters.
void refuse_others(const Options& options, AdapterKind kind) {
  const auto refuse = [&](std::initializer_list<const char*> those, const char* why) {
    for (const char* option : those)
      if (const std::string* value = options.find(option)) refuse_value(option, *value, why);
  };
  if (kind != AdapterKind::ia3) refuse({"feedforward-modules"}, "belongs to --adapter ia3");
  if (kind != AdapterKind::lora)
    refuse({"lora-alpha", "lora-bias", "use-dora", "target-parameters", "adapters"},
           "belongs to --adapter lora");
  if (kind == AdapterKind::ia3)
    refuse({"lora-rank", "lora-dropout"}, "belongs to --adapter lora and vera");
  if (models::learns_prompt(kind))
    refuse({"lora-rank", "lora-dropout", "lora-targets", "modules-to-save"},
           "belongs to adapters of modules: a prompt that is learned adapts none");
  else
    refuse({"virtual-tokens"}, "belongs to --adapter prompt-tuning, p-tuning and prefix-tuning");
  if (kind != AdapterKind::p_tuning && kind != AdapterKind::prefix_tuning)
    refuse({"encoder-hidden"}, "belongs to --adapter p-tuning and prefix-tuning");
}

void set_prompt(const Options& options, models::Lora& lora) {
  const std::string* tokens = options.find("virtual-tokens");
  if (tokens == nullptr)
    refuse_value("adapter", *options.find("adapter"), "needs --virtual-tokens, as PEFT does");
  lora.virtual_tokens = whole("virtual-tokens", *tokens, 1, 1 << 20);
  if (const std::string* width = options.find("encoder-hidden"))
    lora.encoder_hidden = whole("encoder-hidden", *width, 1, 1 << 24);
  if (lora.dtype != DType::fp32)
    refuse_value("adapter-dtype", *options.find("adapter-dtype"),
                 "PEFT makes the embeddings of a prompt in fp32");
}

void set_lora(const Options& options, models::Strategy& s) {
  const std::string* text_of_kind = options.find("adapter");
  const auto kind =
      text_of_kind == nullptr ? AdapterKind::lora : choice<AdapterKind>("adapter", *text_of_kind);
  const bool given = kind != AdapterKind::lora || options.has("lora-rank");
  for (const char* option :
       {"adapter", "lora-alpha", "lora-targets", "lora-dropout", "adapter-dtype", "modules-to-save",
        "lora-bias", "use-dora", "target-parameters", "feedforward-modules", "virtual-tokens",
        "encoder-hidden", "adapters"})
    if (const std::string* value = options.find(option); value != nullptr && !given)
      refuse_value(option, *value,
                   std::string_view(option) == "virtual-tokens" ||
                           std::string_view(option) == "encoder-hidden"
                       ? "needs --adapter prompt-tuning, p-tuning or prefix-tuning"
                       : "needs --lora-rank");
  if (!given) return;
  models::Lora& lora = s.lora.emplace();
  lora.kind = kind;
  refuse_others(options, kind);
  if (kind == AdapterKind::vera) lora.rank = 256;  // VeraConfig's own
  if (const std::string* rank = options.find("lora-rank"))
    lora.rank = whole("lora-rank", *rank, 1, 1 << 20);
  if (const std::string* names = options.find("feedforward-modules")) {
    if (*names != "none") lora.feedforward = comma_list("feedforward-modules", *names);
  }
  if (const std::string* text = options.find("lora-alpha"))
    lora.alpha = real_value("lora-alpha", *text, 0, 1e9);
  if (const std::string* text = options.find("lora-dropout"))
    lora.dropout = real_value("lora-dropout", *text, 0, 0.999);
  if (const std::string* text = options.find("lora-targets"))
    lora.targets = comma_list("lora-targets", *text);
  if (const std::string* text = options.find("modules-to-save"))
    lora.modules_to_save = comma_list("modules-to-save", *text);
  if (const std::string* text = options.find("target-parameters"))
    lora.parameters = comma_list("target-parameters", *text);
  if (const std::string* text = options.find("adapters"))
    lora.adapters = whole("adapters", *text, 1, 10'000);
  if (const std::string* text = options.find("lora-bias"))
    lora.bias = yes_or_no("lora-bias", *text);
  if (const std::string* text = options.find("use-dora")) lora.dora = yes_or_no("use-dora", *text);
  if (const std::string* text = options.find("adapter-dtype")) {
    lora.dtype = float_dtype("adapter-dtype", *text);
    if (lora.dtype == DType::fp16) refuse_value("adapter-dtype", *text, "must be fp32 or bf16");
  }
  if (models::learns_prompt(kind)) set_prompt(options, lora);
}

// A packed base is loaded in the dtype of its checkpoint, 16 bits: backwards unpack it to that.
void set_quantization(const Options& options, models::Strategy& s) {
  const std::string* kind = options.find("quantize");
  const std::string *held_in = options.find("quant-storage"), *prepared = options.find("kbit-prep"),
                    *cast = options.find("kbit-casting");
  if (kind == nullptr) {
    if (held_in != nullptr) refuse_value("quant-storage", *held_in, "needs --quantize");
    if (prepared != nullptr) refuse_value("kbit-prep", *prepared, "needs --quantize");
    if (cast != nullptr) refuse_value("kbit-casting", *cast, "needs --quantize");
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
  if (cast != nullptr) q.kbit_casting = yes_or_no("kbit-casting", *cast);
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

namespace {
// IA3Config.__post_init__.
void check_feedforward(const Options& options, const models::Lora& lora) {
  const std::string* targets = options.find("lora-targets");
  if (targets == nullptr || *targets == "all-linear" || *targets == "attention") return;
  for (const std::string& name : lora.feedforward)
    if (std::ranges::find(lora.targets, name) == lora.targets.end())
      refuse_value("feedforward-modules", name, "is none of --lora-targets, as PEFT asks for");
}
}  // namespace

void set_default_targets(const Options& options, const models::ModelSpec& model,
                         models::Strategy& s) {
  if (!s.lora) return;
  if (models::learns_prompt(s.lora->kind)) {
    // peft/utils/other.py, _prepare_prompt_learning_config.
    const bool own = s.lora->kind == models::AdapterKind::p_tuning && s.lora->encoder_hidden == 0;
    if (own && model.decoder) s.lora->encoder_hidden = model.decoder->hidden;
    return;
  }
  if (!options.has("modules-to-save"))
    s.lora->modules_to_save = models::usual_modules_to_save(model);
  const bool ia3 = s.lora->kind == models::AdapterKind::ia3;
  // As PEFT takes target_parameters without target_modules.
  if (!options.has("lora-targets") && s.lora->parameters.empty())
    s.lora->targets = ia3 ? models::default_ia3_targets(model)
                          : std::vector<std::string>{models::usual_lora_target(model)};
  if (!ia3) return;
  if (options.has("feedforward-modules"))
    check_feedforward(options, *s.lora);
  else
    s.lora->feedforward = models::default_ia3_feedforward(model);
}

}  // namespace plimsoll::tools
