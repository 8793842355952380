// --reduce-dtype on stack plimsoll: what a rank casts its gradients to while ranks exchange them,
// how long that lives, and what is sent.
#include <doctest/doctest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "planner/stacks/plimsoll/stack.h"
#include "tests/planner/message_table.h"
#include "tests/planner/plimsoll_step.h"

namespace plimsoll::planner::plimsoll_stack {
namespace {

using models::Strategy;

struct Life {
  std::string tensor;
  std::int64_t bytes;
  std::string born, died;  // ops
  auto operator<=>(const Life&) const = default;
};

// Of the tensors whose names end so.
std::vector<Life> lives(const Planned& p, const std::string& end) {
  const auto op = [&](std::int64_t step) {
    return name_of_op(p.program, p.timeline.steps[static_cast<std::size_t>(step)].at);
  };
  std::vector<Life> out;
  for (const Lifetime& life : p.timeline.lifetimes) {
    if (life.birth < 0) continue;
    const std::string name = name_of_tensor(p.program, life.tensor, life.instance);
    if (!name.ends_with(end)) continue;
    out.push_back({name, p.program.tensors[static_cast<std::size_t>(life.tensor)].bytes.value(),
                   op(life.birth), op(life.death)});
  }
  std::ranges::sort(out);
  return out;
}

std::string text(const std::vector<Life>& all) {
  std::string out;
  for (const Life& life : all)
    out += "\n  " + life.tensor + " of " + std::to_string(life.bytes) + " from " + life.born +
           " to " + life.died;
  return out;
}

void check_lives(const Planned& p, const std::string& end, std::vector<Life> expected) {
  const std::vector<Life> found = lives(p, end);
  INFO("planned", text(found));
  CHECK(found == expected);
}

Strategy two_ranks(int zero) {
  Strategy s = fp32_strategy();
  s.gpus = 2;
  s.data.zero = zero;
  s.data.reduce_dtype = DType::bf16;
  return s;
}

// A layer has 36 992 values, the embedding 16 384, the tail 16 448 (plimsoll_step_test.cpp); 2
// bytes of each, from the unit's reduction to the op that takes it, when the next unit's backward
// is done.
const std::vector<Life> kCompressed{
    {"embedding.gradients.compressed", 32'768, "embedding.reduce", "reduced"},
    {"layers.0.gradients.compressed", 73'984, "layers.0.reduce", "embedding.reduced"},
    {"layers.1.gradients.compressed", 73'984, "layers.1.reduce", "layers.0.reduced"},
    {"tail.gradients.compressed", 32'896, "tail.reduce", "layers.1.reduced"}};

TEST_CASE("each unit's gradients are cast when they are reduced, until their sum is taken") {
  for (const int zero : {0, 1, 2, 3}) {
    CAPTURE(zero);
    const Planned p = planned(small_llama(2), two_ranks(zero), {.seq_len = 8});
    check_lives(p, ".compressed", kCompressed);
    for (std::size_t i = 0; i < p.timeline.steps.size(); ++i)  // one at a time
      CHECK(in_category(p, i, models::Category::communication) <= Bytes(73'984));
  }
  // Stepped in the backward, they do not wait for the next unit.
  Strategy s = two_ranks(0);
  s.optimizer_in_backward = true;
  check_lives(planned(small_llama(2), s, {.seq_len = 8}), "layers.1.gradients.compressed",
              {{"layers.1.gradients.compressed", 73'984, "layers.1.reduce", "layers.1.reduced"}});
}

TEST_CASE("gradients that are kept stay, and whole ones that are divided end with the cast") {
  const Planned ddp = planned(small_llama(2), two_ranks(0), {.seq_len = 8});
  check_lives(ddp, "layers.1.gradients",
              {{"layers.1.gradients", 147'968, "layers.1.mlp.down_proj.weight.grad",
                "layers.1.optimizer.step"}});
  Strategy s = two_ranks(2);
  const Planned zero_2 = planned(small_llama(2), s, {.seq_len = 8});
  check_lives(
      zero_2, "layers.1.gradients",
      {{"layers.1.gradients", 147'968, "layers.1.mlp.down_proj.weight.grad", "layers.1.reduce"}});
  check_lives(
      zero_2, "layers.1.gradients.shard",
      {{"layers.1.gradients.shard", 73'984, "layers.0.reduced", "layers.1.optimizer.step"}});
  // Most fp32 gradients at once. Layer 0's are whole, the halves of layer 1 and the tail are there;
  // of what is exchanged as it is, layer 1's are whole too when their half is made.
  const auto most = [](const Planned& p) {
    Bytes out;
    for (std::size_t i = 0; i < p.timeline.steps.size(); ++i)
      out = std::max(out, in_category(p, i, models::Category::gradients));
    return out;
  };
  CHECK(most(zero_2) == Bytes(147'968 + 73'984 + 32'896));
  s.data.reduce_dtype.reset();
  CHECK(most(planned(small_llama(2), s, {.seq_len = 8})) == Bytes(2 * 147'968 + 73'984 + 32'896));
}

TEST_CASE("of accumulated micro-batches those that are reduced are cast") {
  const auto casts = [](int zero, bool deterministic) {
    const Planned p = planned(small_llama(2), two_ranks(zero), {.seq_len = 8, .grad_accum = 3},
                              {.granularity = 1, .deterministic = deterministic});
    return lives(p, "layers.1.gradients.compressed").size();
  };
  for (const int zero : {0, 1}) {
    CHECK(casts(zero, false) == 1);
    CHECK(casts(zero, true) == 3);
  }
  for (const int zero : {2, 3}) CHECK(casts(zero, false) == 3);
}

TEST_CASE("nothing is cast on one rank, and where gradients have the dtype already") {
  Strategy s = two_ranks(0);
  s.gpus = 1;
  check_lives(planned(small_llama(2), s, {.seq_len = 8}), ".compressed", {});
  s = two_ranks(2);
  s.data.reduce_dtype = DType::fp32;
  check_lives(planned(small_llama(2), s, {.seq_len = 8}), ".compressed", {});
  s.precision = models::Precision::bf16_mixed;
  s.data.reduce_dtype = DType::bf16;
  check_lives(planned(small_llama(2), s, {.seq_len = 8}), ".compressed", {});
  s.grad_dtype = DType::fp32;
  CHECK(lives(planned(small_llama(2), s, {.seq_len = 8}), ".compressed").size() == 4);
}

// Adapters' gradients are fp32. Rank 1 of q_proj: A 64, B 64 values, at 4 to 16 B no padding.
TEST_CASE("adapters' gradients are cast under a 16-bit base") {
  Strategy s = two_ranks(0);
  s.precision = models::Precision::bf16_mixed;
  s.lora = models::Lora{.rank = 1, .targets = {"q_proj"}};
  check_lives(planned(small_llama(1), s, {.seq_len = 8}), ".compressed",
              {{"layers.0.gradients.compressed", 2 * 128, "layers.0.reduce", "reduced"}});
}

// A block for sums is as large as the largest message: of a layer's 73 984 B under stage 0 the
// bucket, 50 000 B in whole alignments of 8 elements.
TEST_CASE("messages staged by MPI ranks are of the cast gradients") {
  Strategy s = two_ranks(0);
  s.device = models::Device::cpu;
  s.exchange = models::Exchange::mpi;
  const auto staging = [&] {
    const Planned p = planned(small_llama(2), s, {.seq_len = 8});
    for (const models::TensorDecl& tensor : p.program.tensors)
      if (std::string_view(tensor.name) == models::decisions::kStaging) return tensor.bytes;
    return Bytes(0);
  };
  CHECK(staging() == Bytes(73'984));
  s.data.bucket_cap = Bytes(50'000);
  CHECK(staging() == Bytes(50'000));
  s.data.reduce_dtype.reset();
  s.data.bucket_cap = Bytes(1 << 20);
  CHECK(staging() == Bytes(147'968));
}

// message_table.h's model on 3 ranks; a layer has 123136 elements, the embedding 25472, the tail
// 25600, padded (16 B of bf16 weights on 3 ranks) to 123144, 25488, 25608.
TEST_CASE("what is reduced is sent in 2 bytes an element, in messages of the same bucket") {
  using tests::Table;
  Strategy s = tests::strategy(models::Stack::plimsoll, 0);
  s.grad_dtype = DType::fp32;
  const auto check_table = [&](const Table& expected) {
    const Table planned = tests::table(tests::plan_of(s));
    INFO("planned:", tests::text(planned), "\nexpected:", tests::text(tests::table(expected)));
    CHECK(planned == tests::table(expected));
  };
  const auto all_reduces = [](std::int64_t bytes) {
    return Table{{"all_reduce", 2, bytes * 123136, 3},
                 {"all_reduce", 1, bytes * 25472, 3},
                 {"all_reduce", 1, bytes * 25600, 3}};
  };
  check_table(all_reduces(4));
  s.data.reduce_dtype = DType::bf16;
  check_table(all_reduces(2));
  s.data.bucket_cap = Bytes(100'000);
  check_table({{"all_reduce", 4, 100'000, 3},
               {"all_reduce", 2, 46'272, 3},
               {"all_reduce", 1, 2 * 25472, 3},
               {"all_reduce", 1, 2 * 25600, 3}});
  s.data.bucket_cap = Bytes(25 << 20);
  s.data.zero = 2;
  s.gpus = 6;
  s.data.shard_group = 3;
  Table hybrid{{"all_gather", 2, 2 * 123144, 3},
               {"all_gather", 1, 2 * 25488, 3},
               {"all_gather", 1, 2 * 25608, 3}};
  for (const std::int64_t of : {123144, 123144, 25488, 25608}) {
    hybrid.push_back({"reduce_scatter", 3, 2 * of, 3});
    hybrid.push_back({"all_reduce", 3, 2 * of / 3, 2});
  }
  check_table(hybrid);
}

// fp32 is read and bf16 written, bf16 read and fp32 written: 12 bytes an element under DDP; under
// stage 2 the second half of a third alone.
TEST_CASE("a step's time has the casts' traffic") {
  const auto copied = [](int zero) {
    Strategy s = tests::strategy(models::Stack::plimsoll, zero);
    s.grad_dtype = DType::fp32;
    s.data.reduce_dtype = DType::bf16;
    const models::ModelSpec model = tests::small(2);
    Messages messages;
    write_messages(model_parts(model, s), s, messages);
    double bytes = 0;
    for (const Message& m : messages) bytes += m.copied * static_cast<double>(m.count);
    return bytes;
  };
  CHECK(copied(0) == 12 * (2 * 123136 + 25472 + 25600));
  CHECK(copied(2) == 8 * (2 * 123144 + 25488 + 25608));
}

// FSDP's dtype stays with a strategy that is asked about without sharding, where nothing reads it.
TEST_CASE("other stacks refuse it, but for FSDP, whose reduce dtype it is") {
  const auto refusal = [](models::Stack stack, int zero, std::optional<DType> gradients) {
    Strategy s = tests::strategy(stack, zero);
    s.data.reduce_dtype = DType::bf16;
    s.grad_dtype = gradients;
    try {
      (void)tests::plan_of(s);
    } catch (const Error& error) {
      return error.message().substr(0, error.message().find(" ("));
    }
    return std::string();
  };
  using models::Stack;
  for (const int zero : {0, 1}) {
    CHECK(refusal(Stack::pytorch, zero, {}) == "--reduce-dtype bf16: DDP's communication hooks");
    CHECK(refusal(Stack::pytorch, zero, DType::bf16).empty());
  }
  for (const int zero : {2, 3}) CHECK(refusal(Stack::pytorch, zero, {}).empty());
  for (const int zero : {0, 1, 2, 3})
    CHECK(refusal(Stack::deepspeed, zero, {}) == "--stack deepspeed: --reduce-dtype");
}

}  // namespace
}  // namespace plimsoll::planner::plimsoll_stack
