// What each technique of a plan saves: which are found, what stands in their place, and whether the
// figures are those of the plans without them.
#include "planner/techniques.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <functional>
#include <string>
#include <vector>

#include "models/cluster_spec.h"
#include "models/gpu_catalog.h"
#include "models/model_catalog.h"
#include "models/storages.h"
#include "models/zero_stage.h"
#include "tests/planner/lines.h"

using namespace plimsoll;
using planner::Question;
using planner::Technique;
using tests::Lines;

namespace {

struct Asked {
  models::ModelSpec model = models::catalog_model("llama-3.2-1b");
  Question q;
  explicit Asked(const std::function<void(models::Strategy&)>& with = nullptr) {
    q.model = &model;
    q.batch = {.seq_len = 1024};
    q.cluster.gpu = models::find_gpu("h100");
    if (with) with(q.strategy);
  }
  Lines lines(bool used) const {
    Lines out;
    for (const Technique& one : planner::techniques_of(q))
      if (one.used == used) out.push_back(one.option + (used ? " instead of " + one.instead : ""));
    return out;
  }
};

using models::Strategy;

// What a user would have typed without it: all that it brings goes with it, and nothing else does.
void check_without(const std::string& option, const std::function<void(Strategy&)>& with,
                   const std::function<void(Strategy&)>& without) {
  CAPTURE(option);
  Asked asked(with);
  Strategy expected = asked.q.strategy;
  without(expected);
  std::size_t found = 0;
  for (const Technique& one : planner::techniques_of(asked.q)) {
    if (!one.used || one.option + " instead of " + one.instead != option) continue;
    Question changed = asked.q;
    one.apply(changed);
    CHECK((changed.strategy == expected));
    ++found;
  }
  CHECK(found == 1);
}

const auto kPlan = [](const Question& q) { return planner::plan(q); };
const auto kNothing = [] {};

}  // namespace

TEST_CASE("a technique that is used stands beside what would take its place") {
  CHECK(Asked().lines(true) == Lines{"--precision bf16-mixed instead of --precision fp32",
                                     "--attention flash instead of --attention eager"});
  CHECK(Asked([](models::Strategy& s) {
          s.gpus = 8;
          models::set_zero(s, 3);
          s.offload.params = true;
          s.recompute.kind = models::RecomputeKind::full;
          s.offload.activations = true;
          s.precision = models::Precision::fp32;
          s.attention = models::Attention::math;
          s.optimizer_impl = models::OptimizerImpl::fused;
          s.kernels = models::Kernels::liger;
          s.loss = models::Loss::fused;
          s.allocator.expandable_segments = true;
          s.compile = models::Compile::block;
        }).lines(true) ==
        Lines{"--zero 3 instead of --zero 0, nothing offloaded",
              "--offload params instead of on the GPU",
              "--optimizer-impl fused instead of --optimizer-impl foreach",
              "--recompute full instead of --recompute none, nothing offloaded",
              "--offload activations instead of on the GPU",
              "--kernels liger instead of --kernels eager --loss full",
              "--compile block instead of --compile no",
              "--allocator-conf expandable_segments:True instead of PyTorch's own settings"});
  CHECK(Asked([](models::Strategy& s) {
          s.lora = models::Lora{.rank = 16, .targets = {"all-linear"}};
          s.quantize = models::Quantization{.storage = models::find_packed_storage("nf4")};
          s.optimizer = models::Optimizer::paged_adam8bit;
          s.loss = models::Loss::chunked;
          s.attention = models::Attention::math;
        }).lines(true) == Lines{"--optimizer paged-adam8bit instead of --optimizer adamw",
                                "--precision bf16-mixed instead of --precision fp32",
                                "--quantize nf4 instead of a base in 16 bits",
                                "--lora-rank 16 instead of the whole model trained, not packed",
                                "--loss chunked instead of --loss full"});
}

TEST_CASE("accumulation is taken away by one micro-batch of all sequences") {
  Asked asked;
  asked.q.batch = {.seq_len = 1024, .micro_batch = 2, .grad_accum = 8};
  for (const Technique& one : planner::techniques_of(asked.q)) {
    if (one.option != "--grad-accum 8") continue;
    CHECK(one.instead == "--micro-batch 16");
    one.apply(asked.q);
  }
  CHECK(asked.q.batch.micro_batch == 16);
  CHECK(asked.q.batch.grad_accum == 1);
}

