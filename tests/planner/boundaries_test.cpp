// A tensor exactly at a limit, a bucket that is exactly full, odd totals: which side each falls on,
// by hand, from the lines of torch 2.11 and deepspeed 0.19.8 that decide it.
#include <doctest/doctest.h>

#include <algorithm>

#include "models/gpu_catalog.h"
#include "models/model_reader.h"
#include "planner/plan.h"
#include "planner/stack_step.h"
#include "planner/stacks/deepspeed/layout.h"
#include "planner/stacks/deepspeed/stack.h"

using namespace plimsoll;
using models::Stack;
using planner::deepspeed::FlatLayout;

namespace {

// wte 88, wpe 32; ln_1 8, 8; c_attn 192, 24; c_proj 64, 8; ln_2 8, 8; c_fc 256, 32; c_proj 256, 8;
// ln_f 8, 8: 1,008 elements, the head tied.
constexpr const char* kTiny =
    R"({"model_type": "gpt2", "n_embd": 8, "n_head": 2, "n_layer": 1, "vocab_size": 11, "n_positions": 4})";

struct Asked {
  models::ModelSpec model = models::read_model(kTiny, "tiny", "tiny", {});
  planner::Question question;

  Asked(Stack stack, int zero, std::int64_t gpus) {
    question.model = &model;
    question.cluster.gpu = models::find_gpu("h100");
    question.remedies = false;
    question.detail = planner::Detail::none;
    question.strategy.stack = stack;
    question.strategy.gpus = gpus;
    question.strategy.data.zero = zero;
    question.strategy.precision = models::Precision::fp32;
    question.batch = {.seq_len = 4, .micro_batch = 1, .grad_accum = 1};
  }
  FlatLayout layout() const {
    const planner::ModelParts parts = planner::model_parts(model, question.strategy);
    return {parts, planner::deepspeed::engine_of(question.strategy)};
  }
  planner::Messages messages() const {
    planner::Messages messages;
    planner::deepspeed::write_messages(planner::model_parts(model, question.strategy),
                                       question.strategy, messages);
    return messages;
  }
};

}  // namespace

// stage_1_and_2.py: the flat buffer is padded to a multiple of nccl_start_alignment_factor (2) x
// ranks.
TEST_CASE(
    "the flat buffer of ZeRO-1 and 2 is padded to twice the ranks, and not where it divides") {
  CHECK(Asked(Stack::deepspeed, 2, 3).layout().aligned() == 1008);
  CHECK(Asked(Stack::deepspeed, 2, 4).layout().aligned() == 1008);
  CHECK(Asked(Stack::deepspeed, 2, 5).layout().aligned() == 1010);
  CHECK(Asked(Stack::deepspeed, 2, 5).layout().partition() == 202);
  CHECK(Asked(Stack::deepspeed, 2, 11).layout().aligned() == 1012);
  CHECK(Asked(Stack::deepspeed, 2, 505).layout().aligned() == 1010);
}

// Three ranks of 336: c_attn's bias is cut at 336 (328 … 352), c_fc's weight at 672 (440 … 696).
TEST_CASE(
    "a rank's partition meets the parameters that are cut at its ends, and padding is a piece") {
  const FlatLayout layout = Asked(Stack::deepspeed, 2, 3).layout();
  CHECK(layout.partition() == 336);
  const FlatLayout::Share first = layout.share(0), middle = layout.share(1), last = layout.share(2);
  CHECK(first.whole == 88 + 32 + 8 + 8 + 192 + 24);
  CHECK(first.largest == 192);
  CHECK(first.pieces == 6);
  CHECK(first.last == 5);
  CHECK(middle.whole == 24 + 64 + 8 + 8 + 8 + 256);
  CHECK(middle.largest == 672 - 440);
  CHECK(middle.pieces == 6);
  CHECK(last.whole == 256 + 32 + 256 + 8 + 8 + 8);
  CHECK(last.largest == 256);
  CHECK(last.pieces == 6);
  CHECK(last.last == 15);
  // Five of 202: the last ends two beyond the 1,008.
  const FlatLayout::Share padded = Asked(Stack::deepspeed, 2, 5).layout().share(4);
  CHECK(padded.whole == 256 + 8 + 8 + 8);  // from 808 on: mlp.c_proj lies in 728 … 984
  CHECK(padded.largest == 984 - 808);
  CHECK(padded.pieces == 5);
}

