/* Host memory of any size on a small machine: what dry_cuda.c is for the device.
 *
 * Preloaded. Every block of at least kWindow bytes that posix_memalign hands out (PyTorch's CPU
 * tensors, and dry_cuda.c's pinned memory) is one window of memory mapped again and again: it can
 * be written everywhere, and holds no data. So a 70B model's masters and moments take no memory.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/mman.h>
#include <unistd.h>

enum { kWindow = 8 << 20, kBlocks = 8192 };

static struct {
  uintptr_t begin;
  size_t size;
} blocks[kBlocks];
static volatile int busy;
static void lock(void) {
  while (__sync_lock_test_and_set(&busy, 1)) {
  }
}
static void unlock(void) {
  __sync_lock_release(&busy);
}

/* A window of the process's own: a fork that shared its parent's would be none the worse. */
static int window(void) {
  static int file = -1;
  if (file < 0) {
    file = memfd_create("window", MFD_CLOEXEC);
    if (file >= 0 && ftruncate(file, kWindow) != 0) file = -1;
  }
  return file;
}

static void* map(size_t size) {
  const int file = window();
  void* all = file < 0 ? MAP_FAILED
                       : mmap(NULL, size, PROT_READ | PROT_WRITE,
                              MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (all == MAP_FAILED) return NULL;
  for (size_t at = 0; at < size; at += kWindow) {
    const size_t length = size - at < kWindow ? size - at : kWindow;
    if (mmap((char*)all + at, length, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, file, 0) ==
        MAP_FAILED)
      return NULL;
  }
  return all;
}

int posix_memalign(void** out, size_t alignment, size_t size) {
  static int (*next)(void**, size_t, size_t);
  if (!next) next = (int (*)(void**, size_t, size_t))dlsym(RTLD_NEXT, "posix_memalign");
  if (size < kWindow) return next(out, alignment, size);
  const size_t whole = (size + 4095) / 4096 * 4096;
  int result = ENOMEM;
  lock();
  for (int i = 0; i < kBlocks; ++i) {
    if (blocks[i].begin) continue;
    void* p = map(whole);
    if (p) {
      blocks[i].begin = (uintptr_t)p;
      blocks[i].size = whole;
      *out = p;
      result = 0;
    }
    break;
  }
  unlock();
  return result;
}

void free(void* p) {
  static void (*next)(void*);
  if (!next) next = (void (*)(void*))dlsym(RTLD_NEXT, "free");
  size_t size = 0;
  if (p && ((uintptr_t)p & 4095) == 0) {
    lock();
    for (int i = 0; i < kBlocks && !size; ++i)
      if (blocks[i].begin == (uintptr_t)p) {
        size = blocks[i].size;
        blocks[i].begin = 0;
      }
    unlock();
  }
  if (size)
    munmap(p, size);
  else
    next(p);
}
