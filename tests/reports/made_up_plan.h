// A plan with a figure in every field, for tests of what is written about plans.
#pragma once

#include <string>

#include "reports/json_writer.h"
#include "reports/recommendation.h"
#include "reports/record.h"

namespace plimsoll::reports {

inline Plan made_up_plan() {
  Plan plan;
  plan.strategy.gpus = 8;
  plan.strategy.data.zero = 3;
  plan.batch = {.seq_len = 8192, .micro_batch = 2, .grad_accum = 4};
  plan.gpu = models::Gpu{.name = "h100-sxm-80gb",
                         .title = "NVIDIA H100 SXM 80GB",
                         .vendor = "nvidia",
                         .family = "hopper",
                         .compute_capability = "9.0",
                         .aliases = {"h100"},
                         .nominal = 80_GiB,
                         .cuda_total = {.bytes = 79_GiB, .basis = "measured", .source = "a log"},
                         .bf16_flops = 989.4e12,
                         .memory_bandwidth = 3.35e12,
                         .pcie_bandwidth = 64e9};
  plan.model_name = "tiny-llama";
  plan.architecture = "LlamaForCausalLM";
  plan.model_type = "llama";
  plan.config_json = R"({"hidden_size":8,"model_type":"llama"})";
  plan.parameters = plan.trainable_parameters = plan.active_parameters = Count(1'000'000);
  plan.fingerprint = "0123456789abcdef";
  plan.fits = true;
  plan.capacity = 79_GiB;
  plan.usable = 78_GiB;
  plan.peak = 40_GiB;
  plan.resident = 16_GiB;
  plan.reserved = 42_GiB;
  plan.device = 43_GiB;
  plan.headroom = 35_GiB;
  plan.peak_place = {.rank = 0, .phase = "backward", .where = "layers.31.mlp"};
  plan.states = {.parameters = 4_GiB, .gradients = 4_GiB, .optimizer = 8_GiB};
  plan.at_peak = {4_GiB, 4_GiB, 8_GiB, 20_GiB, 2_GiB, 1_GiB, 1_GiB, 0_B};  // sums to 40 GiB
  plan.overhead = {.context = 512_MiB, .libraries = 256_MiB, .nccl = 256_MiB};
  plan.ranks = {{.rank = 0,
                 .count = 8,
                 .peak = 40_GiB,
                 .at_peak = plan.at_peak,
                 .states = plan.states,
                 .reserved = plan.reserved}};
  plan.model_flops_per_step = 1e15;
  plan.hardware_flops_per_step = 1.25e15;
  plan.bytes_sent_per_gpu_per_step = 3_GiB;
  plan.collectives = {{.kind = "all_gather", .count = 64, .array = 1_GiB, .group = 8}};
  plan.timeline = {{.op = "layers.0",
                    .phase = "forward",
                    .allocated = 17_GiB,
                    .high_water = 18_GiB,
                    .by_category = plan.at_peak}};
  plan.tensors = {{.name = "layers.*.attn.q",
                   .category = "activations",
                   .bytes = 1_MiB,
                   .repeat = 32,
                   .born = "forward",
                   .dies = "backward",
                   .at_peak = true}};
  plan.time = {.step_seconds = 2,
               .compute_seconds = 1.5,
               .exposed_communication_seconds = 0.4,
               .pipeline_bubble_seconds = 0,
               .optimizer_seconds = 0.1,
               .tokens_per_second = 262144,
               .tokens_per_second_per_gpu = 32768,
               .mfu = 0.4,
               .mfu_full_attention = 0.45,
               .hfu = 0.5,
               .peak_flops = 989.4e12,
               .communication_seconds = 1.2,
               .limited_by = "links between nodes"};
  plan.advice = {"Nothing to add."};
  plan.assumptions = {
      {.what = "CUDA context", .value = "536870912", .basis = "assumed", .source = "a page"}};
  return plan;
}

// One ranked plan and no front.
inline Recommendation made_up_recommendation() {
  Recommendation answer;
  answer.model_name = "tiny-llama";
  answer.objective = "throughput";
  answer.evaluated = 12;
  answer.points = 34567;
  answer.elapsed_seconds = 0.25;
  answer.gpus = 16;
  answer.fastest = 1500;
  answer.tie_margin = 0.08;
  answer.same_kind_margin = 0.04;
  answer.budget_tokens = 1e9;
  answer.ranked = {{.plan = made_up_plan(),
                    .score = 1234.5,
                    .why = {"One reason."},
                    .command = "plimsoll fit tiny-llama --gpus 8 --zero 3",
                    .tokens_per_second = 1234.25,
                    .gpu_days = 75.0}};
  answer.not_considered = {"offload", "tensor parallelism"};
  return answer;
}

// The document that `write` writes.
template <class Write>
std::string pretty(Write write) {
  std::string text;
  JsonWriter json(text, JsonWriter::Style::pretty);
  write(json);
  return text;
}

}  // namespace plimsoll::reports
