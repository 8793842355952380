// What a plan of stack deepspeed says that it assumed: each row beside a plan that lacks it.
#include <doctest/doctest.h>

#include <string>
#include <vector>

#include "tests/planner/deepspeed_tiny.h"

using namespace plimsoll;
using models::OptimizerImpl;
using models::Precision;
using models::Strategy;
using tests::Asked;

namespace {

// What is said of it, with its basis; "" where nothing is.
std::string said_by(Asked& asked, const std::string& what) {
  std::string found;
  for (const reports::Assumption& a : planner::plan(asked.question).assumptions)
    if (a.what == what) {
      CHECK(found.empty());
      CHECK_FALSE(a.source.empty());
      found = a.value + " " + a.basis;
    }
  return found;
}
template <typename Change>
std::string said(int zero, const std::string& what, Change change) {
  Asked asked(zero);
  change(asked.strategy());
  return said_by(asked, what);
}
// Liger has kernels of Llama, and not of GPT-2.
template <typename Change>
std::string said_of_llama(int zero, std::int64_t gpus, const std::string& what, Change change) {
  Asked asked(zero, gpus);
  asked.model = models::read_model(
      R"({"model_type": "llama", "hidden_size": 8, "vocab_size": 11, "intermediate_size": 16,
          "num_attention_heads": 2, "num_hidden_layers": 1, "max_position_embeddings": 4})",
      "tiny", "tiny", {});
  change(asked.strategy());
  return said_by(asked, what);
}

void plain(Strategy&) {}
void mixed(Strategy& s) {
  s.precision = Precision::bf16_mixed;
}
void lists(Strategy& s) {
  mixed(s), s.optimizer_impl = OptimizerImpl::foreach;
}
void states(Strategy& s) {
  s.offload.optimizer = true;
}
void params(Strategy& s) {
  s.offload.params = true;
}
void both(Strategy& s) {
  states(s), params(s);
}
void files(Strategy& s) {
  both(s), s.offload.nvme = true;
}
void liger(Strategy& s) {
  s.kernels = models::Kernels::liger;
}
void fused_loss(Strategy& s) {
  liger(s), s.loss = models::Loss::fused;
}

}  // namespace

TEST_CASE("a plan of DeepSpeed names the versions, the wrapper and the buckets that it is of") {
  const std::string wrapper = "optimizer wrapper", buckets = "gradient buckets";
  CHECK(said(2, "versions modelled", plain) ==
        "\"deepspeed 0.19.8, torch 2.11.0, transformers 5.17.0\" derived");
  CHECK(said(0, wrapper, plain) == "\"the optimizer itself\" derived");
  CHECK(said(0, wrapper, mixed) == "\"FP16_Optimizer\" derived");
  CHECK(said(0, wrapper, lists) == "\"FP16_UnfusedOptimizer\" derived");
  for (const int zero : {1, 2})
    CHECK(said(zero, wrapper, plain) == "\"DeepSpeedZeroOptimizer (stage_1_and_2.py)\" derived");
  CHECK(said(3, wrapper, plain) == "\"DeepSpeedZeroOptimizer_Stage3 (stage3.py)\" derived");

  const auto overlap = [](Strategy& s) { s.data.deepspeed.overlap_comm = true; };
  CHECK(said(0, buckets, plain).empty());
  for (const int zero : {1, 2})
    CHECK(said(zero, buckets, plain) == "\"500000000 elements\" derived");
  CHECK(said(2, buckets, overlap) == "\"500000000 elements, two of them (overlap_comm)\" derived");
  CHECK(said(3, buckets, [](Strategy& s) {
          s.data.deepspeed.overlap_comm = false;
          s.data.deepspeed.reduce_bucket_size = 300;
        }) == "\"300 elements\" derived");

  const auto turns = [](Strategy& s) { s.data.deepspeed.round_robin_gradients = true; };
  for (const int zero : {0, 3}) CHECK(said(zero, "partitions", turns).empty());
  for (const int zero : {1, 2}) {
    CHECK(said(zero, "partitions", turns) ==
          "\"parameters in turn (round_robin_gradients)\" derived");
    CHECK(said(zero, "partitions", plain).empty());
  }
}

