// ZeRO-3's coordinator of gathered parameters, run along the trace of modules.
#pragma once

#include <array>
#include <functional>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "planner/memory/start.h"
#include "planner/stacks/deepspeed/fetches.h"
#include "planner/stacks/deepspeed/trace.h"

namespace plimsoll::planner::deepspeed {

class Coordinator {
 public:
  Coordinator(Trace trace, const Engine& engine, const models::Strategy& strategy);

  // What a micro-batch gathers, as messages.
  void run(Messages& out);
  // The same as memory (gathered.cpp).
  Gathered gathered(bool blocks);
  // The same as requests to the allocator: of the step that records the trace, and of each that
  // follows.
  std::array<Gathers, 2> requests(bool accumulates);

  bool has_files() const { return files_; }
  // What DeepSpeed says where buffers run out; "" where they do not.
  std::string refused(std::int64_t buffers);

 private:
  using Step = TraceStep;
  static constexpr std::size_t kNever = std::numeric_limits<std::size_t>::max();

  void begin(bool persistent_there);
  void pass();
  void fetch(const Step& step, std::int64_t now);
  void read_ahead(), read_files_ahead(), read_files();
  void take_buffer(Held& held) {
    if (held.file == InFile::only) --buffers_;
    held.file = InFile::coming;
  }
  void let_buffer_go(Held& held) {
    held.file = InFile::only;
    ++buffers_;
  }
  void refuse(const std::string& why) {
    if (refused_.empty()) refused_ = why;
  }
  void gather(const Step& of, bool ahead);
  void send(const Message& m);
  // Elements that are used before this use's step.
  std::int64_t before(std::size_t use) const {
    return t_.steps[static_cast<std::size_t>(t_.step_of[use])].before;
  }
  void release(const Step& step, std::int64_t now);
  void let_go(Held& held, const Step& step);
  void run_again(const Step& step);
  void decide(const Step& step, std::int64_t now);

  // Parameters that are gathered together lie in one buffer, until the first of them is waited for;
  // then each has a block of its own, and the buffer goes with the last of them that is waited for
  // (AllGatherCoalescedHandle: __inflight_param_registry has it for each).
  struct Flat {
    Bytes bytes, plain;
    std::int64_t waited_for = 0;
    bool apart = false;
    // Of each dtype, where requests are recorded: a buffer, and which parameters.
    std::array<std::int32_t, 2> blocks{-1, -1};
    std::array<std::vector<std::size_t>, 2> parts;
  };
  void count(Bytes bytes, Bytes plain) {
    alone_ += bytes;
    plain_ += plain;
  }
  void count_gathered(bool flat);
  void wait(Held& held);
  void leave_copies(const Step& step);
  // What a checkpoint's nodes have goes with them: behind the layer, or, where it is not reentrant,
  // as soon as the layer has run again.
  void drop_graph() {
    count(-std::exchange(graph_, Bytes(0)), Bytes(0));
    for (std::int32_t& block : in_graph_) drop_block(block);
    in_graph_.clear();
  }
  std::vector<Bytes> blocks_there(bool plain) const;

  // Requests (gather_requests.cpp).
  std::int32_t take_block(Bytes bytes);
  void take_flat(Flat&flat), take_parts(const Flat&flat);
  void drop_block(std::int32_t& block);
  void drop_all();

  Trace t_;
  const Engine& engine_;
  bool reentrant_;  // checkpoints are
  Messages* out_ = nullptr;
  std::function<void(std::size_t)> at_step_;
  Gathers* requests_ = nullptr;
  std::int32_t blocks_ = 0;
  std::vector<std::int32_t> in_graph_, left_;  // blocks that a checkpoint's nodes have, or all
  std::vector<Flat> flats_;
  std::vector<std::pair<const Step*, std::size_t>> run_again_;  // who asked for it; parameters
  Bytes graph_;  // of what has been let go, a checkpoint's nodes have
  std::int64_t graph_of_ = -1;  // layer
  Bytes alone_, plain_;  // what is gathered and counts; those that are not packed
  bool files_ = false;  // some parameters have
  bool records_ = false;  // the trace: the first micro-batch, in which nothing is read ahead
  std::int64_t all_buffers_ = 0, buffers_ = 0;  // and those that are free
  std::string refused_;
  std::vector<bool> goes_;  // by use: the parameter, when that is over
  std::vector<std::size_t> next_;  // of a use: the parameter's next one
  std::vector<const Step*> open_;  // that have not ended
  std::vector<std::size_t> batch_;  // uses whose parameters are gathered together
  std::size_t read_ = 0;  // uses that have left the queue
  std::int64_t live_ = 0;  // elements that were gathered and are there
};

}  // namespace plimsoll::planner::deepspeed
