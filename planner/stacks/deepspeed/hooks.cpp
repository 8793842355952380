// The hooks of a backward, before it is written: in which order gradients arrive, where the bucket
// is reduced, and which gradient waits for the next hook.
#include <algorithm>
#include <utility>

#include "planner/stacks/deepspeed/engine_wrapper.h"

namespace plimsoll::planner::deepspeed {

using models::kNoGroup;

namespace {

// A bias has its hook before the weight's, unless it is added behind the GEMM.
std::vector<Parameter> hooked_order(const std::vector<Parameter>& parameters,
                                    bool bias_behind_gemm) {
  std::vector<Parameter> order = in_backward_order(parameters);
  if (!bias_behind_gemm) return order;
  for (std::size_t i = 0; i + 1 < order.size(); ++i) {
    const Parameter &bias = order[i], &weight = order[i + 1];
    const bool fits = bias.elements == weight.rows || bias.elements == weight.columns;
    if (bias.columns == 0 && weight.columns > 0 && bias.node == weight.node && fits)
      std::swap(order[i], order[i + 1]);
  }
  return order;
}

}  // namespace

// Of so many stretches of the block in one repeat. Gradients come from the end of a layer to its
// front: of equal parameters, the last one first.
HookRun& EngineWrapper::plan_run(const FlatLayout::Block& block, std::int64_t stretches,
                                 const Order& order) {
  HookRun& run = hook_runs_.emplace_back();
  run.begin = block.begin;
  run.elements = block.elements * stretches;
  run.first = block.first;
  run.parameters = static_cast<std::int64_t>(block.parameters.size()) * stretches;
  std::vector<Hook> places;  // not yet met
  std::int64_t at = 0, index = 0;
  for (std::int64_t i = 0; i < stretches; ++i)
    for (const std::int64_t elements : block.parameters) {
      places.push_back({.elements = elements, .offset = at, .index = index++});
      at += elements;
    }
  for (const Parameter& p : order) {
    if (!p.trainable) continue;
    const auto place = std::find_if(places.rbegin(), places.rend(),
                                    [&](const Hook& one) { return one.elements == p.elements; });
    check(place != places.rend(), ErrorKind::internal, [&] {
      return "a gradient of " + std::to_string(p.elements) +
             " elements belongs to no parameter of its layer";
    });
    run.hooks.push_back(*place);
    places.erase(std::next(place).base());
  }
  return run;
}

// The tail's gradients come before the layers', the embedding's after them; a table that is tied to
// the head is registered as the embedding's, and comes last.
void EngineWrapper::plan_hooks() {
  hook_runs_.clear();
  at_run_ = at_hook_ = 0;
  const std::vector<FlatLayout::Block>& blocks = layout_.blocks();
  const std::int64_t table =
      d_.tied_head ? checked_multiply(d_.vocab, d_.table_width()) : std::int64_t{-1};
  Order tail, front = in_backward_order(parts_.embedding);
  // Positions are added to the sum of words and types.
  const std::int64_t types = checked_multiply(d_.token_types, d_.hidden);
  const auto is_types = [&](const Parameter& p) { return p.columns > 0 && p.elements == types; };
  const auto typed = std::ranges::find_if(front, is_types);
  if (typed != front.end() && std::next(typed) != front.end())
    std::iter_swap(typed, std::next(typed));
  for (const Parameter& p : parts_.tail) (p.elements == table ? front : tail).push_back(p);
  plan_run(blocks.back(), 1, hooked_order(tail, engine_.has_own_linear())).part =
      Message::Part::tail;
  for (auto run = s_.runs.rbegin(); run != s_.runs.rend(); ++run) {
    const auto of = static_cast<std::size_t>(run->layers - parts_.runs.data());
    const FlatLayout::Block& block = blocks[of + 1];
    Order order;
    for (std::size_t j = run->stride(); j-- > 0;) {
      const LayerPart& part = run->layer(j);
      const bool conv1d = std::ranges::any_of(part.linears, &LinearPart::conv1d);
      const Order layer = hooked_order(part.parameters, engine_.has_own_linear() && !conv1d);
      order.insert(order.end(), layer.begin(), layer.end());
    }
    const auto stride = static_cast<std::int64_t>(run->stride());
    HookRun& hooks = plan_run(block, stride / block.layers, order);
    hooks.group = run->group;
    hooks.part = Message::Part::layer;
    hooks.repeats = run->count;
    hooks.unit = &run->units.front();
    // Of the run's instances those of the same layers that come before.
    for (auto before = s_.runs.begin(); &*before != &*run; ++before)
      if (before->layers == run->layers) {
        const std::int64_t repeats =
            before->count * static_cast<std::int64_t>(before->stride()) / block.layers;
        hooks.begin += repeats * block.elements;
        hooks.first += repeats * static_cast<std::int64_t>(block.parameters.size());
      }
  }
  plan_run(blocks.front(), 1, front);
  std::erase_if(hook_runs_, [](const HookRun& run) { return run.hooks.empty(); });
  fill_buckets();
}

// A layer's last gradient which is larger than the bucket is read by the first hook of the next
// repeat, which is written before it.
void EngineWrapper::declare_waiting() {
  for (HookRun& run : hook_runs_) {
    run.waiting = kNoTensor;
    const std::int64_t elements = run.hooks.back().elements;
    if (!moves() || run.group == kNoGroup || run.repeats == 1 ||
        elements <= engine_.options.reduce_bucket_size)
      continue;
    run.begun = 0;
    run.alike = -1;
    if (whole_gradients() && !s_.first_micro()) {
      run.waiting = run.unit->kept.back();
      continue;
    }
    run.alike = std::ranges::count_if(
                    *run.unit->parameters,
                    [&](const Parameter& p) { return p.trainable && p.elements == elements; }) -
                1;
    run.waiting =
        b_.tensor_in(run.group, "zero.waiting_grad", gradients(elements), Category::gradients);
  }
}

TensorId EngineWrapper::waiting_gradient(std::int64_t elements) {
  for (HookRun& run : hook_runs_)
    if (run.waiting != kNoTensor && run.unit == s_.unit && run.hooks.back().elements == elements &&
        run.begun++ == run.alike)
      return run.waiting;
  return kNoTensor;
}

EngineWrapper::Found EngineWrapper::next_hook(std::int64_t elements, TensorId gradient) {
  HookRun& run = hook_runs_.at(at_run_);
  Hook& hook = run.hooks[at_hook_];
  check(hook.elements == elements, ErrorKind::internal, [&] {
    return "a gradient of " + std::to_string(elements) + " elements came where one of " +
           std::to_string(hook.elements) + " was planned";
  });
  hook.gradient = gradient;
  const auto waits = [&](const Hook& last) {
    return last.elements > engine_.options.reduce_bucket_size ? last.gradient : kNoTensor;
  };
  Found found{.hook = &hook, .stays = stays(run, hook)};
  if (at_hook_ > 0) {
    const Hook& last = run.hooks[at_hook_ - 1];
    found.waiting.tensor = waits(last);
    found.owned = last.owned;
  } else {
    const Hook* last = at_run_ > 0 ? &hook_runs_[at_run_ - 1].hooks.back() : nullptr;
    const TensorId before = last != nullptr ? waits(*last) : kNoTensor;
    found.owned = last != nullptr && last->owned;
    if (run.group == kNoGroup)
      found.waiting.tensor = before;
    else
      found.waiting = {run.waiting, 1, before};
  }
  if (++at_hook_ == run.hooks.size()) ++at_run_, at_hook_ = 0;
  return found;
}

// Where a hook's parameter begins in the flat buffer, in one of its run's repeats from the front.
std::int64_t EngineWrapper::begin_of(const HookRun& run, const Hook& hook,
                                     std::int64_t repeat) const {
  return layout_.begin_of(run.first + repeat * run.parameters + hook.index,
                          run.begin + repeat * run.elements + hook.offset);
}

// Stage 1: a gradient that is larger than the bucket is reduced where it lies, and of another
// rank's parameter nobody lets it go before the step (stage_1_and_2.py, reduce_ipg_grads: only
// copy_grads_in_partition does). Where a run has both it counts as staying.
bool EngineWrapper::stays(const HookRun& run, const Hook& hook) const {
  if (engine_.stage != 1 || hook.elements <= engine_.options.reduce_bucket_size) return false;
  const Together mine(layout_, engine_.rank);
  for (std::int64_t i = 0; i < run.repeats; ++i)
    if (mine.inside(begin_of(run, hook, i), hook.elements) <= 0) return true;
  return false;
}

// Where is the bucket reduced, and does one rank own all of it?
void EngineWrapper::fill_buckets() {
  const std::int64_t size = engine_.options.reduce_bucket_size;
  std::int64_t content = 0;
  Together together(layout_, engine_.rank);
  bool owned = false;  // a parameter of this rank's partition has been reduced
  // Stage 3 copies whatever is not one parameter that divides evenly (reduce_scatter_coalesced).
  std::int64_t held = 0, part = 0;  // parameters; the largest of which this rank owns so many
  OnTheWay way(engine_.model, engine_.state);
  std::vector<Hook*> in_bucket;
  const auto copies = [&] {
    if (engine_.stage == 3) return held > 1 || content % engine_.ranks != 0;
    return !together.one_owner();
  };
  placements_.clear();
  buckets_.clear();
  std::int64_t padded = 0;
  for (HookRun& run : hook_runs_)
    for (std::int64_t i = 0; i < run.repeats; ++i) {
      for (Hook& hook : run.hooks) {
        if (content + hook.elements > size && content > 0) {
          if (const std::int64_t copy = beside_bucket(copies() ? content : 0, part, &way);
              copy > 0) {
            if (hook.first < 0) hook.first = i;
            placements_.push_back({static_cast<std::size_t>(&run - hook_runs_.data()),
                                   static_cast<std::size_t>(&hook - run.hooks.data()), i, copy});
          }
          owned = owned || together.owns_some();
          buckets_.push_back({run.part, content, std::exchange(padded, 0)});
          content = held = part = 0;
          way.clear();
          in_bucket.clear();
          together.clear();
        }
        if (i == 0) hook.owned = owned;
        content += hook.elements;
        padded += ceil_divide(hook.elements, engine_.ranks) * engine_.ranks;
        ++held;
        const std::int64_t begins = begin_of(run, hook, run.repeats - 1 - i);
        together.add(begins, hook.elements);
        const std::int64_t inside = engine_.stage == 3 ? ceil_divide(hook.elements, engine_.ranks)
                                                       : together.inside(begins, hook.elements);
        part = std::max(part, inside);
        way.add(inside);
        in_bucket.push_back(&hook);
      }
      // Allocated in the middle of a run: from its first layer on.
      if (owned && i > 0 && !run.hooks.front().owned)
        for (Hook& hook : run.hooks) hook.owned = true;
    }
  if (content > 0) buckets_.push_back({Message::Part::front, content, padded});
  left_in_bucket_ = beside_bucket(content > 0 && copies() ? content : 0, part, &way);
  for (HookRun& run : hook_runs_)
    for (Hook& hook : run.hooks) hook.last = std::ranges::count(in_bucket, &hook) == run.repeats;
}

}  // namespace plimsoll::planner::deepspeed
