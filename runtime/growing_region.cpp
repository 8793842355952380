#include "runtime/growing_region.h"

#include <algorithm>

namespace plimsoll::runtime {

namespace {

class GrowingRegion final : public Region {
 public:
  GrowingRegion(std::unique_ptr<VirtualMemory> memory, Bytes most) : memory_(std::move(memory)) {
    const std::int64_t granule = memory_->granularity();
    const auto rounded = [&](std::int64_t bytes) {
      return (bytes / granule + (bytes % granule != 0 ? 1 : 0)) * granule;
    };
    reserved_ = std::max(std::min(rounded(most.value()), rounded(memory_->capacity())), granule);
    base_ = memory_->reserve(reserved_);
  }
  ~GrowingRegion() override { memory_->release(base_, reserved_); }
  GrowingRegion(const GrowingRegion&) = delete;
  GrowingRegion& operator=(const GrowingRegion&) = delete;

  std::byte* base() const override { return base_; }
  void grow(Bytes bytes) override {
    if (bytes.value() <= mapped_) return;
    const Bytes whole = round_up(bytes, memory_->granularity());
    const std::int64_t more = whole.value() - mapped_;
    check(whole.value() <= reserved_ && memory_->map(base_ + mapped_, more),
          ErrorKind::out_of_memory, [&] {
            return "the GPU has no room for " + std::to_string(more) + " B beyond the " +
                   std::to_string(mapped_) +
                   " B of this rank: " + std::to_string(memory_->free_bytes()) + " of " +
                   std::to_string(memory_->capacity()) + " B are free";
          });
    mapped_ = whole.value();
  }

 private:
  std::unique_ptr<VirtualMemory> memory_;
  std::byte* base_ = nullptr;
  std::int64_t reserved_ = 0, mapped_ = 0;
};

}  // namespace

std::unique_ptr<Region> growing_region(std::unique_ptr<VirtualMemory> memory, Bytes most) {
  return std::make_unique<GrowingRegion>(std::move(memory), most);
}

}  // namespace plimsoll::runtime
