// The order of a step, layer by layer: what is read was written before, in that layer; and what was
// written is of use to another op.
#include <doctest/doctest.h>

#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

#include "models/gpu_catalog.h"
#include "models/model_reader.h"
#include "planner/stack_step.h"
#include "tests/planner/rarer_code.h"

using namespace plimsoll;
using models::Access;
using models::kNoGroup;
using models::kNoTensor;
using models::Operand;
using models::Residency;
using models::StepProgram;
using models::TensorId;

namespace {

bool ends_in(std::string_view name, const std::vector<std::string_view>& endings) {
  return std::ranges::any_of(endings, [&](std::string_view end) { return name.ends_with(end); });
}

// Gradients in DeepSpeed's partition stay from micro-batch to micro-batch.
bool stays(const models::TensorDecl& tensor) {
  return tensor.residency != Residency::step ||
         std::string_view(tensor.name) == "grads_in_partition";
}

// What one op makes and uses up: casts and masks that autograd does not keep, a step's
// intermediates, what was reduced; and the loss, which nobody reads.
bool is_of_one_op(const models::TensorDecl& tensor) {
  static const std::vector<std::string_view> endings{".cast",  ".cast.grad",    ".cast.backward",
                                                     ".mask",  ".sqrt",         "loss",
                                                     ".chunk", "scatter_output"};
  return ends_in(tensor.name, endings);
}

// Runs a program's ops in their order, each once for every layer of its group.
class Run {
 public:
  explicit Run(const StepProgram& program) : program_(program) {
    for (const models::TensorDecl& tensor : program.tensors)
      states_.emplace_back(static_cast<std::size_t>(layers(tensor.group)), State{stays(tensor)});
  }

  void run() {
    for (const models::Segment& segment : program_.segments)
      for (std::int64_t t = 0, n = program_.repeats(segment); t < n; ++t)
        for (std::uint32_t k = segment.op_begin; k < segment.op_end; ++k)
          run(program_.ops[k], segment.group, segment.descending ? n - 1 - t : t, n);
  }
  const std::string& unwritten() const { return unwritten_; }
  std::string useless() const {
    std::string out;
    for (std::size_t t = 0; t < states_.size(); ++t)
      if (!stays(program_.tensors[t]) && !is_of_one_op(program_.tensors[t]) &&
          std::ranges::count(states_[t], 1, &State::ops) > 0)
        out += std::string(program_.tensors[t].name) + "\n";
    return out;
  }

 private:
  struct State {
    bool there = false;
    int ops = 0;  // that touch it
    const models::Op* last = nullptr;
    std::int64_t of_layer = -1;  // that op's
  };

  std::int64_t layers(models::GroupId group) const {
    return group == kNoGroup ? 1 : program_.groups[static_cast<std::size_t>(group)].count;
  }
  const models::TensorDecl& decl(TensorId tensor) const {
    return program_.tensors[static_cast<std::size_t>(tensor)];
  }

  template <class Do>
  void from_outside(TensorId tensor, int delta, Do visit) const {
    const std::int64_t n = layers(decl(tensor).group);
    if (decl(tensor).group == kNoGroup || delta > 0) return visit(tensor, std::int64_t{0});
    if (delta < 0) return visit(tensor, n - 1);
    for (std::int64_t i = 0; i < n; ++i) visit(tensor, i);
  }
  template <class Do>
  void each(const Operand& o, models::GroupId group, std::int64_t layer, std::int64_t n,
            Do visit) const {
    const std::int64_t at = layer + o.delta;
    const bool inside = at >= 0 && at < n;
    if (o.tensor != kNoTensor) {
      if (decl(o.tensor).group == kNoGroup || decl(o.tensor).group != group)
        from_outside(o.tensor, o.delta, visit);
      else if (inside)
        visit(o.tensor, at);
    }
    if (!inside && group != kNoGroup && o.beyond != kNoTensor)
      from_outside(o.beyond, o.delta, visit);
  }

