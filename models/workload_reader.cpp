#include "models/workload_reader.h"

#include <algorithm>

#include "models/base/utf8.h"
#include "models/config_reader.h"
#include "models/prompt_adapters.h"
#include "models/recompute.h"
#include "models/run_names.h"
#include "models/storages.h"
#include "models/zero_stage.h"

namespace plimsoll::models {

namespace {

template <Named Choice>
Choice choice(const Config& from, const char* key) {
  const std::optional<Choice> chosen = choice_from<Choice>(from.text(key, ""));
  if (chosen) return *chosen;
  std::string names;
  for (const std::string_view name : kNamesOf<Choice>)
    names += (names.empty() ? "" : ", ") + std::string(name);
  from.refuse(key, "one of " + names);
}

std::optional<DType> dtype(const Config& from, const char* key) {
  if (!from.has(key)) return std::nullopt;
  const std::optional<DType> chosen = dtype_from(from.text(key, ""));
  if (!chosen) from.refuse(key, "fp32, bf16 or fp16");
  return chosen;
}

// From `oldest` to `newest`.
Release release(const Config& from, const char* key, const Release& oldest, const Release& newest) {
  const auto release = release_from(from.text(key, ""));
  if (!release || *release < oldest || newest < *release)
    from.refuse(key, "a release from " + text_of(oldest) + " to " + text_of(newest));
  return *release;
}

Recompute recompute(const Config& from) {
  const std::optional<Recompute> chosen = recompute_from(from.text("recompute", "none"));
  if (!chosen) from.refuse("recompute", kRecomputeForms);
  return *chosen;
}

Lora lora(const Config& from) {
  Lora out;
  if (from.has("kind")) out.kind = choice<AdapterKind>(from, "kind");
  out.rank = from.count("rank", out.rank);
  out.alpha = from.real("alpha", out.alpha);
  out.dropout = from.probability("dropout", out.dropout);
  out.dtype = dtype(from, "adapter_dtype").value_or(out.dtype);
  const auto list = [&](const char* key, const char* absent, std::vector<std::string>& names) {
    std::string text = from.text(key, absent);
    for (std::size_t comma; (comma = text.find(',')) != std::string::npos;) {
      names.push_back(text.substr(0, comma));
      text.erase(0, comma + 1);
    }
    if (!text.empty() || *absent != '\0') names.push_back(text);
  };
  out.adapters = from.count("adapters", 1);
  out.virtual_tokens = from.natural("virtual_tokens", 0);
  out.encoder_hidden = from.natural("encoder_hidden", 0);
  const bool none = from.has("targets") || learns_prompt(out.kind);
  list("targets", none ? "" : "all-linear", out.targets);
  list("modules_to_save", "", out.modules_to_save);
  list("feedforward", "", out.feedforward);
  list("target_parameters", "", out.parameters);
  out.bias = from.flag("lora_bias", false);
  out.dora = from.flag("use_dora", false);
  return out;
}

Quantization quantization(const Config& strategy) {
  Quantization out;
  out.storage = find_packed_storage(strategy.text("quantize", ""));
  if (out.storage == nullptr || !out.storage->refusal.empty())
    strategy.refuse("quantize", packed_storage_names());
  out.held_in = dtype(strategy, "quant_storage").value_or(out.held_in);
  if (strategy.has("kbit_prep")) out.kbit_prep = strategy.flag("kbit_prep", false);
  out.kbit_casting = strategy.flag("kbit_casting", false);
  return out;
}

Offload offload(const Config& strategy, const Strategy& s) {
  Offload out;
  for (const std::string& part : strategy.texts("offload", 4))
    if (!set_offload(out, part))
      strategy.refuse("offload", "optimizer, gradients, params or activations");
  const bool infinity = s.stack == Stack::deepspeed && s.data.zero == 3;
  const std::string to = strategy.text("offload_to", "cpu");
  if (out.any() && to != "cpu" && !(infinity && to == "nvme"))
    strategy.refuse("offload_to", infinity ? "cpu or nvme" : "cpu");
  out.nvme = out.any() && to == "nvme";
  out.pinned = strategy.flag("offload_pin", true);
  return out;
}

void read_data_parallel(const Config& strategy, const Config& stack, Strategy& s) {
  DataParallel& data = s.data;
  set_zero(s, static_cast<int>(strategy.natural("zero", 0)));
  if (data.zero > 3) strategy.refuse("zero", "0, 1, 2 or 3");
  data.shard_group = strategy.natural("shard_group", 0);
  if (strategy.has("data_parallel"))
    data.kind = choice<DataParallelKind>(strategy, "data_parallel");
  if (data.kind == DataParallelKind::dp && (s.stack != Stack::pytorch || data.zero > 0))
    strategy.refuse("data_parallel", "ddp (dp is of stack pytorch, zero 0)");
  data.fsdp_version = static_cast<int>(stack.count("fsdp_version", 2));
  data.fsdp_checkpoints = stack.flag("fsdp_activation_checkpointing", false);
  data.sync_module_states = stack.flag("fsdp_sync_module_states", false);
  data.use_orig_params = stack.flag("fsdp_use_orig_params", true);
  // Other stacks have no such knob; what stands there is the word for "as always".
  if (s.stack == Stack::pytorch && strategy.has("fsdp_upcast"))
    data.fsdp_upcast = strategy.flag("fsdp_upcast", true);
  data.reduce_dtype = dtype(strategy, "reduce_dtype");
  if (s.stack == Stack::pytorch && data.zero >= 2) {  // FSDP has one dtype under two names
    if (data.reduce_dtype && s.grad_dtype && data.reduce_dtype != s.grad_dtype)
      strategy.refuse("reduce_dtype", "the same as grad_dtype");
    if (!s.grad_dtype) s.grad_dtype = data.reduce_dtype;
    data.reduce_dtype = s.grad_dtype;
  }
  const std::optional<Config> ddp = strategy.section("ddp");
  if (!ddp) return;
  constexpr double mib = 1 << 20, most = 1 << 20;
  const double bucket = ddp->real("bucket_cap_mb", data.bucket_cap.real() / mib);
  if (bucket <= 0 || bucket > most) ddp->refuse("bucket_cap_mb", "MiB from above 0 to 1048576");
  data.bucket_cap = Bytes(static_cast<std::int64_t>(bucket * mib));
  data.gradient_as_bucket_view = ddp->flag("bucket_view", false);
}

DeepSpeedOptions deepspeed_options(const Config& from) {
  DeepSpeedOptions out;
  const auto size = [&](const char* key, std::int64_t& target) {
    target = from.natural(key, target);
  };
  size("reduce_bucket_size", out.reduce_bucket_size);
  size("allgather_bucket_size", out.allgather_bucket_size);
  if (from.has("overlap_comm")) out.overlap_comm = from.flag("overlap_comm", false);
  out.contiguous_gradients = from.flag("contiguous_gradients", true);
  out.reduce_scatter = from.flag("reduce_scatter", true);
  out.round_robin_gradients = from.flag("round_robin_gradients", false);
  size("sub_group_size", out.sub_group_size);
  size("stage3_prefetch_bucket_size", out.prefetch_bucket_size);
  size("stage3_param_persistence_threshold", out.param_persistence_threshold);
  size("stage3_model_persistence_threshold", out.model_persistence_threshold);
  size("stage3_max_live_parameters", out.max_live_parameters);
  size("stage3_max_reuse_distance", out.max_reuse_distance);
  size("offload_optimizer_buffer_count", out.nvme.optimizer_buffer_count);
  size("offload_param_buffer_count", out.nvme.param_buffer_count);
  size("offload_param_buffer_size", out.nvme.param_buffer_size);
  size("offload_param_max_in_cpu", out.nvme.max_in_cpu);
  out.check_grad_overflow = from.flag("check_grad_overflow", true);
  return out;
}

// true: as measurements say it of a whole model.
Compile compiled(const Config& stack) {
  if (!stack.has("compile")) return Compile::no;
  if (!stack.is_flag("compile")) return choice<Compile>(stack, "compile");
  return stack.flag("compile", false) ? Compile::model : Compile::no;
}

Strategy read_strategy(const Config& strategy, const Config& stack) {
  Strategy s;
  s.stack = choice<Stack>(stack, "name");
  if (stack.has("device")) s.device = choice<Device>(stack, "device");
  if (stack.has("exchange")) s.exchange = choice<Exchange>(stack, "exchange");
  s.compile = compiled(stack);
  if (stack.has("allocator_conf"))
    s.allocator = allocator_conf_from(stack.text("allocator_conf", ""), "stack.allocator_conf");
  s.hold_outputs = stack.flag("hold_outputs", false);
  if (stack.has("kernels")) s.kernels = choice<Kernels>(stack, "kernels");
  if (stack.has("model_code")) s.code = choice<ModelCode>(stack, "model_code");
  if (stack.has("optimizer_impl"))
    s.optimizer_impl = choice<OptimizerImpl>(stack, "optimizer_impl");
  if (stack.has("transformers_version"))
    s.transformers =
        release(stack, "transformers_version", kOldestTransformers, kNewestTransformers);
  if (stack.has("bitsandbytes_version"))
    s.bitsandbytes = release(stack, "bitsandbytes_version", kOldestBitsandbytes, kBitsandbytes);
  // DeepSpeed's own release is the version of its stack.
  const char* const torch = s.stack == Stack::deepspeed ? "torch_version" : "version";
  if (s.stack != Stack::plimsoll && stack.has(torch))
    s.torch = release(stack, torch, kOldestTorch, kTorch);
  s.gpus = strategy.count("world_size", 1);
  s.precision = choice<Precision>(strategy, "precision");
  if (strategy.has("fp8_recipe")) s.fp8_recipe = choice<Fp8Recipe>(strategy, "fp8_recipe");
  s.fp8_all_gather = strategy.flag("fp8_all_gather", false);
  s.param_dtype = dtype(strategy, "param_dtype");
  s.grad_dtype = dtype(strategy, "grad_dtype");
  if (strategy.has("master_weights")) s.master_weights = strategy.flag("master_weights", true);
  read_data_parallel(strategy, stack, s);
  if (const std::optional<Config> knobs = stack.section("deepspeed"))
    s.data.deepspeed = deepspeed_options(*knobs);
  s.optimizer = choice<Optimizer>(strategy, "optimizer");
  s.galore_rank = strategy.natural("galore_rank", 0);
  s.optimizer_in_backward = strategy.flag("optimizer_in_backward", false);
  s.recompute = recompute(strategy);
  if (stack.has("use_reentrant")) s.use_reentrant = stack.flag("use_reentrant", false);
  s.attention = choice<Attention>(strategy, "attention");
  s.loss = choice<Loss>(strategy, "loss");
  if (strategy.has("rows")) s.rows = choice<Rows>(strategy, "rows");
  s.deterministic = strategy.flag("deterministic", false);
  s.tp = strategy.count("tp", 1);
  s.pp = strategy.count("pp", 1);
  s.cp = strategy.count("cp", 1);
  s.ep = strategy.count("ep", 1);
  if (const std::optional<Config> adapters = strategy.section("lora")) s.lora = lora(*adapters);
  if (strategy.has("quantize")) s.quantize = quantization(strategy);
  s.offload = offload(strategy, s);
  s.deterministic = strategy.flag("deterministic", false);
  s.freeze = strategy.texts("freeze", 4096);
  s.train = strategy.texts("train", 4096);
  return s;
}

}  // namespace

Workload read_workload(std::string_view text, const std::string& source) {
  const Config document = Config::parse(text, source);
  const std::string schema = document.text("schema", "");
  check(schema.empty() || schema == "plimsoll.plan/1" || schema == "plimsoll.measurement/1",
        ErrorKind::bad_input, [&] {
          return source + ": a document of schema " + shortened(schema) +
                 ", where a plan (plimsoll.plan/1) is needed";
        });
  const Config workload = document.section("workload").value_or(document);
  const auto part = [&](const char* key) {
    const std::optional<Config> section = workload.section(key);
    if (!section) workload.refuse(key, "an object, as in a plan that `plimsoll fit --json` wrote,");
    return *section;
  };
  Workload out;
  out.fingerprint = workload.text("fingerprint", "");
  const Config model = part("model");
  out.model_name = model.text("name", "");
  if (const std::optional<Config> config = model.section("config"))
    out.model_config = config->dump();
  out.strategy = read_strategy(part("strategy"), part("stack"));
  const Config batch = part("batch");
  out.batch.seq_len = batch.count("seq_len", out.batch.seq_len);
  out.batch.micro_batch = batch.count("micro_batch", out.batch.micro_batch);
  out.batch.grad_accum = batch.count("grad_accum", out.batch.grad_accum);
  out.batch.real_tokens = batch.natural("real_tokens", 0);
  out.batch.row_samples = batch.natural("row_samples", 0);
  out.batch.row_tokens = batch.natural("row_tokens", 0);
  if (const std::optional<Config> environment = document.section("environment"))
    if (const std::optional<Config> cluster = environment->section("cluster"))
      out.strategy.gpus_per_node = cluster->count("gpus_per_node", out.strategy.gpus_per_node);
  return out;
}

}  // namespace plimsoll::models
