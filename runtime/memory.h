// The memory of one rank: an arena, and the ledger of what is in it.
#pragma once

#include <string>

#include "runtime/arena.h"
#include "runtime/tensor.h"

namespace plimsoll::runtime {

struct MemoryOptions {
  Bytes limit = Bytes(std::numeric_limits<std::int64_t>::max());  // of reserved bytes
  // Every block is filled with ones (a NaN of every floating-point type, an id outside of every
  // table) when it is handed out and again when it is given back: what is read before it is
  // written, or after its death, cannot go unnoticed.
  bool poison = false;
};

class Memory {
 public:
  Memory(Device& device, int rank, const MemoryOptions& options);
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;

  // A tensor without elements is none. Error{out_of_memory} names the tensor, its shape, the op,
  // and what lives; also where the host has no memory to note the tensor down.
  Tensor allocate(std::string name, models::Category category, DType dtype, Extents shape);

  // Error{out_of_memory}, for a std::bad_alloc that comes from elsewhere in a step: the host's
  // memory beside the tensors. It says neither for what nor how much; the op and what lives do.
  [[noreturn]] void fail_without_host_memory() const;

  Ledger& ledger() { return ledger_; }
  const Ledger& ledger() const { return ledger_; }
  Bytes reserved() const { return arena_.reserved(); }
  Device& device() { return device_; }

 private:
  friend class Tensor;
  void release(const Tensor& tensor) noexcept;
  // "; 96 of 4096 B are in use<why>:" and the largest of them.
  std::string what_lives(const std::string& why) const;

  Device& device_;
  int rank_;
  MemoryOptions options_;
  Arena arena_;
  Ledger ledger_;
};

std::string text(const Extents& shape);  // "[64, 768]"

}  // namespace plimsoll::runtime
