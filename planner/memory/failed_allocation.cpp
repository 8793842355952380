#include "planner/memory/failed_allocation.h"

#include <algorithm>
#include <functional>
#include <map>
#include <string>
#include <utility>

#include "models/decisions/mesh.h"
#include "planner/memory/reserved.h"
#include "planner/program/timeline.h"
#include "planner/stack_step.h"

namespace plimsoll::planner {

using models::Category;
using models::kNoGroup;
using models::Op;
using models::Residency;
using models::StepProgram;
using models::TensorDecl;

namespace {

constexpr std::size_t kMostCandidates = 6, kMostTensors = 6;
// The largest error of 30 published peaks is 4.3 % (reports/memory_accuracy.md).
constexpr double kAgrees = 0.05;
// Where the plan is of the very workload it is off by less than 5 MiB (tests/golden/oom_runs.json),
// and two decimals of a GiB by 5 more.
constexpr Bytes kSame = 10_MiB;

Bytes distance(Bytes a, Bytes b) {
  return a > b ? a - b : b - a;
}

std::string starred(const StepProgram& program, models::GroupId group, const char* name) {
  if (group == kNoGroup) return name;
  return std::string(program.groups[static_cast<std::size_t>(group)].prefix) + ".*." + name;
}

class Search {
 public:
  Search(const Question& question, const FailedRequest& request) : request_(request) {
    step_.rank =
        request.rank && *request.rank < models::decisions::mesh_of(question.strategy).ranks()
            ? *request.rank
            : -1;
    write_step(question, model_parts(*question.model, question.strategy), step_);
    check(step_.caching_allocator, ErrorKind::unsupported,
          "out-of-memory messages are those of PyTorch's allocator: --stack pytorch or deepspeed");
    timeline_ = unroll(step_.program);
  }

  FailedAllocation run() {
    replay({}, [&](const Allocation& asked) {
      note_states(asked);
      if (distance(printed(asked), request_.printed) <= request_.margin) add(asked);
    });
    find_refused();
    list_candidates();
    return std::move(out_);
  }

 private:
  struct Found {
    FailedCandidate candidate;
    Allocation nearest;
    Bytes states;  // of the optimizer, made before it
  };

  Reserved replay(Room room, const AllocationWatch& watch) const {
    return planner::replay(step_.program, timeline_, room, step_.start, step_.allocator, watch);
  }

  const Lifetime& life(std::int64_t lifetime) const {
    return timeline_.lifetimes[static_cast<std::size_t>(lifetime)];
  }
  const TensorDecl& decl(models::TensorId tensor) const {
    return step_.program.tensors[static_cast<std::size_t>(tensor)];
  }
  Bytes printed(const Allocation& asked) const {
    return request_.rounded ? CachingAllocator({}, step_.allocator).segment_for(asked.requested)
                            : asked.requested;
  }

  void note_states(const Allocation& asked) {
    if (asked.lifetime < 0) return;
    const TensorDecl& tensor = decl(life(asked.lifetime).tensor);
    if (tensor.category == Category::optimizer && tensor.residency == Residency::persistent)
      states_ += asked.requested;
  }

  FailedCandidate candidate_of(const Allocation& asked) const {
    const StepProgram& program = step_.program;
    FailedCandidate out{.printed = printed(asked), .first_step = asked.first_step};
    out.tensor = {.name = "what is built while the model is loaded, and let go",
                  .category = name_of(Category::parameters),
                  .bytes = asked.requested};
    out.at.allocated = asked.allocated;
    if (asked.step >= 0) {
      const Position& at = timeline_.steps[static_cast<std::size_t>(asked.step)].at;
      const Op& op = program.ops[at.op];
      out.at.phase = name_of(op.phase);
      out.at.op = name_of_op(program, at);
      out.tensor.name =
          starred(program, program.segments[at.segment].group, op.name) + " (scratch)";
      out.tensor.category = name_of(op.scratch_category);
    }
    if (asked.lifetime >= 0) {
      const TensorDecl& tensor = decl(life(asked.lifetime).tensor);
      out.tensor.name = starred(program, tensor.group, tensor.name);
      out.tensor.category = name_of(tensor.category);
    }
    return out;
  }

  bool is_nearer(Bytes allocated, Bytes than) const {
    if (!request_.allocated) return allocated > than;
    return distance(allocated, *request_.allocated) < distance(than, *request_.allocated);
  }

