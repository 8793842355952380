// The device while a model is loaded: torch's caching allocator, watched stage by stage.
#pragma once

#include <algorithm>
#include <optional>
#include <string>
#include <string_view>

#include "planner/memory/caching_allocator.h"
#include "reports/record.h"

namespace plimsoll::planner::loading {

class Device {
 public:
  using Block = CachingAllocator::Handle;

  explicit Device(const models::AllocatorConf& conf) : allocator_({}, conf) {}

  // From now on what is asked for belongs to it.
  void begin(std::string_view stage) {
    finish();
    out_.stages.push_back({.name = std::string(stage)});
    allocator_.reset_peaks();
  }
  // What is asked for next belongs to this parameter.
  void at(std::string_view parameter) { at_ = parameter; }

  Block take(Bytes bytes) {
    const std::optional<Block> block = allocator_.allocate(bytes, models::Stream::compute);
    check(block.has_value(), ErrorKind::internal, "an allocator without an end refused");
    if (allocator_.allocated() > out_.peak) {
      out_.peak = allocator_.allocated();
      out_.stage = out_.stages.back().name;
      out_.where = at_;
    }
    return *block;
  }
  Block take(Count elements, DType dtype) { return take(storage(elements, dtype)); }
  void free(Block block) { allocator_.free(block); }
  void take_and_free(Bytes bytes) { free(take(bytes)); }
  void empty_cache() { allocator_.empty_cache(); }
  Bytes unused() const { return allocator_.reserved() - allocator_.allocated(); }

  // What was seen; nothing is asked for afterwards.
  reports::Load finished() {
    finish();
    return out_;
  }

 private:
  void finish() {
    if (out_.stages.empty()) return;
    reports::LoadStage& stage = out_.stages.back();
    stage.peak = allocator_.peak_allocated();
    stage.reserved = allocator_.peak_reserved();
    stage.resident = out_.resident = allocator_.allocated();
    out_.reserved = std::max(out_.reserved, stage.reserved);
  }

  CachingAllocator allocator_;
  reports::Load out_;
  std::string at_;
};

}  // namespace plimsoll::planner::loading
