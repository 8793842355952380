#include "planner/techniques.h"

#include <algorithm>
#include <array>
#include <utility>

#include "models/decisions/mesh.h"
#include "models/decisions/precision.h"
#include "models/recompute.h"
#include "models/run_names.h"
#include "models/storages.h"
#include "models/zero_stage.h"
#include "planner/remedy_changes.h"
#include "planner/stacks/stack_info.h"

namespace plimsoll::planner {

using models::Attention;
using models::Loss;
using models::Optimizer;
using models::OptimizerImpl;
using models::Precision;
using models::RecomputeKind;
using models::Strategy;

namespace {

// Optimizers whose states are packed or paged, and the same arithmetic with fp32 states in the
// GPU's own memory.
constexpr std::array kPlainOptimizers{std::pair(Optimizer::adam8bit, Optimizer::adamw),
                                      std::pair(Optimizer::paged_adam8bit, Optimizer::adamw),
                                      std::pair(Optimizer::paged_adamw, Optimizer::adamw),
                                      std::pair(Optimizer::torchao_adam8bit, Optimizer::adamw),
                                      std::pair(Optimizer::torchao_adam4bit, Optimizer::adamw),
                                      std::pair(Optimizer::torchao_adamfp8, Optimizer::adamw),
                                      std::pair(Optimizer::lion8bit, Optimizer::lion),
                                      std::pair(Optimizer::paged_lion8bit, Optimizer::lion),
                                      std::pair(Optimizer::paged_lion, Optimizer::lion),
                                      std::pair(Optimizer::ademamix8bit, Optimizer::ademamix),
                                      std::pair(Optimizer::paged_ademamix8bit, Optimizer::ademamix),
                                      std::pair(Optimizer::paged_ademamix, Optimizer::ademamix),
                                      std::pair(Optimizer::rmsprop8bit, Optimizer::rmsprop_bnb),
                                      std::pair(Optimizer::galore8bit, Optimizer::galore),
                                      std::pair(Optimizer::q_galore, Optimizer::galore)};

std::string named(const char* option, std::string_view value) {
  return std::string("--") + option + " " + std::string(value);
}

// A base that is not packed is loaded in the 16 bits that its GEMMs compute in.
void unpack(Strategy& s) {
  s.quantize.reset();
  if (!s.param_dtype && is_mixed(s.precision))
    s.param_dtype = s.precision == Precision::fp16_mixed ? DType::fp16 : DType::bf16;
}

struct Techniques {
  const Question& q;
  const Strategy& s = q.strategy;
  const StackInfo& stack = stack_info(s.stack);
  std::vector<Technique> out = {};

