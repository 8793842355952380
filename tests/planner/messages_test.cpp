// What the ranks of each stack send in one step, message by message: tables made by hand, and what
// PyTorch and DeepSpeed themselves hand to a process group (tests/golden/messages.json, made by
// tools/oracle/messages.py).
//
// Every case here accumulates 3 micro-batches, in groups of 3 (what divides by 2 and 4 does not
// divide by 3, so that padding shows), hybrid groups beside 2 replicas.
#include <doctest/doctest.h>

#include <fstream>
#include <map>
#include <string_view>

#include "planner/program/timeline.h"
#include "planner/stack_step.h"
#include "tests/planner/message_table.h"
#include "tests/planner/oracle_deepspeed.h"

using namespace plimsoll;
using models::Precision;
using models::Stack;
using models::Strategy;
using nlohmann::json;
using namespace plimsoll::tests;

namespace {

void check_table(const Strategy& s, Table expected, std::int64_t layers = 2) {
  const Table planned = table(plan_of(s, layers));
  expected = table(expected);
  INFO("planned:", text(planned), "\nby hand:", text(expected));
  CHECK(planned == expected);
}

}  // namespace

TEST_CASE("DDP all-reduces its gradients once a step") {
  // One layer's gradients are in fp32, as its weights: 174208 · 4 B, less than the first bucket's
  // 1 MiB. The first two micro-batches send nothing (no_sync).
  check_table(strategy(Stack::pytorch, 0), {{"all_reduce", 1, 696832, 3}}, 1);
  // A ring of 3 sends ceil(696832 / 3) = 232278 B in each of 2 · 2 rounds.
  CHECK(plan_of(strategy(Stack::pytorch, 0), 1).bytes_sent_per_gpu_per_step == Bytes(929112));
  CHECK(plan_of(strategy(Stack::pytorch, 0, 1), 1).collectives.empty());
}

// From the back of the model, in fp32, each closed by the gradient that fills it: the tail's
// 102400 B, the second layer's 492544, and of the first one all but its first norm, 492032, are
// more than 1 MiB with the last of them, q_proj's. 297344 · 4 = 1189376 B in all.
TEST_CASE("DDP's buckets are the gradients as they come, the first of 1 MiB") {
  check_table(strategy(Stack::pytorch, 0),
              {{"all_reduce", 1, 1086976, 3}, {"all_reduce", 1, 1189376 - 1086976, 3}});
  Strategy s = strategy(Stack::pytorch, 0);
  // Each of as much: the head; the norm and down; up; gate; a norm, o and v; k and q. Of the first
  // layer likewise, whose first bucket has the second layer's first norm, the embedding its own.
  s.data.bucket_cap = Bytes(98304);
  check_table(s, {{"all_reduce", 1, 101888, 3},
                  {"all_reduce", 4, 512 + 98304, 3},
                  {"all_reduce", 6, 98304, 3},
                  {"all_reduce", 1, 512 + 101888, 3}});
}

TEST_CASE("ZeroRedundancyOptimizer all-reduces as DDP, and owners broadcast what they stepped") {
  // One broadcast for each parameter: norms; k, v; q, o; gate, up, down; the tables.
  check_table(strategy(Stack::pytorch, 1),
              {{"all_reduce", 1, 696832, 3},
               {"broadcast", 3, 512, 3},
               {"broadcast", 2, 32768, 3},
               {"broadcast", 2, 65536, 3},
               {"broadcast", 3, 98304, 3},
               {"broadcast", 2, 101888, 3}},
              1);
  // 929112 as DDP, and of each broadcast a third, rounded up, in 2 rounds: 2 · (3 · 171 + 2 · 10923
  // + 2 · 21846 + 3 · 32768 + 2 · 33963) = 464562.
  CHECK(plan_of(strategy(Stack::pytorch, 1), 1).bytes_sent_per_gpu_per_step ==
        Bytes(929112 + 464562));
}

