// DeepSpeed's engine with a model of 16 small parameters, counted by hand: what it sends and when,
// what its steps move, and what its layout and buffers come to.
#include <doctest/doctest.h>

#include <string>
#include <vector>

#include "models/model_reader.h"
#include "planner/stacks/deepspeed/nvme.h"
#include "tests/planner/deepspeed_tiny.h"

using namespace plimsoll;
using models::OptimizerImpl;
using models::Precision;
using planner::Message;
using planner::deepspeed::FlatLayout;
using tests::Asked;

namespace {

std::string text(const Message& m) {
  using Kind = Message::Kind;
  std::string out = m.kind == Kind::all_reduce       ? "all-reduce"
                    : m.kind == Kind::reduce_scatter ? "reduce-scatter"
                                                     : "all-gather";
  out += " " + std::to_string(m.count) + " x " + std::to_string(m.array.value() / 4);
  out += m.part == Message::Part::front   ? " front"
         : m.part == Message::Part::layer ? " layer"
                                          : " tail";
  out += m.when == Message::When::reduction  ? " reduction"
         : m.when == Message::When::step     ? " step"
         : m.when == Message::When::backward ? " backward"
                                             : " forward";
  if (m.when != Message::When::step) out += m.micros == Message::Micros::each ? " each" : " last";
  if (m.beside != Message::Beside::nothing)
    out += m.beside == Message::Beside::neighbour ? " beside a layer" : " beside the backward";
  if (m.copied > 0) out += " copied " + std::to_string(static_cast<std::int64_t>(m.copied / 4));
  return out;
}

using Words = std::vector<std::string>;

// All of them, or those of reductions and of the step.
Words texts(const planner::Messages& messages, bool gathers = false) {
  Words out;
  for (const Message& m : messages)
    if (gathers || m.when == Message::When::reduction || m.when == Message::When::step)
      out.push_back(text(m));
  return out;
}

}  // namespace

// From the front with a bucket of 300: 88 32 8 8 | 192 24 64 8 8 | 8 256 32 | 256 8 8 8. Stage 0
// has no bucket so small. What is stepped is gathered whole, padded to twice the ranks.
TEST_CASE("stages 0 and 1 reduce from the front, once, and nothing runs beside it") {
  Asked plain(0), first(1);
  plain.options().reduce_bucket_size = first.options().reduce_bucket_size = 300;
  CHECK(texts(plain.messages()) == Words{"all-reduce 1 x 1008 front reduction last"});
  CHECK(texts(first.messages()) ==
        Words{"all-reduce 1 x 136 front reduction last", "all-reduce 2 x 296 front reduction last",
              "all-reduce 1 x 280 front reduction last", "all-gather 1 x 1008 front step"});
  first.options().reduce_bucket_size = 136;  // exactly full, and parameters that are larger
  CHECK(texts(first.messages()) ==
        Words{"all-reduce 1 x 136 front reduction last", "all-reduce 1 x 192 front reduction last",
              "all-reduce 1 x 112 front reduction last", "all-reduce 1 x 256 front reduction last",
              "all-reduce 1 x 32 front reduction last", "all-reduce 1 x 256 front reduction last",
              "all-reduce 1 x 24 front reduction last", "all-gather 1 x 1008 front step"});
}

// From the end, biases before weights: 8 8 | 8 256, 32 256 8, 8 8 64 24 192, 8 8 | 32 88.
TEST_CASE("stage 2 reduces as gradients come, with every micro-batch") {
  Asked asked(2);
  asked.options().reduce_bucket_size = 300;
  CHECK(texts(asked.messages()) ==
        Words{"all-reduce 1 x 280 layer reduction each", "all-reduce 2 x 296 layer reduction each",
              "all-reduce 1 x 136 front reduction each", "all-gather 1 x 1008 front step"});
  asked.options().overlap_comm = true;
  CHECK(texts(asked.messages()) == Words{"all-reduce 1 x 280 layer reduction each beside a layer",
                                         "all-reduce 2 x 296 layer reduction each beside a layer",
                                         "all-reduce 1 x 136 front reduction each",
                                         "all-gather 1 x 1008 front step"});
  // Stage 1 with overlap: the same, with the last micro-batch.
  asked.strategy().data.zero = 1;
  CHECK(texts(asked.messages()).front() ==
        "all-reduce 1 x 280 layer reduction last beside a layer");
  for (const Message& m : asked.messages())  // of any layer, where it is of one
    CHECK((m.layer == Message::kAnyLayer) == (m.part == Message::Part::layer));
  // Of the tail alone where the bucket is as small: 8, 8, then c_proj's bias with its weight.
  asked.strategy().data.zero = 2;
  asked.options().reduce_bucket_size = 8;
  CHECK(texts(asked.messages()).front() ==
        "all-reduce 1 x 8 tail reduction each beside the backward");
  CHECK(Asked(2, 1).messages().empty());
}

