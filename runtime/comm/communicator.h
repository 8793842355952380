// How ranks exchange data. One interface for one rank, ranks that are threads, MPI and NCCL.
//
// All ranks of a group call the same operations in the same order. A sum is canonical: the ranks'
// values are added in fp32 (fp64 values in fp64) in one balanced binary tree over the ranks in
// their order, (0 + 1) + (2 + 3) and so on, the last without a partner going up alone, and rounded
// to the buffer's dtype once. So an all-reduce and a reduce-scatter give the same bits.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "kernels/tensor_view.h"

namespace plimsoll::runtime::comm {

using kernels::ConstTensorView;
using kernels::TensorView;

// An operation that was started. Until `wait` has returned its buffers are neither written, nor
// read where it writes, nor given back; then all ranks are done with them. All ranks wait in the
// same order.
class Pending {
 public:
  // What an implementation does at the end. Destroyed without `wait`: the rank has failed; it
  // ends the job, and returns when nobody uses the buffers any more.
  class Work {
   public:
    virtual ~Work() = default;
    virtual void wait() = 0;
  };

  Pending() = default;  // nothing is under way
  explicit Pending(std::unique_ptr<Work> work) : work_(std::move(work)) {}
  explicit operator bool() const { return work_ != nullptr; }
  void wait() {
    if (const auto work = std::move(work_)) work->wait();
  }

 private:
  std::unique_ptr<Work> work_;
};

// Of every rank's piece of a buffer the same range of elements: what one message of a
// reduce-scatter carries.
struct PieceRange {
  std::int64_t first = 0, count = 0;
};

// Errors are Error{communicator}; they end the job: every later call of every rank fails with the
// reason.
class Communicator {
 public:
  virtual ~Communicator() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;

  // buffer = sum over the ranks; on every rank.
  virtual Pending start_all_reduce(TensorView buffer) = 0;
  // `whole` is size() equal pieces. Of this rank's piece `range` becomes the sum; the rest of
  // `whole` keeps its values, or does not (NCCL's may not be in place).
  virtual Pending start_reduce_scatter(TensorView whole, PieceRange range) = 0;
  // `whole` becomes the ranks' pieces one after another. `piece` may be this rank's own in `whole`.
  virtual Pending start_all_gather(ConstTensorView piece, TensorView whole) = 0;
  virtual Pending start_broadcast(TensorView buffer, int root) = 0;
  virtual void barrier() = 0;
  // Of all ranks, on every rank: for reports and decisions, not for tensors.
  virtual std::vector<std::string> gather(std::string bytes) = 0;
  // Ranks of one color form a group, in their order.
  virtual std::unique_ptr<Communicator> split(int color) = 0;
  // Ends the job of this rank's group and of all that it was split from or into.
  virtual void abort(const std::string& reason) noexcept = 0;
  // Whether sums of messages are made in a block that the caller gives (decisions::kStaging), as
  // large as the largest message; until then in a small one, message by message in pieces.
  virtual bool stages() const { return false; }
  virtual void use_staging(TensorView) {}

  void all_reduce(TensorView buffer) { start_all_reduce(buffer).wait(); }
  void reduce_scatter(TensorView whole);
  void all_gather(ConstTensorView piece, TensorView whole) {
    start_all_gather(piece, whole).wait();
  }
  void all_gather(TensorView whole);  // in place
  void broadcast(TensorView buffer, int root) { start_broadcast(buffer, root).wait(); }
  std::vector<double> gather(double value);
};

// The `index`-th of `pieces` equal pieces of a flat view. Error{internal}: it does not divide.
TensorView piece_of(TensorView whole, std::int64_t pieces, std::int64_t index);
ConstTensorView piece_of(ConstTensorView whole, std::int64_t pieces, std::int64_t index);
// Elements first .. first + count of a flat view.
TensorView slice(TensorView flat, std::int64_t first, std::int64_t count);
ConstTensorView slice(ConstTensorView flat, std::int64_t first, std::int64_t count);

// World 1: nothing is exchanged, sums stay what they are.
std::unique_ptr<Communicator> single_communicator();

}  // namespace plimsoll::runtime::comm
