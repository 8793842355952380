// When a plan fits: capacities, what the host has to hold, and what a question must not ask.
#include <doctest/doctest.h>

#include <string>

#include "models/gpu_catalog.h"
#include "models/model_catalog.h"
#include "planner/plan.h"

using namespace plimsoll;
using models::Stack;
using planner::Question;
using reports::Plan;
using reports::Verdict;

namespace {

const models::ModelSpec& gpt2() {
  static const models::ModelSpec model = models::catalog_model("gpt2");
  return model;
}

Question asked(const char* gpu = "h100") {
  Question q;
  q.model = &gpt2();
  q.batch = {.seq_len = 128};
  q.cluster.gpu = models::find_gpu(gpu);
  q.detail = planner::Detail::none;
  q.remedies = false;
  return q;
}

std::string refusal(const Question& question) {
  try {
    planner::plan(question);
  } catch (const Error& error) {
    CHECK(error.kind() == ErrorKind::bad_input);
    return error.message();
  }
  return "";
}

}  // namespace

TEST_CASE("capacity is what is said, or the card's, less what is kept free") {
  Question q = asked();
  CHECK(planner::capacity_of(q).total == q.cluster.gpu->cuda_total.bytes);
  CHECK(planner::capacity_of(q).usable == q.cluster.gpu->cuda_total.bytes);
  q.cluster.reserve = 1_GiB;
  CHECK(planner::capacity_of(q).usable == q.cluster.gpu->cuda_total.bytes - 1_GiB);
  q.cluster.memory = 10_GiB;
  CHECK(planner::capacity_of(q).total == 10_GiB);
  CHECK(planner::capacity_of(q).usable == 9_GiB);
  q.strategy.device = models::Device::cpu;
  CHECK(planner::capacity_of(q).usable == 9_GiB);
  q.cluster.memory.reset();  // no card bounds the host's ranks
  CHECK_FALSE(planner::capacity_of(q).usable.has_value());
}

TEST_CASE("a plan fits to the byte, and says what is left") {
  Question q = asked();
  const Plan plan = planner::plan(q);
  CHECK(plan.fits);
  CHECK(plan.verdict == Verdict::fits);
  CHECK(plan.headroom == *plan.usable - plan.device);
  q.cluster.memory = plan.device;
  const Plan tight = planner::plan(q);
  CHECK(tight.fits);
  CHECK(tight.headroom == 0_B);
  q.cluster.memory = plan.device - 1_B;
  const Plan without = planner::plan(q);
  CHECK_FALSE(without.fits);
  CHECK(without.verdict != Verdict::fits);
  CHECK(without.headroom == Bytes(-1));
  // Beneath the peak no cache that is given back helps.
  q.cluster.memory = plan.peak + plan.overhead.total() - 1_B;
  CHECK(planner::plan(q).verdict == Verdict::does_not_fit);
  q.cluster.gpu.reset();
  q.cluster.memory.reset();
  const Plan nowhere = planner::plan(q);
  CHECK(nowhere.verdict == Plan().verdict);  // none is given
  CHECK_FALSE(nowhere.headroom.has_value());
}

// ZeRO-Offload: four ranks of a node of eight, which share its memory.
TEST_CASE("the host has to hold what the ranks of a node keep in it") {
  Question q = asked();
  q.strategy.stack = Stack::deepspeed;
  q.strategy.gpus = 4;
  q.strategy.data.zero = 2;
  CHECK(planner::plan(q).host_node == 0_B);
  q.strategy.offload.optimizer = true;
  const Plan plan = planner::plan(q);
  CHECK(plan.fits);
  CHECK(plan.host_node > 0_B);
  CHECK(plan.host_node == (plan.host_pinned + plan.host_pageable) * 4);
  CHECK_FALSE(plan.time.step_seconds.has_value());  // the host's speed is not known
  q.cluster.host_memory = plan.host_node;
  CHECK(planner::plan(q).fits);
  q.cluster.host_memory = plan.host_node - 1_B;
  const Plan full = planner::plan(q);
  CHECK_FALSE(full.fits);
  CHECK_FALSE(full.host_fits);
  CHECK(full.verdict == Verdict::does_not_fit);
  q.remedies = true;  // of the device's memory alone
  CHECK(planner::plan(q).remedies.empty());
  q.cluster.gpu.reset();  // no card that it could not fit on
  CHECK(planner::plan(q).verdict == Verdict::does_not_fit);
  q = asked();
  q.strategy.stack = Stack::deepspeed;
  q.strategy.gpus = 16;
  q.strategy.data.zero = 2;
  q.strategy.offload.optimizer = true;
  const Plan two_nodes = planner::plan(q);
  CHECK(two_nodes.host_node == (two_nodes.host_pinned + two_nodes.host_pageable) * 8);
}

TEST_CASE("a question that cannot be is bad input") {
  Question q = asked();
  q.strategy.gpus = 0;
  CHECK(refusal(q) == "--gpus must be at least 1");
  q = asked();
  q.strategy.gpus = 8;
  q.strategy.data = {.zero = 3, .shard_group = 3};
  CHECK(refusal(q).starts_with("--shard-group 3 does not divide --gpus 8"));
  q.strategy.data.shard_group = 4;
  CHECK(refusal(q) == "");
  q.strategy.data.shard_group = 8;
  CHECK(refusal(q) == "");
  q = asked();
  q.batch.seq_len = 1024;
  CHECK(refusal(q) == "");
  q.batch.seq_len = 1025;
  CHECK(refusal(q) == "--seq-len 1025: gpt2 takes at most 1024 positions");
}

// arXiv 1910.02054, 3.1: 2 + 2 + 12 bytes a parameter, over 4 ranks.
TEST_CASE("states alone are every rank's, and there between steps but for the gradients") {
  Question q;
  q.strategy.gpus = 4;
  q.strategy.data.zero = 2;
  q.cluster.gpu = models::find_gpu("h100");
  const Plan plan = planner::plan_states(Count(1000), q);
  CHECK(plan.states_only);
  CHECK(plan.states.parameters == 2000_B);
  CHECK(plan.states.gradients == 500_B);
  CHECK(plan.states.optimizer == 3000_B);
  CHECK(plan.peak == 5500_B);
  CHECK(plan.reserved == 5500_B);
  CHECK(plan.resident == 5000_B);
  CHECK(plan.parameters == Count(1000));
  REQUIRE(plan.ranks.size() == 1);
  CHECK(plan.ranks[0].count == 4);
  REQUIRE(plan.ranks[0].spans.size() == 1);
  CHECK(plan.ranks[0].spans[0].first == 0);
  CHECK(plan.ranks[0].spans[0].last == 3);
  CHECK(plan.peak_place.phase == "backward");
  CHECK(plan.peak_place.rank == 0);
  q.cluster.memory = 5500_B;
  CHECK(planner::plan_states(Count(1000), q).fits);
  q.cluster.memory = 5499_B;
  CHECK_FALSE(planner::plan_states(Count(1000), q).fits);
}
