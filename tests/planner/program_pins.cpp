#include "tests/planner/program_pins.h"

#include <fmt/format.h>

#include <array>
#include <random>

#include "models/gpu_catalog.h"
#include "models/model_reader.h"
#include "models/run_names.h"
#include "planner/plan.h"
#include "planner/program/timeline.h"
#include "planner/stack_step.h"
#include "tests/fnv.h"

namespace plimsoll::tests {

namespace {

using namespace models;

class Hash {
 public:
  Hash& add(std::string_view text) {
    value_ = fnv1a(text, value_);
    return add(static_cast<std::int64_t>(text.size()));
  }
  Hash& add(std::int64_t number) {
    std::array<char, 8> bytes{};  // the lowest first, whatever the machine's order
    for (std::size_t i = 0; i < bytes.size(); ++i)
      bytes[i] = static_cast<char>(static_cast<std::uint64_t>(number) >> 8 * i & 0xff);
    value_ = fnv1a({bytes.data(), bytes.size()}, value_);
    return *this;
  }
  Hash& add(Bytes bytes) { return add(bytes.value()); }
  std::uint64_t value() const { return value_; }

 private:
  std::uint64_t value_ = kFnvBasis;
};

// std::mt19937_64 is the same everywhere; its distributions are not.
class Draw {
 public:
  explicit Draw(std::uint64_t number) : random_(number * 0x9E3779B97F4A7C15u + 12) {}

  std::int64_t between(std::int64_t least, std::int64_t most) {
    return least +
           static_cast<std::int64_t>(random_() % static_cast<std::uint64_t>(most - least + 1));
  }
  bool once_in(std::int64_t times) { return between(1, times) == 1; }
  template <class T>
  T one_of(std::initializer_list<T> list) {
    return list.begin()[between(0, static_cast<std::int64_t>(list.size()) - 1)];
  }

