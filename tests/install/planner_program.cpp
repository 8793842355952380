// A program of someone else, built against the installed library.
#include <cstdio>

#include "models/gpu_catalog.h"
#include "models/model_catalog.h"
#include "planner/plan.h"

int main() {
  using namespace plimsoll;
  const models::ModelSpec model = models::catalog_model("llama-3.1-8b");
  planner::Question question;
  question.model = &model;
  question.cluster.gpu = models::find_gpu("h100");
  question.strategy.gpus = 8;
  question.strategy.data.zero = 3;
  question.batch.seq_len = 2048;
  const reports::Plan plan = planner::plan(question);
  std::printf("%lld\n", static_cast<long long>(plan.peak.value()));
}
