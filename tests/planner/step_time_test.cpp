#include "planner/step_time.h"

#include <doctest/doctest.h>

#include "models/gpu_catalog.h"
#include "models/model_catalog.h"

using namespace plimsoll;
using planner::StepTime;

namespace {

struct Case {
  const char* model = "llama-3.1-8b";
  const char* gpu = "h100-sxm-80gb";
  models::Strategy strategy;
  models::Batch batch{.seq_len = 4096};
  models::ClusterSpec cluster;

  StepTime time() {
    cluster.gpu = models::find_gpu(gpu);
    const models::ModelSpec spec = models::catalog_model(model);
    return planner::TimeModel(planner::model_parts(spec, strategy), cluster)(strategy, batch);
  }
};

Case on(std::int64_t gpus, int zero) {
  Case c;
  c.strategy.gpus = gpus;
  c.strategy.data.zero = zero;
  return c;
}

}  // namespace

TEST_CASE("the parts of a step's time add up to the step") {
  for (const int zero : {0, 1, 2, 3}) {
    const StepTime time = on(16, zero).time();
    CHECK(time.step == doctest::Approx(time.compute + time.exposed_communication +
                                       time.pipeline_bubble + time.optimizer));
    CHECK(time.communication >= time.exposed_communication);
    CHECK(time.exposed_communication > 0);
    CHECK(time.optimizer > 0);
  }
}

TEST_CASE("more bandwidth between nodes never makes a step slower") {
  for (const int zero : {0, 1, 2, 3}) {
    double before = 0;
    for (const double rate : {400e9, 100e9, 50e9, 25e9, 12.5e9, 1e9}) {
      Case c = on(64, zero);
      c.cluster.inter_node_bandwidth = rate;
      const double seconds = c.time().step;
      CHECK(seconds >= before);
      before = seconds;
    }
  }
}

TEST_CASE("an unknown GPU, and products that a GPU has no units for, have no time") {
  const models::ModelSpec spec = models::catalog_model("gpt2");
  const planner::ModelParts parts = planner::model_parts(spec, {});
  CHECK_FALSE(planner::TimeModel(parts, {}).knows(models::Precision::bf16_mixed));
  models::ClusterSpec cluster;
  cluster.gpu = models::find_gpu("v100-sxm-32gb");  // no bf16
  const planner::TimeModel volta(parts, cluster);
  CHECK_FALSE(volta.knows(models::Precision::bf16_mixed));
  CHECK(volta.knows(models::Precision::fp16_mixed));
  CHECK(volta.knows(models::Precision::fp32));
}
