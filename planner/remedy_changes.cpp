#include "planner/remedy_changes.h"

#include <algorithm>
#include <string_view>

#include "models/decisions/layer.h"
#include "models/decisions/mesh.h"
#include "models/lora.h"
#include "models/optimizers.h"
#include "models/zero_stage.h"
#include "planner/stacks/stack_info.h"

namespace plimsoll::planner {

using models::Attention;
using models::Loss;
using models::OptimizerImpl;
using models::Precision;
using models::RecomputeKind;
using models::Strategy;
using models::decisions::mesh_of;

namespace {

constexpr std::int64_t kShortest = 512;  // tokens: nobody is advised to train on less
constexpr int kHalvings = 3, kDoublings = 4;

bool has(const std::vector<std::string>& names, std::string_view name) {
  return std::ranges::find(names, name) != names.end();
}

// The names of the options in "--gpus 8 --zero 3".
std::vector<std::string> names_in(const std::string& option) {
  std::vector<std::string> names;
  for (std::size_t at = option.find("--"); at != std::string::npos; at = option.find("--", at + 2))
    names.push_back(option.substr(at + 2, option.find(' ', at) - at - 2));
  return names;
}

struct Changes {
  const Question& q;
  const Strategy& s = q.strategy;
  const StackInfo& stack = stack_info(s.stack);
  const models::decisions::Mesh mesh = mesh_of(s);
  std::vector<Change> out = {};

  void add(Price price, std::string option, std::function<void(Question&)> apply,
           std::string concession = "") {
    for (const std::string& name : names_in(option))
      if (has(q.fixed, name)) return;
    int level = 0;
    if (!out.empty() && out.back().price == price &&
        names_in(out.back().option).front() == names_in(option).front())
      level = out.back().level + 1;
    out.push_back({price, level, std::move(option), std::move(apply), std::move(concession)});
  }
  // DDP's own options are refused where FSDP takes over.
  bool may_shard(int stage) const {
    return !stack.has_fsdp || stage < 2 ||
           !(has(q.given, "bucket-cap-mb") || has(q.given, "gradient-as-bucket-view"));
  }