 private:
  std::mt19937_64 random_;
};

std::string drawn_config(Draw& draw) {
  const std::int64_t layers = draw.between(1, 7), vocab = draw.between(50, 40000);
  if (draw.once_in(5)) {
    const std::int64_t heads = draw.between(1, 6);
    return fmt::format(
        R"({{"model_type":"gpt2","n_embd":{},"n_head":{},"n_layer":{},"vocab_size":{},)"
        R"("n_positions":2048,"attn_pdrop":{},"resid_pdrop":{},"embd_pdrop":{}}})",
        heads * 64, heads, layers, vocab, draw.one_of({"0.0", "0.1"}), draw.one_of({"0.0", "0.1"}),
        draw.one_of({"0.0", "0.1"}));
  }
  const char* family = draw.one_of({"llama", "mistral", "qwen2", "qwen3"});
  const std::int64_t kv = draw.between(1, 3), heads = kv * draw.between(1, 4);
  const bool tied = draw.once_in(2);
  return fmt::format(R"({{"model_type":"{}","hidden_size":{},"num_attention_heads":{},)"
                     R"("num_key_value_heads":{},"head_dim":64,"intermediate_size":{},)"
                     R"("vocab_size":{},"num_hidden_layers":{},"tie_word_embeddings":{}}})",
                     family, heads * 64, heads, kv, 32 * draw.between(4, 60), vocab, layers, tied);
}

void draw_training(Draw& draw, Strategy& s) {
  if (draw.once_in(4)) {
    s.lora = Lora{.rank = draw.between(1, 64), .targets = {"all-linear"}};
    s.lora->dropout = draw.one_of({0.0, 0.1});
    if (draw.once_in(3)) s.lora->targets = {"attention"};
    if (draw.once_in(3)) s.param_dtype = DType::bf16;
  } else if (draw.once_in(8)) {
    s.freeze = {draw.one_of({"*embed*", "*layers.0.*", "*mlp*", "*norm*", "*"})};
    if (draw.once_in(2)) s.train = {draw.one_of({"*norm*", "*lm_head*", "*down_proj*"})};
  }
  s.optimizer = draw.one_of(
      {Optimizer::adamw, Optimizer::adamw, Optimizer::adamw, Optimizer::sgd, Optimizer::momentum});
  if (draw.once_in(2))
    s.optimizer_impl =
        draw.one_of({OptimizerImpl::foreach, OptimizerImpl::fused, OptimizerImpl::for_loop});
}

Strategy drawn_strategy(Draw& draw) {
  Strategy s;
  s.stack = draw.one_of({Stack::pytorch, Stack::pytorch, Stack::deepspeed, Stack::plimsoll});
  s.gpus = draw.one_of<std::int64_t>({1, 2, 3, 8, 16, 64});
  s.data.zero = s.gpus == 1 ? 0 : static_cast<int>(draw.between(0, 3));
  if (s.gpus >= 16 && s.data.zero >= 2 && draw.once_in(3)) s.data.shard_group = 8;
  if (s.stack == Stack::pytorch) {
    s.data.fsdp_version = draw.once_in(3) ? 1 : 2;
    s.data.gradient_as_bucket_view = s.data.zero == 0 && draw.once_in(3);
    s.hold_outputs = draw.once_in(6);
    s.kernels = draw.once_in(16) ? Kernels::liger : Kernels::eager;
    if (draw.once_in(5))
      s.transformers = draw.one_of<Release>({{4, 45, 2}, {4, 48, 1}, {4, 57, 0}});
  }
  s.precision = draw.one_of({Precision::bf16_mixed, Precision::bf16_mixed, Precision::fp32,
                             Precision::bf16, Precision::fp16_mixed, Precision::fp16});
  if (draw.once_in(6)) s.grad_dtype = DType::fp32;
  s.recompute = {draw.one_of({RecomputeKind::none, RecomputeKind::full, RecomputeKind::selective,
                              RecomputeKind::sqrt, RecomputeKind::every}),
                 draw.between(1, 4)};
  if (s.recompute.kind != RecomputeKind::every) s.recompute.layers = 1;
  s.attention =
      draw.one_of({Attention::flash, Attention::flash, Attention::eager, Attention::math});
  s.loss = draw.one_of({Loss::full, Loss::full, Loss::chunked, Loss::fused});
  s.deterministic = s.stack == Stack::plimsoll && draw.once_in(3);
  draw_training(draw, s);
  return s;
}

std::string hex(std::uint64_t value) {
  return fmt::format("{:016x}", value);
}

std::uint64_t hash_of_ops(const StepProgram& program, const planner::Timeline& timeline) {
  Hash hash;
  for (const planner::Moment& moment : timeline.steps) {
    const Op& op = program.ops[moment.at.op];
    hash.add(planner::name_of_op(program, moment.at)).add(static_cast<std::int64_t>(op.phase));
    hash.add(moment.high_water).add(moment.after);
  }
  return hash.value();
}

std::uint64_t hash_of_lifetimes(const StepProgram& program, const planner::Timeline& timeline) {
  std::uint64_t sum = 0;
  for (const planner::Lifetime& life : timeline.lifetimes) {
    const TensorDecl& tensor = program.tensors[static_cast<std::size_t>(life.tensor)];
    if (tensor.bytes == Bytes(0)) continue;  // nothing is allocated
    Hash hash;
    hash.add(planner::name_of_tensor(program, life.tensor, life.instance)).add(tensor.bytes);
    hash.add(static_cast<std::int64_t>(tensor.category))
        .add(static_cast<std::int64_t>(tensor.stream))
        .add(static_cast<std::int64_t>(tensor.residency));
    sum += hash.add(life.birth).add(life.death).value();
  }
  return sum;
}

std::uint64_t hash_of_messages(const reports::Plan& plan) {
  Hash hash;
  for (const reports::Collective& message : plan.collectives)
    hash.add(message.kind).add(message.count).add(message.array).add(message.group);
  return hash.add(plan.bytes_sent_per_gpu_per_step).value();
}

}  // namespace

std::string program_pin(std::uint64_t number) {
  Draw draw(number);
  const ModelSpec model = read_model(drawn_config(draw), "drawn", "drawn", {});
  planner::Question question;
  question.model = &model;
  question.cluster.gpu = find_gpu("h100");
  question.remedies = false;
  question.detail = planner::Detail::none;
  question.strategy = drawn_strategy(draw);
  question.batch = {.seq_len = draw.between(1, 32) * (draw.once_in(5) ? 31 : 32),
                    .micro_batch = draw.between(1, 6),
                    .grad_accum = draw.one_of<std::int64_t>({1, 1, 1, 2, 3, 5})};
  const std::string head = fmt::format("{} {}", number, models::name_of(question.strategy.stack));
  try {
    planner::StackStep step;
    planner::write_step(question, planner::model_parts(model, question.strategy), step);
    const planner::Timeline timeline = planner::unroll(step.program);
    const reports::Plan plan = planner::plan(question);
    return fmt::format("{} {} {} {} {} {} {} {:.6g} {:.6g}", head,
                       hex(hash_of_ops(step.program, timeline)),
                       hex(hash_of_lifetimes(step.program, timeline)), hex(hash_of_messages(plan)),
                       plan.peak.value(), plan.resident.value(), plan.reserved.value(),
                       plan.time.step_seconds.value_or(0), plan.hardware_flops_per_step);
  } catch (const Error& error) {
    if (error.kind() == ErrorKind::internal) throw;
    return head + " refused";
  }
}

}  // namespace plimsoll::tests
