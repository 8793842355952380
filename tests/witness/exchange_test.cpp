// What a rank really sends, message by message, held against the plan's collectives.
#include <doctest/doctest.h>

#include <map>

#include "runtime/comm/threads.h"
#include "tests/witness/covering.h"

namespace plimsoll::witness {
namespace {

using kernels::ConstTensorView;
using kernels::TensorView;
using runtime::comm::Communicator;
using runtime::comm::Pending;
using runtime::comm::PieceRange;

// By kind and ranks of the group.
using Tally = std::map<std::pair<std::string, std::int64_t>, Bytes>;

// Hands on, and adds up the arrays that are exchanged. The norm's sums are in fp64, no parameters.
class Counting final : public Communicator {
 public:
  Counting(Communicator& inner, Tally& tally) : inner_(inner), tally_(tally) {}
  Counting(std::unique_ptr<Communicator> inner, Tally& tally)
      : owned_(std::move(inner)), inner_(*owned_), tally_(tally) {}

  int rank() const override { return inner_.rank(); }
  int size() const override { return inner_.size(); }
  Pending start_all_reduce(TensorView buffer) override {
    count("all_reduce", buffer.elements(), buffer.dtype);
    return inner_.start_all_reduce(buffer);
  }
  Pending start_reduce_scatter(TensorView whole, PieceRange range) override {
    count("reduce_scatter", range.count * size(), whole.dtype);
    return inner_.start_reduce_scatter(whole, range);
  }
  Pending start_all_gather(ConstTensorView piece, TensorView whole) override {
    count("all_gather", whole.elements(), whole.dtype);
    return inner_.start_all_gather(piece, whole);
  }
  Pending start_broadcast(TensorView buffer, int root) override {
    count("broadcast", buffer.elements(), buffer.dtype);
    return inner_.start_broadcast(buffer, root);
  }
  void barrier() override { inner_.barrier(); }
  std::vector<std::string> gather(std::string bytes) override {
    return inner_.gather(std::move(bytes));
  }
  std::unique_ptr<Communicator> split(int color) override {
    return std::make_unique<Counting>(inner_.split(color), tally_);
  }
  void abort(const std::string& reason) noexcept override { inner_.abort(reason); }
  bool stages() const override { return inner_.stages(); }
  void use_staging(TensorView block) override { inner_.use_staging(block); }

 private:
  void count(const char* kind, std::int64_t elements, DType dtype) {
    if (size() == 1 || dtype == DType::fp64) return;
    tally_[{kind, size()}] += storage(Count(elements), dtype);
  }
  std::unique_ptr<Communicator> owned_;
  Communicator& inner_;
  Tally& tally_;
};

Tally sent_in(Case c, int steps) {
  c.steps = steps;
  Tally of_rank_0;
  runtime::comm::run_ranks(static_cast<int>(c.strategy.gpus), [&](Communicator& world) {
    Tally tally;
    Counting counting(world, tally);
    measured(c, counting);
    if (world.rank() == 0) of_rank_0 = tally;
  });
  return of_rank_0;
}

// In one step: the second of two, so that what is read back in the end does not count.
Tally sent(const Case& c) {
  Tally tally = sent_in(c, 2);
  for (const auto& [key, bytes] : sent_in(c, 1)) tally[key] -= bytes;
  std::erase_if(tally, [](const auto& entry) { return entry.second == Bytes(0); });
  return tally;
}

Tally planned(const Case& c) {
  Tally tally;
  for (const reports::Collective& one : predicted(c).collectives)
    tally[{one.kind, one.group}] += one.array * one.count;
  return tally;
}

std::string text(const Tally& tally) {
  std::string text;
  for (const auto& [key, bytes] : tally)
    text += key.first + " over " + std::to_string(key.second) + ": " +
            std::to_string(bytes.value()) + " B; ";
  return text;
}

TEST_CASE("ranks exchange the bytes that the plan says") {
  const std::vector<Case> cases = covering(200, 1);
  for (std::size_t i = 0; i < cases.size(); i += 3) {  // three steps of each
    CAPTURE(witness::text(cases[i]));
    CHECK(text(sent(cases[i])) == text(planned(cases[i])));
  }
}

}  // namespace
}  // namespace plimsoll::witness
