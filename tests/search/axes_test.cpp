// What the search may choose from, as literal lists: a value that is gone is a plan that nobody is
// told about.
#include "planner/search/axes.h"

#include <doctest/doctest.h>

#include "planner/search/concessions.h"
#include "tests/search/asked.h"

using namespace plimsoll;
using namespace plimsoll::planner;
using namespace plimsoll::planner::search;
using models::Stack;
using tests::Asked;
using tests::axis_named;
using tests::Words;

namespace {

Words shard_groups(std::int64_t gpus, std::int64_t per_node, int zero = 3,
                   Stack stack = Stack::pytorch) {
  Asked asked(gpus, per_node);
  asked.strategy().stack = stack;
  asked.strategy().data.zero = zero;
  return asked.values("shard-group");
}

}  // namespace

TEST_CASE("the axes, in the order in which they are chosen") {
  Words names;
  for (const Axis& axis : axes()) names.emplace_back(axis.name);
  CHECK(names == Words{"adapters", "gpus", "stack", "quantize", "optimizer", "precision",
                       "param-dtype", "offload", "optimizer-impl", "recompute", "kernels", "loss",
                       "attention", "zero", "shard-group"});
}

TEST_CASE(
    "stacks, precisions, losses, attention: each value, its option, what it asks of the user") {
  Asked asked;
  CHECK(asked.values("stack") == Words{"pytorch", "deepspeed", "plimsoll"});
  CHECK(asked.options("stack") == Words{"", "--stack deepspeed", "--stack plimsoll"});
  CHECK(asked.concessions("stack") == std::vector{0, 0, 4});
  CHECK(asked.values("precision") == Words{"bf16-mixed", "bf16"});
  CHECK(asked.options("precision") == Words{"", "--precision bf16"});
  CHECK(asked.concessions("precision") == std::vector{0, 2});
  CHECK(asked.values("loss") == Words{"full", "chunked", "fused"});
  CHECK(asked.options("loss") == Words{"", "--loss chunked", "--loss fused"});
  CHECK(asked.values("attention") == Words{"flash", "eager", "math"});
  CHECK(asked.options("attention") == Words{"", "--attention eager", "--attention math"});
  for (const char* axis : {"loss", "attention"})
    CHECK(asked.concessions(axis) == std::vector{0, 0, 0});
}

TEST_CASE("a card without bf16 units trains in fp16-mixed; adapters keep the precision") {
  Asked t4(1, 8, "t4");
  CHECK(t4.values("precision") == Words{"fp16-mixed"});
  CHECK(t4.options("precision") == Words{"--precision fp16-mixed"});
  Asked adapters;
  adapters.so_far.parts = 1;
  CHECK(adapters.values("precision") == Words{"bf16-mixed"});
}

TEST_CASE("adapters beside the whole model, with their base in 16 bits") {
  Asked asked;
  CHECK(asked.values("adapters") == Words{"full", "lora"});
  CHECK(asked.options("adapters") ==
        Words{"", "--lora-rank 16 --lora-alpha 32 --lora-targets all-linear"});
  CHECK(asked.concessions("adapters") == std::vector{0, 1});
  CHECK(asked.values("param-dtype") == Words{"default"});
  asked.so_far = asked.choices("adapters").back();
  CHECK(asked.values("param-dtype") == Words{"bf16"});
  CHECK(asked.options("param-dtype") == Words{"--param-dtype bf16"});
  asked.strategy().precision = models::Precision::fp16_mixed;
  CHECK(asked.values("param-dtype") == Words{"fp16"});
  asked.strategy().stack = Stack::deepspeed;
  CHECK(asked.values("param-dtype") == Words{"default"});
  // Who has said what is trained is not offered something else.
  Asked frozen;
  frozen.strategy().freeze = {"*embed*"};
  CHECK(frozen.values("adapters") == Words{"full"});
}

