#include "tests/tools/wide_question.h"

#include <span>

namespace plimsoll::tests {

namespace {

using Words = std::initializer_list<const char*>;

class Asking {
 public:
  explicit Asking(std::uint64_t number) : random_(number * 0x9E3779B97F4A7C15u + 7) {}

  std::uint64_t below(std::uint64_t end) { return random_() % end; }
  bool once_in(std::uint64_t times) { return below(times) == 0; }
  const char* of(Words words) { return words.begin()[below(words.size())]; }

  void add(const char* name, Words values) { out.given.emplace_back(name, of(values)); }
  void sometimes(std::uint64_t times, const char* name, Words values) {
    if (once_in(times)) add(name, values);
  }

  WideQuestion out;

 private:
  std::mt19937_64 random_;
};

// Small ones of each family, and a few that are large.
constexpr Words kModels{"llama-3.2-1b",    "llama-3.2-1b",    "llama-3.1-8b",  "smollm2-360m",
                        "mistral-7b-v0.1", "mistral-7b-v0.3", "qwen2.5-0.5b",  "qwen2.5-1.5b",
                        "qwen3-0.6b",      "qwen3-4b",        "gpt2",          "gpt2-medium",
                        "pythia-160m",     "pythia-410m",     "opt-350m",      "opt-1.3b",
                        "gemma-2b",        "gemma-2-2b",      "gemma-3-1b",    "phi-1.5",
                        "phi-2",           "phi-3-mini-4k",   "phi-4-mini",    "granite-3.0-2b",
                        "granite-3.1-2b",  "olmo-2-7b",       "bloom-1b1",     "bert-base-uncased",
                        "gpt-oss-20b",     "mixtral-8x7b",    "qwen3-30b-a3b", "santacoder",
                        "llama-2-7b",      "gpt-neo-125m"};

void ask_of_batch(Asking& ask) {
  ask.add("seq-len", {"128", "512", "777", "1024", "2048", "4096"});
  ask.add("micro-batch", {"1", "1", "2", "3", "8"});
  ask.sometimes(3, "grad-accum", {"2", "3"});
  ask.sometimes(16, "padding-mask", {"yes"});
  ask.sometimes(16, "padding", {"free"});
}

void ask_of_world(Asking& ask, Words gpus) {
  ask.add("gpus", gpus);
  ask.sometimes(6, "gpus-per-node", {"2", "4"});
  ask.sometimes(12, "shard-group", {"2", "4", "8"});
}

void ask_of_fsdp(Asking& ask) {
  if (!ask.once_in(3)) return;
  ask.add("fsdp-version", {"1"});
  ask.sometimes(4, "fsdp-use-orig-params", {"no"});
  ask.sometimes(4, "fsdp-activation-checkpointing", {"yes"});
  ask.sometimes(6, "fsdp-sync-module-states", {"yes"});
}

void ask_of_activations(Asking& ask) {
  ask.sometimes(2, "recompute",
                {"full", "full", "selective", "sqrt", "every:3", "ops:attention",
                 "ops:attention+q_proj", "fit"});
  ask.sometimes(6, "use-reentrant", {"yes"});
  ask.sometimes(3, "attention",
                {"flash-2", "flash-3", "flash-1", "cudnn", "efficient", "eager", "math"});
  ask.sometimes(4, "loss", {"chunked", "fused"});
  ask.sometimes(5, "kernels", {"liger", "fused"});
  ask.sometimes(10, "dropout", {"0", "0.1"});
}

void ask_of_dtypes(Asking& ask) {
  ask.sometimes(2, "precision", {"bf16", "fp32", "fp16-mixed", "fp16", "fp8-mixed"});
  ask.sometimes(10, "param-dtype", {"bf16", "fp32"});
  ask.sometimes(12, "grad-dtype", {"fp32", "bf16"});
  ask.sometimes(16, "master-weights", {"yes", "no"});
  ask.sometimes(16, "fsdp-upcast", {"no"});
  ask.sometimes(20, "fp8-recipe", {"rowwise", "rowwise_with_gw_hp"});
  ask.sometimes(20, "fp8-all-gather", {"yes"});
}

void ask_of_release(Asking& ask) {
  ask.sometimes(8, "torch-version", {"2.4", "2.6", "2.8"});
  ask.sometimes(6, "transformers-version", {"4.45.2", "4.48.1", "4.57", "5.0", "5.23"});
  ask.sometimes(16, "bitsandbytes-version", {"0.42", "0.43", "0.46.1"});
  ask.sometimes(
      14, "allocator-conf",
      {"expandable_segments:True", "max_split_size_mb:128", "garbage_collection_threshold:0.8"});
  ask.sometimes(14, "hold-outputs", {""});
}

void ask_of_optimizer(Asking& ask) {
  ask.sometimes(3, "optimizer",
                {"sgd",
                 "momentum",
                 "rmsprop",
                 "adagrad",
                 "adafactor",
                 "muon",
                 "lion",
                 "ademamix",
                 "adam8bit",
                 "lion8bit",
                 "ademamix8bit",
                 "rmsprop8bit",
                 "paged-adamw",
                 "paged-adam8bit",
                 "paged-lion8bit",
                 "torchao-adam8bit",
                 "torchao-adam4bit",
                 "torchao-adamfp8",
                 "schedule-free-adamw",
                 "schedule-free-sgd",
                 "schedule-free-radam",
                 "galore",
                 "galore8bit",
                 "apollo",
                 "apollo-mini",
                 "adam-mini",
                 "stable-adamw",
                 "grokadamw",
                 "lomo",
                 "adalomo"});
  ask.sometimes(4, "optimizer-impl", {"foreach", "fused", "for-loop"});
  ask.sometimes(10, "optimizer-in-backward", {""});
}

void ask_of_adapters(Asking& ask) {
  if (ask.once_in(4)) {
    ask.add("adapter", {"ia3", "vera", "prompt-tuning", "p-tuning", "prefix-tuning"});
    ask.sometimes(2, "virtual-tokens", {"8", "20"});
    ask.sometimes(4, "encoder-hidden", {"64", "768"});
    ask.sometimes(3, "lora-rank", {"64", "256"});
  } else {
    ask.add("lora-rank", {"8", "16", "64"});
    ask.sometimes(4, "lora-targets", {"attention", "q_proj,v_proj"});
    ask.sometimes(6, "use-dora", {"yes"});
    ask.sometimes(8, "lora-bias", {"yes"});
    ask.sometimes(8, "adapters", {"2", "3"});
    ask.sometimes(10, "target-parameters", {"mlp.experts.gate_up_proj,mlp.experts.down_proj"});
  }
  ask.sometimes(3, "lora-dropout", {"0.05", "0.1"});
  ask.sometimes(6, "adapter-dtype", {"bf16"});
  ask.sometimes(8, "modules-to-save", {"lm_head", "embed_tokens,lm_head"});
  if (!ask.once_in(2)) return;
  ask.add("quantize", {"nf4", "nf4-dq", "nf4-dq", "fp4", "int8", "gptq", "gptq-row", "awq", "hqq",
                       "torchao-int8"});
  ask.sometimes(3, "quant-storage", {"bf16", "fp16", "fp32"});
  ask.sometimes(3, "kbit-prep", {"yes", "no"});
}

void ask_of_freezing(Asking& ask) {
  ask.add("freeze", {"*embed*", "*layers.0.*", "*mlp*", "*norm*", "*attn*", "*"});
  ask.sometimes(2, "train", {"*norm*", "*lm_head*", "*down_proj*", "*layers.1.*"});
}

void ask_of_pytorch(Asking& ask) {
  ask_of_world(ask, {"1", "1", "2", "8", "16"});
  ask.sometimes(2, "zero", {"1", "2", "3", "3"});
  ask_of_fsdp(ask);
  ask_of_activations(ask);
  ask_of_dtypes(ask);
  ask_of_release(ask);
  ask_of_optimizer(ask);
  if (ask.once_in(3)) ask_of_adapters(ask);
  if (ask.once_in(12)) ask_of_freezing(ask);
  ask.sometimes(8, "compile", {"block"});
  ask.sometimes(8, "offload", {"params", "activations", "optimizer"});
  ask.sometimes(10, "offload-pin", {"no"});
  ask.sometimes(16, "bucket-cap-mb", {"7", "100"});
  ask.sometimes(16, "gradient-as-bucket-view", {"yes"});
  ask.sometimes(10, "phase", {"load"});
  ask.sometimes(20, "device-map", {"auto"});
}

void ask_of_deepspeed(Asking& ask) {
  ask.add("stack", {"deepspeed"});
  ask_of_world(ask, {"1", "2", "4", "8", "16"});
  ask.add("zero", {"0", "1", "2", "3", "3"});
  ask.sometimes(3, "reduce-bucket-size", {"1e6", "2e7", "5e7"});
  ask.sometimes(4, "overlap-comm", {"yes", "no"});
  ask.sometimes(6, "round-robin-gradients", {"yes"});
  ask.sometimes(4, "sub-group-size", {"1e6", "1e8"});
  ask.sometimes(5, "stage3-prefetch-bucket-size", {"0", "1e6"});
  ask.sometimes(5, "stage3-param-persistence-threshold", {"0", "1e3", "1e7"});
  ask.sometimes(5, "stage3-max-live-parameters", {"1e6", "1e8"});
  ask.sometimes(5, "stage3-max-reuse-distance", {"0", "1e7"});
  ask.sometimes(4, "offload", {"optimizer", "params", "optimizer,params"});
  ask_of_activations(ask);
  ask_of_dtypes(ask);
  ask.sometimes(4, "optimizer", {"sgd", "lion", "momentum"});
  if (ask.once_in(4)) ask_of_adapters(ask);
  if (ask.once_in(12)) ask_of_freezing(ask);
}

void ask_of_plimsoll(Asking& ask) {
  ask.add("stack", {"plimsoll"});
  ask_of_world(ask, {"1", "2", "3", "8", "16"});
  ask.sometimes(1, "zero", {"0", "1", "2", "3"});
  ask.sometimes(3, "reduce-bucket", {"1MiB", "7MiB", "100MiB"});
  ask.sometimes(4, "deterministic", {""});
  ask.sometimes(6, "device", {"cpu"});
  ask.sometimes(4, "offload", {"optimizer"});
  ask.sometimes(3, "optimizer", {"sgd", "momentum", "lion", "adam8bit", "lion8bit", "galore"});
  ask_of_activations(ask);
  ask_of_dtypes(ask);
  if (ask.once_in(4)) ask_of_adapters(ask);
  if (ask.once_in(8)) ask_of_freezing(ask);
}

void ask_of_torchtitan(Asking& ask) {
  ask.out.model = ask.of({"llama-3.1-8b", "llama-3.1-8b", "llama-2-7b"});
  ask.add("trainer", {"torchtitan", "torchtitan@2024-12", "torchtitan@2024-03"});
  ask.add("gpus", {"2", "8", "16", "64"});
  ask.sometimes(3, "tp", {"2", "4"});
  ask.sometimes(3, "compile", {"block"});
  ask.sometimes(3, "precision", {"fp8-mixed"});
  ask.sometimes(4, "fp8-all-gather", {"yes"});
  ask.sometimes(8, "fp8-recipe", {"rowwise"});
  ask.sometimes(8, "shard-group", {"2", "8"});
}

void ask_of_torchtune(Asking& ask) {
  ask.out.model = ask.of({"llama-3.2-1b", "llama-3.1-8b", "llama-2-7b", "mistral-7b-v0.1"});
  if (ask.once_in(2)) {
    ask.add("trainer", {"torchtune"});
    ask.add("gpus", {"2", "8"});
  } else {
    ask.add("trainer", {"torchtune-single-device"});
  }
  ask.sometimes(2, "lora-rank", {"8", "64"});
  ask.sometimes(3, "quantize", {"nf4-dq"});
  ask.sometimes(4, "offload", {"activations", "params"});
}

void ask_of_litgpt(Asking& ask) {
  ask.out.model = ask.of({"llama-3.2-1b", "llama-3.1-8b", "llama-2-7b", "mistral-7b-v0.3"});
  ask.add("trainer", {"litgpt", "litgpt-full", "litgpt@0.4.13", "litgpt@0.3.0"});
  ask.sometimes(2, "lora-rank", {"8", "64"});
  ask.sometimes(3, "quantize", {"nf4", "nf4-dq"});
}

void ask_of_unsloth(Asking& ask) {
  ask.out.model = ask.of({"llama-3.2-1b", "llama-3.1-8b", "mistral-7b-v0.3", "qwen2.5-1.5b"});
  ask.add("trainer", {"unsloth"});
  ask.add("lora-rank", {"8", "16", "64"});
  ask.sometimes(3, "lora-targets", {"attention", "q_proj,v_proj"});
  ask.sometimes(2, "quantize", {"nf4-dq"});
  ask.sometimes(6, "quant-storage", {"bf16"});
  ask.sometimes(3, "offload", {"activations"});
  ask.sometimes(4, "optimizer", {"adamw", "paged-adam8bit"});
}

// Other programs' code, each as it is run, and now and then as it is not.
void ask_of_trainer(Asking& ask) {
  const std::uint64_t which = ask.below(8);
  if (which < 4)
    ask_of_torchtitan(ask);
  else if (which < 6)
    ask_of_torchtune(ask);
  else if (which < 7)
    ask_of_litgpt(ask);
  else
    ask_of_unsloth(ask);
  ask.sometimes(3, "recompute", {"none", "full", "ops:torchtitan"});
  ask.sometimes(10, "precision", {"fp32", "bf16"});
  ask.sometimes(12, "loss", {"full", "chunked"});
  ask.sometimes(8, "optimizer-impl", {"foreach", "fused"});
}

void ask_what_is_looked_for(Asking& ask) {
  const std::string objective =
      ask.of({"throughput", "throughput", "cost", "memory", "gpus", "batch", "context"});
  ask.add("objective", {objective.c_str()});
  if (objective != "context") ask.add("seq-len", {"512", "1024", "2048", "4096"});
  if (objective != "batch") ask.sometimes(3, "global-batch", {"8", "24", "64"});
  ask.sometimes(3, "top", {"1", "5"});
  ask.sometimes(3, "min-headroom", {"0", "2GiB"});
  ask.sometimes(5, "tokens", {"1e9"});
  ask.sometimes(8, "only", {"zero=3", "stack=pytorch"});
  ask.sometimes(8, "without", {"stack=deepspeed", "recompute=none"});
}

}  // namespace

WideQuestion wide_search(std::uint64_t number) {
  Asking ask(number + (std::uint64_t{1} << 32));
  ask.out.model = ask.of(
      {"gpt2", "pythia-160m", "qwen2.5-0.5b", "llama-3.2-1b", "qwen3-4b", "gemma-2b", "opt-1.3b"});
  ask.add("gpu", {"h100", "a100-40gb", "rtx-4090", "t4", "l40s"});
  ask.add("gpus", {"1", "2", "4", "8", "16"});
  ask.sometimes(3, "stack", {"pytorch", "deepspeed", "plimsoll"});
  ask.sometimes(4, "zero", {"1", "2", "3"});
  ask.sometimes(5, "recompute", {"none", "full"});
  ask.sometimes(5, "precision", {"bf16", "fp16-mixed"});
  ask.sometimes(5, "lora-rank", {"16"});
  ask.sometimes(6, "optimizer", {"sgd", "adam8bit"});
  ask.sometimes(8, "quantize", {"nf4-dq"});
  ask.sometimes(6, "micro-batch", {"1", "4"});
  ask.sometimes(8, "kernels", {"eager", "liger"});
  ask_what_is_looked_for(ask);
  return ask.out;
}

WideQuestion wide_question(std::uint64_t number) {
  Asking ask(number);
  ask.out.model = ask.of(kModels);
  ask.add("gpu", {"h200", "h200", "b300-sxm-288gb", "h100-sxm-80gb", "h100-sxm-80gb", "a100-80gb",
                  "b200", "mi325x", "v100-sxm-32gb"});
  const std::uint64_t kind = ask.below(10);
  if (kind < 5)
    ask_of_pytorch(ask);
  else if (kind < 7)
    ask_of_deepspeed(ask);
  else if (kind < 8)
    ask_of_plimsoll(ask);
  else
    ask_of_trainer(ask);
  ask_of_batch(ask);
  ask.sometimes(12, "gpu-memory", {"24GiB", "40GB"});
  ask.sometimes(16, "reserve", {"1GiB"});
  ask.sometimes(10, "host-memory", {"64GiB", "1TiB"});
  return ask.out;
}

}  // namespace plimsoll::tests
