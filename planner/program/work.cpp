#include "planner/program/work.h"

#include <algorithm>
#include <string_view>

namespace plimsoll::planner {

using models::Access;
using models::Category;
using models::GroupId;
using models::kNoGroup;
using models::kNoTensor;
using models::Phase;

double fused_attention_flops(const AttentionShape& x) {
  constexpr double kTile = 128;
  const double length = static_cast<double>(x.length);
  const double seen = x.window > 0 ? std::min(length, static_cast<double>(x.window)) : length;
  // Twice the keys of the mean token: the first ones see fewer than the window. Its lower edge cuts
  // tiles as the diagonal does.
  const double band = seen / length;
  const double keys = x.causal ? (2 - band) * (seen + kTile) : 2 * seen;
  return 2 * static_cast<double>(x.tokens) * static_cast<double>(x.width) * keys;
}

void Works::clear() {
  ops_.clear();
  gemms_.clear();
  attentions_.clear();
}

OpWork& Works::at(std::size_t op) {
  if (op >= ops_.size()) ops_.resize(op + 1);
  return ops_[op];
}

void Works::gemm(std::size_t op, const Gemm& gemm) {
  gemms_.push_back({op, gemm});
  moves(op, 0);
}

void Works::attention(std::size_t op, const FusedAttention& attention) {
  attentions_.push_back({op, attention});
  moves(op, 0);
}

void Works::moves(std::size_t op, double bytes, double kernels) {
  OpWork& work = at(op);
  work.given = true;
  work.moved += bytes;
  work.kernels += kernels;
}

void Works::casts(std::size_t op, double bytes, double kernels) {
  OpWork& work = at(op);
  work.given = true;
  work.casts += bytes;
  work.kernels += kernels;
}

namespace {

bool touches_message(const models::StepProgram& program, const models::Op& op) {
  for (const models::Operand& operand : program.operands_of(op)) {
    const models::TensorId id = operand.tensor != kNoTensor ? operand.tensor : operand.beyond;
    if (operand.access != Access::release &&
        program.tensors[static_cast<std::size_t>(id)].category == Category::communication)
      return true;
  }
  return false;
}

double bytes_of(const models::StepProgram& program, const models::Op& op) {
  double all = 0;
  for (const models::Operand& operand : program.operands_of(op)) {
    if (operand.access == Access::release) continue;
    const models::TensorId id = operand.tensor != kNoTensor ? operand.tensor : operand.beyond;
    const double bytes = program.tensors[static_cast<std::size_t>(id)].bytes.real();
    all += operand.access == Access::update ? 2 * bytes : bytes;
  }
  return all;
}

void add_rest(const WorkSum& one, double times, WorkSum& sum) {
  sum.moved += times * one.moved;
  sum.casts += times * one.casts;
  sum.kernels += times * one.kernels;
  sum.fused += times * one.fused;
  sum.fused_kernels += times * one.fused_kernels;
  sum.compiled += times * one.compiled;
  sum.compiled_kernels += times * one.compiled_kernels;
}

class Reader {
 public:
  Reader(const models::StepProgram& program, const Works& works) : p_(program), w_(works) {}

  StepWork run() {
    place_layers();
    of_op_.assign(p_.ops.size(), nullptr);
    for (const models::Segment& segment : p_.segments)
      for (std::uint32_t i = segment.op_begin; i < segment.op_end; ++i) add(segment, i);
    for (const Works::GemmOf& of : w_.gemms())
      if (WorkSum* sum = of_op_[of.op]) sum->gemms.push_back(of.gemm);
    for (const Works::AttentionOf& of : w_.attentions())
      if (WorkSum* sum = of_op_[of.op]) sum->attentions.push_back(of.attention);
    return std::move(out_);
  }

 private:
  // Groups of layers in the order of the model, each with its pattern.
  void place_layers() {
    first_.assign(p_.groups.size(), 0);
    std::vector<std::size_t> order;
    for (std::size_t g = 0; g < p_.groups.size(); ++g)
      if (is_layers(g)) order.push_back(g);
    std::ranges::sort(order, {}, [&](std::size_t g) { return p_.groups[g].first; });
    std::size_t at = 0;
    for (const std::size_t g : order) {
      first_[g] = at;
      at += static_cast<std::size_t>(p_.groups[g].stride);
    }
    out_.layers.resize(at);
  }
  bool is_layers(std::size_t group) const {
    return std::string_view(p_.groups[group].prefix) == "layers";
  }

