#include "planner/plan.h"

namespace plimsoll::planner {

reports::Plan plan(const Question& question) {
  fail(ErrorKind::unsupported, "no stack can plan " + question.model->model_type + " yet");
}

namespace {
reports::States zero_states(Count parameters, const models::Strategy& s) {
  const bool mixed =
      s.precision == models::Precision::fp16_mixed || s.precision == models::Precision::bf16_mixed;
  const std::int64_t ranks = s.data.shard_group > 0 ? s.data.shard_group : s.gpus;
  const auto share = [&](Bytes bytes, bool sharded) {
    return sharded ? Bytes(ceil_divide(bytes.value(), ranks)) : bytes;
  };
  const Bytes weights = parameters.value() * Bytes(mixed ? 2 : 4);
  return {.parameters = share(weights, s.data.zero >= 3),
          .gradients = share(weights, s.data.zero >= 2),
          .optimizer = share(parameters.value() * Bytes(mixed ? 12 : 8), s.data.zero >= 1)};
}
}  // namespace

reports::Plan plan_states(Count parameters, const Question& question) {
  reports::Plan plan;
  plan.strategy = question.strategy;
  plan.batch = question.batch;
  plan.gpu = question.cluster.gpu;
  plan.parameters = plan.trainable_parameters = plan.active_parameters = parameters;
  plan.states_only = true;
  plan.states = zero_states(parameters, question.strategy);
  return plan;
}

}  // namespace plimsoll::planner