TEST_CASE("what ZeRO-3 gathers is said, and the head's weight where Liger's loss reads it") {
  const std::string gathered = "gathered parameters", head = "head's weight";
  for (const int zero : {0, 1, 2}) CHECK(said(zero, gathered, plain).empty());
  CHECK(said(3, gathered, plain) ==
        "\"prefetched up to stage3_max_live_parameters (1000000000 elements)\" derived");
  CHECK(said(3, gathered, [](Strategy& s) { s.data.deepspeed.max_live_parameters = 7; }) ==
        "\"prefetched up to stage3_max_live_parameters (7 elements)\" derived");
  CHECK(said_of_llama(3, 3, head, fused_loss) ==
        "\"gathered from a micro-batch's begin to its end: the model reads it\" derived");
  CHECK(said_of_llama(3, 3, head, liger).empty());
  CHECK(said_of_llama(3, 1, head, fused_loss).empty());  // nothing is gathered
  CHECK(said_of_llama(2, 3, head, fused_loss).empty());
  for (const int zero : {0, 2, 3}) {
    CHECK(said_of_llama(zero, 3, "kernels", plain).empty());
    CHECK(said_of_llama(zero, 3, "kernels", liger).starts_with("\"liger_kernel 0.8.5, as the "));
  }
}

TEST_CASE("what is on the host or in files is said of what was asked to go there") {
  const std::string optimizer = "optimizer on the host", parameters = "parameters on the host";
  for (const int zero : {1, 2, 3}) {
    CHECK(said(zero, optimizer, states).starts_with("\"masters, gradients and states; "));
    CHECK(said(zero, parameters, states).empty());
  }
  for (const std::string& what : {optimizer, parameters, std::string("files")})
    CHECK(said(3, what, plain).empty());
  CHECK(said(3, optimizer, params).empty());
  CHECK(said(3, parameters, params).starts_with("\"a rank's parts, twice: "));
  CHECK_FALSE(said(3, optimizer, both).empty());
  CHECK_FALSE(said(3, parameters, both).empty());
  CHECK(said(3, "files", both).empty());
  CHECK(said(3, "files", files).starts_with("\"through buffers that mlock pins; "));
  CHECK(said(3, optimizer, files).empty());
  CHECK(said(3, parameters, files).empty());
}

// estimate_zero2_model_states_mem_needs: 2 bytes of each of 1,008 parameters, and 18 of a third of
// them; estimate_zero3_…: 4 of each that the largest module has, c_fc's 256 and its bias's 32.
TEST_CASE("DeepSpeed's own estimate stands beside the plan's states where it is one of them") {
  const std::string own = "model states by DeepSpeed's own estimator, bytes";
  const std::string planned = "model states as planned, bytes";
  const auto partly = [](Strategy& s) { s.freeze = {"*"}, s.train = {"*ln_f*"}; };
  CHECK(said(2, own, plain) == std::to_string(2 * 1008 + 18 * 1008 / 3) + " derived");
  CHECK(said(3, own, plain) == std::to_string(4 * (256 + 32) + 18 * 1008 / 3) + " derived");
  Asked large(3);  // whose table of 100 rows is the largest: 800 of 1,720
  large.model = models::read_model(
      R"({"model_type": "gpt2", "n_embd": 8, "n_head": 2, "n_positions": 4, "vocab_size": 100,
          "n_layer": 1})",
      "tiny", "tiny", {});
  CHECK(said_by(large, own) == std::to_string(4 * 800 + 18 * 1720 / 3) + " derived");
  for (const int zero : {0, 1}) {
    CHECK(said(zero, own, plain).empty());
    CHECK(said(zero, planned, plain).empty());
  }
  for (const int zero : {2, 3}) {
    CHECK(said(zero, own, partly).empty());
    CHECK(said(zero, own, states).empty());
  }
  CHECK(said(3, own, params).empty());
  // In the allocator's blocks of 512 bytes. Stage 2: all parameters; masters and two moments of
  // 336; gradients of the six parameters of which rank 2 has some, 256 + 32 + 256 + 8 + 8 + 8.
  CHECK(said(2, planned, plain) == std::to_string(4096 + 3 * 1536 + 2560) + " derived");
  // Stage 3: a third of each parameter, 342 in all, five times over; and all, which are small.
  CHECK(said(3, planned, plain) == std::to_string(5 * 1536 + 4096) + " derived");
}

TEST_CASE("frozen weights that reentrant checkpoints hold under ZeRO-3 are said to stay") {
  const auto adapted = [](Strategy& s) {
    mixed(s);
    s.lora = models::Lora{.rank = 2};
    s.recompute.kind = models::RecomputeKind::full;
  };
  const auto reentrant = [&](Strategy& s) { adapted(s), s.use_reentrant = true; };
  const std::string what = "frozen weights";
  CHECK(said_of_llama(3, 2, what, reentrant).find("--use-reentrant no") != std::string::npos);
  CHECK(said_of_llama(3, 2, what, adapted).empty());
  CHECK(said_of_llama(2, 2, what, reentrant).empty());
  CHECK(said_of_llama(3, 1, what, reentrant).empty());
  CHECK(said_of_llama(3, 2, what, [&](Strategy& s) { reentrant(s), s.lora.reset(); }).empty());
}
