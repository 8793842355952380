// What loading a model takes, against from_pretrained, PEFT and model.to on a CUDA runtime that
// computes nothing: tests/golden/load_runs_*.json (tools/oracle/load_runs.py).
#include <doctest/doctest.h>

#include <algorithm>
#include <string>

#include "models/model_catalog.h"
#include "planner/loading/loading.h"
#include "planner/loading/weights.h"
#include "planner/plan.h"
#include "tests/planner/load_checks.h"

using namespace plimsoll;
using planner::loading::comes_before;
using tests::check_runs;
using tests::refusal_of;

TEST_CASE("loads of Transformers 5.17, stage by stage") {
  // GPT-NeoX is measured, and not planned: something else is in the allocator; StableLM's step is
  // not.
  check_runs("load_runs_5.17.json", 34, 2);
}

TEST_CASE("loads of Transformers 4.57 and 5.23") {
  // GPT-2's are not planned there, nor those that are not of 5.17.
  check_runs("load_runs_4.57.json", 32, 4);
  check_runs("load_runs_5.23.json", 15);
}

TEST_CASE("loads of gpt-oss, whose checkpoint is unpacked from MXFP4") {
  // Six were drawn. A checkpoint of 120B is more than could be mapped. What is reserved follows how
  // far threads have loaded when each weight is unpacked: of 20B within a block.
  check_runs("load_runs_mxfp4.json", 11, 0, 15);
}

TEST_CASE("loads of checkpoints that bitsandbytes packed") {
  check_runs("load_runs_packed.json", 26);
}

// Ten were drawn. gptqmodel 7.3.4.
TEST_CASE("loads of AWQ's checkpoints, with a device map") {
  check_runs("load_runs_awq.json", 14);
}