TEST_CASE("what hangs on sharding and on checkpoints goes with them") {
  const auto sharded = [](Strategy& s) {
    s.gpus = 8;
    models::set_zero(s, 2);
    s.data.shard_group = 4;
    s.data.fsdp_version = 1;
    s.data.fsdp_checkpoints = true;
    s.recompute.kind = models::RecomputeKind::full;
    s.offload.params = s.offload.optimizer = s.offload.activations = true;
  };
  check_without("--zero 2 instead of --zero 0, nothing offloaded", sharded, [](Strategy& s) {
    models::set_zero(s, 0);
    s.data.shard_group = 0;
    s.data.fsdp_checkpoints = false;
    s.offload.params = s.offload.optimizer = false;
  });
  check_without("--offload optimizer,params instead of on the GPU", sharded,
                [](Strategy& s) { s.offload.params = s.offload.optimizer = false; });
  check_without("--recompute full instead of --recompute none, nothing offloaded", sharded,
                [](Strategy& s) {
                  s.recompute = {};
                  s.data.fsdp_checkpoints = false;
                  s.offload.activations = false;
                });
  check_without("--offload activations instead of on the GPU", sharded,
                [](Strategy& s) { s.offload.activations = false; });
  for (const bool params : {true, false})
    check_without(
        params ? "--offload params instead of on the GPU"
               : "--offload optimizer instead of on the GPU",
        [params](Strategy& s) { (params ? s.offload.params : s.offload.optimizer) = true; },
        [](Strategy& s) { s.offload = {}; });
}

TEST_CASE("a cast for the exchange is a technique where our own ranks exchange what is wider") {
  const auto cast = [](Strategy& s) {
    s.stack = models::Stack::plimsoll;
    s.gpus = 8;
    s.data.zero = 2;
    s.grad_dtype = DType::fp32;
    s.data.reduce_dtype = DType::bf16;
  };
  const std::string option = "--reduce-dtype bf16 instead of gradients exchanged in fp32";
  check_without(option, cast, [](Strategy& s) { s.data.reduce_dtype.reset(); });
  for (const bool narrow : {false, true}) {
    const Lines used = Asked([&](Strategy& s) {
                         cast(s);
                         narrow ? s.grad_dtype.reset() : void(s.gpus = 1);
                       }).lines(true);
    CHECK(std::ranges::count(used, option) == 0);
  }
}

TEST_CASE("what hangs on a precision or an optimizer goes with it") {
  const auto low = [](Strategy& s) {
    s.precision = models::Precision::fp8_mixed;
    s.fp8_all_gather = true;
    s.param_dtype = DType::bf16;
    s.grad_dtype = DType::bf16;
    s.master_weights = true;
    s.data.reduce_dtype = DType::bf16;
    s.attention = models::Attention::flash_2;
    s.optimizer_in_backward = true;
    s.optimizer = models::Optimizer::paged_lion;
  };
  check_without("--precision fp8-mixed instead of --precision bf16-mixed", low, [](Strategy& s) {
    s.precision = models::Precision::bf16_mixed;
    s.fp8_all_gather = false;
  });
  check_without("--precision fp8-mixed instead of --precision fp32", low, [](Strategy& s) {
    s.precision = models::Precision::fp32;
    s.fp8_all_gather = false;
    s.param_dtype.reset();
    s.grad_dtype.reset();
    s.master_weights.reset();
    s.data.reduce_dtype.reset();
    s.attention = models::Attention::flash;
  });
  check_without("--param-dtype bf16 instead of --param-dtype fp32", low,
                [](Strategy& s) { s.param_dtype = DType::fp32; });
  check_without("--attention flash-2 instead of --attention eager", low,
                [](Strategy& s) { s.attention = models::Attention::eager; });
  check_without("--optimizer paged-lion instead of --optimizer lion", low,
                [](Strategy& s) { s.optimizer = models::Optimizer::lion; });
  check_without("--optimizer-in-backward instead of a step after backward", low,
                [](Strategy& s) { s.optimizer_in_backward = false; });
}

TEST_CASE("what hangs on a packed base, adapters and kernels goes with them") {
  for (const bool half : {true, false}) {
    const auto packed = [half](Strategy& s) {
      s.precision = half ? models::Precision::fp16_mixed : models::Precision::bf16_mixed;
      s.lora = models::Lora{.rank = 16, .targets = {"all-linear"}};
      s.quantize = models::Quantization{.storage = models::find_packed_storage("nf4")};
      s.freeze = {"*norm*"};
      s.train = {"*head*"};
      s.kernels = models::Kernels::liger;
      s.loss = models::Loss::fused;
      s.data.gradient_as_bucket_view = true;
    };
    const DType loaded = half ? DType::fp16 : DType::bf16;
    check_without("--quantize nf4 instead of a base in 16 bits", packed, [&](Strategy& s) {
      s.quantize.reset();
      s.param_dtype = loaded;
    });
    check_without("--lora-rank 16 instead of the whole model trained, not packed", packed,
                  [&](Strategy& s) {
                    s.quantize.reset();
                    s.param_dtype = loaded;
                    s.lora.reset();
                    s.freeze.clear();
                    s.train.clear();
                  });
    check_without("--kernels liger instead of --kernels eager --loss full", packed,
                  [](Strategy& s) {
                    s.kernels = models::Kernels::eager;
                    s.loss = models::Loss::full;
                  });
    check_without("--gradient-as-bucket-view yes instead of --gradient-as-bucket-view no", packed,
                  [](Strategy& s) { s.data.gradient_as_bucket_view = false; });
  }
}