TEST_CASE("a base packed in 4 bits, for adapters on the stack that has it; sharded it is floats") {
  Asked asked;
  CHECK(asked.values("quantize") == Words{"none"});
  asked.so_far = asked.choices("adapters").back();
  CHECK(asked.values("quantize") == Words{"none", "nf4-dq"});
  CHECK(asked.options("quantize") == Words{"", "--quantize nf4-dq"});
  CHECK(asked.concessions("quantize") == std::vector{1, 17});
  asked.so_far = asked.choices("quantize").back();
  CHECK(asked.values("attention") == Words{"flash"});
  Words words;
  for (const Setting& s : asked.choices("zero")) words.push_back(axis_named("quantize").option(s));
  CHECK(words == Words{"--quantize nf4-dq", "--quantize nf4-dq",
                       "--quantize nf4-dq --quant-storage bf16",
                       "--quantize nf4-dq --quant-storage bf16"});
  asked.strategy().quantize.reset();
  asked.strategy().stack = Stack::deepspeed;
  CHECK(asked.values("quantize") == Words{"none", "nf4-dq"});
  asked.strategy().stack = Stack::plimsoll;
  CHECK(asked.values("quantize") == Words{"none"});
}

TEST_CASE("states in 8 bits, of the whole model, where bitsandbytes steps what ranks hold") {
  Asked asked;
  CHECK(asked.options("optimizer") == Words{"", "--optimizer adam8bit"});
  CHECK(asked.concessions("optimizer") == std::vector{0, 8});
  asked.so_far = asked.choices("optimizer").back();
  CHECK(asked.values("zero") == Words{"0"});
  CHECK(asked.values("optimizer-impl") == Words{"default"});
  Asked adapters;
  adapters.so_far = adapters.choices("adapters").back();
  CHECK(adapters.values("optimizer") == Words{"adamw"});
}

TEST_CASE("offloading: FSDP's parameters, DeepSpeed's states, where there is something to share") {
  Asked asked;
  CHECK(asked.options("offload") == Words{"", "--offload params"});
  CHECK(asked.concessions("offload") == std::vector{0, 64});
  asked.so_far = asked.choices("offload").back();
  CHECK(asked.values("zero") == Words{"2", "3"});
  Asked packed;
  for (const char* axis : {"adapters", "quantize"}) packed.so_far = packed.choices(axis).back();
  CHECK(packed.concessions("offload") == std::vector{17, 49});
  Asked states;
  states.strategy().stack = Stack::deepspeed;
  CHECK(states.options("offload") == Words{"", "--offload optimizer"});
  states.so_far = states.choices("offload").back();
  CHECK(states.values("zero") == Words{"1", "2", "3"});
  Asked alone(1);
  CHECK(alone.values("offload") == Words{"none"});
}

TEST_CASE("every sum of concessions that a setting has is looked at, the least first") {
  const std::span<const int> sums = concession_sums();
  CHECK(std::ranges::is_sorted(sums));
  for (const bool own_lora : {false, true}) {
    Asked asked(2, 2);
    if (own_lora) asked.scope.base.strategy.lora = models::Lora{};
    for (const Setting& s : families(asked.scope))
      CHECK(std::ranges::find(sums, s.concession) != sums.end());
  }
}

TEST_CASE("the optimizer's fused kernels are PyTorch's AdamW's alone") {
  Asked asked;
  CHECK(asked.values("optimizer-impl") == Words{"default", "fused"});
  CHECK(asked.options("optimizer-impl") == Words{"", "--optimizer-impl fused"});
  asked.strategy().optimizer = models::Optimizer::sgd;
  CHECK(asked.values("optimizer-impl") == Words{"default"});
  asked.strategy().optimizer = models::Optimizer::adamw;
  asked.strategy().stack = Stack::deepspeed;
  CHECK(asked.values("optimizer-impl") == Words{"default"});
}

