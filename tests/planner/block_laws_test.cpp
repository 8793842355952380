// What an allocator is asked for, block by block, against the memory of each moment that the same
// writer states as one figure.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstdlib>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "models/gpu_catalog.h"
#include "models/model_reader.h"
#include "models/optimizers.h"
#include "planner/memory/step_requests.h"
#include "planner/stack_step.h"
#include "tests/planner/rarer_code.h"

using namespace plimsoll;

namespace {

// What is in use while requests are asked.
class InUse {
 public:
  explicit InUse(std::size_t blocks) : bytes_(blocks) {}

  void take(const planner::Request& request) {
    Bytes& there = bytes_[static_cast<std::size_t>(request.block)];
    if (there > Bytes(0)) return;
    there = request.bytes;
    now_ += there;
    highest_ = std::max(highest_, now_);
  }
  void ask(const planner::Request& request) {
    using Kind = planner::Request::Kind;
    Bytes& there = bytes_[static_cast<std::size_t>(request.block)];
    if (request.kind == Kind::take_and_free) {
      highest_ = std::max(highest_, now_ + request.bytes);
    } else if (request.kind == Kind::free || request.kind == Kind::discount) {
      now_ -= std::exchange(there, Bytes(0));
    } else if (request.kind == Kind::adopt) {
      Bytes& from = bytes_[static_cast<std::size_t>(request.from)];
      if (from > Bytes(0)) std::swap(there, from);
    } else if (request.kind != Kind::flush) {
      take(request);
    }
  }
  void keep(Bytes bytes) { highest_ = now_ += bytes; }
  // Since it was asked last.
  Bytes highest() { return std::exchange(highest_, now_); }

 private:
  std::vector<Bytes> bytes_;
  Bytes now_, highest_;
};

// The widest norm's weight here: a gradient that is added to the one before goes while its op has
// kernels to run, and as a tensor behind it.
constexpr std::int64_t kApart = 256 * 4;

// The ops during which other bytes are in use than the program says of their moment.
std::string disagreeing(const planner::StackStep& step) {
  const planner::Timeline timeline = planner::unroll(step.program);
  const planner::StepRequests requests(step.program, timeline, step.start);
  InUse use(requests.blocks());
  for (const auto* among : {&requests.staying(), &requests.later()})
    for (const std::int32_t i : *among)
      requests.each_part(i, [&](const planner::Request& part) { use.take(part); });
  for (const planner::StartEvent& event : step.start.events())
    if (event.kind == planner::StartEvent::Kind::keep) use.keep(event.bytes);
  auto request = requests.of_step().begin();
  std::set<std::string> found;
  for (std::size_t s = 0; s < timeline.steps.size(); ++s) {
    while (request != requests.of_step().end() && request->step < static_cast<std::int32_t>(s))
      use.ask(*request++);
    use.highest();
    while (request != requests.of_step().end() && request->step == static_cast<std::int32_t>(s))
      use.ask(*request++);
    const models::Op& op = step.program.ops[timeline.steps[s].at.op];
    const Bytes highest = use.highest(), stated = timeline.steps[s].high_water;
    if (std::abs((highest - stated).value()) > kApart)
      found.insert(std::string(op.name) + ": " + std::to_string(highest.value()) + " for " +
                   std::to_string(stated.value()));
  }
  std::string out;
  for (const std::string& one : found) out += one + "\n";
  return out;
}

struct Place {
  const char* name;
  models::Stack stack;
  std::int64_t gpus;
  models::DataParallel data;
  models::Batch batch;
};

const std::vector<Place>& places() {
  using models::Stack;
  const models::Batch small{.seq_len = 64, .micro_batch = 2, .grad_accum = 2};
  static const std::vector<Place> all = {
      {"one GPU", Stack::pytorch, 1, {}, small},
      {"more rows", Stack::pytorch, 1, {}, {.seq_len = 128, .micro_batch = 67}},
      {"long rows", Stack::pytorch, 1, {}, {.seq_len = 16384, .micro_batch = 64}},
      {"DDP", Stack::pytorch, 4, {}, small},
      {"ZeRO-1", Stack::pytorch, 4, {.zero = 1}, small},
      {"FSDP2", Stack::pytorch, 3, {.zero = 3}, small},
      {"FSDP2, kept", Stack::pytorch, 3, {.zero = 2}, small},
      {"FSDP1", Stack::pytorch, 3, {.zero = 3, .fsdp_version = 1}, small},
      {"DeepSpeed 1", Stack::deepspeed, 3, {.zero = 1}, small},
      {"DeepSpeed 2", Stack::deepspeed, 3, {.zero = 2}, small},
      {"DeepSpeed 3", Stack::deepspeed, 3, {.zero = 3}, small}};
  return all;
}

// What is wrong with the step; nothing where it cannot be planned, which is not counted.
std::string wrong_of(const Place& place, const char* config, const tests::Change& change,
                     int& written) {
  planner::Question question;
  change(question.strategy);
  question.strategy.stack = place.stack;
  question.strategy.gpus = place.gpus;
  question.strategy.data = place.data;
  question.batch = place.batch;
  question.cluster.gpu = models::find_gpu(tests::card_of(question.strategy));
  try {
    const models::ModelSpec model = models::read_model(config, "made-up", "test");
    question.model = &model;
    planner::StackStep step;
    planner::write_step(question, planner::model_parts(model, question.strategy), step);
    ++written;
    return disagreeing(step);
  } catch (const Error&) {  // no code of it, or no adapter on it
    return "";
  }
}

}  // namespace

TEST_CASE("an op's blocks come to what the program says of its moment, and no other") {
  int written = 0;
  for (const Place& place : places())
    for (const char* config : tests::kModels)
      for (const auto& [name, change] : tests::all_changes()) {
        // What offloading brings back outlives the node that it is for.
        if (std::string_view(name) == "offload") continue;
        const std::string of = std::string(place.name) + ", " + name + ": " + config;
        CAPTURE(of);
        CHECK(wrong_of(place, config, change, written) == "");
      }
  CHECK(written >= 700);
}

TEST_CASE("so do those of every optimizer's step") {
  int written = 0;
  for (const Place& place : places())
    for (const models::OptimizerRule& rule : models::kOptimizers)
      for (const auto impl : {models::OptimizerImpl::foreach, models::OptimizerImpl::for_loop,
                              models::OptimizerImpl::fused}) {
        const std::string of = std::string(place.name) + ", " + std::string(rule.name);
        CAPTURE(of);
        const auto change = [&](models::Strategy& s) {
          s.optimizer = rule.kind;
          s.optimizer_impl = impl;
        };
        CHECK(wrong_of(place, tests::kLlama, change, written) == "");
      }
  CHECK(written >= 170);
}
