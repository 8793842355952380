#include "tests/planner/well_formed.h"

#include <algorithm>
#include <array>
#include <set>
#include <string_view>
#include <vector>

namespace plimsoll::tests {

using models::Access;
using models::kNoGroup;
using models::kNoTensor;

namespace {

class Looked {
 public:
  explicit Looked(const models::StepProgram& program)
      : program_(program), written_(program.tensors.size()) {}

  std::string all() {
    for (const models::TensorDecl& tensor : program_.tensors)
      if (!has_layer(tensor.group, tensor.layer)) say("layer of tensor", tensor.name);
    std::uint32_t next = 0;
    for (const models::Segment& segment : program_.segments) {
      if (segment.op_begin != next) say("in no segment", program_.ops[next].name);
      next = std::max(next, segment.op_end);
      for (std::uint32_t i = segment.op_begin; i < segment.op_end; ++i)
        look(program_.ops[i], segment.group);
    }
    if (next != program_.ops.size()) say("in no segment", program_.ops.back().name);
    std::string out;
    for (const std::string& one : found_) out += one + "\n";
    return out;
  }

 private:
  void say(const std::string& what, const char* name) { found_.insert(what + ": " + name); }
  bool has_layer(models::GroupId group, std::uint16_t layer) const {
    const std::int64_t stride =
        group == kNoGroup ? 1 : program_.groups[static_cast<std::size_t>(group)].stride;
    return layer < stride;
  }

  void look(const models::Op& op, models::GroupId group) {
    if (!has_layer(group, op.layer)) say("layer of op", op.name);
    for (const models::Operand& operand : program_.operands_of(op)) {
      for (const models::TensorId tensor : {operand.tensor, operand.beyond})
        if (tensor != kNoTensor) touch(static_cast<std::size_t>(tensor), operand);
      if (operand.tensor == kNoTensor) continue;
      const models::GroupId of = program_.tensors[static_cast<std::size_t>(operand.tensor)].group;
      if (group != kNoGroup && of != kNoGroup && of != group) say("another group's", op.name);
    }
  }

  // A neighbour's may have been written when it was this layer's turn; and what offloading brings
  // is handed on from layer to layer.
  void touch(std::size_t at, const models::Operand& operand) {
    const models::TensorDecl& tensor = program_.tensors[at];
    const bool writes = operand.access == Access::write;
    constexpr std::array<std::string_view, 3> others{"activations.loaded", "grads_in_partition",
                                                     "grad_partition"};
    const bool stays = tensor.residency == models::Residency::persistent ||
                       std::ranges::count(others, std::string_view(tensor.name)) > 0;
    if (!writes && !written_[at] && operand.delta == 0 && !stays) say("read first", tensor.name);
    written_[at] = written_[at] || writes;
  }

  const models::StepProgram& program_;
  std::vector<bool> written_;  // by tensor
  std::set<std::string> found_;
};

}  // namespace

std::string ill_formed(const models::StepProgram& program) {
  return Looked(program).all();
}

}  // namespace plimsoll::tests
