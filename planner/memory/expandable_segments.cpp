// CachingAllocator with expandable_segments:True: each stream and pool has one segment, a range of
// addresses that memory is mapped into page by page.
#include <algorithm>

#include "planner/memory/caching_allocator.h"

namespace plimsoll::planner {

namespace {
// 1 1/8 of the GPU's memory; nothing that fits comes to its end.
constexpr std::int64_t kAddresses = std::int64_t{1} << 50;

std::int64_t page_of(std::uint8_t pool) {
  return std::int64_t{pool % 2 == 0 ? 2 : 20} << 20;
}
}  // namespace

std::int64_t CachingAllocator::expandable_size(Handle block) const {
  const Handle next = at(block).next;
  return at(block).size + (next >= 0 && !at(next).mapped ? at(next).size : 0);
}

// A block that can grow counts with what it can grow to, so that others are taken before it
// (get_free_block).
CachingAllocator::Handle CachingAllocator::expandable_fit(const FreeBlocks& pool,
                                                          Handle block) const {
  for (Handle next = block; (next = pool.after(blocks_, block)) >= 0; block = next)
    if (expandable_size(next) >= expandable_size(block)) break;
  return block;
}

void CachingAllocator::add_unmapped(Handle block) {
  std::vector<Handle>& all = unmapped_[at(block).pool];
  const auto by_address = [&](Handle a, Handle b) { return at(a).address < at(b).address; };
  all.insert(std::ranges::lower_bound(all, block, by_address), block);
}

void CachingAllocator::drop_unmapped(Handle block) {
  std::erase(unmapped_[at(block).pool], block);
}

// The lowest addresses, mapped or not, where the request would have room (find_expandable_block).
CachingAllocator::Handle CachingAllocator::expandable_block(std::int64_t rounded,
                                                            std::uint8_t pool) {
  for (const Handle gap : unmapped_[pool]) {
    const Handle before = at(gap).previous;
    const Handle first = blocks_.is_free(before) ? before : gap;
    std::int64_t bytes = 0;
    for (Handle block = first; bytes < rounded && block >= 0 && !at(block).used;
         block = at(block).next)
      bytes += at(block).size;
    if (bytes >= rounded) return first;
  }
  const Handle segment = blocks_.make({.size = kAddresses, .pool = pool, .mapped = false});
  add_unmapped(segment);
  return segment;
}

// Maps what is missing of the request (try_allocate_expandable_block).
std::optional<CachingAllocator::Handle> CachingAllocator::expand(std::int64_t rounded,
                                                                 std::uint8_t pool) {
  Handle block = expandable_block(rounded, pool);
  const auto map_more = [&](Handle gap, std::int64_t missing) {
    const std::optional<Handle> mapped = map(gap, std::min(missing, at(gap).size));
    if (mapped) block = *mapped;
    return mapped.has_value();
  };
  if (!at(block).mapped && !map_more(block, rounded)) return std::nullopt;
  while (at(block).size < rounded)
    if (!map_more(at(block).next, rounded - at(block).size)) return std::nullopt;
  erase(block);
  return block;
}

// The free block that it is a part of then; nothing where there is no room.
std::optional<CachingAllocator::Handle> CachingAllocator::map(Handle block, std::int64_t bytes) {
  const std::uint8_t pool = at(block).pool;
  const std::int64_t size = checked_multiply(ceil_divide(bytes, page_of(pool)), page_of(pool));
  if (!is_room_for(size)) return std::nullopt;
  count_malloc(size);
  drop_unmapped(block);
  at(block).mapped = true;
  if (size < at(block).size) {
    const Handle rest = blocks_.split(block, size);
    at(rest).mapped = false;
    add_unmapped(rest);
  }
  if (const Handle left = at(block).previous; blocks_.is_free(left)) {
    erase(left);
    block = blocks_.merge(left, block);
  }
  if (const Handle right = at(block).next; blocks_.is_free(right)) {
    erase(right);
    block = blocks_.merge(block, right);
  }
  insert(block);
  return block;
}

// The whole pages of a free block.
void CachingAllocator::unmap(Handle block) {
  const Block whole = at(block);
  const std::int64_t page = page_of(whole.pool), end = whole.address + whole.size;
  const std::int64_t first = checked_multiply(ceil_divide(whole.address, page), page);
  const std::int64_t last = end / page * page;
  if (first >= last) return;
  erase(block);
  if (first > whole.address) {
    const Handle middle = blocks_.split(block, first - whole.address);
    insert(block);
    block = middle;
  }
  if (last < end) insert(blocks_.split(block, last - first));
  count_free(last - first);
  at(block).mapped = false;
  if (const Handle left = at(block).previous; left >= 0 && !at(left).mapped) {
    drop_unmapped(left);
    block = blocks_.merge(left, block);
  }
  if (const Handle right = at(block).next; right >= 0 && !at(right).mapped) {
    drop_unmapped(right);
    block = blocks_.merge(block, right);
  }
  add_unmapped(block);
}

}  // namespace plimsoll::planner
