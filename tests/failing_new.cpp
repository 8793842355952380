#include "tests/failing_new.h"

#include <atomic>
#include <cstddef>
#include <cstdlib>
#include <limits>
#include <new>

namespace {
constexpr std::int64_t kNever = std::numeric_limits<std::int64_t>::max();
std::atomic<std::int64_t> count{0}, live{0}, fails_at{-1};
thread_local std::int64_t count_here = 0, fails_here_from = kNever, fails_here_to = kNever;

void* allocated(std::size_t size, std::size_t alignment) {
  if (count.fetch_add(1) == fails_at.load()) throw std::bad_alloc();
  const std::int64_t here = count_here++;
  if (here >= fails_here_from && here <= fails_here_to) throw std::bad_alloc();
  void* block = nullptr;
  if (alignment <= alignof(std::max_align_t))
    block = std::malloc(size > 0 ? size : 1);
  else if (::posix_memalign(&block, alignment, size > 0 ? size : 1) != 0)
    block = nullptr;
  if (block == nullptr) throw std::bad_alloc();
  live.fetch_add(1);
  return block;
}

void released(void* block) {
  if (block == nullptr) return;
  live.fetch_sub(1);
  std::free(block);
}
}  // namespace

namespace plimsoll::tests {

void fail_allocation(std::int64_t from_now) {
  fails_at = from_now < 0 ? -1 : count.load() + from_now;
}
void fail_allocation_here(std::int64_t from_now, bool for_ever) {
  fails_here_from = from_now < 0 ? kNever : count_here + from_now;
  fails_here_to = for_ever ? kNever : fails_here_from;
}
std::int64_t allocations_here() {
  return count_here;
}
std::int64_t allocations() {
  return count.load();
}
std::int64_t live_allocations() {
  return live.load();
}

}  // namespace plimsoll::tests

void* operator new(std::size_t size) {
  return allocated(size, 0);
}
void* operator new[](std::size_t size) {
  return allocated(size, 0);
}
void* operator new(std::size_t size, std::align_val_t alignment) {
  return allocated(size, static_cast<std::size_t>(alignment));
}
void* operator new[](std::size_t size, std::align_val_t alignment) {
  return allocated(size, static_cast<std::size_t>(alignment));
}
void* operator new(std::size_t size, const std::nothrow_t&) noexcept {
  try {
    return allocated(size, 0);
  } catch (const std::bad_alloc&) {
    return nullptr;
  }
}
void operator delete(void* block) noexcept {
  released(block);
}
void operator delete[](void* block) noexcept {
  released(block);
}
void operator delete(void* block, std::size_t) noexcept {
  released(block);
}
void operator delete[](void* block, std::size_t) noexcept {
  released(block);
}
void operator delete(void* block, std::align_val_t) noexcept {
  released(block);
}
void operator delete[](void* block, std::align_val_t) noexcept {
  released(block);
}
void operator delete(void* block, std::size_t, std::align_val_t) noexcept {
  released(block);
}
void operator delete[](void* block, std::size_t, std::align_val_t) noexcept {
  released(block);
}
void operator delete(void* block, const std::nothrow_t&) noexcept {
  released(block);
}