TEST_CASE("every stage of ZeRO where there is somebody to share with") {
  Asked asked;
  CHECK(asked.values("zero") == Words{"0", "1", "2", "3"});
  CHECK(asked.options("zero") == Words{"", "--zero 1", "--zero 2", "--zero 3"});
  for (const Setting& s : asked.choices("zero"))
    CHECK(s.strategy.data.reshard_after_forward == (s.strategy.data.zero != 2));
  asked.strategy().gpus = 1;
  CHECK(asked.values("zero") == Words{"0"});
}

TEST_CASE("groups to shard in: all, the node and its parts, whole nodes") {
  CHECK(shard_groups(8, 8) == Words{"all", "4", "2"});
  CHECK(shard_groups(16, 8) == Words{"all", "8", "4", "2"});
  CHECK(shard_groups(32, 8) == Words{"all", "8", "4", "2", "16"});
  CHECK(shard_groups(48, 8) == Words{"all", "8", "4", "2", "16", "24"});
  CHECK(shard_groups(64, 8) == Words{"all", "8", "4", "2", "16", "32"});
  CHECK(shard_groups(12, 6) == Words{"all", "6", "3", "2"});
  CHECK(shard_groups(24, 8) == Words{"all", "8", "4", "2"});  // 3 nodes: no group of 1 < n < 3
  CHECK(shard_groups(4, 8) == Words{"all", "2"});  // 3 of them divide no node
  CHECK(shard_groups(7, 7) == Words{"all"});
  CHECK(shard_groups(1, 8) == Words{"all"});
  // FSDP has groups, ZeroRedundancyOptimizer and DeepSpeed have none; plimsoll from stage 1 on.
  for (const int zero : {0, 1}) CHECK(shard_groups(16, 8, zero) == Words{"all"});
  CHECK(shard_groups(16, 8, 2) == Words{"all", "8", "4", "2"});
  CHECK(shard_groups(16, 8, 3, Stack::deepspeed) == Words{"all"});
  CHECK(shard_groups(16, 8, 1, Stack::plimsoll) == Words{"all", "8", "4", "2"});
  CHECK(shard_groups(16, 8, 0, Stack::plimsoll) == Words{"all"});
  Asked asked(16);
  asked.strategy().data.zero = 3;
  CHECK(asked.options("shard-group") ==
        Words{"", "--shard-group 8", "--shard-group 4", "--shard-group 2"});
}

TEST_CASE("an axis that is fixed keeps what the user gave") {
  Asked asked(32);
  asked.strategy().data.zero = 3;
  for (const Axis& axis : axes()) {
    CAPTURE(axis.name);
    asked.scope.fixed = {std::string(axis.name)};
    asked.so_far.strategy.data.shard_group = 0;
    CHECK(asked.values(axis.name).size() == 1);
  }
}

namespace {

using Counts = std::vector<std::pair<std::int64_t, std::int64_t>>;  // GPUs, of each node

Counts counts(const Scope& scope) {
  Counts out;
  for (const GpuCount& c : gpu_counts(scope)) out.emplace_back(c.gpus, c.per_node);
  return out;
}

}  // namespace

