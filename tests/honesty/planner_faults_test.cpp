// Faults of the planner: the program of a defective stack is held against an honest run.
#include <doctest/doctest.h>

#include <functional>

#include "tests/honesty/defective_plan.h"
#include "tests/honesty/scenario.h"

namespace plimsoll::honesty {
namespace {

using models::Access;
using models::Phase;
using models::StepProgram;

struct Fault {
  const char* what;
  Case workload;
  std::function<void(StepProgram&)> edit;
  const char* named;  // what the first difference must say
};

Case recomputing() {
  Case c = llama(1, 0);
  c.strategy.recompute.kind = models::RecomputeKind::full;
  return c;
}

Case adapted() {
  Case c = llama(2, 1);
  c.strategy.lora = models::Lora{.rank = 3, .alpha = 6, .dropout = 0.25, .targets = {"all-linear"}};
  return c;
}

Case in_8_bits(std::int64_t ranks, int zero) {
  Case c = llama(ranks, zero);
  c.strategy.optimizer = models::Optimizer::adam8bit;
  return c;
}

void halve(StepProgram& program, const char* name) {
  models::TensorDecl& decl = tensor(program, name);
  decl.bytes = Bytes(decl.bytes.value() / 2);
}

void swap_with_next(StepProgram& program, const char* name, Phase phase) {
  models::Op& first = op(program, name, phase);
  std::swap(first, *(&first + 1));
}

// Lives and deaths of activations. The backward comes to the last layer first.
std::vector<Fault> wrong_lifetimes() {
  return {
      {"an activation freed too early: attention's backward reads its output too", llama(1, 0),
       [](StepProgram& p) {
         forget(p, op(p, "self_attn.attention", Phase::backward),
                id_of(p, "self_attn.attention.out"));
       },
       "layers.2.self_attn.attention.out (3,840 B): dies"},  // 20 tokens, 6 heads of 8, 4 B
      {"a temporary held too long: the MLP's gradient until the norm's backward", llama(1, 0),
       [](StepProgram& p) {
         touch(p, op(p, "post_attention_layernorm", Phase::backward),
               {.tensor = id_of(p, "mlp.down_proj.input.grad")});
       },
       "layers.2.mlp.down_proj.input.grad"},
      {"a late destructor: the gradient of attention's result one op longer", llama(2, 0),
       [](StepProgram& p) {
         touch(p, op(p, "self_attn.rotary", Phase::backward),
               {.tensor = id_of(p, "self_attn.attention.out.grad")});
       },
       "layers.2.self_attn.attention.out.grad"},
      {"the masked input of an adapter held to the next op", adapted(),
       [](StepProgram& p) {
         touch(p, op(p, "self_attn.q_proj.lora_B", Phase::forward),
               {.tensor = id_of(p, "self_attn.q_proj.lora_dropout.out")});
       },
       "layers.0.self_attn.q_proj.lora_dropout.out"},
      {"a packed weight's values kept to the next op", packed(1, 0),
       [](StepProgram& p) {
         touch(p, op(p, "self_attn.k_proj.lora_A", Phase::forward),
               {.tensor = id_of(p, "self_attn.q_proj.weight.dequantized")});
       },
       "layers.0.self_attn.q_proj.weight.dequantized (2,304 B): dies"},
      {"a missing recomputation", recomputing(),
       [](StepProgram& p) { leave_out(p, "mlp.gate_proj", Phase::recompute); },
       "layers.2.mlp.gate_proj"},
      {"the stream's gradient forgotten before the embedding's backward", llama(1, 0),
       [](StepProgram& p) {
         forget(p, op(p, "embeddings", Phase::backward), id_of(p, "lm_head.input.grad"));
       },
       "lm_head.input.grad"},
      {"an in-place sum planned as a copy", llama(1, 0),
       [](StepProgram& p) {
         models::TensorDecl copy = tensor(p, "self_attn.residual");
         copy.name = "self_attn.residual.copy";
         p.tensors.push_back(copy);
         touch(p, op(p, "self_attn.residual", Phase::forward),
               {.tensor = static_cast<models::TensorId>(p.tensors.size() - 1)});
       },
       "layers.0.self_attn.residual.copy"},
  };
}

// Casts of a layer's 6000 elements while ranks exchange them.
std::vector<Fault> wrong_casts() {
  return {
      {"a cast as wide as what it is of", cast(2, 1),
       [](StepProgram& p) {
         CHECK(tensor(p, "gradients.compressed").bytes == Bytes(12'000));
         tensor(p, "gradients.compressed").bytes = Bytes(24'000);
       },
       "layers.2.gradients.compressed"},
      {"a cast that ends where it was sent", cast(2, 0),
       [](StepProgram& p) {
         forget(p, op(p, "reduced", Phase::backward), id_of(p, "gradients.compressed"));
       },
       "layers.2.gradients.compressed (12,000 B): dies"},
      {"whole gradients held beside their cast", cast(2, 2),
       [](StepProgram& p) {
         touch(p, op(p, "reduced", Phase::backward), {.tensor = id_of(p, "gradients"), .delta = 1});
       },
       "layers.2.gradients (24,000 B): dies"},
  };
}

// Parameters, gradients, states, and how they move between ranks.
std::vector<Fault> wrong_states() {
  return {
      {"one layer too many", llama(1, 0), [](StepProgram& p) { ++p.groups.front().count; },
       "layers.3."},
      {"statistics in 16 bits", llama(1, 0),
       [](StepProgram& p) { halve(p, "input_layernorm.statistics"); },
       "layers.0.input_layernorm.statistics"},
      // Of a layer: q and o 2 · 24 · 48, k and v 2 · 24 · 16, MLP 3 · 24 · 40, norms 2 · 24: 6000
      // elements, 24000 B; seven pieces of 3428.6 B, and of 3440 B where each is a multiple of 16.
      {"a shard without padding", llama(7, 3),
       [](StepProgram& p) {
         CHECK(tensor(p, "parameters").bytes == Bytes(3440));
         tensor(p, "parameters").bytes = Bytes(3429);
       },
       "layers.0.parameters"},
      {"a gradient bucket one element too long", llama(2, 0),
       [](StepProgram& p) { tensor(p, "gradients").bytes += Bytes(4); }, "layers.2.gradients"},
      {"gathered parameters not freed after forward", llama(2, 3),
       [](StepProgram& p) {
         touch(p, op(p, "loss", Phase::forward), {.tensor = id_of(p, "parameters.gathered")});
       },
       "layers.0.parameters.gathered"},
      {"a prefetch one unit too deep: the first layer along with the embedding", llama(2, 3),
       [](StepProgram& p) {
         touch(p, op(p, "gather", Phase::forward),
               {.tensor = id_of(p, "parameters.gathered"), .delta = 1, .access = Access::write});
       },
       "layers.0.parameters.gathered (24,000 B): born op 0"},
      {"whole gradients gone before they are reduced", llama(2, 2),
       [](StepProgram& p) {
         models::Op& reduce = op(p, "reduce", Phase::backward);
         reduce.operand_count = 0;
         models::Op& taken = op(p, "reduced", Phase::backward);
         for (std::uint32_t i = 0; i < taken.operand_count; ++i)
           p.operands[taken.operand_begin + i].access = Access::read;
         taken.operand_count = 0;
       },
       "gradients"},
      {"moments in 16 bits", llama(2, 1), [](StepProgram& p) { halve(p, "exp_avg"); },
       "layers.0.exp_avg"},
      {"a scale for 512 moments instead of 256", in_8_bits(2, 1),
       [](StepProgram& p) { halve(p, "exp_avg_sq.absmax"); },
       "layers.0.exp_avg_sq.absmax, born before the step: 24 B predicted, 48 B measured"},
      // A layer's 6000 elements are 12 blocks of 256 for either rank: 3072 bytes, and not 3000.
      {"a shard of moments in 8 bits that does not end with a block", in_8_bits(2, 3),
       [](StepProgram& p) {
         CHECK(tensor(p, "exp_avg").bytes == Bytes(3072));
         tensor(p, "exp_avg").bytes = Bytes(3000);
       },
       "layers.0.exp_avg"},
      {"a packed weight made anew in fp32", packed(2, 3),
       [](StepProgram& p) {
         tensor(p, "mlp.up_proj.weight.dequantized").bytes =
             tensor(p, "mlp.up_proj.weight.dequantized").bytes * 2;
       },
       "layers.0.mlp.up_proj.weight.dequantized"},
      // Of a layer: norms 2 · 24 in bf16, 96 B. Seven weights of 1152 (q, o), 384 (k, v) and 960
      // values: 576, 192 and 480 B of codes; 18, 6 and 15 scales of a byte in 32, 16 and 16 B; 16 B
      // for the scales' scale, 16 for the offset. 2 · 640 + 2 · 240 + 3 · 528 = 3344, and 3360 in
      // two pieces; adapters in fp32: 3 · (24 + 48) = 216 elements for each of q and o, 120 for k
      // and v, 192 for the MLP's: 1248, 4992 B. Of all that half, 4224 B.
      {"scales' scales forgotten", packed(2, 3),
       [](StepProgram& p) {
         CHECK(tensor(p, "parameters").bytes == Bytes(4224));
         tensor(p, "parameters").bytes -= Bytes(7 * 8);
       },
       "layers.0.parameters, born before the step: 4,168 B predicted, 4,224 B measured"},
      {"no buffer for the ids",
       llama(1, 0),  // never touched: a tensor of the step would not be born at all
       [](StepProgram& p) { tensor(p, "batch.ids").residency = models::Residency::step; },
       "batch.ids"},
      {"gradients that outlive the step", llama(2, 0),
       [](StepProgram& p) { tensor(p, "gradients").residency = models::Residency::persistent; },
       "layers.0.gradients"},
      {"half of the workspace", llama(1, 0), [](StepProgram& p) { halve(p, "workspace"); },
       "workspace"},
  };
}

// What is not about one tensor's bytes or life.
std::vector<Fault> wrong_words() {
  return {
      {"logits in another category", llama(1, 0),
       [](StepProgram& p) { tensor(p, "lm_head.out").category = models::Category::activations; },
       "lm_head.out"},
      {"a tensor under another name", llama(1, 0),
       [](StepProgram& p) { tensor(p, "mlp.product").name = "mlp.result"; }, "layers.0.mlp.result"},
      {"two ops in another order", llama(1, 0),
       [](StepProgram& p) { swap_with_next(p, "self_attn.k_proj", Phase::forward); },
       "layers.0.self_attn.k_proj"},
      {"what is made again counted as backward", recomputing(),
       [](StepProgram& p) { op(p, "mlp.up_proj", Phase::recompute).phase = Phase::backward; },
       "recompute layers.2.mlp.up_proj"},
      {"scratch that nobody allocates", llama(1, 0),
       [](StepProgram& p) { op(p, "mlp.act", Phase::forward).scratch = Bytes(1 << 20); },
       "high water of op 12 (forward layers.0.mlp.act)"},
  };
}

void check_caught(const std::vector<Fault>& faults) {
  for (const Fault& fault : faults) {
    CAPTURE(fault.what);
    const witness::Measured run = witness::measured(fault.workload);
    witness::Predicted plan = witness::predicted(fault.workload);
    CHECK(first_difference(prediction_of(fault.workload, plan), run) == "");
    fault.edit(plan.program);
    const std::string difference = first_difference(prediction_of(fault.workload, plan), run);
    CAPTURE(difference);
    CHECK(difference.find(fault.named) != std::string::npos);
  }
}

TEST_CASE("a plan with a wrong lifetime is caught, and the tensor named") {
  check_caught(wrong_lifetimes());
}
TEST_CASE("a plan with wrong states or sharding is caught, and the tensor named") {
  check_caught(wrong_states());
}
TEST_CASE("a plan with a wrong cast of gradients is caught, and the tensor named") {
  check_caught(wrong_casts());
}
TEST_CASE("a plan with another order, phase, name or category is caught, and the op named") {
  check_caught(wrong_words());
}

}  // namespace
}  // namespace plimsoll::honesty