// Rows of a rank, of 3: q, o ceil(128 / 3) = 43 of 128; k, v 22 of 128; gate, up 64 of 128; down 43
// of 192; norms 43. In elements 2·5504 + 2·2816 + 2·8192 + 8256 + 2·43 = 41366, padded to 124098
// for the three. Embedding 67 rows of 128 = 8576 and 25728; tail 8576 + 43 = 8619 and 25857.
// Gathered in bf16, reduced in fp32.
TEST_CASE("FSDP2 gathers each unit for each pass, and reduces at the last micro-batch") {
  Strategy s = strategy(Stack::pytorch, 3);
  const Table reductions = {{"reduce_scatter", 2, 4 * 124098, 3},
                            {"reduce_scatter", 1, 4 * 25728, 3},
                            {"reduce_scatter", 1, 4 * 25857, 3}};
  // Layers: 2 of them, for 2 passes of 3 micro-batches. The tail serves both passes.
  Table expected = {{"all_gather", 12, 2 * 124098, 3},
                    {"all_gather", 6, 2 * 25728, 3},
                    {"all_gather", 3, 2 * 25857, 3}};
  expected.insert(expected.end(), reductions.begin(), reductions.end());
  check_table(s, expected);
  s.data.zero = 2;  // what the forward gathered serves the backward
  expected[0].count = 6;
  expected[1].count = 3;
  check_table(s, expected);
}

TEST_CASE("hybrid FSDP2 moves in groups of --shard-group, and all-reduces shards across them") {
  Strategy s = strategy(Stack::pytorch, 3, 6);
  s.data.shard_group = 3;
  check_table(s, {{"all_gather", 12, 2 * 124098, 3},
                  {"all_gather", 6, 2 * 25728, 3},
                  {"all_gather", 3, 2 * 25857, 3},
                  {"reduce_scatter", 2, 4 * 124098, 3},
                  {"reduce_scatter", 1, 4 * 25728, 3},
                  {"reduce_scatter", 1, 4 * 25857, 3},
                  {"all_reduce", 2, 4 * 41366, 2},
                  {"all_reduce", 1, 4 * 8576, 2},
                  {"all_reduce", 1, 4 * 8619, 2}});
  // Groups of 2, 3 of them. Everything divides but the vocabulary: 100 rows of a rank, 12800
  // elements; a layer has 61568 on each.
  s.data.shard_group = 2;
  s.data.zero = 2;
  check_table(s, {{"all_gather", 6, 2 * 123136, 2},
                  {"all_gather", 3, 2 * 25600, 2},
                  {"all_gather", 3, 2 * 25728, 2},
                  {"reduce_scatter", 2, 4 * 123136, 2},
                  {"reduce_scatter", 1, 4 * 25600, 2},
                  {"reduce_scatter", 1, 4 * 25728, 2},
                  {"all_reduce", 2, 4 * 61568, 3},
                  {"all_reduce", 1, 4 * 12800, 3},
                  {"all_reduce", 1, 4 * 12864, 3}});
}

// A unit is one flat parameter: a layer's 123136 elements, padded to 123138; the root has the rest,
// 25472 + 25600 = 51072, which divides by 3.
TEST_CASE("FSDP1 gathers flat parameters, and reduces at the last micro-batch") {
  Strategy s = strategy(Stack::pytorch, 3);
  s.data.fsdp_version = 1;
  check_table(s, {{"all_gather", 12, 2 * 123138, 3},
                  {"all_gather", 3, 2 * 51072, 3},
                  {"reduce_scatter", 2, 4 * 123138, 3},
                  {"reduce_scatter", 1, 4 * 51072, 3}});
  // SHARD_GRAD_OP: gathered once a step, since no_sync keeps what is gathered.
  s.data.zero = 2;
  check_table(s, {{"all_gather", 2, 2 * 123138, 3},
                  {"all_gather", 1, 2 * 51072, 3},
                  {"reduce_scatter", 2, 4 * 123138, 3},
                  {"reduce_scatter", 1, 4 * 51072, 3}});
  s = strategy(Stack::pytorch, 3, 6);
  s.data.fsdp_version = 1;
  s.data.shard_group = 3;
  check_table(s, {{"all_gather", 12, 2 * 123138, 3},
                  {"all_gather", 3, 2 * 51072, 3},
                  {"reduce_scatter", 2, 4 * 123138, 3},
                  {"reduce_scatter", 1, 4 * 51072, 3},
                  {"all_reduce", 2, 4 * 41046, 2},
                  {"all_reduce", 1, 4 * 17024, 2}});
}