// Padded to three ranks: 8 → 9, 32 → 33, 64 → 66, 88 → 90, 256 → 258.
TEST_CASE("stage 3 reduces padded buckets, which are copied") {
  Asked asked(3);
  asked.options().reduce_bucket_size = 300;
  asked.options().param_persistence_threshold = 8;
  CHECK(texts(asked.messages()) ==
        Words{"reduce-scatter 1 x 285 layer reduction each beside a layer copied 570",
              "reduce-scatter 2 x 300 layer reduction each beside a layer copied 600",
              "reduce-scatter 1 x 141 front reduction each copied 282",
              "all-gather 8 x 9 front step"});
}

TEST_CASE("DeepSpeed has no groups to shard in: a search's question of one is answered for all") {
  for (const int zero : {0, 1, 2, 3}) {
    Asked asked(zero, 8);
    const Words all = texts(asked.messages(), true);
    const double moves = asked.step_moves(1);
    asked.strategy().data.shard_group = 4;
    CHECK(texts(
              [&] {
                planner::Messages out;
                planner::deepspeed::write_messages(asked.parts(), asked.question.strategy, out);
                return out;
              }(),
              true) == all);
    CHECK(asked.step_moves(1) == moves);
  }
}

// Of each value: gradient in fp64 for the norm, read again; flattened; cast to the masters' dtype;
// FusedAdam reads a gradient and reads and writes a value and two states; torch's lists move 80
// bytes in fp32; masters are copied to the weights.
TEST_CASE("what each wrapper's step moves of a value") {
  const auto moves = [](int zero, Precision precision, double elements,
                        std::optional<DType> gradients = {},
                        std::optional<OptimizerImpl> impl = {}) {
    Asked asked(zero);
    asked.strategy().precision = precision;
    asked.strategy().grad_dtype = gradients;
    asked.strategy().optimizer_impl = impl;
    return asked.step_moves(elements);
  };
  using enum Precision;
  constexpr auto kLists = OptimizerImpl::foreach;
  CHECK(moves(0, fp32, 1008) == 28);
  CHECK(moves(0, fp32, 1008, {}, kLists) == 80);
  CHECK(moves(0, bf16_mixed, 1008) == (2 + 4) + (4 + 4) + 28 + (4 + 2));
  CHECK(moves(0, bf16_mixed, 1008, {}, kLists) == (2 + 4) + 80 + (4 + 2));
  for (const int zero : {1, 2}) {  // partitions of 336
    CHECK(moves(zero, fp32, 336) == (4 + 8 + 8) + (4 + 4) + 28 + (4 + 4));
    CHECK(moves(zero, bf16_mixed, 336) == (2 + 8 + 8) + (2 + 2) + (2 + 4) + 28 + (4 + 2));
    CHECK(moves(zero, bf16, 336) == (2 + 8 + 8) + (2 + 2) + 14 + (2 + 2));
    CHECK(moves(zero, fp32, 336, {}, kLists) == (4 + 8 + 8) + (4 + 4) + 80 + (4 + 4));
  }
  // Sums in fp32 are flat already.
  CHECK(moves(2, bf16_mixed, 336, DType::fp32) == (4 + 8 + 8) + 28 + (4 + 2));
  // 30 11 | 3 3 64 8 22 3 3 3 86 11 86 3 | 3 3 of each rank.
  CHECK(moves(3, fp32, 342) == (4 + 8 + 8) + (4 + 4) + 28 + (4 + 4));
  CHECK(moves(3, bf16_mixed, 342) == (2 + 8 + 8) + (2 + 2) + (2 + 4) + 28 + (4 + 2));
  CHECK(moves(3, bf16_mixed, 342, DType::fp32) == (4 + 8 + 8) + (4 + 4) + 28 + (4 + 2));
  Asked host(2);
  host.strategy().offload.optimizer = true;
  CHECK(host.step_moves(1) == 0);
}

