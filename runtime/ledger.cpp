#include "runtime/ledger.h"

#include <algorithm>

namespace plimsoll::runtime {

namespace {

// Room for `n` elements, so that the next ones need no memory; by doubling, as vectors grow.
template <class T>
void make_room(std::vector<T>& elements, std::size_t n) {
  if (elements.capacity() < n) elements.reserve(std::max(n, 2 * elements.capacity()));
}

}  // namespace

void Ledger::count(models::Category category, Bytes bytes) {
  live_ += bytes;
  by_category_[static_cast<std::size_t>(category)] += bytes;
  peak_ = std::max(peak_, live_);
  op_high_ = std::max(op_high_, live_);
  if (!in_step_ || live_ <= step_.peak) return;
  step_.peak = live_;
  step_.peak_op = static_cast<std::size_t>(here());
  step_.at_peak = by_category_;
}

// What may find no memory comes first; behind it, and in `released`, nothing can.
Ledger::Entry Ledger::allocated(std::string&& name, std::string&& shape, models::Category category,
                                Bytes bytes) {
  if (free_.empty()) {
    make_room(live_tensors_, live_tensors_.size() + 1);
    make_room(free_, live_tensors_.size() + 1);
  }
  std::int64_t tensor = -1;
  if (in_step_) {
    tensor = static_cast<std::int64_t>(step_.tensors.size());
    step_.tensors.push_back({name, category, bytes, here(), kOutlivesStep});
  }
  Entry entry = live_tensors_.size();
  if (free_.empty()) {
    live_tensors_.emplace_back();
  } else {
    entry = free_.back();
    free_.pop_back();
  }
  live_tensors_[entry] = {std::move(name), std::move(shape), category, bytes, tensor, false};
  count(category, bytes);
  return entry;
}

void Ledger::released(Entry entry) noexcept {
  Live& tensor = live_tensors_[entry];
  if (in_step_ && tensor.tensor >= 0)
    step_.tensors[static_cast<std::size_t>(tensor.tensor)].died = here();
  live_ -= tensor.bytes;
  by_category_[static_cast<std::size_t>(tensor.category)] -= tensor.bytes;
  tensor.free = true;
  free_.push_back(entry);
}

void Ledger::begin_step() {
  check(!in_step_, ErrorKind::internal, "steps do not overlap");
  step_ = {};
  step_.resident = step_.peak = live_;
  step_.at_peak = by_category_;
  op_high_ = live_;
  for (Live& tensor : live_tensors_) {
    if (tensor.free) continue;
    tensor.tensor = static_cast<std::int64_t>(step_.tensors.size());
    step_.tensors.push_back({tensor.name, tensor.category, tensor.bytes});
  }
  in_step_ = true;
}

void Ledger::begin_op(std::string name, models::Phase phase) {
  check(!in_op_, ErrorKind::internal, [&] { return "op " + name + " inside op " + op_name_; });
  if (in_step_) step_.ops.push_back({name, phase, Bytes(0), Bytes(0)});
  in_op_ = true;
  op_name_ = std::move(name);
  op_phase_ = phase;
  op_high_ = live_;
}

void Ledger::end_op() {
  in_op_ = false;
  if (!in_step_) return;
  step_.ops.back().allocated = live_;
  step_.ops.back().high_water = op_high_;
}

StepRecord Ledger::end_step() {
  check(in_step_ && !in_op_, ErrorKind::internal, "a step ends after its last op");
  in_step_ = false;
  for (Live& tensor : live_tensors_) tensor.tensor = -1;
  return std::move(step_);
}

std::string Ledger::live_table(std::size_t lines) const {
  std::vector<const Live*> live;
  for (const Live& tensor : live_tensors_)
    if (!tensor.free) live.push_back(&tensor);
  std::stable_sort(live.begin(), live.end(),
                   [](const Live* a, const Live* b) { return a->bytes > b->bytes; });
  std::string text;
  Bytes rest;
  for (std::size_t i = 0; i < live.size(); ++i) {
    if (i >= lines) {
      rest += live[i]->bytes;
      continue;
    }
    text += "  " + std::to_string(live[i]->bytes.value()) + " B  " + live[i]->name + " " +
            live[i]->shape + "\n";
  }
  if (live.size() > lines)
    text += "  " + std::to_string(rest.value()) + " B  in " + std::to_string(live.size() - lines) +
            " more\n";
  return text;
}

}  // namespace plimsoll::runtime
