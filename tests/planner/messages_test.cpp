// What the ranks of each stack send in one step, message by message: tables made by hand, and what
// PyTorch and DeepSpeed themselves hand to a process group (tests/golden/messages.json, made by
// tools/oracle/messages.py).
//
// Every case here accumulates 3 micro-batches, in groups of 3 (what divides by 2 and 4 does not
// divide by 3, so that padding shows), hybrid groups beside 2 replicas.
#include <doctest/doctest.h>

#include <algorithm>
#include <fstream>
#include <set>

#include "models/model_reader.h"
#include "planner/plan.h"
#include "tests/planner/oracle_workload.h"

using namespace plimsoll;
using models::Precision;
using models::Stack;
using models::Strategy;
using nlohmann::json;

namespace {

struct Message {
  std::string kind;
  std::int64_t count, array, group;
  auto operator<=>(const Message&) const = default;
};
using Table = std::vector<Message>;

// In one order, equal messages in one line.
Table table(Table messages) {
  std::sort(messages.begin(), messages.end(), [](const Message& a, const Message& b) {
    return std::tie(a.kind, a.group, a.array) < std::tie(b.kind, b.group, b.array);
  });
  Table out;
  for (const Message& m : messages) {
    const bool more = !out.empty() && out.back().kind == m.kind && out.back().group == m.group &&
                      out.back().array == m.array;
    if (more)
      out.back().count += m.count;
    else
      out.push_back(m);
  }
  return out;
}

Table table(const reports::Plan& plan) {
  Table out;
  for (const reports::Collective& c : plan.collectives)
    out.push_back({c.kind, c.count, c.array.value(), c.group});
  return table(out);
}

std::string text(const Table& messages) {
  std::string out;
  for (const Message& m : messages)
    out += "\n  " + std::to_string(m.count) + " x " + m.kind + " of " + std::to_string(m.array) +
           " B over " + std::to_string(m.group);
  return out;
}

// What FSDP gathers and reduces is planned as the block that torch's allocator makes of it.
constexpr std::int64_t kBlock = 512;

// The same messages. A plan's array may be larger by less than a block.
bool same(const Table& planned, const Table& sent) {
  return std::equal(planned.begin(), planned.end(), sent.begin(), sent.end(),
                    [](const Message& a, const Message& b) {
                      return a.kind == b.kind && a.count == b.count && a.group == b.group &&
                             a.array >= b.array && a.array < b.array + kBlock;
                    });
}

reports::Plan plan_of(const models::ModelSpec& model, const Strategy& strategy,
                      const models::Batch& batch) {
  planner::Question question;
  question.model = &model;
  question.strategy = strategy;
  question.batch = batch;
  question.detail = planner::Detail::none;
  question.remedies = false;
  return planner::plan(question);
}

// Hidden 128, 4 heads of 32 with 2 key heads, inner width 192, vocabulary 199. Elements:
//   layer      q, o 128·128 = 16384 each; k, v 64·128 = 8192 each; gate, up 192·128 = 24576 each;
//              down 128·192 = 24576; two norms of 128                             sum 123136
//   embedding  199·128                                                                 25472
//   tail       norm 128, head 199·128                                                  25600
// With 1 layer 174208, with 2 layers 297344.
models::ModelSpec small(std::int64_t layers) {
  return models::read_model(
      R"({"model_type": "llama", "hidden_size": 128, "intermediate_size": 192, "vocab_size": 199,
          "num_attention_heads": 4, "num_key_value_heads": 2, "tie_word_embeddings": false,
          "max_position_embeddings": 2048, "num_hidden_layers": )" +
          std::to_string(layers) + "}",
      "small", "small", {});
}

Strategy strategy(Stack stack, int zero, std::int64_t gpus = 3) {
  Strategy s;
  s.stack = stack;
  s.data.zero = zero;
  s.gpus = gpus;
  if (stack == Stack::pytorch && zero >= 2) s.data.reduce_dtype = DType::fp32;  // Accelerate's
  return s;
}

reports::Plan plan_of(const Strategy& s, std::int64_t layers = 2) {
  return plan_of(small(layers), s, {.seq_len = 64, .micro_batch = 1, .grad_accum = 3});
}