  static bool are_same(const FailedCandidate& a, const FailedCandidate& b) {
    return a.tensor.name == b.tensor.name && a.tensor.bytes == b.tensor.bytes;
  }

  // A size that fits a thousand requests belongs to few names.
  void add(const Allocation& asked) {
    FailedCandidate candidate = candidate_of(asked);
    const auto same = std::ranges::find_if(
        found_, [&](const Found& found) { return are_same(found.candidate, candidate); });
    if (same == found_.end()) {
      found_.push_back({std::move(candidate), asked, states_});
      return;
    }
    candidate.tensor.repeat = ++same->candidate.tensor.repeat;
    if (is_nearer(asked.allocated, same->nearest.allocated))
      *same = {std::move(candidate), asked, states_};
  }

  // What has the message's bytes first, then what agrees with them, each with what the plan itself
  // has no room for before the rest.
  void list_candidates() {
    const auto rank = [&](const Found& found) {
      const FailedCandidate& c = found.candidate;
      if (request_.allocated && !agrees(c.at.allocated, *request_.allocated)) return 4;
      const bool same =
          request_.allocated && distance(c.at.allocated, *request_.allocated) <= kSame;
      return (same ? 0 : 2) + (out_.refused && are_same(c, *out_.refused) ? 0 : 1);
    };
    std::ranges::stable_sort(found_, [&](const Found& a, const Found& b) {
      if (rank(a) != rank(b)) return rank(a) < rank(b);
      return is_nearer(a.nearest.allocated, b.nearest.allocated);
    });
    for (const Found& found : found_)
      if (out_.candidates.size() < kMostCandidates) out_.candidates.push_back(found.candidate);
    out_.further = static_cast<std::int64_t>(found_.size() - out_.candidates.size());
    if (!found_.empty() && found_.front().nearest.step >= 0) add_lived(found_.front());
  }

  // What the plan holds while that op runs, but for the request itself. In a first step the
  // optimizer has as many states as were asked for until then.
  void add_lived(const Found& best) {
    const std::int64_t step = best.nearest.step;
    std::map<std::string, reports::TensorLine> tensors;
    for (std::size_t i = 0; i < timeline_.lifetimes.size(); ++i) {
      const Lifetime& lifetime = timeline_.lifetimes[i];
      const TensorDecl& tensor = decl(lifetime.tensor);
      const bool stays = tensor.residency == Residency::persistent;
      const bool is_state = stays && tensor.category == Category::optimizer;
      if (static_cast<std::int64_t>(i) == best.nearest.lifetime ||
          (is_state && best.nearest.first_step) || (!stays && lifetime.birth < 0) ||
          lifetime.birth > step || lifetime.death < step)
        continue;
      out_.lived[static_cast<std::size_t>(tensor.category)] += tensor.bytes;
      reports::TensorLine& line = tensors[starred(step_.program, tensor.group, tensor.name)];
      line.repeat = line.name.empty() ? 1 : line.repeat + 1;
      line.name = starred(step_.program, tensor.group, tensor.name);
      line.category = name_of(tensor.category);
      line.bytes += tensor.bytes;
    }
    if (best.nearest.first_step)
      out_.lived[static_cast<std::size_t>(Category::optimizer)] += best.states;
    for (auto& [name, line] : tensors) out_.largest.push_back(std::move(line));
    std::ranges::stable_sort(out_.largest, std::greater{}, &reports::TensorLine::bytes);
    if (out_.largest.size() > kMostTensors) out_.largest.resize(kMostTensors);
  }

  void find_refused() {
    if (!request_.room) return;
    const Reserved made = replay({.limit = request_.room}, [&](const Allocation& asked) {
      if (!asked.granted) out_.refused = candidate_of(asked);
    });
    if (made.fits) out_.refused.reset();  // a start that gets by without what it held
  }

  const FailedRequest& request_;
  StackStep step_;
  Timeline timeline_;
  Bytes states_;  // asked for so far
  std::vector<Found> found_;
  FailedAllocation out_;
};

}  // namespace

bool agrees(Bytes planned, Bytes printed) {
  return distance(planned, printed).real() <= kAgrees * printed.real();
}

FailedAllocation find_failed_allocation(const Question& question, const FailedRequest& request) {
  check(question.model->decoder.has_value(), ErrorKind::unsupported, [&] {
    return "the training step of model_type '" + question.model->model_type +
           "' is not modelled yet";
  });
  return Search(question, request).run();
}

}  // namespace plimsoll::planner
