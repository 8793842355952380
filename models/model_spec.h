// What a model is: its parameter table, and the facts that its training step is made from.
#pragma once

#include <array>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "models/base/dtype.h"
#include "models/base/quantity.h"
#include "models/block.h"
#include "models/decoder.h"
#include "models/model_code.h"
#include "models/numerics.h"
#include "models/stack_versions.h"

namespace plimsoll::models {

// Lengths of the axes of one parameter, in checkpoint order; at most 4 (convolutions).
struct Shape {
  std::array<std::int64_t, 4> axes{};
  int rank = 0;

  Shape() = default;
  Shape(std::initializer_list<std::int64_t> lengths);

  Count elements() const;  // 1 for rank 0; throws on overflow
  bool operator==(const Shape&) const = default;
};

// What the parameter belongs to. `linear` is what LoRA's "all-linear" and quantized bases cover;
// `expert` is a linear inside a mixture's routed expert, `router` a gate that is not a linear
// module (torch.nn.Linear) of its own.
enum class ModuleKind : std::uint8_t { embedding, linear, expert, router, norm, conv, head, other };
std::string_view name_of(ModuleKind kind);

// The values that a "{}" of a name takes: first, first + step, … (count of them).
struct IndexRange {
  std::int64_t first = 0;
  std::int64_t count = 1;
  std::int64_t step = 1;
  bool operator==(const IndexRange&) const = default;
};

// The parameters in which Transformers (5.x) stacks the matrices of gated experts.
inline constexpr std::string_view kGateUp = "gate_up_proj", kDown = "down_proj";

// One line of the parameter table: a checkpoint tensor, or a family of equal ones whose name holds
// one "{}" for each range ("model.layers.{}.mlp.experts.{}.up_proj.weight").
struct ParameterRow {
  std::string name;
  Shape shape;
  ModuleKind module = ModuleKind::other;
  std::vector<IndexRange> ranges;  // outermost first; empty: a single tensor
  bool tied = false;  // shares storage with another row: has a name, is not counted
  bool transposed = false;  // weight stored [in, out] (GPT-2's Conv1D) and not [out, in]
  // In the checkpoint, but never given a gradient: a buffer (DeepSeek-V3's
  // e_score_correction_bias), Whisper's sinusoidal positions.
  bool no_gradient = false;
  // Experts: how many of the innermost range (or, for `fused_experts`, of the first axis) one token
  // visits; 0: all of it.
  std::int64_t active = 0;
  bool fused_experts = false;  // all experts in one tensor, one after another on the first axis
  // One of those two: all experts' matrices of all rows that name it are one parameter; else empty.
  std::string_view stacked;
  bool bare = false;  // a mixture's router: in Transformers 5 a parameter, not a linear module
  // Where the checkpoint keeps this row in another dtype than the rest of the model.
  std::optional<DType> dtype;

  std::int64_t instances() const;  // product of the ranges' counts
  Count elements() const;  // of all instances; 0 when tied
  bool operator==(const ParameterRow&) const = default;
};

// Linears of a layer, by their names in it, that another program's code keeps as one: queries, keys
// and values. None: nothing is joined.
struct JoinedModules {
  std::string_view name;
  std::array<std::string_view, 3> of{};
};

// The same model's forward in another program's code, or in releases of it before `before`.
struct OtherForward {
  ModelCode code = ModelCode::transformers;
  std::optional<Release> before;
  Decoder decoder;
  std::vector<std::shared_ptr<const Block>> blocks;
  JoinedModules joined{};
  bool own_head = false;  // not the embedding's table, whatever the config says
  // The layer of one of the ranks among which tensor parallelism divides it, of what that rank has
  // (models/tensor_parallel.h). Null: it is not divided.
  Block (*divided)(const std::vector<ParameterRow>& own, const Decoder& own_decoder) = nullptr;
};

struct ModelSpec {
  std::string name;  // catalog name, hub id or path, as the user gave it
  std::string architecture;  // "LlamaForCausalLM"
  std::string model_type;  // "llama"
  std::vector<ParameterRow> parameters;
  std::optional<DType> checkpoint_dtype;  // config.json's torch_dtype / dtype
  std::int64_t max_positions = 0;  // longest sequence the model takes; 0: no limit
  // The decoder whose training step can be planned in full; absent: counts and states only. Then
  // `no_decoder` says what of this config is in the way ("hidden_act 'gelu' in a gated MLP"), or ""
  // where the whole family has no step program.
  std::optional<Decoder> decoder;
  std::string no_decoder;
  // What its layers compute: layer i runs blocks[i % blocks.size()]. One at least with a decoder.
  std::vector<std::shared_ptr<const Block>> blocks;
  std::vector<OtherForward> other_forwards;  // decoder and blocks are those of Transformers today
  // What running that decoder needs besides; absent: it can be planned but not run, and
  // `no_numerics` says why ("rotary scaling of type 'yarn'").
  std::optional<Numerics> numerics;
  std::string no_numerics;
  std::vector<std::string> notes;  // what the reader left out or assumed, for the user

  // Unique parameters, tied ones once; of the buffers only rows above.
  Count parameter_count() const;
  Count active_parameter_count() const;  // those that one token passes through
};

// `name` with its "{}" replaced by `indices`, in order.
std::string expand(const std::string& name, const std::vector<std::int64_t>& indices);

// The table whose storage a tied row shares: the first embedding of its shape. Error{internal}:
// none.
const ParameterRow& tied_table(const ModelSpec& model, const ParameterRow& tied);

// The names of all instances of a row, the innermost range running fastest.
std::vector<std::string> tensor_names(const ParameterRow& row);

}  // namespace plimsoll::models
