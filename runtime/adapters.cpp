#include "runtime/adapters.h"

#include <algorithm>

#include "runtime/modules/linear.h"
#include "runtime/shard/host_copy.h"

namespace plimsoll::runtime {

namespace {

using shard::Part;
using shard::State;
using shard::Unit;

// Rows of W that one GEMM makes. Counted from W's first row, so that a rank with a piece of W
// multiplies in the same shapes as one with all of it, and a library's sums have the same order.
constexpr std::int64_t kMergeRows = 64;

constexpr State kStates[] = {State::weights,       State::masters,      State::first_moment,
                             State::second_moment, State::first_scales, State::second_scales};

constexpr State kMoments[] = {State::first_moment, State::second_moment, State::first_scales,
                              State::second_scales};

Bytes bytes_of(ConstTensorView view) {
  return storage(Count(view.elements()), view.dtype);
}

std::vector<std::byte> copied_out(Device& device, TensorView view) {
  std::vector<std::byte> bytes;
  if (!view) return bytes;
  bytes.resize(static_cast<std::size_t>(bytes_of(view).value()));
  device.copy_out(bytes.data(), view.data, bytes_of(view));
  return bytes;
}

void copy_in(Device& device, const std::vector<std::byte>& bytes, TensorView view) {
  const Bytes size = view ? bytes_of(view) : Bytes(0);
  check(size.value() == static_cast<std::int64_t>(bytes.size()), ErrorKind::internal,
        "adapters of another model or sharding");
  if (view) device.copy_in(view.data, bytes.data(), size);
}

// [rows, columns] as [columns, rows].
std::vector<float> transposed(std::span<const float> x, std::int64_t columns) {
  const auto width = static_cast<std::size_t>(columns), rows = x.size() / width;
  std::vector<float> out(x.size());
  for (std::size_t r = 0; r < rows; ++r)
    for (std::size_t c = 0; c < width; ++c) out[c * rows + r] = x[r * width + c];
  return out;
}

Tensor temporary(Worker& worker, const char* name, Extents shape) {
  return worker.memory.allocate(name, Category::temporaries, DType::fp32, shape);
}

Tensor uploaded(Worker& worker, const char* name, Extents shape, const std::vector<float>& values) {
  Tensor tensor = temporary(worker, name, shape);
  shard::write_values(worker.device, values, tensor.view());
  return tensor;
}

// W's rows are B · A's, or Aᵀ · Bᵀ's.
struct Product {
  std::vector<float> left, right;  // [rows, rank], [rank, width]
};
Product product_of(const AdapterValues& adapter, std::int64_t rank) {
  const auto [a, b] = std::pair(adapter.a, adapter.b);
  if (!adapter.transposed) return {{b.begin(), b.end()}, {a.begin(), a.end()}};
  return {transposed(a, std::ssize(a) / rank), transposed(b, rank)};
}
kernels::LinearOptions merging(double alpha, std::int64_t rank) {
  return {.transposed = true,
          .accumulate = true,
          .scale = static_cast<float>(alpha / static_cast<double>(rank))};
}

}  // namespace

void add_adapter(const AdapterValues& adapter, const Extents& shape, std::span<float> weight) {
  const std::int64_t rows = shape[0], width = shape[1];
  const std::int64_t rank = std::ssize(adapter.a) / (adapter.transposed ? rows : width);
  Product product = product_of(adapter, rank);
  const kernels::ConstTensorView left(product.left.data(), DType::fp32, {rows, rank});
  const kernels::ConstTensorView right(product.right.data(), DType::fp32, {rank, width});
  const TensorView sum(weight.data(), DType::fp32, {rows, width});
  for (std::int64_t row = 0; row < rows; row += kMergeRows) {
    const std::int64_t count = std::min(kMergeRows, rows - row);
    kernels::host_kernels().linear_forward(left.rows(row, count), right, {},
                                           merging(adapter.alpha, rank), sum.rows(row, count), {});
  }
}

Adapters::Adapters(Trainer& trainer) : trainer_(trainer) {
  const auto& lora = trainer.strategy().lora;
  check(lora.has_value(), ErrorKind::bad_input, "there are no adapters: --lora-rank makes some");
  alpha_ = lora->alpha;
  const auto layers = trainer.model().layers();
  for (std::size_t i = 0; i < layers.size(); ++i) {
    for (const ModuleSlots& linear : layers[i].modules)
      if (linear.lora_a)
        sites_.push_back({i, *linear.weight, *linear.lora_a, *linear.lora_b, linear.transposed});
  }
}

void Adapters::expect_unmerged(const char* what) const {
  check(!merged(), ErrorKind::bad_input,
        [&] { return std::string(what) + ": the adapters are merged; unmerge them first"; });
}

// Merging -----------------------------------------------------------------------------------------

void Adapters::merge() {
  expect_unmerged("merge");
  Model& model = trainer_.model();
  Device& device = model.worker().device;
  for (const Site& site : sites_) {
    const ModelParameter& base = model.layers()[site.layer].parameters[site.weight];
    check(base.packed == nullptr, ErrorKind::unsupported, [&] {
      return "merge: " + base.name + " is packed (--quantize " + std::string(base.packed->name) +
             "), and the sum would have to be packed again, which rounds the adapter away; "
             "run --save-merged writes it in 16 bits";
    });
    std::int64_t first = 0;
    const TensorView masters =
        model.layer_unit(site.layer).stored_piece(State::masters, site.weight, first);
    const ModelParameter& weight = model.layers()[site.layer].parameters[site.weight];
    check(!masters, ErrorKind::unsupported, [&] {
      return "merge: " + weight.name + " is trained itself (--train), in masters of its own";
    });
  }
  unmerged_ = save();
  std::vector<std::vector<float>> adapters;
  for (std::size_t i = 0; i < sites_.size(); ++i) {
    const Site& site = sites_[i];
    Unit& unit = model.layer_unit(site.layer);
    std::int64_t first = 0;
    bases_.push_back(copied_out(device, unit.stored_piece(State::weights, site.weight, first)));
    if (i == 0 || sites_[i - 1].layer != site.layer)
      adapters = unit.whole(State::weights, Part::adapters);
    merge(site, adapters);
    for (const State state : {State::weights, State::masters})
      if (const TensorView b = unit.stored_piece(state, site.b, first))
        device.fill_bytes(b.data, 0, bytes_of(b));
  }
}

// This rank's elements of W, block of rows by block of rows. Where a block is not all here, the
// rest of its buffer is never read.
void Adapters::merge(const Site& site, const std::vector<std::vector<float>>& adapters) {
  Model& model = trainer_.model();
  Worker& worker = model.worker();
  std::int64_t first = 0;
  const TensorView piece =
      model.layer_unit(site.layer).stored_piece(State::weights, site.weight, first);
  if (!piece) return;
  const auto& parameters = model.layers()[site.layer].parameters;
  const Extents shape = parameters[site.weight].shape;
  const std::int64_t rows = shape[0], width = shape[1], rank = parameters[site.a].shape[0];
  const std::vector<float>&a = adapters[site.a], &b = adapters[site.b];
  const Product product = product_of({a, b, alpha_, site.transposed}, rank);
  const Tensor left = uploaded(worker, "adapters.left", {rows, rank}, product.left);
  const Tensor right = uploaded(worker, "adapters.right", {rank, width}, product.right);
  Tensor sum = temporary(worker, "adapters.sum", {std::min(rows, kMergeRows), width});
  const kernels::LinearOptions options = merging(alpha_, rank);
  const std::int64_t end = first + piece.elements();
  for (std::int64_t row = first / width / kMergeRows * kMergeRows; row * width < end;
       row += kMergeRows) {
    const std::int64_t count = std::min(kMergeRows, rows - row);
    const std::int64_t from = std::max(first, row * width);
    const std::int64_t elements = std::min(end, (row + count) * width) - from;
    const TensorView here = comm::slice(piece, from - first, elements);
    const TensorView part =
        comm::slice(sum.rows_of(width).as({sum.view().elements()}), from - row * width, elements);
    worker.kernels.cast(here, part);
    worker.kernels.linear_forward(left.view().rows(row, count), right.view(), {}, options,
                                  sum.view().rows(0, count), gemm_panels(worker));
    worker.kernels.cast(part, here);
  }
}

void Adapters::unmerge() {
  check(merged(), ErrorKind::bad_input, "unmerge: the adapters are not merged");
  check(trainer_.steps_taken() == unmerged_.steps, ErrorKind::bad_input,
        "unmerge: steps have been taken since the merge, and would be lost");
  Model& model = trainer_.model();
  for (std::size_t i = 0; i < sites_.size(); ++i) {
    std::int64_t first = 0;
    copy_in(
        model.worker().device, bases_[i],
        model.layer_unit(sites_[i].layer).stored_piece(State::weights, sites_[i].weight, first));
  }
  restore(unmerged_);
  bases_.clear();
  unmerged_ = {};
}

// Tasks -------------------------------------------------------------------------------------------

template <class Visit>
void Adapters::each_state(Visit visit) const {
  Model& model = trainer_.model();
  for (std::size_t i = 0; i < model.layers().size(); ++i)
    for (const State state : kStates) visit(model.layer_unit(i).stored_part(state, Part::adapters));
}

AdapterTask Adapters::save() const {
  expect_unmerged("save");
  AdapterTask task;
  each_state([&](TensorView part) {
    task.states.push_back(copied_out(trainer_.model().worker().device, part));
  });
  task.steps = trainer_.steps_taken();
  return task;
}

void Adapters::restore(const AdapterTask& task) {
  std::size_t i = 0;
  each_state([&](TensorView part) {
    check(i < task.states.size(), ErrorKind::internal, "adapters of another model");
    copy_in(trainer_.model().worker().device, task.states[i++], part);
  });
  trainer_.set_steps_taken(task.steps);
}

AdapterTask Adapters::swap(const AdapterTask& next) {
  AdapterTask task = save();
  restore(next);
  return task;
}

void Adapters::load(const ReadParameter& read) {
  expect_unmerged("load");
  Model& model = trainer_.model();
  for (std::size_t i = 0; i < model.layers().size(); ++i) {
    const auto& parameters = model.layers()[i].parameters;
    Unit& unit = model.layer_unit(i);
    unit.load([&](std::size_t index, std::int64_t first,
                  std::span<float> to) { read(parameters[index], first, to); },
              State::weights, Part::adapters);
    for (const State state : kMoments)
      if (const TensorView moments = unit.stored_part(state, Part::adapters))
        model.worker().device.fill_bytes(moments.data, 0, bytes_of(moments));
  }
  trainer_.set_steps_taken(0);
}

}  // namespace plimsoll::runtime