  void used(std::string option, std::string instead, std::function<void(Question&)> remove) {
    out.push_back({true, std::move(option), std::move(instead), "", std::move(remove)});
  }
  void add_states();
  void add_trained();
  void add_activations();
  void add_batch();
  void add_unused();
};

// On the GPU.
void keep_states(Question& c) {
  models::Offload& offload = c.strategy.offload;
  offload.optimizer = offload.gradients = offload.params = offload.nvme = false;
}

// What the model states take.
void Techniques::add_states() {
  const bool on_host = s.offload.params || s.offload.optimizer;
  if (s.data.zero > 0 && models::decisions::mesh_of(s).communicates())
    used(named("zero", std::to_string(s.data.zero)),
         on_host ? "--zero 0, nothing offloaded" : "--zero 0", [](Question& c) {
           set_zero(c.strategy, 0);
           c.strategy.data.shard_group = 0;
           c.strategy.data.fsdp_checkpoints = false;
           keep_states(c);
         });
  if (on_host)
    used(named("offload", s.offload.params && s.offload.optimizer ? "optimizer,params"
                          : s.offload.params                      ? "params"
                          : s.offload.gradients                   ? "optimizer,gradients"
                                                                  : "optimizer"),
         "on the GPU", keep_states);
  for (const auto& [packed, plain] : kPlainOptimizers)
    if (s.optimizer == packed)
      used(named("optimizer", models::rule_of(packed).name),
           named("optimizer", models::rule_of(plain).name),
           [plain = plain](Question& c) { c.strategy.optimizer = plain; });
  if (stack.foreach_by_default && s.optimizer_impl == OptimizerImpl::fused &&
      models::rule_of(s.optimizer).torch.fused_spares())
    used("--optimizer-impl fused", "--optimizer-impl foreach",
         [](Question& c) { c.strategy.optimizer_impl = OptimizerImpl::foreach; });
  if (s.optimizer_in_backward)
    used("--optimizer-in-backward", "a step after backward",
         [](Question& c) { c.strategy.optimizer_in_backward = false; });
  if (s.precision == Precision::fp8_mixed)
    used("--precision fp8-mixed", "--precision bf16-mixed", [](Question& c) {
      c.strategy.precision = Precision::bf16_mixed;
      c.strategy.fp8_all_gather = false;
    });
  if (s.precision != Precision::fp32)
    used(named("precision", name_of(s.precision)), "--precision fp32", [](Question& c) {
      Strategy& x = c.strategy;
      x.precision = Precision::fp32;
      x.fp8_all_gather = false;
      x.param_dtype.reset();
      x.grad_dtype.reset();
      x.master_weights.reset();
      x.data.reduce_dtype.reset();
      if (models::is_flash_package(x.attention) || models::is_sdpa_kernel(x.attention) ||
          x.attention == Attention::xformers)
        x.attention = Attention::flash;
    });
  if (stack.own_kernels && models::decisions::reduce_dtype(s) &&
      models::decisions::mesh_of(s).communicates())
    used(named("reduce-dtype", name_of(*s.data.reduce_dtype)), "gradients exchanged in fp32",
         [](Question& c) { c.strategy.data.reduce_dtype.reset(); });
  if (is_mixed(s.precision) && !s.quantize && s.param_dtype && *s.param_dtype != DType::fp32)
    used(named("param-dtype", name_of(*s.param_dtype)), "--param-dtype fp32",
         [](Question& c) { c.strategy.param_dtype = DType::fp32; });
}

void Techniques::add_trained() {
  if (s.quantize)
    used(named("quantize", s.quantize->storage->name),
         is_mixed(s.precision) ? "a base in 16 bits" : "a base that is not packed",
         [](Question& c) { unpack(c.strategy); });
  if (s.lora)
    used(s.lora->kind == models::AdapterKind::lora
             ? named("lora-rank", std::to_string(s.lora->rank))
             : named("adapter", name_of(s.lora->kind)),
         s.quantize ? "the whole model trained, not packed" : "the whole model trained",
         [](Question& c) {
           if (c.strategy.quantize) unpack(c.strategy);
           c.strategy.lora.reset();
           c.strategy.freeze.clear();
           c.strategy.train.clear();
         });
  else if (!s.freeze.empty())
    used("--freeze", "the whole model trained", [](Question& c) {
      c.strategy.freeze.clear();
      c.strategy.train.clear();
    });
}

void Techniques::add_activations() {
  if (s.recompute.kind != RecomputeKind::none)
    used(named("recompute", models::text_of(s.recompute)),
         s.offload.activations ? "--recompute none, nothing offloaded" : "--recompute none",
         [](Question& c) {
           c.strategy.recompute = {};
           c.strategy.data.fsdp_checkpoints = false;
           c.strategy.offload.activations = false;
         });
  if (s.offload.activations)
    used("--offload activations", "on the GPU",
         [](Question& c) { c.strategy.offload.activations = false; });
  if (is_flash(s.attention))
    used(named("attention", name_of(s.attention)), "--attention eager",
         [](Question& c) { c.strategy.attention = Attention::eager; });
  if (s.kernels != models::Kernels::eager)
    used(named("kernels", name_of(s.kernels)),
         s.loss == Loss::full ? "--kernels eager" : "--kernels eager --loss full", [](Question& c) {
           c.strategy.kernels = models::Kernels::eager;
           c.strategy.loss = Loss::full;
         });
  else if (s.loss != Loss::full)
    used(named("loss", name_of(s.loss)), "--loss full",
         [](Question& c) { c.strategy.loss = Loss::full; });
  if (s.compile != models::Compile::no)
    used(named("compile", name_of(s.compile)), "--compile no",
         [](Question& c) { c.strategy.compile = models::Compile::no; });
  if (s.data.gradient_as_bucket_view && s.data.zero < 2)
    used("--gradient-as-bucket-view yes", "--gradient-as-bucket-view no",
         [](Question& c) { c.strategy.data.gradient_as_bucket_view = false; });
  if (const auto conf = text_of(s.allocator))
    used(named("allocator-conf", *conf), "PyTorch's own settings",
         [](Question& c) { c.strategy.allocator = {}; });
}

void Techniques::add_batch() {
  const models::Batch& batch = q.batch;
  if (batch.grad_accum == 1 || batch.is_drawn()) return;
  const std::int64_t all = batch.micro_batch * batch.grad_accum;
  used(named("grad-accum", std::to_string(batch.grad_accum)),
       named("micro-batch", std::to_string(all)), [all](Question& c) {
         c.batch.micro_batch = all;
         c.batch.grad_accum = 1;
       });
}

// Of what could be changed, what leaves model, batch and arithmetic as they are.
void Techniques::add_unused() {
  const auto open = [&](const char* option) {
    return std::ranges::find(q.fixed, option) == q.fixed.end();
  };
  const auto unused = [&](std::string option, std::function<void(Question&)> add,
                          std::string concession = "") {
    out.push_back({false, std::move(option), "", std::move(concession), std::move(add)});
  };
  for (const Change& change : changes_for(q))
    if (change.price <= Price::time) unused(change.option, change.apply, change.concession);
  if (s.loss == Loss::full && open("loss"))
    unused("--loss chunked", [](Question& c) { c.strategy.loss = Loss::chunked; });
  if (s.data.zero < 2 && !s.data.gradient_as_bucket_view && open("gradient-as-bucket-view") &&
      stack.has_fsdp && models::decisions::mesh_of(s).communicates())
    unused("--gradient-as-bucket-view yes",
           [](Question& c) { c.strategy.data.gradient_as_bucket_view = true; });
  if (!stack.own_kernels && s.allocator == models::AllocatorConf() && open("allocator-conf"))
    unused("--allocator-conf expandable_segments:True",
           [](Question& c) { c.strategy.allocator.expandable_segments = true; });
}

reports::Saving planned(const Question& question, const reports::Plan& plan,
                        const Technique& technique,
                        const std::function<reports::Plan(const Question&)>& replan) {
  reports::Saving saving{.used = technique.used,
                         .option = technique.option,
                         .instead = technique.instead,
                         .concession = technique.concession};
  Question changed = question;
  changed.detail = Detail::none;
  changed.remedies = false;
  technique.apply(changed);
  if (!settle(question, changed)) {
    saving.refusal = "--global-batch is not divided by it";
    return saving;
  }
  try {
    const reports::Plan other = replan(changed);
    const std::int64_t sign = technique.used ? 1 : -1;
    saving.planned = {.peak = other.peak,
                      .device = other.device,
                      .saves_peak = sign * (other.peak - plan.peak),
                      .saves_device = sign * (other.device - plan.device),
                      .fits = other.fits};
  } catch (const Error& error) {
    saving.refusal = error.message();
  }
  return saving;
}

}  // namespace

std::vector<Technique> techniques_of(const Question& question) {
  Techniques techniques{question};
  techniques.add_states();
  techniques.add_trained();
  techniques.add_activations();
  techniques.add_batch();
  techniques.add_unused();
  return std::move(techniques.out);
}

std::vector<reports::Saving> savings_of(const Question& question, const reports::Plan& plan,
                                        const std::vector<Technique>& techniques,
                                        const std::function<reports::Plan(const Question&)>& replan,
                                        const std::function<void()>& advance) {
  std::vector<reports::Saving> savings;
  for (const Technique& technique : techniques) {
    savings.push_back(planned(question, plan, technique, replan));
    if (!technique.used && !savings.back().planned) savings.pop_back();
    advance();
  }
  std::ranges::stable_sort(savings, [](const reports::Saving& a, const reports::Saving& b) {
    if (a.used != b.used) return a.used;
    if (!a.planned || !b.planned) return a.planned && !b.planned;
    return a.planned->saves_device > b.planned->saves_device;
  });
  return savings;
}

}  // namespace plimsoll::planner