// All in bf16. 297344 elements, padded to a multiple of 2 · 3: 297348.
TEST_CASE("DeepSpeed all-reduces whole buckets, from stage 2 on with every micro-batch") {
  Strategy s = strategy(Stack::deepspeed, 0);
  check_table(s, {{"all_reduce", 1, 2 * 297344, 3}});
  s.data.zero = 1;
  check_table(s, {{"all_reduce", 1, 2 * 297344, 3}, {"all_gather", 1, 2 * 297348, 3}});
  s.data.zero = 2;
  check_table(s, {{"all_reduce", 3, 2 * 297344, 3}, {"all_gather", 1, 2 * 297348, 3}});
}

// Each parameter padded to a multiple of 3. Gathered when it is used, with more than 20000
// elements: gate, up and down 24576 each, tables 25473; with nothing kept between uses and nothing
// read ahead, 6 + 2 of them twice each micro-batch. Gathered anew after the step, one by one: q, o
// 16386 each, k, v 8193 each, norms 129. Reduced: 2 · 25473 + 6 · 24576 and 4 · 16386 + 4 · 8193 +
// 5 · 129, 297363.
TEST_CASE("DeepSpeed's stage 3 gathers for each use, and reduces with every micro-batch") {
  Strategy s = strategy(Stack::deepspeed, 3);
  models::DeepSpeedOptions& o = s.data.deepspeed;
  o.param_persistence_threshold = 20000;
  o.max_live_parameters = o.max_reuse_distance = o.prefetch_bucket_size = 0;
  const auto with = [](Table gathers) {
    const Table rest = {{"all_gather", 4, 2 * 16386, 3},
                        {"all_gather", 4, 2 * 8193, 3},
                        {"all_gather", 5, 2 * 129, 3},
                        {"reduce_scatter", 3, 2 * 297363, 3}};
    gathers.insert(gathers.end(), rest.begin(), rest.end());
    return gathers;
  };
  check_table(s, with({{"all_gather", 36, 2 * 24576, 3}, {"all_gather", 12, 2 * 25473, 3}}));
  // As much as a micro-batch has may be live, and is gathered ahead as one message by the model's
  // own hook; what is there stays, since the trace has been read to its end.
  o.max_live_parameters = 1'000'000'000;
  o.prefetch_bucket_size = 50'000'000;
  check_table(s, with({{"all_gather", 3, 2 * (6 * 24576 + 2 * 25473), 3}}));
  // Of the 198400 elements all but the last, the head, are enough: it is read ahead in time.
  o.prefetch_bucket_size = 198400;
  check_table(s, with({{"all_gather", 3, 2 * (6 * 24576 + 2 * 25473), 3}}));
}

// plimsoll: a unit is padded to 3 · 16 B, 24 elements of bf16: a layer to 123144, the embedding to
// 25488, the tail to 25608. Stage 0 pads nothing. What is gathered after the step of stages 1 and 2
// is what was stepped, padding left out.
TEST_CASE("plimsoll: stages 0 and 1 reduce once a step, 2 and 3 with every micro-batch") {
  Strategy s = strategy(Stack::plimsoll, 0);
  check_table(s, {{"all_reduce", 2, 2 * 123136, 3},
                  {"all_reduce", 1, 2 * 25472, 3},
                  {"all_reduce", 1, 2 * 25600, 3}});
  s.data.zero = 1;
  const Table stepped = {{"all_gather", 2, 2 * 123144, 3},
                         {"all_gather", 1, 2 * 25488, 3},
                         {"all_gather", 1, 2 * 25608, 3}};
  Table expected = stepped;
  for (const std::int64_t of : {123144, 123144, 25488, 25608})
    expected.push_back({"reduce_scatter", 1, 2 * of, 3});
  check_table(s, expected);
  s.data.zero = 2;
  expected = stepped;
  for (const std::int64_t of : {123144, 123144, 25488, 25608})
    expected.push_back({"reduce_scatter", 3, 2 * of, 3});
  check_table(s, expected);
}

TEST_CASE("plimsoll's stage 3 gathers layers for each pass, the ends once a micro-batch") {
  Strategy s = strategy(Stack::plimsoll, 3);
  const Table gathers = {{"all_gather", 12, 2 * 123144, 3},   {"all_gather", 3, 2 * 25488, 3},
                         {"all_gather", 3, 2 * 25608, 3},     {"reduce_scatter", 6, 2 * 123144, 3},
                         {"reduce_scatter", 3, 2 * 25488, 3}, {"reduce_scatter", 3, 2 * 25608, 3}};
  check_table(s, gathers);
  s.gpus = 6;
  s.data.shard_group = 3;
  Table hybrid = gathers;
  for (const std::int64_t of : {123144, 123144, 25488, 25608})
    hybrid.push_back({"all_reduce", 3, 2 * of / 3, 2});
  check_table(s, hybrid);
  // Four layers, each from the first one's input: 4 visits and 3, 2, 1, behind 4 of the forward.
  s = strategy(Stack::plimsoll, 3);
  s.recompute = {models::RecomputeKind::recursive, 1};
  const Table visits = table(plan_of(s, 4));
  CHECK(std::ranges::count(visits, Message{"all_gather", 3 * 14, 2 * 123144, 3}) == 1);
}