void check_table(const Strategy& s, Table expected, std::int64_t layers = 2) {
  const Table planned = table(plan_of(s, layers));
  expected = table(expected);
  INFO("planned:", text(planned), "\nby hand:", text(expected));
  CHECK(same(planned, expected));
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

// The sizes of several buckets differ, and a plan gives their mean, rounded up.
TEST_CASE("DDP's buckets together are the gradients") {
  const Table planned = table(plan_of(strategy(Stack::pytorch, 0)));
  REQUIRE(planned.size() == 1);
  // 297344 · 4 = 1189376 B: at least 1 MiB for the first, and a second one with the rest.
  CHECK(planned[0].count == 2);
  CHECK(planned[0].count * planned[0].array == 1189376);
}

TEST_CASE("ZeroRedundancyOptimizer all-reduces as DDP, and owners broadcast what they stepped") {
  // One broadcast for each parameter; a plan gives them as one.
  check_table(strategy(Stack::pytorch, 1),
              {{"all_reduce", 1, 696832, 3}, {"broadcast", 1, 696832, 3}}, 1);
  // 929112 as DDP, and a broadcast of 232278 B in 2 rounds.
  CHECK(plan_of(strategy(Stack::pytorch, 1), 1).bytes_sent_per_gpu_per_step == Bytes(1393668));
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
// elements: gate, up and down 24576 each, tables 25473; with nothing kept between uses, 6 + 2 of
// them twice, 2 · 2 · (6 · 24576 + 2 · 25473) = 793608 B in 16 messages of 49601 in the mean, each
// micro-batch. Gathered anew after the step: q, o 16386 each, k, v 8193 each, norms 129: 2 · 49416
// + 129 = 98961 in 13 messages of 15225 B. Reduced: 198402 + 98961 = 297363.
TEST_CASE("DeepSpeed's stage 3 gathers for each use, and reduces with every micro-batch") {
  Strategy s = strategy(Stack::deepspeed, 3);
  s.data.deepspeed.param_persistence_threshold = 20000;
  s.data.deepspeed.max_live_parameters = s.data.deepspeed.max_reuse_distance = 0;
  check_table(s, {{"all_gather", 3 * 16, 49601, 3},
                  {"all_gather", 13, 15225, 3},
                  {"reduce_scatter", 3, 2 * 297363, 3}});
  // All 297344 may be live, persistent ones among them: what a micro-batch has gathered stays. Of 6
  // layers, 789888 elements, the engine itself gathered 518787 with 788000 live, and 493314, each
  // once, with 850000.
  s.data.deepspeed.max_live_parameters = 297344;
  check_table(s, {{"all_gather", 3 * 8, 49601, 3},
                  {"all_gather", 13, 15225, 3},
                  {"reduce_scatter", 3, 2 * 297363, 3}});
  s.data.deepspeed.max_live_parameters = 297343;
  CHECK(table(plan_of(s)).at(1).count == 3 * 16);
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
}

TEST_CASE("plimsoll's messages are at most --bucket-size, of a unit each") {
  Strategy s = strategy(Stack::plimsoll, 0);
  s.data.bucket_cap = Bytes(100'000);
  // A layer's 246272 B in 3 messages, of 82091 B in the mean; the ends in one.
  check_table(s, {{"all_reduce", 6, 82091, 3},
                  {"all_reduce", 1, 2 * 25472, 3},
                  {"all_reduce", 1, 2 * 25600, 3}});
}

namespace {

// As many bytes of each kind and group, but for `slack` and what rounds means up.
bool same_sums(const Table& planned, const Table& sent, std::int64_t slack) {
  struct Sum {
    std::int64_t planned = 0, sent = 0, count = 0;
  };
  std::map<std::pair<std::string, std::int64_t>, Sum> sums;
  for (const Message& m : sent) sums[{m.kind, m.group}].sent += m.count * m.array;
  for (const Message& m : planned) {
    sums[{m.kind, m.group}].planned += m.count * m.array;
    sums[{m.kind, m.group}].count += m.count;
  }
  return std::all_of(sums.begin(), sums.end(), [&](const auto& entry) {
    const auto& [of_plan, of_stack, count] = entry.second;
    return of_plan >= of_stack - slack && of_plan <= of_stack + slack + count;
  });
}

// A plan gives these as messages of their mean size, in the sum as many bytes: DDP's buckets,
// ZeroRedundancyOptimizer's broadcasts, DeepSpeed's buckets and ZeRO-3's gathers. Beside them, what
// the sums may be off by: gradients are planned as blocks, and so is what stays around the loss.
const std::map<std::string, std::int64_t> kMeans = {
    {"ddp-buckets", 0},
    {"zero1", 0},
    {"ddp-bf16", 21 * kBlock},  // 21 parameters
    {"deepspeed1-buckets", 0},
    {"deepspeed2-buckets", 0},
    {"deepspeed3", 0},
    {"deepspeed3-gathers", 0},
    {"deepspeed3-live", 0},
    {"deepspeed3-tied", 0},
    {"deepspeed3-tied-live", 0},
    {"deepspeed3-lora", 4 * 2 * 2},
    {"deepspeed3-reuse", 3 * 2 * kBlock},
    {"fsdp2-lora", 21 * kBlock},  // 21 gathers; the norm's is one of its own
};

// What plans leave out or get wrong, and is known: DDP's broadcast of the model's buffers (32
// rotary frequencies), and FSDP1's adapters, each a flat parameter of its own, which are planned in
// the dtype that they are stored in and in blocks (1026 and 2052 B here, planned as 3072 B).
Table without_known_gaps(const std::string& name, Table messages) {
  std::erase_if(messages, [&](const Message& m) {
    return (m.kind == "broadcast" && m.array == 128) || (name == "fsdp1-lora" && m.array <= 3072);
  });
  return messages;
}

}  // namespace

TEST_CASE("plans send what PyTorch and DeepSpeed hand to a process group") {
  const json document = json::parse(std::ifstream(PLIMSOLL_GOLDEN "/messages.json"));
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
    sent = without_known_gaps(name, table(sent));
    const Table planned =
        without_known_gaps(name, table(plan_of(model, s, tests::batch_of(workload))));
    INFO("planned:", text(planned), "\nsent:", text(sent));
    const auto means = kMeans.find(name);
    CHECK((means == kMeans.end() ? same(planned, sent) : same_sums(planned, sent, means->second)));
    ++compared;
  }
  CHECK(compared >= 33);
}
