#include "runtime/arena.h"

#include <algorithm>
#include <iterator>

#include "models/decisions/workspace.h"

namespace plimsoll::runtime {

namespace {

// Addresses cost nothing: enough for any host or device, where nobody has set a limit.
#ifdef __SANITIZE_THREAD__  // its shadow leaves 1.5 TiB to all arenas, and ends who asks for more
constexpr std::int64_t kAddresses = std::int64_t{1} << 35;
#else
constexpr std::int64_t kAddresses = std::int64_t{1} << 42;
#endif
// Fewer are not worth trying: the process could not run anyway.
constexpr std::int64_t kFewestAddresses = std::int64_t{64} << 20;

// Where addresses are scarce, other ranks, threads and libraries of the process want some too:
// OpenBLAS waits for ever for memory that it does not get.
constexpr std::int64_t kShare = 4;

// As many addresses as the device gives, at most `limit`, which becomes how many they are.
std::unique_ptr<Region> addresses(Device& device, std::int64_t& limit) {
  bool scarce = false;
  while (true) {
    try {
      auto region = device.reserve(Bytes(std::max(limit, models::decisions::kBlock)));
      if (!scarce || limit / kShare < kFewestAddresses) return region;
      region.reset();
      limit /= kShare;
      return device.reserve(Bytes(limit));
    } catch (const Error& error) {
      if (error.kind() != ErrorKind::out_of_memory || limit / 2 < kFewestAddresses) throw;
      scarce = true;
      limit /= 2;
    }
  }
}

}  // namespace

Arena::Arena(Device& device, Bytes limit)
    : limit_(std::min(limit.value(), kAddresses)), region_(addresses(device, limit_)) {}

std::byte* Arena::place(Bytes bytes) {
  check(bytes > Bytes(0), ErrorKind::internal, "a block has at least one byte");
  const std::int64_t length = round_up(bytes, models::decisions::kBlock).value();
  auto hole = std::find_if(holes_.begin(), holes_.end(),
                           [&](const auto& free) { return free.second >= length; });
  const std::int64_t offset = hole != holes_.end() ? hole->first : end_;
  if (hole == holes_.end()) {
    if (length > limit_ - end_) return nullptr;
    if (end_ + length > reserved_) region_->grow(Bytes(end_ + length));
  }
  blocks_.emplace(offset, length);  // may find no memory; then nothing has changed
  if (hole == holes_.end()) {
    end_ += length;
    reserved_ = std::max(reserved_, end_);
  } else if (auto rest = holes_.extract(hole); rest.mapped() > length) {
    rest.key() += length;
    rest.mapped() -= length;
    holes_.insert(std::move(rest));
  }
  in_use_ += length;
  return region_->base() + offset;
}

void Arena::release(std::byte* block) {
  const auto found = blocks_.find(block - region_->base());
  check(found != blocks_.end(), ErrorKind::internal, "a block is given back once");
  auto node = blocks_.extract(found);
  std::int64_t offset = node.key(), length = node.mapped();
  in_use_ -= length;
  const auto above = holes_.find(offset + length);
  if (above != holes_.end()) {
    length += above->second;
    holes_.erase(above);
  }
  const auto next = holes_.lower_bound(offset);
  if (next != holes_.begin()) {
    const auto below = std::prev(next);
    if (below->first + below->second == offset) {
      offset = below->first;
      length += below->second;
      holes_.erase(below);
    }
  }
  if (offset + length == end_) {
    end_ = offset;
    return;
  }
  node.key() = offset;
  node.mapped() = length;
  holes_.insert(std::move(node));
}

}  // namespace plimsoll::runtime
