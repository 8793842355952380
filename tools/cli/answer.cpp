// What only the door knows of an answer.
#include <fmt/format.h>

#include <algorithm>

#include "models/stack_versions.h"
#include "models/storages.h"
#include "reports/export_code.h"
#include "reports/fingerprint.h"
#include "reports/text.h"
#include "reports/workload_json.h"
#include "tools/cli/request.h"
#include "tools/cli/rows.h"

namespace plimsoll::tools {

using models::Stack;

namespace {
// What users of DeepSpeed know: its own estimator, beside what is planned.
void add_estimate(reports::Plan& plan) {
  for (const reports::Assumption& assumption : plan.assumptions)
    if (assumption.what == "model states by DeepSpeed's own estimator, bytes")
      plan.advice.push_back(fmt::format(
          "DeepSpeed's own estimator says {} of model states on each GPU (it counts the fp32 copy "
          "of the gradients, and no bucket, gather or activation); planned: {}.",
          reports::bytes_text(Bytes(std::stoll(assumption.value))),
          reports::bytes_text(plan.states.total())));
}
// What a user of QLoRA does not expect of a mixture.
void add_unpacked_experts(const models::ModelSpec& model, reports::Plan& plan) {
  if (!plan.strategy.quantize || plan.strategy.transformers < models::kExpertsAreStacked) return;
  Count experts;
  for (const models::ParameterRow& row : model.parameters)
    if (!row.stacked.empty()) experts += row.elements();
  if (experts == Count(0)) return;
  const bool widened = models::kbit_prepared(plan.strategy);
  const bool packed_before = std::ranges::any_of(model.other_forwards, [](const auto& forward) {
    return forward.before == models::kExpertsAreStacked;
  });
  plan.advice.push_back(fmt::format(
      "--quantize {}: Transformers 5 keeps a layer's experts in one tensor, which bitsandbytes "
      "does "
      "not pack: {} of {} parameters stay as they are loaded{}.{}",
      plan.strategy.quantize->storage->name, reports::short_count(experts),
      reports::short_count(model.parameter_count()),
      widened ? fmt::format(", and --kbit-prep makes {} of fp32 of them; --kbit-prep no does not",
                            reports::bytes_text(storage(experts, DType::fp32)))
              : "",
      packed_before ? " Before 5.0 they are linear modules, which it packs: "
                      "--transformers-version 4.57.6."
                    : ""));
}
}  // namespace

reports::Plan answer(const Request& request) {
  return completed(request, request.parameters
                                ? planner::plan_states(*request.parameters, request.question)
                                : planner::plan(request.question));
}

reports::Plan completed(const Request& request, reports::Plan plan) {
  plan.cluster = request.question.cluster;
  if (request.model) {
    plan.config_json = request.model->config;
    plan.model_name = request.model->spec.name;
    if (plan.strategy.stack == Stack::pytorch && plan.strategy.data.zero == 2)
      plan.advice.push_back(
          "--zero 2 on pytorch is FSDP with reshard_after_forward=False: parameters are sharded "
          "between steps, unlike ZeRO-2.");
    if (const std::string code = reports::needed_code_note(plan.strategy);
        !code.empty() && plan.strategy.stack != Stack::plimsoll)
      plan.advice.push_back(code);
    add_unpacked_experts(request.model->spec, plan);
    for (const std::string& note : request.model->spec.notes) plan.advice.push_back(note);
  }
  add_batches(request, plan);
  for (const std::string& note : request.notes) plan.advice.push_back(note);
  add_estimate(plan);
  plan.fingerprint = reports::fingerprint(reports::canonical_workload(plan));
  return plan;
}

}  // namespace plimsoll::tools
