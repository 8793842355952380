// Which parameters a rank's model has, unit by unit, and what each is to its module.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "models/lora.h"
#include "models/model_spec.h"
#include "models/run_spec.h"
#include "models/storages.h"
#include "runtime/parameter.h"

namespace plimsoll::runtime {

struct ModelParameter {
  std::string name;  // in the checkpoint; an adapter's as PEFT's file has it
  Extents shape;
  bool trained = true;
  bool adapter = false;
  const models::PackedStorage* packed = nullptr;  // where it is (--quantize)
  // What a checkpoint has in its place, one after another: the matrices of single experts.
  std::vector<ModelParameter> pieces;
};

// Index into its unit's list; nothing where the model has no such parameter.
using Slot = std::optional<std::size_t>;

struct ModuleSlots {
  Slot weight, bias, lora_a, lora_b;
  Slot down;  // experts': `weight` is that of gate and up
  bool transposed = false;
};

struct LayerLayout {
  std::shared_ptr<const models::Block> block;
  std::vector<ModelParameter> parameters;
  std::vector<ModuleSlots> modules;  // the block's
  bool trains() const;
  const ModuleSlots& module(std::string_view name) const;  // Error{unsupported}: there is none
};

// Units as models/decisions/sharding.h has them: a table that is tied to the head is the tail's.
struct ModelLayout {
  std::vector<ModelParameter> embedding, tail;
  Slot token_table, position_table;  // in `embedding`; a tied token table: in `tail`
  bool tied = false;
  ModuleSlots final_norm;  // in `tail`
  Slot head;  // in `tail`; tied: the table
  Slot head_bias;  // in `tail`
  std::vector<LayerLayout> layers;
  bool trains_embedding() const;  // of either table
};

// Error{unsupported}: the family has no training step. Error{bad_input}: patterns and targets.
ModelLayout layout_of(const models::ModelSpec& model, const models::Strategy& strategy);

// The parameters of a module, out of the store of its unit.
Parameter attach(ParameterStore& store, const std::vector<ModelParameter>& list, Slot slot);
NormParameters attach(ParameterStore& store, const std::vector<ModelParameter>& list,
                      const ModuleSlots& slots);
LayerParameters attach(ParameterStore& store, const LayerLayout& layer,
                       const std::optional<models::Lora>& lora);
// The head as a GEMM.
LinearParameters attach_head(ParameterStore& store, const ModelLayout& layout);

}  // namespace plimsoll::runtime
