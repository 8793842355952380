// A mixture's layer as a loop over its experts (Transformers before 5.0): each one's visitors are
// looked for, gathered, run through its linears and added to the sum.
//
// How many tokens visit an expert is a matter of the data. Planned is that all visits are shared as
// evenly as they can be: of T tokens with k visits each, expert e of E gets (T k + e) / E, rounded
// down. What autograd keeps of all experts together depends on T k alone; the moments of one expert
// grow with its share, most where every token visits it: the last one, as the backward begins with
// everything kept.
#include "planner/stacks/pytorch/block_writer.h"
#include "planner/stacks/pytorch/functions.h"

namespace plimsoll::planner::pytorch {

using models::OpKind;
using models::ValueId;

SymInt BlockWriter::visits(std::int64_t expert) const {
  const models::ExpertLoop& loop = plan_->layer->block->loop;
  const SymInt all = checked_multiply(tokens_.total(), loop.active);
  if (rules_.one_expert && loop.experts > 1) {
    if (expert == loop.experts - 1) return tokens_.total();
    return larger((all - tokens_.total()) / (loop.experts - 1), SymInt(1));
  }
  const SymInt each = all / loop.experts;
  const std::int64_t left = all % loop.experts;
  return expert < loop.experts - left ? each : each + 1;
}

Tokens BlockWriter::visiting(const NodePlan& at) {
  const Tokens all = tokens_;
  if (at.node->expert >= 0) tokens_.set_total(visits(at.node->expert));
  return all;
}

// One node of the loop.
class LoopWriter {
 public:
  LoopWriter(BlockWriter& writer, const NodePlan& at)
      : w_(writer), at_(at), in_(at.node->in), out_(at.node->out) {}

  void route(LayerSaved& s);
  void visitors(LayerSaved& s);
  void rows(LayerSaved& s);
  void add_rows(LayerSaved& s);
  void route_back(const LayerSaved& s);
  void gather_back(const LayerSaved& s);
  void weigh_back(const LayerSaved& s);
  void add_rows_back(const LayerSaved& s);

 private:
  TapePart route_part() const;
  TapeCounts route_counts() const;
  const models::ExpertLoop& loop() const { return w_.plan_->layer->block->loop; }
  // A new tensor, and the op that makes it.
  OpBuilder made(ValueId id, const char* name, SymInt values, DType dtype, LayerSaved& s) {
    s.of(id) = w_.make(name, values, dtype);
    return w_.op(name).write(s.of(id));
  }
  void count_nonzero(OpBuilder op, SymInt values, TensorId places, SymBytes of_places, bool copies);
  void sort_into(OpBuilder put, SymInt rows, SymInt of, TensorId zeros, bool by_two);