// Three layers on three ranks: partitions of 918 (2,752 padded to 2,754). A bucket of 1,500 takes
// 1,312, up to the second layer's c_fc, which ranks 0 and 1 own: a copy of them all, which finds
// room in what is given back of both ends and the first layer, 120 + 16 + 872 = 1,008. The rest,
// 1,440, is copied at the end. Rank 0's own gradients reach into the first layer's c_proj: 984.
TEST_CASE("stage 1 copies a bucket of several ranks where gradients have given room") {
  Asked asked(1, 3, 3);
  asked.options().reduce_bucket_size = 1500;
  CHECK(asked.layout().partition() == 918);
  CHECK(asked.layout().share(0).whole == 984);
  planner::pytorch::Rules rules;
  rules.granularity = 1;
  planner::StackStep step;
  planner::deepspeed::write_step(asked.question, asked.parts(), rules, step);
  const auto scratch = [&](std::string_view name) {
    Bytes most;
    for (const models::Op& op : step.program.ops)
      if (std::string_view(op.name) == name) most = std::max(most, op.scratch);
    return most;
  };
  CHECK(scratch("zero.reduce") == Bytes(4 * 1008));
  CHECK(scratch("zero.epilogue") == Bytes(4 * 1440));
  CHECK(scratch("zero.reduce_gradients") == 0_B);
}

// On three ranks, partitions of 336, a bucket of 300: from the end 8 8 8 256, all rank 2's; 32 256
// 8 of ranks 1 and 2; 8 8 64 24 192 of ranks 0 and 1; 8 8 32 88 of rank 0, at the end. What several
// ranks own is copied, 296 values each time. With the states on the host a norm in fp64 is taken of
// the largest part that the rank owns, two values for each, once the copy is gone: rank 0's are 192
// and at the end 88; rank 1's 232 of c_fc and 64; rank 2's 256, and 32 of 296.
TEST_CASE("beside a bucket lies its copy, or the norm of the largest part that goes to the host") {
  const auto beside = [](std::int64_t rank, bool offload) {
    Asked asked(2);
    asked.options().reduce_bucket_size = 300;
    asked.strategy().offload.optimizer = offload;
    planner::pytorch::Rules rules;
    rules.granularity = 1;
    planner::StackStep step{.rank = rank};
    planner::deepspeed::write_step(asked.question, asked.parts(), rules, step);
    std::vector<std::int64_t> values;
    for (const models::TensorDecl& tensor : step.program.tensors)
      if (std::string_view(tensor.name) == "zero.reduce_copy" && tensor.bytes > Bytes(1))
        values.push_back(tensor.bytes.value() / 4);
    for (const models::Op& op : step.program.ops)
      if (std::string_view(op.name) == "zero.reduce" && op.scratch > Bytes(0))
        values.push_back(op.scratch.value() / 4);
    return values;
  };
  using Values = std::vector<std::int64_t>;
  for (const std::int64_t rank : {0, 1, 2}) CHECK(beside(rank, false) == Values{296, 296});
  CHECK(beside(0, true) == Values{296, 384, 176});
  CHECK(beside(1, true) == Values{464, 296});
  CHECK(beside(2, true) == Values{512, 296, 296});
}

// Seven layers of 872 behind 120, before 16. A bucket of 1,760 takes the end and two layers
// exactly: it is reduced in the third from the end; the next one, of two layers and the 8 of a
// bias, in the fifth. Both are rank 2's, whose 2,080 begin in the fifth. With an element less the
// first is reduced before the second layer's last gradient, and the next holds 8 more.
TEST_CASE("layers in which the first buckets are reduced stand in runs of their own") {
  const auto runs = [](std::int64_t bucket, std::int64_t gpus = 3) {
    Asked asked(2, gpus, 7);
    asked.options().reduce_bucket_size = bucket;
    planner::StackStep step{.rank = gpus - 1};
    planner::deepspeed::write_step(asked.question, asked.parts(), {}, step);
    std::vector<std::int64_t> layers;
    for (const models::Group& group : step.program.groups) layers.push_back(group.count);
    return layers;
  };
  using Layers = std::vector<std::int64_t>;
  CHECK(runs(1760) == Layers{2, 1, 1, 1, 2});
  CHECK(runs(1759) == Layers{2, 1, 2, 1, 1});
  // Of twelve the last has 520, all in the first bucket: the one after it is not its own, and the
  // next, in the seventh from the end, nothing new.
  CHECK(runs(1760, 12) == Layers{2, 1, 1, 1, 2});
}

