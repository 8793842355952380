// How parameters, gradients and optimizer states are laid out and divided over ranks.
//
// A *unit* is handled together: the embedding tables; each layer; the tail (final norm, and the
// head; a table tied to the head belongs to the tail). A unit has up to four flat parts, each of
// one dtype and all or none of it trained: frozen, packed (bytes: packed_weights.h), trained,
// adapters. In a part the tensors follow
// one another in the order of the parameter table, each aligned to kFlatAlignment; the part is
// padded to a multiple of shards × kFlatAlignment, and rank i of the sharding group owns the i-th
// of `shards` equal pieces. The parameters of a unit are one allocation (frozen, packed, trained,
// adapters after one another), so are its gradients (trained, adapters), its masters, and each of
// its moments. Modules see views. Optimizer states are allocated at the start, gradients by the
// first op that writes one of the unit's; they die when the optimizer has read them.
//
// (Masters and moments are on the host with --offload optimizer: offload.h.)
//
//   stage  parameters    gradients                                    masters, moments
//   0 DDP  whole         whole, all-reduced in place                  whole
//   1      whole         whole, reduce-scattered in place             piece
//   2      whole         whole of a unit until reduced, then a piece  piece
//   3      piece         as 2                                         piece
//
// Stage 3 gathers a unit's parameters into one whole allocation before its first use and frees it
// after its last one in forward, and again in backward; recomputing gathers like a forward. The
// unit of the next use is gathered when a use begins (in backward; recomputing included), the last
// layer's for backward when the loss is known. Where two uses of one unit follow one another (the
// tail; the last layer of a checkpoint) it stays. The embedding's backward needs no table.
// Stages 1 and 2 gather in place after the optimizer's step.
//
// Reductions. A message is at most DataParallel::bucket_cap bytes of a part of a unit's flat
// gradients (message_elements), so that no bucket crosses a unit. Where the whole gradients go away
// (stages 2 and 3), the unit's are held until the backward of the next unit that has some is done,
// while they are reduced; then this rank's piece moves into (first micro-batch) or is added to
// (later ones) the sharded gradients. Hybrid sharding: shards inside groups of --shard-group ranks;
// after a reduce-scatter the replicas all-reduce the piece in place. Ranks that are threads read
// each other's buffers, and NCCL reduces in place; exchange.h says which communicators receive into
// a staging block of their own.
//
// --reduce-dtype (precision.h, reduce_dtype). The op `reduce` casts the unit's whole gradients,
// padding too, part after part into one tensor of that dtype (gradients.compressed, rounded to
// nearest even) and begins to exchange it in their place, in messages of as many bytes. It is held,
// under every stage, until the backward of the next unit that has some is done. Then `reduced`
// widens the sum, which rounds nothing, into the gradients (stages 0 and 1: those that were cast)
// or into the shard, or adds it there, and the tensor ends. Whole gradients that go away (stages 2
// and 3; gradients.new) end with the cast: while ranks exchange, 2 bytes are held and not 4. The
// ranks' values are added in fp32 and rounded once (runtime/comm/communicator.h; NCCL's own sums of
// the fast mode round as NCCL does); replicas' all-reduce of the piece rounds a second time.
#pragma once

#include "models/decisions/mesh.h"
#include "models/run_spec.h"

namespace plimsoll::models::decisions {

inline constexpr Bytes kFlatAlignment(16);  // widest vector load
constexpr std::int64_t alignment_elements(DType dtype) {
  return kFlatAlignment.value() * 8 / bits(dtype);
}

// Elements of each of `pieces` equal pieces that one message carries: at most `cap` bytes together,
// whole alignments where there is room for one, at least one element.
inline std::int64_t message_elements(Bytes cap, DType dtype, std::int64_t pieces) {
  const std::int64_t step = alignment_elements(dtype);
  const std::int64_t room = cap.value() / storage(Count(pieces), dtype).value();
  const std::int64_t most = room < 1 ? 1 : room;
  return most >= step ? most / step * step : most;
}

struct Sharding {
  int stage = 0;
  std::int64_t shards = 1;  // ranks that share one copy of what the stage divides
  std::int64_t replicas = 1;  // such groups
  bool reduces() const { return shards * replicas > 1; }
};
// One rank shards nothing: any stage of one shard is stage 0.
constexpr Sharding sharding_of(const Strategy& s) {
  const Mesh mesh = mesh_of(s);
  const std::int64_t shards = mesh[Axis::shard].ranks;
  return {shards == 1 ? 0 : s.data.zero, shards, mesh[Axis::replicate].ranks};
}

// When the gradients of accumulated micro-batches are reduced. Stages 2 and 3 hold no whole
// gradients between micro-batches and must reduce each time; stages 0 and 1 reduce once, which
// sends less. Sums rounded at other moments differ, so in the deterministic mode, where all stages
// agree bit for bit, all reduce each time.
enum class ReduceMoment : std::uint8_t { last_micro_batch, every_micro_batch };
constexpr ReduceMoment reduce_moment(int stage, bool deterministic) {
  return stage >= 2 || deterministic ? ReduceMoment::every_micro_batch
                                     : ReduceMoment::last_micro_batch;
}

}  // namespace plimsoll::models::decisions
