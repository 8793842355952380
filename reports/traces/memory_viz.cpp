#include "reports/traces/memory_viz.h"

#include <algorithm>
#include <map>

#include "models/base/error.h"
#include "reports/traces/pickle_writer.h"

namespace plimsoll::reports {

namespace {
// Where CUDA's addresses lie on Linux; a number that JavaScript has exactly.
constexpr std::int64_t kFirstAddress = 0x7f0000000000;
constexpr std::int64_t kAlignment = 512;  // CUDACachingAllocator's kMinBlockSize

std::int64_t rounded(Bytes bytes) {
  return (bytes.value() + kAlignment - 1) / kAlignment * kAlignment;
}

struct Block {
  TensorSpan tensor;
  std::int64_t address = 0;
};

// The lowest place that is free and long enough.
class Addresses {
 public:
  std::int64_t take(std::int64_t size) {
    for (auto hole = holes_.begin(); hole != holes_.end(); ++hole) {
      const auto [address, length] = *hole;
      if (length < size) continue;
      holes_.erase(hole);
      if (length > size) holes_.emplace(address + size, length - size);
      return address;
    }
    end_ += size;
    return end_ - size;
  }

  void give_back(std::int64_t address, std::int64_t size) {
    auto at = holes_.emplace(address, size).first;
    if (const auto next = std::next(at);
        next != holes_.end() && at->first + at->second == next->first) {
      at->second += next->second;
      holes_.erase(next);
    }
    if (at == holes_.begin()) return;
    const auto before = std::prev(at);
    if (before->first + before->second != at->first) return;
    before->second += at->second;
    holes_.erase(at);
  }

  std::int64_t end() const { return end_; }

 private:
  std::map<std::int64_t, std::int64_t> holes_;  // length by address
  std::int64_t end_ = kFirstAddress;
};

struct Event {
  std::size_t block;
  bool is_alloc;
};

class Snapshot {
 public:
  explicit Snapshot(const StepHistory& step)
      : step_(step), born_(step.ops.size()), died_(step.ops.size()) {
    sort_by_op();
    walk();
  }

  std::string write() {
    std::string out;
    PickleWriter pickle(out);
    pickle.begin_dict();
    pickle.key("segments");
    pickle.begin_list();
    segment(pickle);
    pickle.end_list();
    pickle.key("device_traces");
    pickle.begin_list();
    pickle.begin_list();
    whole_segment(pickle);
    for (const Event& one : events_) event(pickle, one);
    pickle.end_list();
    pickle.end_list();
    pickle.end_dict();
    pickle.finish();
    return out;
  }

 private:
  void sort_by_op() {
    for (const TensorSpan& tensor : step_.tensors) {
      if (tensor.bytes <= Bytes(0)) continue;
      const std::size_t block = blocks_.size();
      blocks_.push_back({tensor});
      if (tensor.born < 0)
        before_.push_back(block);
      else
        born_[static_cast<std::size_t>(tensor.born)].push_back(block);
      if (tensor.died < static_cast<std::int64_t>(died_.size()))
        died_[static_cast<std::size_t>(std::max<std::int64_t>(tensor.died, 0))].push_back(block);
    }
  }

  void walk() {
    for (const std::size_t block : before_) alloc(block);
    for (std::size_t i = 0; i < step_.ops.size(); ++i) {
      for (const std::size_t block : born_[i]) alloc(block);
      scratch(i);
      for (const std::size_t block : died_[i]) free(block);
    }
  }

  void alloc(std::size_t block) {
    Block& b = blocks_[block];
    b.address = addresses_.take(rounded(b.tensor.bytes));
    live_ += b.tensor.bytes;
    categories_[b.tensor.category] += b.tensor.bytes;
    at_.emplace(b.address, block);
    events_.push_back({block, true});
  }

  void free(std::size_t block) {
    const Block& b = blocks_[block];
    addresses_.give_back(b.address, rounded(b.tensor.bytes));
    live_ -= b.tensor.bytes;
    categories_[b.tensor.category] -= b.tensor.bytes;
    at_.erase(b.address);
    events_.push_back({block, false});
  }

  // What an op holds beside the tensors, only while it runs.
  void scratch(std::size_t i) {
    const TimelinePoint& op = step_.ops[i];
    if (op.high_water == live_) return;
    for (std::size_t c = 0; c < models::kCategories; ++c) {
      const char* category = name_of(static_cast<models::Category>(c));
      const Bytes more = op.by_category[c] - categories_[category];
      if (more <= Bytes(0)) continue;
      const auto at = static_cast<std::int64_t>(i);
      blocks_.push_back({{op.op + " (while it runs)", category, more, at, at}});
      alloc(blocks_.size() - 1);
      pending_.push_back(blocks_.size() - 1);
    }
    check(op.high_water == live_, ErrorKind::internal,
          [&] { return "the tensors of " + op.op + " are not its high-water mark"; });
    for (const std::size_t block : pending_) free(block);
    pending_.clear();
  }

