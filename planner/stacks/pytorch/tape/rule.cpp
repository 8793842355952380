#include "planner/stacks/pytorch/tape/rule.h"

#include <algorithm>
#include <span>

#include "models/base/error.h"

namespace plimsoll::planner::tape {

Rule::Rule(Function function) : function_(std::move(function)), kept_(function_.kept()) {
  check(kept_.size() <= kMostKept, ErrorKind::internal, "a function keeps too many values");
}

Rule::~Rule() {
  for (Known& at : forward_) delete at.load();
  for (Known& at : backward_) delete at.load();
}

std::size_t Rule::parameter_at(ValueId value) const {
  const auto before = std::span(function_.values()).first(static_cast<std::size_t>(value));
  return static_cast<std::size_t>(std::ranges::count_if(before, &Value::parameter));
}

template <class Make>
const Lowered& Rule::known(Known& at, Make&& make) const {
  if (const Lowered* lowered = at.load(std::memory_order_acquire)) return *lowered;
  auto made = std::make_unique<Lowered>(lower(make()));
  // In whose memory it is: a result may be a view.
  const auto place = [&](const std::vector<ValueId>& all, ValueId value) {
    const auto is = [&](ValueId other) { return function_.value(other).storage == value; };
    const auto found = std::ranges::find_if(all, is);
    return static_cast<std::int8_t>(found == all.end() ? -1 : found - all.begin());
  };
  for (Slot& slot : made->slots) {
    slot.kept = place(kept_, slot.value);
    slot.also = place(function_.also_results(), slot.value);
  }
  check(made->slots.size() <= kMostSlots && made->sizes.size() <= kMostSlots, ErrorKind::internal,
        "a function has too many tensors");
  const Lowered* none = nullptr;
  if (at.compare_exchange_strong(none, made.get(), std::memory_order_acq_rel))
    return *made.release();
  return *none;
}

const Lowered& Rule::forward(bool saves, bool stops) const {
  return known(forward_[saves * 2u + stops],
               [&] { return tape::forward(function_, saves, stops); });
}

const Lowered& Rule::backward(const Surroundings& of) const {
  return known(
      backward_[of.flowing_shared * 32u + of.result_shared * 16u + of.acts_on_gradients * 8u +
                of.flows * 4u + of.checkpointed * 2u + of.keeps_gradients],
      [&] { return tape::backward(function_, of); });
}

}  // namespace plimsoll::planner::tape
