#include "planner/stacks/pytorch/names.h"

#include <array>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>

#include "models/block.h"
#include "planner/stacks/pytorch/adapter_names.h"
#include "planner/stacks/pytorch/float8.h"
#include "planner/stacks/pytorch/tape_names.h"

namespace plimsoll::planner::pytorch {

namespace {

using models::interned;

ModuleNames make_module(const std::string& m, const std::string& parameter = ".weight",
                        Leaf leaf = Leaf::weight) {
  const auto name = [&](const char* suffix) { return interned(m + suffix); };
  const auto of = [&](const char* suffix) { return interned(m + parameter + suffix); };
  return {.module = name(""),
          .leaf = leaf,
          .out = name(".out"),
          .weight_cast = of(".cast"),
          .input_cast = name(".input.cast"),
          .weight_grad = of(".grad"),
          .weight_grad_low = of(".grad.low"),
          .weight_grad_new = of(".grad.new"),
          .weight_grad_sum = of(".grad.sum"),
          .input_grad = name(".input.grad"),
          .input_grad_low = name(".input.grad.low"),
          .grad_layout = name(".out.grad.contiguous"),
          .input_fp32 = name(".input.fp32"),
          .lora_mask = name(".lora.dropout.mask"),
          .statistics = name(".statistics"),
          .input_layout = name(".input.contiguous")};
}

LinearNames make_linear(const std::string& m) {
  const auto name = [&](const char* suffix) { return interned(m + suffix); };
  return {.base = make_module(m),
          .bias = make_module(m, ".bias", Leaf::bias),
          .a = make_module(m + ".lora_A", ".weight", Leaf::lora_a),
          .b = make_module(m + ".lora_B", ".weight", Leaf::lora_b),
          .b_bias = make_module(m + ".lora_B", ".bias", Leaf::lora_b_bias),
          .dropped = name(".lora.dropped"),
          .dropped_grad = name(".lora.dropped.grad"),
          .scaled = name(".lora.scaled"),
          .sum = name(".lora.sum"),
          .sum_grad = name(".lora.sum.grad"),
          .base_grad = name(".out.grad.base"),
          .scaled_grad = name(".lora.scaled.grad"),
          .a_input_grad = name(".lora.input.grad"),
          .low = name(".out.low"),
          .low_grad = name(".out.grad.low"),
          .cloned = name(".out.clone"),
          .scaled_cast = name(".lora.scaled.cast"),
          .scales = name(".weight.absmax"),
          .shifted_scales = name(".weight.absmax.shifted"),
          .unpacked = name(".weight.unpacked"),
          .half = name(".input.fp16"),
          .magnitude = name(".input.abs"),
          .outliers = name(".input.outliers"),
          .quantized = name(".input.int8"),
          .row_scales = name(".input.absmax"),
          .accumulated = name(".out.int32"),
          .half_out = name(".out.fp16"),
          .part = name(".lora.part"),
          .part_grad = name(".lora.part.grad"),
          .parts = name(".lora.parts"),
          .parts_grad = name(".lora.parts.grad"),
          .places = name(".lora.places"),
          .padded = name(".lora.padded")};
}

TorchaoNames make_torchao(const std::string& m) {
  return {.unscaled = interned(m + ".out.unscaled"),
          .unscaled_grad = interned(m + ".out.unscaled.grad"),
          .scaled = interned(m + ".out.scaled"),
          .viewed_grad = interned(m + ".out.viewed.grad"),
          .sum_grad = interned(m + ".out.sum.grad")};
}

DoraNames make_dora(const std::string& m) {
  const auto name = [&](const char* suffix) { return interned(m + ".dora" + suffix); };
  return {.magnitude = make_module(m + ".lora_magnitude_vector", ".weight", Leaf::magnitude),
          .again = make_module(m + ".dora.base"),
          .eye = name(".eye"),
          .eye_cast = name(".eye.cast"),
          .eye_a = name(".lora_A"),
          .gemm = name(".lora_weight"),
          .gemm_cast = name(".lora_weight.cast"),
          .scaled = name(".lora_weight.scaled"),
          .weight = name(".weight"),
          .weight_cast = name(".weight.cast"),
          .weight_sum = name(".weight.sum"),
          .norm = name(".weight_norm"),
          .norm_cast = name(".weight_norm.cast"),
          .scale = name(".scale"),
          .leave = name(""),
          .base_grad = name(".base.grad"),
          .both_grad = name(".grad"),
          .scale_grad = name(".scale.grad")};
}

Ia3Names make_ia3(const std::string& m) {
  const auto name = [&](const char* suffix) { return interned(m + suffix); };
  return {.vector = make_module(m + ".ia3_l", "", Leaf::lora_a),
          .copy = name(".ia3_l.copy"),
          .value = name(".ia3.input"),
          .value_grad = name(".ia3.input.grad")};
}

VeraNames make_vera(const std::string& m) {
  return {.a = make_module(m + ".vera_A", ""),
          .b = make_module(m + ".vera_B", ""),
          .lambda_b = make_module(m + ".vera_lambda_b", "", Leaf::lora_b),
          .lambda_d = make_module(m + ".vera_lambda_d", "", Leaf::lora_a),
          .returned = interned(m + ".vera"),
          .returned_grad = interned(m + ".vera.grad")};
}

OperandNames make_operand(const std::string& m) {
  const auto name = [&](const char* suffix) { return interned(m + suffix); };
  return {name(""),
          name(".cast"),
          name(".repeated"),
          name(".contiguous"),
          name(".grad"),
          name(".grad.wide"),
          name(".cast.grad"),
          name(".rotated.grad"),
          name(".grad.contiguous"),
          name(".wide"),
          name(".turned"),
          name(".rotated"),
          name(".turned.grad"),
          name(".unpadded"),
          name(".grad.padded"),
          name(".joined"),
          name(".prefix"),
          name(".cached"),
          name(".cached.grad")};
}

AttentionNames make_attention(const std::string& m) {
  const auto name = [&](const char* suffix) { return interned(m + suffix); };
  return {.module = name(""),
          .q = make_operand(m + ".q"),
          .k = make_operand(m + ".k"),
          .v = make_operand(m + ".v"),
          .mask = name(".mask"),
          .product = name(".product"),
          .out = name(".attention"),
          .logsumexp = name(".logsumexp"),
          .seed = name(".dropout.seed"),
          .offset = name(".dropout.offset"),
          .sinks = make_module(m, ".sinks"),
          .indices = name(".indices"),
          .starts = name(".starts"),
          .longest = name(".longest"),
          .unpadded = name(".unpadded"),
          .grad_unpadded = name(".attention.grad.unpadded"),
          .natural_lse = name(".logsumexp.natural"),
          .low_lse = name(".logsumexp.cast"),
          .grad_lse = name(".logsumexp.grad"),
          .row_sums = name(".attention.row_sums"),
          .grad_laid_out = name(".attention.grad.contiguous")};
}

NodeNames make_node(const std::string& m) {
  const auto name = [&](const char* suffix) { return interned(m + suffix); };
  return {name(""), name(".grad"), name(".out.grad"), name(".residual"), name(".mask")};
}

// Made once in a process; found again without a lock.
template <class Names>
const Names& known(const char* name, Names (*make)(const std::string&)) {
  thread_local std::unordered_map<const char*, const Names*> seen;
  const Names*& here = seen[name];
  if (here != nullptr) return *here;
  static std::mutex mutex;
  static std::unordered_map<const char*, std::unique_ptr<Names>> all;
  const std::lock_guard lock(mutex);
  std::unique_ptr<Names>& names = all[name];
  if (names == nullptr) names = std::make_unique<Names>(make(name));
  return *(here = names.get());
}

}  // namespace

const ModuleNames& module_names(const char* name) {
  return known<ModuleNames>(name, [](const std::string& m) { return make_module(m); });
}
const LinearNames& linear_names(const char* name) {
  return known(name, make_linear);
}
const Float8Names& float8_names(const char* name) {
  return known<Float8Names>(name, [](const std::string& m) {
    const auto of = [&](const char* suffix) { return interned(m + suffix); };
    return Float8Names{
        .input = {of(".input.fp8"), of(".input.scale")},
        .weight = {of(".weight.fp8"), of(".weight.scale")},
        .grad = {of(".out.grad.fp8"), of(".out.grad.scale")},
        .grad_of_columns = {of(".out.grad.fp8.columns"), of(".out.grad.scale.columns")},
        .input_of_columns = {of(".input.fp8.columns"), of(".input.scale.columns")},
        .product = of(".product")};
  });
}
const DoraNames& dora_names(const char* name) {
  return known(name, make_dora);
}
const Ia3Names& ia3_names(const char* name) {
  return known(name, make_ia3);
}
const VeraNames& vera_names(const char* name) {
  return known(name, make_vera);
}
const TorchaoNames& torchao_names(const char* name) {
  return known(name, make_torchao);
}
const AttentionNames& attention_names(const char* name) {
  return known(name, make_attention);
}
const NodeNames& node_names(const char* name) {
  return known(name, make_node);
}
const OperandNames& operand_names(const char* name) {
  return known(name, make_operand);
}

const ExpertsNames& experts_names(const char* name) {
  return known<ExpertsNames>(name, [](const std::string& m) {
    const std::string gate_up = m + ".gate_up_proj", down = m + ".down_proj";
    return ExpertsNames{make_module(m, ".gate_up_proj"),
                        make_module(m, ".down_proj", Leaf::down),
                        make_module(m, ".gate_up_proj_bias", Leaf::bias),
                        make_module(m, ".down_proj_bias", Leaf::down_bias),
                        make_module(gate_up + ".lora_A", ".weight", Leaf::lora_a),
                        make_module(gate_up + ".lora_B", ".weight", Leaf::lora_b),
                        make_module(down + ".lora_A", ".weight", Leaf::down_a),
                        make_module(down + ".lora_B", ".weight", Leaf::down_b)};
  });
}

const LoopNames& loop_names(const char* name) {
  return known<LoopNames>(name, [](const std::string& m) {
    const auto of = [&](const char* suffix) { return interned(m + suffix); };
    return LoopNames{of(".sum"), of(".visits"), of(".visited"), of(".numbers")};
  });
}

const SequenceNames& sequence_names(const char* name) {
  return known<SequenceNames>(name, [](const std::string& m) {
    const auto of = [&](const char* suffix) { return interned(m + suffix); };
    return SequenceNames{of(".by_rank"), of(""), of(".grad.by_rank"), of(".grad")};
  });
}

const TapeNames& tape_names(const char* module, const tape::Rule& rule) {
  using Key = std::pair<const char*, const tape::Rule*>;
  struct Hash {
    std::size_t operator()(const Key& k) const {
      return std::hash<const void*>()(k.first) * 31 + std::hash<const void*>()(k.second);
    }
  };
  // Those asked for last, at a place of their own, since each program asks for the same.
  thread_local std::array<std::pair<Key, const TapeNames*>, 256> recent{};
  auto& [key, found] = recent[(Hash()({module, &rule}) >> 4) % recent.size()];
  if (found != nullptr && key == Key{module, &rule}) return *found;
  key = {module, &rule};
  thread_local std::unordered_map<Key, std::unique_ptr<const TapeNames>, Hash> known;
  auto& names = known[key];
  if (names != nullptr) return *(found = names.get());
  TapeNames made{module, {}, {}};
  for (const tape::Value& value : rule.function().values()) {
    made.values.push_back(interned(std::string(module) + value.suffix));
    made.gradients.push_back(interned(std::string(module) + value.suffix + ".grad"));
  }
  names = std::make_unique<const TapeNames>(std::move(made));
  return *(found = names.get());
}

const EndNames& end_names() {
  static const EndNames names{module_names(interned("embed_tokens")),
                              module_names(interned("embed_positions")),
                              module_names(interned("embed_token_types")),
                              module_names(interned("embed_norm")),
                              module_names(interned("norm")),
                              linear_names(interned("project_in")),
                              linear_names(interned("head_transform")),
                              linear_names(interned("lm_head")),
                              sequence_names(interned("lm_head.gathered")),
                              sequence_names(interned("embed_tokens.scattered"))};
  return names;
}

}  // namespace plimsoll::planner::pytorch