// stage3.py, _create_fp16_partitions_with_defragmentation: the first of the largest sub-groups. On
// 300,000 ranks each has one element of each parameter: the table's 4,096 · 64 are 512 KiB.
TEST_CASE("of equal sub-groups the first is written through a buffer, uncut") {
  const models::ModelSpec model = models::read_model(
      R"({"model_type": "llama", "hidden_size": 64, "vocab_size": 4096, "intermediate_size": 128,
          "num_attention_heads": 4, "num_key_value_heads": 4, "num_hidden_layers": 1,
          "max_position_embeddings": 512})",
      "llama", "llama", {});
  Asked asked(3, 300'000);
  asked.strategy().precision = Precision::bf16_mixed;
  asked.options().sub_group_size = 1;
  const FlatLayout layout(planner::model_parts(model, asked.question.strategy), asked.engine());
  CHECK(layout.shards().sub_group == 1);
  CHECK(layout.shards().sub_group_uncut == 512_KiB);
}

// Each parameter is a sub-group of its own, of which c_fc's weight of 256 is the first of the
// largest: 86 elements on each of three ranks, 1,024 bytes in a file.
TEST_CASE("a sub-group behind smaller ones begins with nothing of them") {
  Asked asked(3);
  asked.options().sub_group_size = 1;
  const FlatLayout layout = asked.layout();
  CHECK(layout.shards().sub_group == 86);
  CHECK(layout.shards().sub_group_uncut == 1_KiB);
}

// stage3.py, partition_grads: a part read back, and for the norm 250 million of its elements at a
// time in fp64; then its cast, which waits for the others'. Counted in the gradients' elements: of
// 16-bit ones fp64 takes four and a cast two; of fp32 ones fp64 two, and they are not cast.
TEST_CASE("a bucket's gradients on their way to files: the norm of one, beside the others' casts") {
  planner::deepspeed::OnTheWay narrow(DType::bf16, DType::fp32), wide(DType::fp32, DType::fp32);
  CHECK(narrow.most() == 0);
  narrow.add(10);
  CHECK(narrow.most() == 10 + 4 * 10);
  narrow.add(20);  // leaves first
  CHECK(narrow.most() == 20 + 4 * 20);
  narrow.add(5);
  CHECK(narrow.most() == 2 * 5 + 20 + 4 * 20);
  CHECK(narrow.staying() == 2 * (10 + 20 + 5));  // less than 1 MiB each
  constexpr std::int64_t million = 1'000'000;
  wide.add(600 * million);
  CHECK(wide.most() == (600 + 2 * 250) * million);
  CHECK(wide.staying() == 0);  // 2.4 GB, whole multiples of 1 KiB
  wide.clear();
  CHECK(wide.most() == 0);
  narrow.clear();
  narrow.add(900 * million);
  CHECK(narrow.most() == (2 * 900 + 900) * million);  // its cast beside it, more than its norm
}

TEST_CASE("buffers for files are refused only where there are files") {
  Asked asked(3);
  asked.strategy().offload.optimizer = asked.strategy().offload.params = true;
  asked.options().nvme.optimizer_buffer_count = 0;
  CHECK_NOTHROW(planner::deepspeed::refuse_buffers(asked.layout(), asked.engine()));
  asked.strategy().offload.nvme = true;
  CHECK_THROWS_WITH_AS(
      planner::deepspeed::refuse_buffers(asked.layout(), asked.engine()),
      "--offload-optimizer-buffer-count 0: DeepSpeed's offload_optimizer.buffer_count must be at "
      "least 1",
      Error);
  asked.options().nvme.optimizer_buffer_count = 1;
  CHECK_NOTHROW(planner::deepspeed::refuse_buffers(asked.layout(), asked.engine()));
}