TEST_CASE("AWQ's parts are loaded as they are, and counted whole by the warm-up") {
  const models::ModelSpec model = models::catalog_model("llama-2-7b");
  planner::Question question{.model = &model};
  models::Strategy& s = question.strategy;
  s.lora = models::Lora{.rank = 16, .targets = {"q_proj"}};
  s.quantize = {.storage = models::find_packed_storage("awq"), .kbit_prep = false};
  s.precision = models::Precision::fp16_mixed;
  s.param_dtype = DType::fp16;
  question.load = {.asked = true, .device_map = true};
  // Of 32 layers four 4,096 by 4,096 and three 4,096 by 11,008: half a byte a value, for each 128
  // two bytes and half a one; tables and norms in fp16; two blocks of frequencies.
  constexpr std::int64_t kValues = 32 * (4 * 4096LL * 4096 + 3 * 4096LL * 11008);
  const reports::Load load = planner::load_of(question);
  CHECK(load.stages.front().resident ==
        Bytes(kValues / 2 + kValues / 128 * 5 / 2 + 2 * (2 * 32000 * 4096 + 65 * 4096) + 2 * 512));
  CHECK(load.stages.front().reserved == Bytes(4'018'143'232));  // of the real load, to the byte
  CHECK(load.stages.back().name == "get_peft_model");
  question.load.device_map = false;
  CHECK(refusal_of(question).starts_with(
      "--phase load of --quantize awq without --device-map auto: on the host gptqmodel chooses "));
  question.load.device_map = true;
  s.transformers = {4, 57, 6};
  CHECK(refusal_of(question).starts_with("--phase load of a packed checkpoint with "));
  s.transformers = models::kTransformers;
  s.quantize->storage = models::find_packed_storage("gptq");
  CHECK(refusal_of(question).starts_with(
      "--phase load with --quantize gptq: the planned linears are fms-acceleration's"));
}

TEST_CASE("a packed checkpoint is loaded as it is, and by Transformers 5 alone") {
  const models::ModelSpec model = models::catalog_model("llama-3.2-1b");
  planner::Question question{.model = &model};
  question.strategy.lora = models::Lora{.rank = 16, .targets = {"all-linear"}};
  question.strategy.quantize = {.storage = models::find_packed_storage("nf4"), .kbit_prep = false};
  question.strategy.param_dtype = DType::bf16;
  question.load = {.asked = true, .packed = true};
  // 973,078,528 values at half a byte, a scale in fp32 for 64 of them, a block of 512 bytes with
  // the 16 values for each of 112 weights; 262,670,336 + 67,584 values in bf16; two blocks of
  // frequencies.
  const reports::Load load = planner::load_of(question);
  CHECK(load.stages.front().resident ==
        Bytes(486'539'264 + 60'817'408 + 112 * 512 + 2 * (262'668'288 + 67'584) + 2 * 512));
  question.batch.seq_len = 64;
  question.remedies = false;
  const auto assumptions = planner::plan(question).assumptions;
  CHECK(std::ranges::any_of(assumptions, [](const reports::Assumption& assumption) {
    return assumption.what == "checkpoint that is loaded" &&
           assumption.value.find("packed already") != std::string::npos;
  }));
  question.strategy.transformers = {4, 57, 6};
  CHECK(refusal_of(question) ==
        "--phase load of a packed checkpoint with --transformers-version 4.57.6: 5.17 was read and "
        "measured");
}

TEST_CASE("an answer about gpt-oss's load says that its checkpoint is taken to be in MXFP4") {
  const auto says = [](const char* name, bool load) {
    const models::ModelSpec model = models::catalog_model(name);
    planner::Question question{.model = &model};
    question.strategy.precision = models::Precision::bf16;
    question.strategy.param_dtype = DType::bf16;
    question.batch.seq_len = 64;
    question.remedies = false;
    if (model.model_type == "gpt_oss") question.strategy.attention = models::Attention::eager;
    question.load.asked = load;
    int said = 0;
    for (const reports::Assumption& assumption : planner::plan(question).assumptions)
      if (assumption.what == "checkpoint that is loaded") {
        CHECK(assumption.basis == "assumed");
        CHECK(assumption.value.find("MXFP4") != std::string::npos);
        ++said;
      }
    return said;
  };
  CHECK(says("gpt-oss-20b", true) == 1);
  CHECK(says("gpt-oss-20b", false) == 0);
  CHECK(says("llama-3.2-1b", true) == 0);
}

TEST_CASE("loads that were drawn when the plan was done") {
  // Four ask PEFT for adapters in bf16 where it makes them in fp32.
  check_runs("load_runs_draw_5.17.json", 20, 4);
  check_runs("load_runs_draw_4.57.json", 13, 3);
}

TEST_CASE("tensors are sorted as dot_natural_key sorts them") {
  // Numbers as numbers, and before words.
  CHECK(comes_before("model.layers.2.x", "model.layers.10.x"));
  CHECK(!comes_before("model.layers.10.x", "model.layers.2.x"));
  CHECK(comes_before("h.9.w", "h.a.w"));
  // A word before the same word with a number, and that by the number.
  CHECK(comes_before("experts.w.x", "experts.w1.x"));
  CHECK(comes_before("experts.w2.x", "experts.w10.x"));
  // Shorter before longer, words by their letters.
  CHECK(comes_before("lm_head.weight", "model.embed_tokens.weight"));
  CHECK(comes_before("model.norm", "model.norm.weight"));
  CHECK(!comes_before("model.norm.weight", "model.norm.weight"));
}

namespace {

// LoRA on a base in NF4, as PEFT prepares it, of few tokens.
planner::Question packed_question(const models::ModelSpec& model) {
  planner::Question question{.model = &model};
  question.strategy.lora = models::Lora{.rank = 16, .targets = {"all-linear"}};
  question.strategy.quantize = {.storage = models::find_packed_storage("nf4-dq"),
                                .kbit_prep = true};
  question.strategy.recompute.kind = models::RecomputeKind::full;
  question.batch.seq_len = 64;
  question.remedies = false;
  return question;
}

}  // namespace

TEST_CASE("the load or the step, whichever needs more, is what must fit") {
  const models::ModelSpec model = models::catalog_model("llama-3.1-70b");
  planner::Question question = packed_question(model);
  models::Strategy& s = question.strategy;
  s.precision = models::Precision::bf16;
  s.quantize->kbit_prep = false;
  s.lora->rank = 1;
  s.transformers = {4, 57, 6};
  question.batch.seq_len = 16;
  CHECK(!planner::plan(question).load);
  question.load.asked = true;
  // Before 5.0 a weight is there twice in 16 bits while it is packed; a step of few tokens unpacks
  // one at a time.
  const reports::Plan few = planner::plan(question);
  REQUIRE(few.load.has_value());
  CHECK(few.load->device.value() > few.device.value());
  CHECK(few.load->decides);
  CHECK(few.load->stage == "from_pretrained");
  // The warm-up asks for a byte a value where a card is as large; that is no need.
  CHECK(few.load->where == "caching_allocator_warmup");
  CHECK(few.load->needed.value() < few.load->reserved.value());
  // A card that is large enough for the step alone.
  question.cluster.memory = few.device;
  const reports::Plan between = planner::plan(question);
  CHECK(between.device.value() <= between.usable->value());
  CHECK(!between.load->fits);
  CHECK(!between.fits);
  CHECK((between.verdict == reports::Verdict::does_not_fit));
  question.load.asked = false;
  CHECK(planner::plan(question).fits);
  // Logits of many tokens are more than that.
  question.load.asked = true;
  question.batch.seq_len = 8192;
  question.cluster.memory = {};
  const reports::Plan many = planner::plan(question);
  CHECK(many.load->device.value() == few.load->device.value());
  CHECK(!many.load->decides);
}

TEST_CASE("the warm-up asks for no more than the card has, less 1.2 GiB") {
  const models::ModelSpec model = models::catalog_model("llama-3.2-1b");
  planner::Question question = packed_question(model);
  question.strategy.quantize = {};
  question.strategy.lora = {};
  question.strategy.param_dtype = DType::bf16;
  question.load = {.asked = true, .device_map = true};
  // 1,235,814,400 values of two bytes, in one segment of whole 2 MiB beside one of small blocks.
  constexpr std::int64_t kMiB = 1 << 20;
  const auto reserved = [&] { return planner::load_of(question).reserved.value() / kMiB; };
  CHECK(reserved() >= 2358);
  CHECK(reserved() <= 2358 + 24);
  // Of 3 GiB 1.8 are asked for: 1844 MiB; what does not find room there is asked for one by one,
  // in segments of 20 MiB or of its own size.
  question.cluster.memory = Bytes(std::int64_t{3} << 30);
  CHECK(reserved() > 2358);
  // Less than 1.2 GiB: none.
  question.cluster.memory = Bytes(std::int64_t{1} << 30);
  CHECK(planner::load_of(question).stages.front().peak >= Bytes(2'471'628'800));
}

TEST_CASE("weights are loaded in what is said, or in what their release takes") {
  const models::ModelSpec model = models::catalog_model("llama-3.2-1b");
  models::Strategy s = packed_question(model).strategy;
  CHECK(planner::loaded_dtype(model, s) == DType::bf16);  // the checkpoint's
  s.transformers = {4, 57, 6};
  CHECK(planner::loaded_dtype(model, s) == DType::fp16);
  s.quantize->kbit_prep = false;
  CHECK(planner::loaded_dtype(model, s) == DType::fp32);  // as the step is planned
  s.param_dtype = DType::bf16;
  CHECK(planner::loaded_dtype(model, s) == DType::bf16);
  s = {};
  s.precision = models::Precision::fp16;
  CHECK(planner::loaded_dtype(model, s) == DType::fp16);
}

TEST_CASE("loads that were not measured are refused by name") {
  const models::ModelSpec model = models::catalog_model("llama-3.2-1b");
  planner::Question question = packed_question(model);
  CHECK(refusal_of(question).empty());
  const auto refused = [&](auto change, const std::string& begin) {
    planner::Question other = question;
    change(other);
    const std::string message = refusal_of(other);
    CHECK_MESSAGE(message.starts_with("--phase load " + begin), message);
  };
  using Q = planner::Question;
  refused([](Q& q) { q.strategy.stack = models::Stack::deepspeed; }, "on --stack deepspeed: ");
  refused([](Q& q) { q.strategy.stack = models::Stack::plimsoll; }, "on --stack plimsoll: ");
  refused([](Q& q) { q.strategy.data.zero = 3; }, "with --zero 3: ");
  refused(
      [](Q& q) {
        q.strategy.transformers = {5, 16, 0};
      },
      "with --transformers-version 5.16.0: ");
  refused([](Q& q) { q.strategy.torch = {2, 8, 0}; }, "with --torch-version 2.8.0: ");
  refused([](Q& q) { q.strategy.lora->dora = true; }, "with --use-dora: ");
  refused([](Q& q) { q.strategy.lora->modules_to_save = {"embed_tokens"}; },
          "with --modules-to-save: ");
  refused([](Q& q) { q.strategy.offload.optimizer = true; }, "with --offload: ");
  refused([](Q& q) { q.strategy.quantize->storage = models::find_packed_storage("gptq"); },
          "with --quantize gptq: ");
  const models::ModelSpec mixture = models::catalog_model("mixtral-8x7b");
  refused([&](Q& q) { q.model = &mixture; }, "of model_type 'mixtral': ");
  // MXFP4 is unpacked to bf16, and is not packed once more.
  const models::ModelSpec gpt_oss = models::catalog_model("gpt-oss-20b");
  refused([&](Q& q) { q.model = &gpt_oss, q.strategy.param_dtype = DType::bf16; },
          "of gpt_oss with --quantize nf4");
  const auto loads = [&](Q& q, DType dtype) {
    q.model = &gpt_oss;
    q.strategy.quantize.reset();
    q.strategy.param_dtype = dtype;
  };
  refused([&](Q& q) { loads(q, DType::fp32); }, "of gpt_oss in fp32: ");
  refused(
      [&](Q& q) {
        loads(q, DType::bf16), q.strategy.transformers = {5, 23, 0};
      },
      "of model_type 'gpt_oss': ");
}
