// Source: deepspeed 0.19.8, runtime/zero/partitioned_param_coordinator.py (fetch_sub_module,
// release_sub_module) and parameter_offload.py (the hooks).
//
// Before each module the parameters that it has itself and that are not there are gathered as one
// message; then the recorded trace is read ahead, and what is not there is gathered as another one,
// up to stage3_prefetch_bucket_size elements or as many as stage3_max_live_parameters leaves. When
// the module has run, its parameters go, unless the reading ahead has passed their next use, or
// that is nearer than stage3_max_reuse_distance elements of the trace. Modules without parameters
// read ahead too. A trace has a use for each module's forward, for its backward where its output
// takes a gradient, and for what a checkpoint runs again. It begins anew with each micro-batch.
//
// A part that has a file (swap_tensor/partitioned_param_swapper.py) is read into a buffer of its
// own before it is gathered, and has it until the parameter goes. Reading ahead stops at one that
// is in its file alone; then parts are read along the trace that hold twice as many elements as are
// under way, or for as many as buffers are left. Who is gathered and finds no buffer ends the
// training.
#include "planner/stacks/deepspeed/coordinator.h"

#include <algorithm>

namespace plimsoll::planner::deepspeed {

using Part = Message::Part;
using When = Message::When;
using Beside = Message::Beside;

Coordinator::Coordinator(Trace trace, const Engine& engine, const models::Strategy& strategy)
    : t_(std::move(trace)),
      engine_(engine),
      reentrant_(strategy.use_reentrant.value_or(false)),
      next_(t_.uses.size(), kNever) {
  goes_.assign(t_.uses.size(), false);
  all_buffers_ = buffers_ = engine.options.nvme.param_buffer_count;
  files_ =
      std::ranges::any_of(t_.parameters, [](const Held& held) { return held.file != InFile::no; });
  std::vector<std::size_t> later(t_.parameters.size(), kNever);
  for (std::size_t use = t_.uses.size(); use-- > 0;)
    next_[use] = std::exchange(later[t_.uses[use]], use);
}

// What a module lets go is decided once, in the first pass that knows the trace, and remembered
// (functools.lru_cache on __params_to_release). The pass that recorded it let go of all: where
// micro-batches accumulate, the small parameters, which stay from now on, are gathered in it too.
void Coordinator::run(Messages& out) {
  records_ = true;
  if (files_) pass();
  records_ = false;
  begin(false);
  pass();
  begin(true);
  out_ = &out;
  pass();
}

// What DeepSpeed says where buffers run out; "" where they do not.
std::string Coordinator::refused(std::int64_t buffers) {
  Messages ignored;
  goes_.assign(t_.uses.size(), false);
  out_ = nullptr;
  all_buffers_ = buffers;
  refused_.clear();
  begin(false);
  run(ignored);
  return refused_;
}

void Coordinator::begin(bool persistent_there) {
  buffers_ = all_buffers_;
  for (Held& held : t_.parameters) {
    if (held.file != InFile::no) held.file = InFile::only;
    held.there = persistent_there && held.persistent;
    held.under_way = false;
    held.read_to = -1;
    held.active = 0;
  }
  read_ = 0;
  live_ = 0;
  flats_.assign(1, {});
  alone_ = plain_ = graph_ = Bytes(0);
  graph_of_ = -1;
  run_again_.clear();
  for (Held& held : t_.parameters) {
    held.elsewhere = false;
    held.flat = 0;
  }
}

void Coordinator::pass() {
  const Step* found = nullptr;
  for (std::size_t s = 0; s < t_.steps.size(); ++s) {
    const Step& step = t_.steps[s];
    // Nobody knows of it before the forward has come to its use; it stays until the backward ends.
    if (records_ && step.finds_head) {
      found = &step;
      continue;
    }
    if (found != nullptr && step.when == When::backward)
      fetch(*std::exchange(found, nullptr), static_cast<std::int64_t>(s));
    if (!(reentrant_ ? step.number == graph_of_ : step.again)) drop_graph();
    fetch(step, static_cast<std::int64_t>(s));
    if (!records_) read_ahead();
    if (at_step_) at_step_(s);
    if (step.leaves_copies) leave_copies(step);
    if (step.again) run_again(step);
    open_.push_back(&step);
    for (; !open_.empty() && open_.back()->last == s; open_.pop_back())
      release(*open_.back(), static_cast<std::int64_t>(s) + 1);
  }
}

void Coordinator::fetch(const Step& step, std::int64_t now) {
  std::size_t not_read = 0;
  for (std::size_t use = step.begin; use < step.end; ++use) {
    Held& held = t_.parameters[t_.uses[use]];
    if (held.read_to < now) ++not_read;
    if (!held.there) batch_.push_back(use);
    ++held.active;
  }
  gather(step, false);
  for (std::size_t use = step.begin; use < step.end; ++use) {
    Held& held = t_.parameters[t_.uses[use]];
    if (std::exchange(held.under_way, false)) wait(held);
  }
  if (records_) return;
  for (; not_read > 0 && read_ < t_.uses.size(); --not_read, ++read_)
    t_.parameters[t_.uses[read_]].read_to = t_.step_of[read_];
}

void Coordinator::read_ahead() {
  const models::DeepSpeedOptions& o = engine_.options;
  const std::int64_t most = std::min(o.max_live_parameters - live_, o.prefetch_bucket_size);
  if (o.prefetch_bucket_size <= 0) return;
  for (std::int64_t elements = 0; read_ < t_.uses.size() && elements < most; ++read_) {
    Held& held = t_.parameters[t_.uses[read_]];
    if (held.file == InFile::only) break;
    held.read_to = std::max(held.read_to, t_.step_of[read_]);
    if (held.there) continue;
    held.there = true;
    batch_.push_back(read_);
    elements += held.elements;
  }
  if (!batch_.empty()) gather(t_.steps[static_cast<std::size_t>(t_.step_of[batch_.front()])], true);
  if (files_) read_files_ahead();
}

// __prefetch_nvme_param_partitions. One that is used twice in this stretch would ask for two
// buffers, which is refused.
void Coordinator::read_files_ahead() {
  std::int64_t under_way = 0, considered = 0;
  for (const Held& held : t_.parameters)
    if (held.under_way) under_way += held.elements;
  std::vector<Held*> found;
  for (std::size_t use = read_; use < t_.uses.size(); ++use) {
    Held& held = t_.parameters[t_.uses[use]];
    if (considered > 2 * under_way || std::ssize(found) >= buffers_) break;
    if (held.file == InFile::only) found.push_back(&held);
    considered += held.elements;
  }
  for (Held* held : found) {
    if (held->file != InFile::only) refuse("a parameter has already been assigned a swap buffer");
    take_buffer(*held);
  }
}

// _ensure_availability_of_partitioned_params, of what stands in batch_.
void Coordinator::read_files() {
  std::int64_t missing = 0;
  bool coming = false;
  for (const std::size_t use : batch_) {
    const InFile file = t_.parameters[t_.uses[use]].file;
    missing += file == InFile::only;
    coming = coming || file == InFile::coming;
  }
  if (missing == 0 && !coming) return;
  if (missing > buffers_)
    refuse("Not enough buffers " + std::to_string(buffers_) + " for swapping " +
           std::to_string(missing));
  for (const std::size_t use : batch_)
    if (Held& held = t_.parameters[t_.uses[use]]; held.file == InFile::only) take_buffer(held);
  for (Held& held : t_.parameters)
    if (held.file == InFile::coming) held.file = InFile::buffered;
}

// What stands in batch_: a message for each dtype. Several are concatenated, and copied apart.
void Coordinator::gather(const Step& of, bool ahead) {
  if (files_) read_files();
  count_gathered(batch_.size() > 1);
  for (const bool wide : {false, true}) {
    Message m{.group = engine_.group, .part = of.part, .layer = of.layer};
    m.when = of.when;
    std::int64_t several = 0;
    for (const std::size_t use : batch_) {
      Held& held = t_.parameters[t_.uses[use]];
      if (held.wide != wide) continue;
      held.there = held.under_way = true;
      if (held.persistent && held.file == InFile::buffered) let_buffer_go(held);
      live_ += held.elements;
      m.array += held.padded;
      ++several;
    }
    if (several > 1) m.copied = 2 * m.array.real();
    if (ahead && (m.part == Part::layer || (m.part == Part::tail && m.when == When::forward)))
      m.beside = Beside::neighbour;
    else if (ahead && m.when == When::backward)
      m.beside = Beside::backward;
    if (several > 0 && out_ != nullptr) send(m);
  }
  batch_.clear();
}

void Coordinator::send(const Message& m) {
  // One like it was sent not long ago.
  const auto known = std::find_if(out_->rbegin(), out_->rend(), [&](const Message& o) {
    return o.array == m.array && o.part == m.part && o.layer == m.layer && o.when == m.when &&
           o.beside == m.beside && o.copied == m.copied;
  });
  if (known != out_->rend())
    known->count += m.count;
  else
    add(*out_, m);
}

void Coordinator::release(const Step& step, std::int64_t now) {
  if (out_ == nullptr && !records_) decide(step, now);
  for (std::size_t use = step.begin; use < step.end; ++use) {
    Held& held = t_.parameters[t_.uses[use]];
    if (--held.active == 0 && (goes_[use] || records_)) let_go(held, step);
  }
  std::erase_if(run_again_, [&](const auto& of) {
    if (of.first != &step) return false;
    Held& held = t_.parameters[of.second];
    if (--held.active == 0) let_go(held, step);
    return true;
  });
}

void Coordinator::let_go(Held& held, const Step& step) {
  if (!std::exchange(held.there, false)) return;
  const bool counts = !std::exchange(held.elsewhere, false) && !held.persistent;
  const bool in_graph = counts && held.packed && engine_.packed_copy == PackedCopy::graph &&
                        (step.again || (reentrant_ && step.when == When::backward));
  if (in_graph) {
    graph_ += held.padded;
    graph_of_ = step.number;
    in_graph_.push_back(std::exchange(held.block, -1));
  } else if (counts) {
    count(-held.padded, held.packed ? Bytes(0) : -held.padded);
  }
  drop_block(held.block);
  if (held.file == InFile::buffered) let_buffer_go(held);
  live_ -= held.elements;
}

// The frozen parameters of what is run again stay until the module has ended whose backward asked
// for it (update_recompute_parameters, ds_recompute_parameters), which then lets go of them. A
// reentrant checkpoint is asked by none of its own layer's: the model's own backward, whose input
// takes no gradient, ends with the whole one (release_backward_leftovers).
void Coordinator::run_again(const Step& step) {
  if (!engine_.gathers_by_layer()) return;
  const auto found = std::find_if(open_.rbegin(), open_.rend(), [](const Step* open) {
    return open->when == When::backward && !open->again;
  });
  const Step* const owner = found == open_.rend() || reentrant_ ? nullptr : *found;
  for (std::size_t use = step.begin; use < step.end; ++use) {
    const std::pair<const Step*, std::size_t> of(owner, t_.uses[use]);
    Held& held = t_.parameters[of.second];
    if (held.trained || std::ranges::find(run_again_, of) != run_again_.end()) continue;
    run_again_.push_back(of);
    ++held.active;
  }
}

void Coordinator::decide(const Step& step, std::int64_t now) {
  const std::int64_t used =
      now < std::ssize(t_.steps) ? t_.steps[static_cast<std::size_t>(now)].before : 0;
  for (std::size_t use = step.begin; use < step.end; ++use) {
    const Held& held = t_.parameters[t_.uses[use]];
    std::size_t next = next_[use];
    while (next != kNever && t_.step_of[next] < now) next = next_[next];
    const bool near = next != kNever && before(next) - used < engine_.options.max_reuse_distance;
    goes_[use] = !held.persistent && held.read_to <= now && !near;
  }
}

}  // namespace plimsoll::planner::deepspeed