TEST_CASE("what hangs on frozen parameters, a loss and the compiler goes with it") {
  const auto frozen = [](Strategy& s) {
    s.freeze = {"*"};
    s.train = {"*head*"};
    s.loss = models::Loss::chunked;
    s.compile = models::Compile::block;
    s.allocator.expandable_segments = true;
  };
  check_without("--freeze instead of the whole model trained", frozen, [](Strategy& s) {
    s.freeze.clear();
    s.train.clear();
  });
  check_without("--loss chunked instead of --loss full", frozen,
                [](Strategy& s) { s.loss = models::Loss::full; });
  check_without("--compile block instead of --compile no", frozen,
                [](Strategy& s) { s.compile = models::Compile::no; });
  check_without("--allocator-conf expandable_segments:True instead of PyTorch's own settings",
                frozen, [](Strategy& s) { s.allocator = {}; });
}

TEST_CASE("of what is not used only what leaves the result is offered, and nothing that is fixed") {
  Asked asked([](models::Strategy& s) { s.gpus = 8; });
  CHECK(asked.lines(false) == Lines{"--optimizer-impl fused", "--kernels liger", "--loss fused",
                                    "--zero 1", "--zero 2", "--zero 3", "--recompute full",
                                    "--loss chunked", "--gradient-as-bucket-view yes",
                                    "--allocator-conf expandable_segments:True"});
  asked.q.fixed = {"loss", "kernels", "zero", "gradient-as-bucket-view", "allocator-conf"};
  CHECK(asked.lines(false) == Lines{"--optimizer-impl fused", "--recompute full"});
}

// By the same arithmetic as a reader's: another question, planned.
TEST_CASE("savings are differences of plans, the largest first, and refusals say why") {
  Asked asked([](models::Strategy& s) {
    s.gpus = 8;
    models::set_zero(s, 3);
    s.recompute.kind = models::RecomputeKind::full;
  });
  const reports::Plan plan = planner::plan(asked.q);
  Question without = asked.q;
  without.strategy.recompute = {};
  const reports::Plan plain = planner::plan(without);
  Question with = asked.q;
  with.strategy.loss = models::Loss::chunked;
  const reports::Plan chunked = planner::plan(with);
  const auto savings =
      planner::savings_of(asked.q, plan, planner::techniques_of(asked.q), kPlan, kNothing);
  int seen = 0;
  for (std::size_t i = 0; i < savings.size(); ++i) {
    const reports::Saving& one = savings[i];
    REQUIRE(one.planned);
    if (i > 0 && savings[i - 1].used == one.used)
      CHECK(savings[i - 1].planned->saves_device >= one.planned->saves_device);
    if (i > 0) CHECK(savings[i - 1].used >= one.used);
    if (one.option == "--recompute full") {
      ++seen;
      CHECK(one.planned->peak == plain.peak);
      CHECK(one.planned->device == plain.device);
      CHECK(one.planned->saves_peak == plain.peak - plan.peak);
      CHECK(one.planned->saves_peak > Bytes(0));
    }
    if (one.option == "--loss chunked") {
      ++seen;
      CHECK(one.planned->saves_peak == plan.peak - chunked.peak);
      CHECK(one.planned->saves_device == plan.device - chunked.device);
    }
  }
  CHECK(seen == 2);
}

TEST_CASE(
    "one that cannot be planned without a technique is told, one that cannot be added is not") {
  const Asked asked;
  const reports::Plan plan = planner::plan(asked.q);
  const auto refuse = [](const Question&) -> reports::Plan {
    fail(ErrorKind::unsupported, "not today");
  };
  const auto techniques = planner::techniques_of(asked.q);
  std::size_t done = 0;
  const auto savings = planner::savings_of(asked.q, plan, techniques, refuse, [&] { ++done; });
  CHECK(done == techniques.size());
  REQUIRE(savings.size() == 2);
  for (const reports::Saving& one : savings) {
    CHECK(one.used);
    CHECK_FALSE(one.planned);
    CHECK(one.refusal == "not today");
  }
}