  // What an op writes it may read as well.
  void run(const models::Op& op, models::GroupId group, std::int64_t layer, std::int64_t n) {
    for (const bool writes : {true, false})
      for (const Operand& o : program_.operands_of(op))
        if ((o.access == Access::write) == writes)
          each(o, group, layer, n,
               [&](TensorId tensor, std::int64_t of) { touch(op, layer, tensor, of, writes); });
  }
  void touch(const models::Op& op, std::int64_t layer, TensorId tensor, std::int64_t of,
             bool writes) {
    State& state = states_[static_cast<std::size_t>(tensor)][static_cast<std::size_t>(of)];
    if (state.last != &op || state.of_layer != layer) ++state.ops;
    state.last = &op;
    state.of_layer = layer;
    if (!writes && !state.there)
      unwritten_ += std::string(decl(tensor).name) + " (" + op.name + ")\n";
    state.there = true;
  }

  const StepProgram& program_;
  std::vector<std::vector<State>> states_;
  std::string unwritten_;
};

struct Place {
  const char* name;
  models::Stack stack;
  std::int64_t gpus;
  models::DataParallel data;
  std::int64_t grad_accum = 2;
  bool offloads = false;
};

const std::vector<Place>& places() {
  using models::Stack;
  static const std::vector<Place> all = {
      {"one GPU", Stack::pytorch, 1, {}},
      {"one GPU, four", Stack::pytorch, 1, {}, 4},
      {"DDP", Stack::pytorch, 4, {}},
      {"ZeRO-1", Stack::pytorch, 4, {.zero = 1}},
      {"FSDP2", Stack::pytorch, 3, {.zero = 3}},
      {"FSDP2, kept", Stack::pytorch, 3, {.zero = 2}},
      {"FSDP1", Stack::pytorch, 3, {.zero = 3, .fsdp_version = 1}},
      {"FSDP1, kept", Stack::pytorch, 3, {.zero = 2, .fsdp_version = 1}, 1},
      {"FSDP1, checkpoints",
       Stack::pytorch,
       3,
       {.zero = 3, .fsdp_version = 1, .fsdp_checkpoints = true}},
      {"FSDP1, flat",
       Stack::pytorch,
       3,
       {.zero = 3, .fsdp_version = 1, .use_orig_params = false},
       3},
      {"FSDP2, once", Stack::pytorch, 3, {.zero = 3, .reduce_dtype = DType::fp32}, 1},
      {"FSDP2, offloaded", Stack::pytorch, 3, {.zero = 3}, 2, true},
      {"FSDP1, offloaded", Stack::pytorch, 3, {.zero = 3, .fsdp_version = 1}, 2, true},
      {"DeepSpeed 1", Stack::deepspeed, 3, {.zero = 1}},
      {"DeepSpeed 2", Stack::deepspeed, 3, {.zero = 2}},
      {"DeepSpeed 3", Stack::deepspeed, 3, {.zero = 3}}};
  return all;
}

// False where it cannot be planned: no code of it, or no adapter on it.
bool written(const Place& place, const char* config, const models::Strategy& strategy,
             planner::StackStep& step) {
  planner::Question question;
  question.strategy = strategy;
  question.strategy.stack = place.stack;
  question.strategy.gpus = place.gpus;
  question.strategy.data = place.data;
  question.strategy.offload.params = place.offloads;
  question.batch = {.seq_len = 64, .micro_batch = 2, .grad_accum = place.grad_accum};
  question.cluster.gpu = models::find_gpu(tests::card_of(question.strategy));
  try {
    const models::ModelSpec model = models::read_model(config, "made-up", "test");
    question.model = &model;
    planner::write_step(question, planner::model_parts(model, question.strategy), step);
  } catch (const Error&) {
    return false;
  }
  return true;
}

}  // namespace

TEST_CASE("what is read was written before, in every layer, and serves more than one op") {
  int count = 0;
  for (const Place& place : places())
    for (const char* config : tests::kModels)
      for (const auto& [name, change] : tests::all_changes()) {
        planner::StackStep step;
        models::Strategy s;
        change(s);
        if (!written(place, config, s, step)) continue;
        ++count;
        const std::string of = std::string(place.name) + ", " + name + ": " + config;
        CAPTURE(of);
        Run run(step.program);
        run.run();
        CHECK(run.unwritten() == "");
        // A checkpoint's first forward makes what nobody keeps, and the host takes shards.
        if (s.recompute.kind == models::RecomputeKind::none && !place.offloads)
          CHECK(run.useless() == "");
      }
  CHECK(count >= 2500);
}
