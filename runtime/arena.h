// One range of a device's memory, handed out block by block as models/decisions/workspace.h
// decides.
#pragma once

#include <map>
#include <memory>

#include "models/base/quantity.h"
#include "runtime/device.h"

namespace plimsoll::runtime {

class Arena {
 public:
  // `limit`: what the arena may reserve. Where the device refuses so many addresses (a limit on the
  // process's address space, no overcommitment), half as many and so on; of what it gives a
  // quarter, so that others of the process find some: that is the limit then.
  Arena(Device& device, Bytes limit);

  // A block of `bytes` (> 0) rounded up to decisions::kBlock. Null where it does not fit.
  std::byte* place(Bytes bytes);
  void release(std::byte* block);  // needs no memory itself: the block's node becomes the hole's

  Bytes reserved() const { return Bytes(reserved_); }  // end of the highest block there ever was
  Bytes in_use() const { return Bytes(in_use_); }  // rounded blocks
  Bytes limit() const { return Bytes(limit_); }

 private:
  std::int64_t limit_;
  std::unique_ptr<Region> region_;
  std::map<std::int64_t, std::int64_t> blocks_;  // offset -> length, of what is in use
  std::map<std::int64_t, std::int64_t> holes_;  // below `end_`; never two side by side
  std::int64_t end_ = 0;  // of the highest block in use
  std::int64_t reserved_ = 0, in_use_ = 0;
};

}  // namespace plimsoll::runtime