  static void frame(PickleWriter& pickle, std::string_view file, std::int64_t line,
                    std::string_view name) {
    pickle.begin_dict();
    pickle.member("name", name);
    pickle.member("filename", file);
    pickle.member("line", line);
    pickle.end_dict();
  }

  void frames(PickleWriter& pickle, const TensorSpan& tensor) const {
    pickle.key("frames");
    pickle.begin_list();
    const std::int64_t line = std::max<std::int64_t>(tensor.born, 0);
    frame(pickle, tensor.category, line, tensor.name);
    if (tensor.born >= 0) {
      const TimelinePoint& op = step_.ops[static_cast<std::size_t>(tensor.born)];
      frame(pickle, op.phase, line, op.op);
    }
    pickle.end_list();
  }

  void note(PickleWriter& pickle) const {
    pickle.key("frames");
    pickle.begin_list();
    frame(pickle, "plimsoll", 0, step_.origin + "; addresses are not the allocator's");
    pickle.end_list();
  }

  void begin_event(PickleWriter& pickle, const char* action, std::int64_t address,
                   std::int64_t size) const {
    pickle.begin_dict();
    pickle.member("action", action);
    pickle.member("addr", address);
    pickle.member("size", size);
    pickle.member("stream", std::int64_t{0});
  }

  void whole_segment(PickleWriter& pickle) const {
    begin_event(pickle, "segment_alloc", kFirstAddress, addresses_.end() - kFirstAddress);
    note(pickle);
    pickle.end_dict();
  }

  void event(PickleWriter& pickle, const Event& event) const {
    const Block& block = blocks_[event.block];
    const auto write = [&](const char* action, std::string_view category) {
      begin_event(pickle, action, block.address, block.tensor.bytes.value());
      pickle.member("category", category);
      frames(pickle, block.tensor);
      pickle.end_dict();
    };
    if (event.is_alloc) return write("alloc", block.tensor.category);
    // The viewer stops where there are categories and no event's is "unknown" (`annotate_snapshot`
    // in MemoryViz.js); it colours by that of the allocation.
    write("free_requested", "unknown");
    write("free_completed", "unknown");
  }

  void free_block(PickleWriter& pickle, std::int64_t address, std::int64_t size) const {
    if (size == 0) return;
    pickle.begin_dict();
    pickle.member("address", address);
    pickle.member("size", size);
    pickle.member("requested_size", std::int64_t{0});
    pickle.member("state", "inactive");
    pickle.key("frames");
    pickle.begin_list();
    pickle.end_list();
    pickle.end_dict();
  }

  // As it is after the step.
  void segment(PickleWriter& pickle) const {
    pickle.begin_dict();
    pickle.member("device", std::int64_t{0});
    pickle.member("address", kFirstAddress);
    pickle.member("total_size", addresses_.end() - kFirstAddress);
    std::int64_t size = 0;
    for (const auto& [address, block] : at_) size += rounded(blocks_[block].tensor.bytes);
    pickle.member("allocated_size", size);
    pickle.member("active_size", size);
    pickle.member("requested_size", live_.value());
    pickle.member("stream", std::int64_t{0});
    pickle.member("segment_type", "large");
    pickle.member("is_expandable", false);
    note(pickle);
    pickle.key("blocks");
    pickle.begin_list();
    std::int64_t end = kFirstAddress;
    for (const auto& [address, block] : at_) {
      const TensorSpan& tensor = blocks_[block].tensor;
      free_block(pickle, end, address - end);
      pickle.begin_dict();
      pickle.member("address", address);
      pickle.member("size", rounded(tensor.bytes));
      pickle.member("requested_size", tensor.bytes.value());
      pickle.member("state", "active_allocated");
      frames(pickle, tensor);
      pickle.end_dict();
      end = address + rounded(tensor.bytes);
    }
    free_block(pickle, end, addresses_.end() - end);
    pickle.end_list();
    pickle.end_dict();
  }

  const StepHistory& step_;
  std::vector<std::vector<std::size_t>> born_, died_;
  std::vector<std::size_t> before_, pending_;
  std::vector<Block> blocks_;
  std::vector<Event> events_;
  Addresses addresses_;
  Bytes live_;
  std::map<std::string, Bytes> categories_;
  std::map<std::int64_t, std::size_t> at_;  // what lives, by address
};
}  // namespace

std::string memory_snapshot(const StepHistory& step) {
  // Far above any device, and far below where addresses would leave JavaScript's exact numbers.
  check(step.peak <= 1'048'576_GiB, ErrorKind::bad_input,
        "--memory-viz: a step that holds more than 1024 TiB");
  return Snapshot(step).write();
}

}  // namespace plimsoll::reports