TEST_CASE("numbers of GPUs: any in a node, whole nodes beyond, what divides a global batch") {
  Asked asked(4);
  CHECK(counts(asked.scope) == Counts{{4, 8}, {3, 8}, {2, 8}, {1, 8}});
  asked = Asked(32);
  CHECK(counts(asked.scope) == Counts{{32, 8},
                                      {24, 8},
                                      {16, 8},
                                      {8, 8},
                                      {7, 8},
                                      {6, 8},
                                      {5, 8},
                                      {4, 8},
                                      {3, 8},
                                      {2, 8},
                                      {1, 8}});
  // 30 go on 4 nodes of 8 in no equal numbers; 20 are 4 nodes of 5, 15 are 3 of 5, 12 are 2 of 6.
  asked.scope.global_batch = 60;
  CHECK(counts(asked.scope) ==
        Counts{{20, 5}, {15, 5}, {12, 6}, {10, 5}, {6, 8}, {5, 8}, {4, 8}, {3, 8}, {2, 8}, {1, 8}});
  asked.scope.global_batch.reset();
  asked.scope.objective = Objective::memory;  // more GPUs leave more room
  CHECK(counts(asked.scope) == Counts{{32, 8}, {16, 8}, {8, 8}, {4, 8}, {2, 8}, {1, 8}});
  asked.scope.fixed = {"gpus"};
  CHECK(counts(asked.scope) == Counts{{32, 8}});
  CHECK(asked.options("gpus") == Words{"--gpus 32"});
  // 512 nodes: 1 to 8 GPUs of one; 2 to 128 nodes, 130 … 256 by twos, 260 … 512 by fours.
  asked = Asked(4096);
  const Counts many = counts(asked.scope);
  CHECK(many.size() == 8 + 127 + 64 + 64);
  CHECK(many[1] == std::pair<std::int64_t, std::int64_t>{8 * 508, 8});
  asked = Asked(6, 3);
  asked.scope.fixed = {"gpus"};
  CHECK(asked.options("gpus") == Words{"--gpus 6 --gpus-per-node 3"});
  // Of 12 GPUs on nodes of 8 there are no two whole nodes.
  asked = Asked(12);
  CHECK(counts(asked.scope).front() == std::pair<std::int64_t, std::int64_t>{12, 8});
  CHECK(counts(asked.scope).size() == 1 + 8);
}

TEST_CASE("micro-batches: three significant bits, or all ways to divide a global batch") {
  Asked asked(4);
  const auto all = [&] {
    std::vector<std::pair<std::int64_t, std::int64_t>> out;
    for (const models::Batch& b : batches(asked.scope, asked.so_far))
      out.emplace_back(b.micro_batch, b.grad_accum);
    return out;
  };
  const auto made = all();
  std::vector<std::int64_t> first;
  for (std::size_t i = 0; i < 20; ++i) first.push_back(made[i].first);
  CHECK(first == std::vector<std::int64_t>{1,  2,  3,  4,  5,  6,  7,  8,  10, 12,
                                           14, 16, 20, 24, 28, 32, 40, 48, 56, 64});
  CHECK(made.back() == std::pair<std::int64_t, std::int64_t>{8192, 1});
  asked.so_far.batch.seq_len = 1 << 20;  // at most 2^26 tokens
  CHECK(all().back().first == 64);
  using Pairs = std::vector<std::pair<std::int64_t, std::int64_t>>;
  asked.scope.global_batch = 48;  // 12 for each of 4 GPUs
  CHECK(all() == Pairs{{1, 12}, {2, 6}, {3, 4}, {4, 3}, {6, 2}, {12, 1}});
  asked.scope.fixed = {"micro-batch"};
  asked.so_far.batch.micro_batch = 3;
  CHECK(all() == Pairs{{3, 4}});
  asked.scope.fixed = {"grad-accum"};
  asked.so_far.batch.grad_accum = 2;
  CHECK(all() == Pairs{{6, 2}});
  asked.scope.global_batch = 50;  // no multiple of 4
  CHECK(all().empty());
}

// Of 16 GPUs in nodes of 8 every axis has several values.
TEST_CASE("--only leaves the families of its values, --without all others; of each axis") {
  Asked asked(16);
  asked.scope.objective = Objective::memory;  // few numbers of GPUs
  const std::vector<Setting> all = families(asked.scope);
  for (const Axis& axis : axes()) {
    CAPTURE(axis.name);
    std::map<std::string, std::size_t> count;
    for (const Setting& s : all) ++count[axis.value(s)];
    REQUIRE(count.size() > 1);
    for (const auto& [value, families_of_it] : count) {
      CAPTURE(value);
      Scope scope = asked.scope;
      scope.only[std::string(axis.name)] = {value};
      const std::vector<Setting> only = families(scope);
      CHECK(only.size() == families_of_it);
      CHECK(std::ranges::all_of(only, [&](const Setting& s) { return axis.value(s) == value; }));
      scope.only.clear();
      scope.without[std::string(axis.name)] = {value};
      const std::vector<Setting> without = families(scope);
      CHECK(without.size() == all.size() - families_of_it);
      CHECK(
          std::ranges::none_of(without, [&](const Setting& s) { return axis.value(s) == value; }));
    }
  }
  // "every" means every:2, every:3 …
  Scope scope = asked.scope;
  scope.only["recompute"] = {"every"};
  const std::vector<Setting> every = families(scope);
  // every:2 and every:3 of six, which have equally many; of five with a packed base (not
  // selective).
  const auto packed = static_cast<std::size_t>(
      std::ranges::count_if(all, [](const Setting& s) { return concedes(s, kPackedBase); }));
  CHECK(every.size() == (all.size() - packed) / 6 * 2 + packed / 5 * 2);
  for (const Setting& s : every) CHECK(s.strategy.recompute.kind == models::RecomputeKind::every);
}