  // What no option of a trainer switches on (reports/export_code.h); our own runtime has it.
  std::string needs_code(const std::string& what) const {
    if (!stack.runs_transformers) return "";
    return what + ": no option of a trainer switches it on; export writes the code";
  }
  // Of the code whose step is planned (stacks/pytorch/refusals_code.cpp, refusals.cpp).
  bool accumulates() const {
    return !models::is_torchtitan(s.code) && !(models::is_torchtune(s.code) && s.gpus > 1) &&
           !s.optimizer_in_backward;
  }
  // torch.nn.DataParallel, whose one process shards nothing.
  bool threads() const { return s.data.kind == models::DataParallelKind::dp; }
  std::string sharding_processes() const { return threads() ? "--data-parallel ddp " : ""; }
  void add_free();
  void add_recomputation();
  void add_batches();
  void add_offload();
  void add_gpus();
  void add_concessions();
};

void Changes::add_free() {
  if (!is_flash(s.attention))
    add(Price::nothing, "--attention flash",
        [](Question& c) { c.strategy.attention = Attention::flash; });
  if (models::rule_of(s.optimizer).torch.fused_spares() && stack.foreach_by_default &&
      s.optimizer_impl.value_or(OptimizerImpl::foreach) != OptimizerImpl::fused)
    add(Price::nothing, "--optimizer-impl fused",
        [](Question& c) { c.strategy.optimizer_impl = OptimizerImpl::fused; });
  // One switch of the Trainer, with its loss; where Liger patches nothing it is refused.
  if (s.kernels == models::Kernels::eager && stack.runs_transformers && is_transformers(s.code) &&
      !has(q.given, "loss"))
    add(
        Price::nothing, "--kernels liger",
        [](Question& c) {
          c.strategy.kernels = models::Kernels::liger;
          c.strategy.loss = Loss::fused;
        },
        "the Trainer's use_liger_kernel=True, with the package liger-kernel");
  if (s.loss != Loss::fused)
    add(
        Price::nothing, "--loss fused", [](Question& c) { c.strategy.loss = Loss::fused; },
        needs_code("fused loss"));
  if (models::decisions::reentrant_checkpoints(s))
    add(
        Price::nothing, "--use-reentrant no", [](Question& c) { c.strategy.use_reentrant = false; },
        "gradient_checkpointing_kwargs' use_reentrant=False");
  // GEMMs read a frozen base in 16 bits either way.
  if (s.lora && stack.mixed_is_autocast && is_mixed(s.precision) &&
      s.param_dtype.value_or(DType::fp32) == DType::fp32)
    add(Price::nothing, "--param-dtype bf16",
        [](Question& c) { c.strategy.param_dtype = DType::bf16; });
  if (threads())
    add(
        Price::nothing, "--data-parallel ddp",
        [](Question& c) { c.strategy.data.kind = models::DataParallelKind::ddp; },
        "a process for each GPU: start the script with torchrun or accelerate launch");
  if (mesh.communicates())
    for (int stage = s.data.zero + 1; stage <= 3; ++stage)
      if (may_shard(stage))
        add(stage < 3 ? Price::nothing : Price::time,
            sharding_processes() + "--zero " + std::to_string(stage),
            [stage](Question& c) { set_zero(c.strategy, stage); });
}

void Changes::add_recomputation() {
  const RecomputeKind kind = s.recompute.kind;
  if (kind == RecomputeKind::none && !is_flash(s.attention))
    add(
        Price::time, "--recompute selective",
        [](Question& c) { c.strategy.recompute = {.kind = RecomputeKind::selective}; },
        needs_code("selective recomputation"));
  if (kind == RecomputeKind::none || kind == RecomputeKind::selective || kind == RecomputeKind::ops)
    add(Price::time, "--recompute full",
        [](Question& c) { c.strategy.recompute = {.kind = RecomputeKind::full}; });
}

void Changes::add_batches() {
  const std::int64_t steps = q.batch.grad_accum * q.batch.micro_batch;
  const bool derived = has(q.given, "global-batch");  // accumulation follows from it
  if (q.batch.micro_batch == 1 || !accumulates() || q.batch.is_drawn() ||
      (derived && has(q.given, "grad-accum")) || has(q.fixed, "global-batch"))
    return;
  add(Price::time, "--micro-batch 1" + (derived ? "" : " --grad-accum " + std::to_string(steps)),
      [steps](Question& c) {
        c.batch.micro_batch = 1;
        c.batch.grad_accum = steps;
      });
}

// Where the stack's trainers have a switch for it, and the step is planned.
void Changes::add_offload() {
  if (stack.has_fsdp && !s.offload.any() && s.recompute.kind == RecomputeKind::full)
    add(
        Price::time, "--offload activations",
        [](Question& c) { c.strategy.offload.activations = true; },
        "TRL's activation_offloading=True: pinned memory of the host keeps what layers read");
  const bool adamw = s.optimizer == models::Optimizer::adamw &&
                     s.optimizer_impl.value_or(OptimizerImpl::fused) == OptimizerImpl::fused;
  const bool widened = s.grad_dtype == DType::fp32 && s.precision != Precision::fp32;
  if (stack.has_fsdp && !s.offload.params && s.data.zero >= 2 && mesh.shards() &&
      s.optimizer == models::Optimizer::adamw && s.precision != Precision::fp16_mixed)
    add(
        Price::time, "--offload params", [](Question& c) { c.strategy.offload.params = true; },
        "the host keeps parameters, gradients and states and steps them, how fast is not "
        "predicted");
  if (!stack.offloads_optimizer || s.data.zero == 0 || !adamw || widened ||
      s.precision == Precision::bf16)
    return;
  const auto offer = [&](const char* parts, bool params) {
    if (s.offload.optimizer && (s.offload.params || !params)) return;
    add(
        Price::time, std::string("--offload ") + parts,
        [params](Question& c) {
          c.strategy.offload.optimizer = true;
          c.strategy.offload.params = params;
        },
        "the host keeps and steps them, how fast is not predicted");
  };
  offer("optimizer", false);
  if (s.data.zero == 3) offer("optimizer,params", true);
}

void Changes::add_gpus() {
  if (!may_shard(3) || has(q.fixed, "global-batch") ||
      (has(q.given, "global-batch") && has(q.given, "grad-accum")))
    return;
  std::int64_t more = s.gpus;
  for (int i = 0; i < kDoublings; ++i) {
    more = more < 8 ? 8 : 2 * more;
    add(Price::hardware,
        "--gpus " + std::to_string(more) +
            (s.data.zero == 3 ? "" : " " + sharding_processes() + "--zero 3"),
        [more](Question& c) {
          models::DataParallel& data = c.strategy.data;
          // A group of all ranks is told as none; of more ranks it is one.
          if (data.shard_group == 0 && has(c.given, "shard-group"))
            data.shard_group = models::decisions::data_ranks(c.strategy);
          c.strategy.gpus = more;
          set_zero(c.strategy, 3);
        });
  }
}

void Changes::add_concessions() {
  for (std::int64_t fewer = q.batch.micro_batch / 2;
       fewer >= 1 && !accumulates() && !q.batch.is_drawn() && !has(q.given, "global-batch");
       fewer /= 2)
    add(
        Price::task, "--micro-batch " + std::to_string(fewer),
        [fewer](Question& c) { c.batch.micro_batch = fewer; },
        "fewer sequences a step: this code accumulates no gradients");
  const std::int64_t longest = q.batch.is_drawn() ? 0 : q.batch.seq_len;
  for (std::int64_t i = 1; i <= kHalvings && longest >> i >= kShortest; ++i) {
    const std::int64_t tokens = q.batch.seq_len >> i;
    add(Price::task, "--seq-len " + std::to_string(tokens),
        [tokens](Question& c) { c.batch.seq_len = tokens; });
  }
  if (!s.lora && s.freeze.empty() && s.train.empty()) {
    const bool store = stack.mixed_is_autocast && is_mixed(s.precision);
    const char* const target = models::usual_lora_target(*q.model);
    add(
        Price::adapters,
        std::string("--lora-rank 16 --lora-targets ") + target +
            (store ? " --param-dtype bf16" : ""),
        [store, target](Question& c) {
          c.strategy.lora =
              models::Lora{.rank = 16,
                           .targets = {target},
                           .modules_to_save = models::usual_modules_to_save(*c.model)};
          if (store) c.strategy.param_dtype = DType::bf16;
        },
        "adapters are trained, and none of the model's own weights");
  }
  if (const auto smaller = models::rule_of(s.optimizer).in_8_bits)
    add(
        Price::numerics, "--optimizer " + std::string(models::rule_of(*smaller).name),
        [smaller](Question& c) { c.strategy.optimizer = *smaller; },
        "optimizer states in 8 bits, by blocks of 256");
  // bf16 has 8 significant bits: half a unit in the last place is a 256th of a power of two.
  if (s.precision == Precision::bf16_mixed || s.precision == Precision::fp32)
    add(
        Price::numerics,
        std::string("--precision bf16") + (s.param_dtype ? " --param-dtype bf16" : ""),
        [](Question& c) {
          c.strategy.precision = Precision::bf16;
          if (c.strategy.param_dtype) c.strategy.param_dtype = DType::bf16;
        },
        "no fp32 masters: updates smaller than 1/256 of a weight can be lost");
}

}  // namespace

std::vector<Change> changes_for(const Question& question) {
  Changes changes{question};
  changes.add_free();
  changes.add_recomputation();
  changes.add_batches();
  changes.add_offload();
  changes.add_gpus();
  changes.add_concessions();
  std::ranges::stable_sort(changes.out, {}, &Change::price);
  return std::move(changes.out);
}

bool share_an_option(const Change& a, const Change& b) {
  const std::vector<std::string> names = names_in(a.option);
  return std::ranges::any_of(names_in(b.option),
                             [&](const std::string& name) { return has(names, name); });
}

bool settle(const Question& before, Question& changed) {
  if (!has(before.given, "global-batch")) return true;
  const std::int64_t all =
      before.batch.micro_batch * before.batch.grad_accum * mesh_of(before.strategy).data().ranks;
  const std::int64_t once = changed.batch.micro_batch * mesh_of(changed.strategy).data().ranks;
  if (all % once != 0) return false;
  changed.batch.grad_accum = all / once;
  return true;
}

}  // namespace plimsoll::planner
