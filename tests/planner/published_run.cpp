#include "tests/planner/published_run.h"

#include <nlohmann/json.hpp>

#include "models/model_catalog.h"
#include "models/model_reader.h"
#include "models/run_names.h"
#include "models/storages.h"

namespace plimsoll::tests {

using nlohmann::json;

namespace {

template <class Choice>
Choice choice(const json& row, const char* key, Choice fallback) {
  return row.contains(key) ? models::choice_from<Choice>(row[key].get<std::string>()).value()
                           : fallback;
}

models::Lora published_lora(const json& row) {
  models::Lora lora{.rank = row["lora_rank"], .dropout = 0.1};
  const json targets = row.value("lora_targets", json("attention"));
  lora.targets = targets.is_array() ? targets.get<std::vector<std::string>>()
                                    : std::vector{targets.get<std::string>()};
  if (row.contains("adapter_dtype"))
    lora.dtype = dtype_from(row["adapter_dtype"].get<std::string>()).value();
  return lora;
}

models::Quantization published_base(const json& row) {
  models::Quantization base{models::find_packed_storage(row["quantize"].get<std::string>())};
  if (row.contains("quant_storage"))
    base.held_in = dtype_from(row["quant_storage"].get<std::string>()).value();
  if (row.contains("kbit_prep")) base.kbit_prep = row["kbit_prep"].get<bool>();
  return base;
}

std::string comma_separated(const std::vector<std::string>& words) {
  std::string text;
  for (const std::string& word : words) text += (text.empty() ? "" : ",") + word;
  return text;
}

}  // namespace

models::ModelSpec published_model(const json& row) {
  const std::string name = row["model"];
  return row.contains("config") ? models::read_model(row["config"].dump(), name, "golden")
                                : models::catalog_model(name);
}

models::Strategy published_strategy(const json& row) {
  models::Strategy s;
  s.gpus = row["gpus"];
  s.data.zero = row["zero"];
  s.data.fsdp_version = row.value("fsdp_version", 2);
  s.data.shard_group = row.value("shard_group", 0);
  s.stack = choice(row, "stack", s.stack);
  s.attention = choice(row, "attention", s.attention);
  if (row.contains("reentrant")) s.use_reentrant = row["reentrant"].get<bool>();
  if (row.contains("optimizer_impl"))
    s.optimizer_impl = choice(row, "optimizer_impl", models::OptimizerImpl::fused);
  s.precision = choice(row, "precision", s.precision);
  if (row.contains("param_dtype"))
    s.param_dtype = dtype_from(row["param_dtype"].get<std::string>());
  s.loss = choice(row, "loss", s.loss);
  s.kernels = choice(row, "kernels", s.kernels);
  s.compile = row.value("compile", false);
  // Liger brings its own loss, whatever Transformers it is used with; so does fms-acceleration.
  if (row.contains("transformers") &&
      (s.loss == models::Loss::full || s.kernels == models::Kernels::fused))
    s.transformers = models::release_from(row["transformers"].get<std::string>()).value();
  s.recompute.kind = choice(row, "recompute", s.recompute.kind);
  if (row.contains("lora_rank")) s.lora = published_lora(row);
  if (row.contains("quantize")) s.quantize = published_base(row);
  if (row.contains("reduce_dtype"))
    s.data.reduce_dtype = dtype_from(row["reduce_dtype"].get<std::string>());
  return s;
}

models::Batch published_batch(const json& row) {
  return {row["seq_len"], row["micro_batch"], row["grad_accum"]};
}

std::string published_command(const json& row) {
  std::string text = "plimsoll fit " + row["model"].get<std::string>();
  if (row.contains("config")) text += ".json";
  const auto add = [&](const char* key, const char* option, const json& usual = nullptr) {
    if (!row.contains(key) || row[key] == usual) return;
    const json& value = row[key];
    text += std::string(" --") + option + " " +
            (value.is_string() ? value.get<std::string>() : value.dump());
  };
  add("gpu", "gpu");
  add("gpus", "gpus", 1);
  add("stack", "stack", "pytorch");
  add("zero", "zero", 0);
  if (row.value("zero", 0) >= 2) add("fsdp_version", "fsdp-version", 2);
  add("shard_group", "shard-group", 0);
  add("precision", "precision", "bf16-mixed");
  add("param_dtype", "param-dtype");
  add("reduce_dtype", "grad-dtype");
  add("optimizer_impl", "optimizer-impl");
  add("recompute", "recompute", "none");
  if (row.value("reentrant", false)) text += " --use-reentrant yes";
  add("attention", "attention", "flash");
  add("loss", "loss", "full");
  add("kernels", "kernels", "eager");
  add("lora_rank", "lora-rank");
  if (row.contains("lora_rank"))
    text += " --lora-dropout 0.1 --lora-targets " + comma_separated(published_lora(row).targets);
  add("adapter_dtype", "adapter-dtype", "fp32");
  add("quantize", "quantize");
  add("quant_storage", "quant-storage");
  if (row.contains("kbit_prep"))
    text += row["kbit_prep"].get<bool>() ? " --kbit-prep yes" : " --kbit-prep no";
  if (row.value("loss", "full") == "full" || row.value("kernels", "eager") == "fused")
    add("transformers", "transformers-version");
  add("seq_len", "seq-len", 4096);
  add("micro_batch", "micro-batch", 1);
  add("grad_accum", "grad-accum", 1);
  return text;
}

}  // namespace plimsoll::tests