TEST_CASE("a value that an axis has not is refused with those that it has") {
  Asked asked(2);
  asked.scope.only["zero"] = {"9"};
  try {
    check_filters(asked.scope);
    FAIL("--only zero=9 is taken");
  } catch (const Error& error) {
    CHECK(error.kind() == ErrorKind::bad_input);
    CHECK(error.message() == "--only zero=9: the values here are 0, 1, 2, 3");
  }
}

TEST_CASE("an axis that is none is refused with all that there are") {
  Asked asked(2);
  asked.scope.without["zeros"] = {"3"};
  try {
    check_filters(asked.scope);
    FAIL("--without zeros=3 is taken");
  } catch (const Error& error) {
    CHECK(error.kind() == ErrorKind::bad_input);
    CHECK(error.message() ==
          "--without zeros=…: the axes are adapters, gpus, stack, quantize, optimizer, precision, "
          "param-dtype, offload, optimizer-impl, recompute, kernels, loss, attention, zero, "
          "shard-group");
  }
}

TEST_CASE("a plan's options are its axes' and its batch's; what fit takes without is left out") {
  Asked asked(8);
  Setting x = asked.so_far;
  x.batch = {.seq_len = 1024, .micro_batch = 3, .grad_accum = 1};
  CHECK(options_of(x) == "--gpus 8 --seq-len 1024 --micro-batch 3");
  x.batch.grad_accum = 2;
  x.strategy.data.zero = 3;
  x.strategy.recompute = {models::RecomputeKind::every, 4};
  CHECK(options_of(x) ==
        "--gpus 8 --recompute every:4 --zero 3 --seq-len 1024 --micro-batch 3 --grad-accum 2");
}

TEST_CASE("divisors stand in order, each once") {
  CHECK(divisors(1) == std::vector<std::int64_t>{1});
  CHECK(divisors(12) == std::vector<std::int64_t>{1, 2, 3, 4, 6, 12});
  CHECK(divisors(36) == std::vector<std::int64_t>{1, 2, 3, 4, 6, 9, 12, 18, 36});
  CHECK(divisors(97) == std::vector<std::int64_t>{1, 97});
}

TEST_CASE("parts that the search puts in are its own adapters and its own packing") {
  Asked asked;
  asked.scope.base.strategy.precision = models::Precision::fp16_mixed;
  const auto parts = [&](int which) {
    return with_parts(asked.scope.base, static_cast<std::uint8_t>(which));
  };
  CHECK(parts(0) == asked.scope.base.strategy);
  CHECK(parts(kOwnAdapters).lora->rank == 16);
  CHECK(parts(kOwnAdapters).lora->alpha == 32);
  CHECK(!parts(kOwnAdapters).quantize);
  const models::Strategy integers = parts(kOwnAdapters + kPackedInIntegers);
  CHECK(integers.lora);
  CHECK(integers.quantize->held_in == DType::uint8);
  CHECK(parts(kOwnAdapters + kPackedInFloats).quantize->held_in == DType::fp16);
  CHECK(!parts(kPackedInFloats).lora);
}