TEST_CASE("parameters up to where a partition ends have one owner") {
  const FlatLayout layout = Asked(Stack::deepspeed, 2, 3).layout();
  const auto one_owner = [&](std::int64_t begin, std::int64_t end) {
    planner::deepspeed::Together together(layout, 0);
    together.add(begin, end - begin);
    return together.one_owner();
  };
  CHECK(one_owner(0, 336));
  CHECK_FALSE(one_owner(0, 337));
  CHECK_FALSE(one_owner(335, 337));
  CHECK(one_owner(336, 672));
  CHECK_FALSE(one_owner(336, 673));
  // Of the middle rank: what lies before and behind its own is nobody else's alone.
  planner::deepspeed::Together middle(layout, 1);
  CHECK(middle.one_owner());  // of none
  middle.add(0, 336);
  CHECK(middle.one_owner());
  CHECK_FALSE(middle.owns_some());
  middle.add(672, 8);
  CHECK_FALSE(middle.one_owner());
  CHECK_FALSE(middle.owns_some());
  CHECK(middle.inside(300, 400) == 336);
  CHECK(middle.inside(600, 100) == 72);
  middle.add(600, 100);
  CHECK(middle.owns_some());
  middle.clear();
  CHECK(middle.one_owner());
  CHECK_FALSE(middle.owns_some());
}

// Sixteen parameters, as they are registered: 88 32 8 8 192 24 64 8 8 8 256 32 256 8 8 8. Dealt to
// three ranks: 0, 3, 6, 9, 12, 15 (88 + 8 + 64 + 8 + 256 + 8 = 432), then 1, 4, 7, 10, 13 (32 + 192
// + 8 + 256 + 8 = 496), then 2, 5, 8, 11, 14 (8 + 24 + 8 + 32 + 8 = 80). Partitions of 336 cut them
// at 336 (parameter 12 lies at 168 … 424) and 672 (parameter 10 at 664 … 920).
TEST_CASE("with round_robin_gradients parameters are dealt to the ranks in turn") {
  Asked asked(Stack::deepspeed, 2, 3);
  asked.question.strategy.data.deepspeed.round_robin_gradients = true;
  const FlatLayout layout = asked.layout();
  CHECK(layout.partition() == 336);
  const std::vector<std::int64_t> begins{0,   432, 928, 88,  464, 936, 96,   656,
                                         960, 160, 664, 968, 168, 920, 1000, 424};
  for (std::size_t i = 0; i < begins.size(); ++i) {
    CAPTURE(i);
    CHECK(layout.begin_of(static_cast<std::int64_t>(i), -1) == begins[i]);
  }
  const FlatLayout::Share first = layout.share(0), middle = layout.share(1), last = layout.share(2);
  CHECK(first.whole == 88 + 8 + 64 + 8 + 256);
  CHECK(first.largest == 336 - 168);
  CHECK(first.pieces == 5);
  CHECK(first.last == 12);
  CHECK(middle.whole == 256 + 8 + 32 + 192 + 8 + 256);
  CHECK(middle.largest == 192);
  CHECK(middle.pieces == 6);
  CHECK(middle.last == 15);
  CHECK(last.whole == 256 + 8 + 8 + 24 + 8 + 32 + 8);
  CHECK(last.largest == 920 - 672);
  CHECK(last.pieces == 7);
  CHECK(last.last == 14);
  CHECK(layout.parameters_of(2) == std::vector<std::int64_t>{8, 24, 8, 256, 32, 8, 8});
  // Of one rank, and of ZeRO-3, nothing is dealt anew.
  Asked alone(Stack::deepspeed, 2, 1), sharded(Stack::deepspeed, 3, 3);
  alone.question.strategy.data.deepspeed.round_robin_gradients = true;
  sharded.question.strategy.data.deepspeed.round_robin_gradients = true;
  CHECK(alone.layout().begin_of(3, -1) == 88 + 32 + 8);
  CHECK_FALSE(sharded.layout().deals());
}

// parameter_offload.py, mark_persistent_parameters: numel <= param_threshold is small, and is left
// out where numel + those before > model_threshold. Eight parameters have 8 elements, one has 24.
TEST_CASE(
    "a parameter of exactly the persistence threshold stays gathered, one more element is too much "
    "together") {
  Asked asked(Stack::deepspeed, 3, 3);
  auto& options = asked.question.strategy.data.deepspeed;
  const auto persistent = [&](std::int64_t parameter, std::int64_t model) {
    options.param_persistence_threshold = parameter;
    options.model_persistence_threshold = model;
    return asked.layout().persistent();
  };
  constexpr std::int64_t kAll = 1'000'000;
  CHECK(persistent(7, kAll) == 0);
  CHECK(persistent(8, kAll) == 64);
  CHECK(persistent(23, kAll) == 64);
  CHECK(persistent(24, kAll) == 88);
  CHECK(persistent(8, 64) == 64);
  CHECK(persistent(8, 63) == 56);
  CHECK(persistent(8, 8) == 8);
  CHECK(persistent(8, 7) == 0);
}