  void add(const models::Segment& segment, std::uint32_t i) {
    const models::Op& op = p_.ops[i];
    if (!is_computed(p_, op)) return;
    const bool grouped = segment.group != kNoGroup;
    const bool layer = grouped && is_layers(static_cast<std::size_t>(segment.group));
    WorkOfPart& part =
        layer ? out_.layers[first_[static_cast<std::size_t>(segment.group)] + op.layer] : out_.ends;
    WorkSum& sum = op.phase == Phase::forward ? part.forward : part.backward;
    of_op_[i] = &sum;
    // Chunks of the loss run one after another.
    const double times = layer ? 1 : static_cast<double>(p_.repeats(segment));
    add_rest(rest_of_op(p_, w_, i), times, sum);
  }

  const models::StepProgram& p_;
  const Works& w_;
  StepWork out_;
  std::vector<std::size_t> first_;  // of a group's layers
  std::vector<WorkSum*> of_op_;
};

}  // namespace

bool is_computed(const models::StepProgram& program, const models::Op& op) {
  return op.phase != Phase::optimizer && !touches_message(program, op);
}

WorkSum rest_of_op(const models::StepProgram& program, const Works& works, std::size_t op) {
  OpWork work = works.of(op);
  const double operands = bytes_of(program, program.ops[op]);
  if (!work.given && operands > 0) {
    work.moved = operands;
    work.kernels = 1;
  }
  WorkSum sum;
  sum.moved = work.moved;
  sum.casts = work.casts;
  sum.kernels = work.kernels;
  // Kernels that are one in fused code move what comes in and goes out.
  sum.fused = work.kernels > 1 ? std::min(work.moved, operands) : work.moved;
  sum.fused_kernels = std::min(work.kernels, 1.0);
  sum.compiled = work.compiled < 0 ? sum.fused : work.compiled;
  sum.compiled_kernels = work.compiled == 0 ? 0 : sum.fused_kernels;
  return sum;
}

StepWork work_of_step(const models::StepProgram& program, const Works& works) {
  return Reader(program, works).run();
}

double flops_of(const Gemm& gemm) {
  return 2 * gemm.count * gemm.m * gemm.n * gemm.k;
}

double times_of(const models::StepProgram& program, const models::Segment& segment,
                const Gemm& gemm) {
  return static_cast<double>(gemm.cut == Gemm::Cut::none ? program.repeats(segment) : 1);
}

double computed_flops(const models::StepProgram& program, const Works& works) {
  std::vector<const models::Segment*> of_op(program.ops.size(), nullptr);
  for (const models::Segment& segment : program.segments)
    for (std::uint32_t i = segment.op_begin; i < segment.op_end; ++i)
      if (is_computed(program, program.ops[i])) of_op[i] = &segment;
  double flops = 0;
  for (const auto& [op, gemm] : works.gemms())
    if (of_op[op] != nullptr) flops += times_of(program, *of_op[op], gemm) * flops_of(gemm);
  for (const auto& [op, attention] : works.attentions())
    if (of_op[op] != nullptr)
      flops += static_cast<double>(program.repeats(*of_op[op])) * attention.flops;
  return flops;
}

WorkSum optimizer_work(const models::StepProgram& program, const Works& works) {
  WorkSum sum;
  const auto counts = [&](std::size_t op) {
    return program.ops[op].phase == Phase::optimizer && !touches_message(program, program.ops[op]);
  };
  for (const models::Segment& segment : program.segments)
    for (std::uint32_t i = segment.op_begin; i < segment.op_end; ++i)
      if (counts(i))
        add_rest(rest_of_op(program, works, i), static_cast<double>(program.repeats(segment)), sum);
  for (const Works::GemmOf& of : works.gemms())
    if (counts(of.op)) sum.gemms.push_back(of.gemm);
  return sum;
}

}  // namespace plimsoll::planner
