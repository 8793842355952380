#include "planner/stacks/pytorch/wrappers/data_parallel.h"

#include "models/decisions/mesh.h"

namespace plimsoll::planner::pytorch {

namespace {
// torch/nn/parallel/comm.py (2.11): broadcast_coalesced, reduce_add_coalesced, buffer_size.
constexpr std::int64_t kFlat = 10 << 20;
}  // namespace

OneProcess::OneProcess(Step& step)
    : TorchWrapper(step), gradients_(step, WholeGradients::Goes::held) {}

void OneProcess::declare_states() {
  declare_units([&](Unit& unit, std::int64_t copies) { declare_unit(unit, copies, true); });
}

void OneProcess::declare(Unit& unit) {
  unit.begin_micro_batch();
  unit.kept.clear();
}

// In the model's order.
std::vector<OneProcess::Flat> OneProcess::flat_parameters(Flats flats) const {
  std::vector<Flat> out;
  std::int64_t bytes = 0, count = 0;
  const auto close = [&] {
    out.push_back({Bytes(bytes), count > 1});
    bytes = count = 0;
  };
  for (const models::SteppedTensor& p : stepped_one_by_one(d_.layers)) {
    const std::int64_t one = storage(Count(p.elements), p.dtype).value();
    if (flats == Flats::reduced && count > 0 && bytes + one > kFlat) close();
    bytes += one;
    ++count;
    if (flats == Flats::sent && bytes >= kFlat) close();
  }
  if (count > 0) close();
  return out;
}

// replicate() sends parameters, then buffers: the first GPU has a flat copy of several for a moment
// and reads its own (csrc/cuda/comm.cpp, broadcast_coalesced).
void OneProcess::before_forward(Unit& unit, Ref) {
  if (&unit != &s_.root) return;
  for (const Flat& flat : flat_parameters(Flats::sent))
    if (flat.copied)
      b_.op("data_parallel.broadcast", Phase::forward).scratch(b_.rounded(flat.bytes));
  const Bytes buffers = s_.id_buffers() + s_.frequencies();
  if (buffers > Bytes(0))
    b_.op("data_parallel.buffers", Phase::forward).scratch(b_.rounded(buffers));
}

// Every GPU's losses and logits are gathered on the first one (scatter_gather.py, gather), which
// then has its own logits twice; the Trainer takes the mean of the losses and drops the rest.
void OneProcess::outputs_returned() {
  const std::int64_t gpus = s_.scattered();
  const TensorId losses =
      b_.tensor("data_parallel.losses", b_.bytes_of(s_.end.loss) * gpus, Category::activations);
  const TensorId own = s_.end.returned_logits;
  const TensorId logits = own == kNoTensor ? kNoTensor
                                           : b_.tensor("data_parallel.logits",
                                                       b_.bytes_of(own) * gpus, Category::logits);
  b_.op("data_parallel.gather", Phase::forward)
      .write(losses)
      .write(logits)
      .release(own)
      .release(s_.end.loss);
  s_.end.returned_logits = kNoTensor;
  const TensorId loss = b_.tensor("loss.mean", b_.bytes_of(s_.end.loss), Category::activations);
  b_.op("loss.mean", Phase::forward).read(losses).write(loss).release(logits);
  s_.end.loss = loss;
}

void OneProcess::end_backward() {
  b_.open(models::kNoGroup, true, s_.times);
  reduce();
  b_.close();
}

// ReduceAddCoalesced, when the gradients of all GPUs are there (nn/parallel/_functions.py,
// comm.py): one flat sum after another beside this GPU's own gradients, which go behind the last.
// The sums are the parameters' gradients; those of a later micro-batch are added to them.
void OneProcess::reduce() {
  std::vector<TensorId> sums;
  TensorId before = kNoTensor;
  for (const Flat& flat : flat_parameters(Flats::reduced)) {
    const Bytes bytes = b_.rounded(flat.bytes);
    const TensorId copy =
        flat.copied ? b_.tensor("data_parallel.flat", bytes, Category::communication) : kNoTensor;
    if (copy != kNoTensor || before != kNoTensor)
      b_.op("data_parallel.flat", Phase::backward).write(copy).release(before);
    const TensorId sum = b_.tensor("data_parallel.grad", bytes, Category::gradients);
    b_.op("data_parallel.reduce", Phase::backward).read(copy).write(sum);
    before = copy;
    sums.push_back(sum);
  }
  auto done = b_.op("data_parallel.reduced", Phase::backward);
  each_unit([&](const Unit& unit) {
    for (const TensorId grad : unit.kept) done.release(grad);
  });
  done.release(before);
  if (s_.first_micro()) {
    reduced_ = std::move(sums);
    return;
  }
  for (std::size_t i = 0; i < sums.size(); ++i)
    b_.op("data_parallel.grad", Phase::backward).read(sums[i]).update(reduced_[i]);
}

void OneProcess::optimizer_step() {
  for (Unit* unit : {&s_.root, &s_.embedding, &s_.tail}) unit->kept.clear();
  for (Run& run : s_.runs)
    for (Unit& unit : run.units) unit.kept.clear();
  s_.root.kept = reduced_;
  step_optimizer(
      lists_one_by_one(), [&](std::int64_t most) { return stepped_one_by_one(most); }, true);
}

// The others have copies, gradients and activations for a micro-batch; they are not planned.
std::vector<EqualRanks> OneProcess::alike() const {
  return {{.spans = {{0, 0}}}};
}

void OneProcess::write_messages(Messages& out) {
  const auto each = [&](Message::Kind kind, Message::When when, Flats flats) {
    for (const Flat& flat : flat_parameters(flats))
      add(out, {.kind = kind,
                .array = flat.bytes,
                .group = models::decisions::mesh_of(strategy_).data(),
                .when = when,
                .micros = Message::Micros::each});
  };
  each(Message::Kind::broadcast, Message::When::forward, Flats::sent);
  each(Message::Kind::reduce, Message::When::reduction, Flats::reduced);
}

}  // namespace plimsoll::planner::pytorch