// Each parameter is padded to the ranks: 3 of 8 elements are 3 on each, 9 together.
TEST_CASE("persistent parameters are gathered with their padding") {
  Asked asked(Stack::deepspeed, 3, 3);
  asked.question.strategy.data.deepspeed.param_persistence_threshold = 8;
  std::int64_t gathered = 0;
  for (const planner::Message& m : asked.messages())
    if (m.when == planner::Message::When::step) {
      CHECK(m.array == Bytes(4 * 9));
      gathered += m.count;
    }
  CHECK(gathered == 8);
  // 88 -> 30, 32 -> 11, 8 -> 3 (eight times), 192 -> 64, 24 -> 8, 64 -> 22, 256 -> 86 (twice), 32
  // -> 11.
  CHECK(asked.layout().shards().all == 30 + 11 + 8 * 3 + 64 + 8 + 22 + 2 * 86 + 11);
  CHECK(asked.layout().shards().largest == 86);
}

// stage3.py, _create_fp16_sub_groups: the parameter with which a group reaches sub_group_size (>=)
// ends it. On two ranks 44, 16, 4, 4, 96 are 164; then 12, 32, 4, 4, 4, 128 are 184; then 16, 128,
// 4, 4, 4. Were it >, 164 took 12 more: 176, and 172, 156 would follow.
TEST_CASE("a sub-group that is exactly full ends") {
  Asked asked(Stack::deepspeed, 3, 2);
  auto& options = asked.question.strategy.data.deepspeed;
  options.sub_group_size = 164;
  CHECK(asked.layout().shards().sub_group == 184);
  // Six tensors whole, each of which is a file's 1,024 bytes at most: of this group alone.
  CHECK(asked.layout().shards().sub_group_uncut == 6_KiB);
  options.sub_group_size = 165;
  CHECK(asked.layout().shards().sub_group == 176);
  options.sub_group_size = 504;  // all of it
  CHECK(asked.layout().shards().sub_group == 504);
}

// reducer.cpp, compute_bucket_assignment_by_size: bucket.size >= limit ends a bucket. From the
// back, in bytes of fp32: 32 32 | 32 1024 | 128 | 1024 | 32 32 | 32 256 | 96 | 768 | 32 32 | 128 |
// 352 with a limit of 64, and 32 32 32 | 1024 | 128 | 1024 | 32 32 32 | 256 | 96 | 768 | 32 32 128
// | 352 with one of 65. Each takes a multiple of 512.
TEST_CASE("a bucket of DDP that is exactly full ends") {
  Asked asked(Stack::pytorch, 0, 2);
  const auto buckets = [&](std::int64_t cap) {
    asked.question.strategy.data.bucket_cap = Bytes(cap);
    planner::StackStep step;
    planner::write_step(asked.question, planner::model_parts(asked.model, asked.question.strategy),
                        step);
    std::int64_t bytes = 0;
    for (const models::TensorDecl& tensor : step.program.tensors)
      if (std::string_view(tensor.name) == "ddp.buckets") bytes += tensor.bytes.value();
    return bytes;
  };
  CHECK(buckets(64) == 512 * (1 + 3 + 1 + 2 + 1 + 1 + 1 + 2 + 1 + 1 + 1));
  CHECK(buckets(65) == 512 * (1 + 2 + 1 + 2 + 1 + 1 + 1 + 2 + 1 + 1));
  CHECK(buckets(4032) == 4096);
  CHECK(buckets(4032 - 352) == 4096 + 512);  // 3,680 are full before the table comes
  CHECK(buckets(4032 - 351) == 4096);
  CHECK(buckets(1) == 512 * (8 + 2 * 2 + 2 + 1 + 1 + 2 + 1));  // each its own
}

// deepspeed 0.19.8, stage_1_and_2.py and stage3.py, estimate_zero{2,3}_model_states_mem_needs
// without offload: 2 N + 18 N / ranks bytes at stage 2, 4 x the largest layer + 18 N / ranks at
// stage 3; below there is no estimator.
TEST_CASE("DeepSpeed's own estimate of the model states stands beside the plan's") {
  const auto estimate = [](int zero) -> std::pair<std::string, std::string> {
    const Asked asked(Stack::deepspeed, zero, 8);
    const reports::Plan plan = planner::plan(asked.question);
    for (const reports::Assumption& a : plan.assumptions)
      if (a.what == "model states by DeepSpeed's own estimator, bytes") return {a.value, a.source};
    return {};
  };
  CHECK(estimate(1).first == "");
  CHECK(estimate(2) == std::pair<std::string, std::string>(
                           std::to_string(2 * 1008 + 18 * 1008 / 8),
                           "deepspeed 0.19.8, estimate_zero2_model_states_mem_needs"));
  CHECK(estimate(3) == std::pair<std::string, std::string>(
                           std::to_string(4 * (256 + 32) + 18 * 1008 / 8),
                           "deepspeed 0.19.8, estimate_zero3_model_states_mem_needs"));
}