TEST_CASE("plimsoll's messages are at most --bucket-size, of a unit each") {
  Strategy s = strategy(Stack::plimsoll, 0);
  s.data.bucket_cap = Bytes(100'000);
  // A layer's 246272 B in 3 messages; the ends in one.
  check_table(s, {{"all_reduce", 4, 100'000, 3},
                  {"all_reduce", 2, 46'272, 3},
                  {"all_reduce", 1, 2 * 25472, 3},
                  {"all_reduce", 1, 2 * 25600, 3}});
}

namespace {

// Blocks that a step's program makes of tensors whose names begin so, by size: how many.
std::map<std::int64_t, std::int64_t> made(const models::ModelSpec& model, const Strategy& s,
                                          const models::Batch& batch, std::string_view name) {
  planner::StackStep step;
  planner::write_step({.model = &model, .strategy = s, .batch = batch},
                      planner::model_parts(model, s), step);
  std::map<std::int64_t, std::int64_t> sizes;
  for (const planner::Lifetime& life :
       planner::unroll(step.program, planner::Repeats::all).lifetimes) {
    const models::TensorDecl& tensor = step.program.tensors[static_cast<std::size_t>(life.tensor)];
    const std::string_view of = tensor.name;
    const bool is_there = life.birth >= 0 || tensor.residency == models::Residency::persistent;
    if (of.starts_with(name) && tensor.bytes > Bytes(0) && is_there) ++sizes[tensor.bytes.value()];
  }
  return sizes;
}

std::string text(const std::map<std::int64_t, std::int64_t>& blocks) {
  std::string out;
  for (const auto& [size, count] : blocks)
    out += "\n  " + std::to_string(count) + " of " + std::to_string(size) + " B";
  return out;
}

std::map<std::int64_t, std::int64_t> sent(const models::ModelSpec& model, const Strategy& s,
                                          const models::Batch& batch, std::string_view kind) {
  std::map<std::int64_t, std::int64_t> sizes;
  for (const Message& m : table(plan_of(model, s, batch)))
    if (m.kind == kind) sizes[(m.array + 511) / 512 * 512] += m.count;
  return sizes;
}

}  // namespace

// Messages are written beside the program, and the program has a tensor for each: blocks of 512 B
// here. Of the frozen layers below the first that trains only the last is fetched ahead.
TEST_CASE("the program of FSDP gathers as often as its messages, and as much") {
  const models::ModelSpec model = small(5);
  for (const int version : {1, 2})
    for (const int zero : {2, 3})
      for (const bool frozen : {false, version == 2})  // FSDP1 takes no --freeze
        for (const models::RecomputeKind recompute :
             {models::RecomputeKind::none, models::RecomputeKind::full})
          for (const models::Release release : {models::kTransformers, models::Release{4, 48, 1}}) {
            Strategy s = strategy(Stack::pytorch, zero);
            s.data.fsdp_version = version;
            s.recompute.kind = recompute;
            s.transformers = release;
            if (frozen) s.freeze = {"model.embed_tokens*", "model.layers.0.*", "model.layers.1.*"};
            CAPTURE(version);
            CAPTURE(zero);
            CAPTURE(frozen);
            CAPTURE(static_cast<int>(recompute));
            CAPTURE(release == models::kTransformers);
            const models::Batch batch{.seq_len = 64, .micro_batch = 1, .grad_accum = 4};
            const auto blocks = made(
                model, s, batch, version == 1 ? "fsdp.flat_parameter" : "fsdp.all_gather_output");
            INFO("blocks:", text(blocks), "\nsent:", text(sent(model, s, batch, "all_gather")));
            CHECK(blocks == sent(model, s, batch, "all_gather"));
          }
}

TEST_CASE("DDP's buckets in memory are its messages") {
  for (const std::int64_t cap : {100'000, 1 << 20, 25 << 20}) {
    Strategy s = strategy(Stack::pytorch, 0);
    s.data.bucket_cap = Bytes(cap);
    const models::Batch batch{.seq_len = 64, .micro_batch = 1, .grad_accum = 2};
    CHECK(made(small(9), s, batch, "ddp.buckets") == sent(small(9), s, batch, "all_reduce"));
  }
}

namespace {

// What plans leave out, and is known: DDP's broadcast of the model's buffers (32 rotary
// frequencies).
Table without_known_gaps(Table messages) {
  std::erase_if(messages, [](const Message& m) { return m.kind == "broadcast" && m.array == 128; });
  return messages;
}

int compare_with_sent(const char* file) {
  const json document = json::parse(std::ifstream(std::string(PLIMSOLL_GOLDEN "/") + file));
  int compared = 0;
  for (const json& run : document["runs"]) {
    const std::string name = run["case"];
    CAPTURE(name);
    const json& workload = run["workload"];
    const bool deepspeed = run["stack"] == "deepspeed";
    const models::ModelSpec model =
        tests::oracle_model_of(deepspeed ? workload["model"] : workload["model"]["config"]);
    const Strategy s =
        deepspeed ? tests::deepspeed_strategy_of(workload) : tests::strategy_of(workload);
    Table sent;
    for (const json& m : run["messages"])
      sent.push_back({m["kind"], m["count"], m["array_bytes"], m["group"]});
    Table planned = table(plan_of(model, s, tests::batch_of(workload)));
    sent = without_known_gaps(table(sent));
    planned = without_known_gaps(planned);
    INFO("planned:", text(planned), "\nsent:", text(sent));
    CHECK(planned == sent);
    ++compared;
  }
  return compared;
}

}  // namespace

TEST_CASE("plans send what PyTorch and DeepSpeed hand to a process group") {
  CHECK(compare_with_sent("messages.json") >= 33);
}

TEST_CASE("so do those of torchtitan's code, of data, hybrid and tensor parallelism") {
  CHECK(compare_with_sent("messages_torchtitan.json") == 10);
}

// Two layers of hidden 128, in bf16; sequences of 8, two at a time: what a group of two gathers or
// scatters is 16 tokens of 256 B. Forward a scatter behind the embedding, per layer two gathers and
// two scatters, a gather in front of the head; backward the other way round. Cross entropy
// all-reduces three values of 4 B a token; norms' gradients are 256 B.
TEST_CASE("ranks that share sequences send activations, and what is recomputed again") {
  const auto sent = [](models::ModelCode code, models::Recompute recompute) {
    Strategy s;
    s.code = code;
    s.recompute = std::move(recompute);
    s.gpus = 6;
    s.tp = 2;
    s.data.zero = 3;
    models::ModelSpec model = models::read_model(
        R"({"model_type": "llama", "hidden_size": 128, "intermediate_size": 192, "vocab_size": 200,
            "num_attention_heads": 4, "num_key_value_heads": 2, "num_hidden_layers": 2})",
        "small", "small", {});
    Table shared = table(plan_of(model, s, {.seq_len = 8, .micro_batch = 2}));
    std::erase_if(shared, [](const Message& m) { return m.group != 2; });
    return shared;
  };
  const auto expected = [](std::int64_t gathers, std::int64_t scatters) {
    return Table{{"all_gather", gathers, 4096, 2},
                 {"all_reduce", 3, 64, 2},
                 {"all_reduce", 5, 256, 2},
                 {"reduce_scatter", scatters, 4096, 2}};
  };
  using enum models::ModelCode;
  using enum models::RecomputeKind;
  CHECK(sent(torchtitan_2024_12, {}) == expected(10, 10));
  CHECK(sent(torchtitan_0_2_2, {}) == expected(10, 10));
  // Each layer's forward again, up to down_proj: its last scatter is not sent again. 0.2.2 runs
  // layers to their end.
  CHECK(sent(torchtitan_2024_12, {.kind = full}) == expected(14, 12));
  CHECK(sent(torchtitan_0_2_2, {.kind = full}) == expected(14, 14));
  // The policy keeps what reduce_scatter_tensor made.
  CHECK(sent(torchtitan_2024_12, {.kind = ops, .kept = {"torchtitan"}}) == expected(14, 10));
  CHECK(sent(torchtitan_0_2_2, {.kind = ops, .kept = {"torchtitan"}}) == expected(14, 10));
}