  BlockWriter& w_;
  const NodePlan& at_;
  const models::ValueList &in_, &out_;
};

TapePart LoopWriter::route_part() const {
  const ValueId logits = in_[0], x = in_[1];
  return route_tape(at_.node->name, *at_.node, w_.dtype_of(logits), w_.dtype_of(x),
                    w_.grad_of(logits));
}

TapeCounts LoopWriter::route_counts() const {
  TapeCounts counts{};
  counts[kRoutedLogits] = w_.values_of(in_[0]);
  counts[kRoutedVisits] = w_.values_of(out_[0]);
  counts[kRoutedTokens] = w_.tokens_.total();
  return counts;
}

// torch.nn.functional.one_hot writes into zeros, an int64 for each expert of each visit.
void LoopWriter::route(LayerSaved& s) {
  const std::array<Ref, 1> given{{{s.of(in_[0])}}};
  w_.tape_forward(route_part(), route_counts(), given, s.route);
  s.of(out_[0]) = s.route.out;
  s.of(out_[1]) = s.route.also[0];
  const LoopNames& names = loop_names(at_.node->name);
  made(out_[2], names.sum, w_.values_of(out_[2]), w_.dtype_of(out_[2]), s);
  made(out_[3], names.mask, w_.values_of(out_[3]), DType::int64, s).read(s.of(out_[1]));
  if (w_.strategy_.transformers < models::kLoopsOverVisited) return;
  const std::int64_t experts = loop().experts;
  const SymBytes numbers = w_.bytes(experts, DType::int64);
  const TensorId met = w_.temporary(names.met, experts, DType::boolean);
  const auto sums =
      column_sum_scratch(w_.b_, w_.rules_.gpu, w_.values_of(out_[1]), experts, DType::int64);
  take_blocks(w_.b_, w_.op(names.met).read(s.of(out_[3])).write(met),
              std::array{numbers, sums.partial, sums.counters});
  auto counted = made(out_[4], names.numbers, experts, DType::int64, s).read(met);
  count_nonzero(counted, experts, s.of(out_[4]), numbers, false);
}

// ATen/native/cuda/Nonzero.cu: how many there are, cub's temporary storage for that sum, the
// places, and cub's for selecting them. A mask of whole numbers that is no [n] is laid out anew.
// cub/device/dispatch/dispatch_reduce.cuh: up to 4096 values one block does it; beyond, five waves
// of blocks of 256 threads leave a partial sum each. dispatch_select_if.cuh: a state of 8 bytes for
// each tile of 4224 values and 32 more, and a counter; each begins at a multiple of 256 bytes.
void LoopWriter::count_nonzero(OpBuilder op, SymInt values, TensorId places, SymBytes of_places,
                               bool copies) {
  constexpr std::int64_t kOneBlock = 4096, kWaves = 5, kThreads = 256, kTile = 4224, kStates = 32,
                         kAlignment = 256;
  const Processors& gpu = w_.rules_.gpu;
  const SymInt partial = kWaves * gpu.count * (gpu.threads / kThreads) * 4;
  const SymInt reduces =
      values > kOneBlock ? kAlignment - 1 + round_up(partial, kAlignment) : SymInt(1);
  const SymInt selects =
      2 * kAlignment - 1 + round_up(8 * (ceil_divide(values, kTile) + kStates), kAlignment);
  const SymBytes number = w_.bytes(1, DType::fp32), mask = w_.bytes(values, DType::int64);
  const SymBytes reducing = w_.bytes(reduces, DType::boolean);
  const SymBytes selecting = w_.bytes(selects, DType::boolean);
  SymBytes most = reducing > of_places + selecting ? reducing - of_places : selecting;
  most += number;
  if (copies) most += mask * 2;
  op.scratch(most);
  if (!w_.b_.keeps_blocks()) return;
  BlockEvents events;
  if (copies) events.take(mask);
  const std::int32_t copy = copies ? events.take(mask) : -1;
  const std::int32_t count = events.take(number);
  events.drop(events.take(reducing));
  events.birth(places);
  const std::int32_t select = events.take(selecting);
  if (copies) events.drop(copy);
  events.drop(count);
  events.drop(select);
  w_.b_.blocks(std::move(events));
}

// expert_mask[expert_idx] is a copy of one expert's visits.
void LoopWriter::visitors(LayerSaved& s) {
  const ValueId out = out_[0];
  auto found = made(out, at_.names->name, w_.values_of(out), DType::int64, s).read(s.of(in_[0]));
  count_nonzero(found, checked_multiply(w_.tokens_.total(), loop().active), s.of(out),
                w_.bytes(w_.values_of(out), DType::int64), true);
  w_.release(found, at_.node->releases, s);
}

void LoopWriter::rows(LayerSaved& s) {
  const ValueId out = out_[0];
  auto rows = made(out, at_.names->name, w_.values_of(out), w_.dtype_of(out), s);
  rows.read(s.of(in_[0])).read(s.of(in_[1]));
  w_.release(rows, at_.node->releases, s);
}

// Autograd keeps what is added, for its shape.
void LoopWriter::add_rows(LayerSaved& s) {
  s.of(out_[0]) = s.of(in_[0]);
  w_.op(at_.names->name).update(s.of(in_[0])).read(s.of(in_[1])).read(s.of(in_[2]));
}

void LoopWriter::route_back(const LayerSaved& s) {
  const std::array<Ref, 1> given{{{s.of(in_[0])}}};
  w_.gradient(in_[0]) = {
      w_.tape_backward(route_part(), route_counts(), given, s.route,
                       {.result = w_.gradient(out_[0]).tensor, .held = w_.frame()})};
}

// The sum's own flows past.
void LoopWriter::add_rows_back(const LayerSaved& s) {
  w_.unpack();
  const ValueId rows = in_[1];
  const TensorId d = w_.gradient(out_[0]).tensor;
  w_.gradient(in_[0]) = w_.gradient(out_[0]);
  if (!w_.grad_of(rows)) return;
  const TensorId d_rows =
      w_.temporary(w_.plan_->value(rows).grad_name, w_.values_of(rows), w_.dtype_of(rows));
  w_.op(at_.names->grad).read(d).read(s.of(rows)).read(s.of(in_[2])).write(d_rows);
  w_.gradient(rows) = {d_rows};
}

// index_put_ with accumulate, in place (ATen/native/cuda/Indexing.cu, index_put_with_sort_kernel)
// into zeros of x: the places as offsets are scaled and sorted beside their order. What x[None] or
// x[…, None] sends back is a view.
void LoopWriter::gather_back(const LayerSaved& s) {
  const ValueId x = in_[0], out = out_[0];
  if (!w_.grad_of(x)) return;
  w_.unpack();
  const TensorId zeros = w_.temporary(at_.names->grad, w_.values_of(x), w_.dtype_of(x));
  const bool by_two = w_.plan_->value(x).width != w_.plan_->value(out).width;
  auto put = w_.op(at_.names->grad);
  put.read(w_.gradient(out).tensor).read(s.of(in_[1])).write(zeros);
  sort_into(put, w_.visits(at_.node->expert), by_two ? w_.values_of(x) : w_.tokens_.total(), zeros,
            by_two);
  w_.gradient(x) = w_.add_gradient(at_.names->out_grad, w_.gradient(x), {zeros, true},
                                   w_.dtype_of(x), w_.values_of(x));
}

void LoopWriter::sort_into(OpBuilder put, SymInt rows, SymInt of, TensorId zeros, bool by_two) {
  const SymBytes array = w_.bytes(rows, DType::int64);
  const SymBytes sort = w_.bytes(pair_sort_bytes(rows, bits_of(of - 1)), DType::boolean);
  put.scratch(array * 4 + sort);
  if (!w_.b_.keeps_blocks()) return;
  BlockEvents events;
  events.birth(zeros);
  std::int32_t offsets = events.take(array);
  if (by_two) {  // the places of each axis, times its stride
    const std::int32_t second = events.take(array);
    events.drop(std::exchange(offsets, events.take(array)));
    events.drop(second);
  }
  const std::int32_t scaled = events.take(array);
  events.drop(offsets);
  std::array<std::int32_t, 3> sorted{};
  for (std::int32_t& one : sorted) one = events.take(array);
  events.drop(events.take(sort));
  events.drop(scaled);
  for (const std::int32_t one : sorted) events.drop(one);
  w_.b_.blocks(std::move(events));
}

// The scores' gradient is a sum over each row of a product as large as the rows; the rows' is cast
// to what these are in before that sum.
void LoopWriter::weigh_back(const LayerSaved& s) {
  w_.unpack();
  const ValueId rows = in_[0], scores = in_[1];
  const SymInt values = w_.values_of(out_[0]);
  const DType made = w_.dtype_of(out_[0]);
  const auto product = [&](ValueId id, const char* name) {
    return w_.grad_of(id) ? w_.temporary(name, values, made) : kNoTensor;
  };
  const TensorId of_scores = product(scores, at_.names->out_grad);
  const TensorId of_rows = product(rows, at_.names->grad);
  const TensorId d = w_.gradient(out_[0]).tensor;
  auto products = w_.op(at_.names->name).read(d).write(of_scores).write(of_rows);
  if (w_.grad_of(scores)) products.read(s.of(rows));
  if (w_.grad_of(rows)) {
    products.read(s.of(scores));
    w_.gradient(rows) = {
        w_.cast(w_.plan_->value(rows).grad_name, of_rows, values, made, w_.dtype_of(rows))};
  }
  if (!w_.grad_of(scores)) return;
  const TensorId d_scores =
      w_.temporary(w_.plan_->value(scores).grad_name, w_.values_of(scores), w_.dtype_of(scores));
  w_.op(at_.names->mask).read(of_scores).read(d).write(d_scores);
  w_.gradient(scores) = {d_scores};
}

void BlockWriter::run_loop(const NodePlan& at, bool stops, LayerSaved& s) {
  LoopWriter loop(*this, at);
  switch (at.node->kind) {
    case OpKind::route:
      return loop.route(s);
    case OpKind::visitors:
      return loop.visitors(s);
    case OpKind::add_rows:
      return stops ? stop_at(at, s) : loop.add_rows(s);
    default:
      return loop.rows(s);
  }
}

void BlockWriter::loop_back(const NodePlan& at, const LayerSaved& s) {
  LoopWriter loop(*this, at);
  switch (at.node->kind) {
    case OpKind::route:
      return loop.route_back(s);
    case OpKind::gather:
      return loop.gather_back(s);
    case OpKind::weigh:
      return loop.weigh_back(s);
    case OpKind::add_rows:
      return loop.add_rows_back(s);
    default:
      return;
  }
}

}  // namespace plimsoll::planner::pytorch
