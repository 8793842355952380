// The norm of all gradients, the same bits under every sharding of equally many ranks.
#include <algorithm>
#include <vector>

#include "models/decisions/workspace.h"
#include "runtime/optimizer.h"
#include "runtime/shard/unit.h"

namespace plimsoll::runtime {

namespace {

using models::decisions::kNormChunk;

// A trained tensor: where its sums are among all sums, and what this rank has of it.
struct Summed {
  const shard::Unit* unit = nullptr;
  std::int64_t first_sum = 0, sums = 0;
  shard::Unit::GradientPiece here;
  // Elements at the beginning of the piece that belong to a chunk which another rank has begun.
  std::int64_t head() const {
    const std::int64_t behind = here.first % kNormChunk;
    return behind == 0 ? 0 : std::min(here.count, kNormChunk - behind);
  }
};

std::int64_t chunks(std::int64_t elements) {
  return ceil_divide(elements, kNormChunk);
}

std::vector<Summed> summed(std::span<shard::Unit* const> units) {
  std::vector<Summed> all;
  std::int64_t sums = 0;
  for (shard::Unit* unit : units) {
    if (!unit->trains()) continue;
    for (const auto& piece : unit->gradient_pieces()) {
      const std::int64_t n = chunks(unit->layout().places[piece.parameter].shape.elements());
      all.push_back({unit, sums, n, piece});
      sums += n;
    }
  }
  return all;
}

// The squares of elements first .. first + count of this rank's piece, into the tensor's sums.
kernels::SquaredPiece squares(const Summed& tensor, std::int64_t first, std::int64_t count,
                              TensorView sums) {
  return {count == 0 ? ConstTensorView() : comm::slice(tensor.here.piece, first, count),
          tensor.here.first + first, comm::slice(sums, tensor.first_sum, tensor.sums)};
}

void clear(const Worker& worker, TensorView sums) {
  worker.device.fill_bytes(sums.data, 0, storage(Count(sums.elements()), sums.dtype));
}

// A chunk that is cut between two ranks goes on from the first's sum, rank after rank. Then the
// last rank that has some of it, and only that one, has its sum.
void hand_on(const Worker& worker, const std::vector<Summed>& tensors, comm::Communicator& shards,
             TensorView sums) {
  for (int rank = 1; rank < shards.size(); ++rank) {
    for (const Summed& tensor : tensors) {
      const shard::Overlap there = tensor.unit->layout().in_piece(tensor.here.parameter, rank);
      if (there.count == 0 || there.first % kNormChunk == 0) continue;
      const TensorView sum = comm::slice(sums, tensor.first_sum + there.first / kNormChunk, 1);
      shards.broadcast(sum, rank - 1);
      if (rank == shards.rank()) {
        const kernels::SquaredPiece head = squares(tensor, 0, tensor.head(), sums);
        worker.kernels.sum_of_squares({&head, 1}, kNormChunk);
      } else {
        clear(worker, sum);
      }
    }
  }
}

}  // namespace

Bytes gradient_norm_workspace(std::span<shard::Unit* const> units) {
  std::int64_t values = 0;
  for (const shard::Unit* unit : units)
    for (const shard::Place& place : unit->layout().places)
      if (shard::is_trained(place.part)) values += chunks(place.shape.elements()) + 1;
  return storage(Count(values), models::decisions::kNorms);
}

void gradient_norm(Worker& worker, std::span<shard::Unit* const> units, comm::Communicator& shards,
                   float max_norm, float loss_scale, const Scalars& scalars) {
  const std::vector<Summed> tensors = summed(units);
  check(!tensors.empty(), ErrorKind::internal, "there is a gradient");
  const std::int64_t count = tensors.back().first_sum + tensors.back().sums;
  const TensorView sums = worker.scratch(models::decisions::kNorms, {count});
  const TensorView totals =
      worker.scratch_after(storage(Count(count), models::decisions::kNorms),
                           models::decisions::kNorms, {static_cast<std::int64_t>(tensors.size())});
  clear(worker, sums);
  std::vector<kernels::SquaredPiece> pieces;
  std::vector<std::int64_t> ends;
  for (const Summed& tensor : tensors) {
    pieces.push_back(squares(tensor, tensor.head(), tensor.here.count - tensor.head(), sums));
    ends.push_back(tensor.first_sum + tensor.sums);
  }
  worker.kernels.sum_of_squares(pieces, kNormChunk);
  if (shards.size() > 1) {
    hand_on(worker, tensors, shards, sums);
    shards.all_reduce(sums);  // one rank has a chunk's sum, the others 0: nothing is rounded
  }
  worker.kernels.total(sums, ends, totals);
  const std::int64_t all = totals.elements();
  worker.kernels.total(totals, {&all, 1}, scalars.squares());
  worker.kernels.clip(scalars.squares(), max_norm, loss_scale, scalars.norm(), scalars.factor(),
                      scalars.overflow());
}

}  // namespace plimsoll::runtime
