// A communicator that makes sums in a block of its own, as NCCL's does in the deterministic mode:
// the plan has that block, of that size, exactly where the run has it. Ranks are threads, so that
// it needs neither MPI nor a GPU.
#include <doctest/doctest.h>

#include "models/decisions/exchange.h"
#include "runtime/comm/threads.h"
#include "tests/witness/case.h"

namespace plimsoll::witness {
namespace {

namespace comm = runtime::comm;
using comm::Communicator;
using comm::Pending;
using kernels::ConstTensorView;
using kernels::TensorView;

// Threads that ask for the block, and put their sums elsewhere.
class Staging final : public Communicator {
 public:
  explicit Staging(Communicator& inner, bool stages) : inner_(inner), stages_(stages) {}
  Staging(std::unique_ptr<Communicator> inner, bool stages)
      : owned_(std::move(inner)), inner_(*owned_), stages_(stages) {}
  int rank() const override { return inner_.rank(); }
  int size() const override { return inner_.size(); }
  Pending start_all_reduce(TensorView x) override { return inner_.start_all_reduce(x); }
  Pending start_reduce_scatter(TensorView x, comm::PieceRange range) override {
    return inner_.start_reduce_scatter(x, range);
  }
  Pending start_all_gather(ConstTensorView piece, TensorView whole) override {
    return inner_.start_all_gather(piece, whole);
  }
  Pending start_broadcast(TensorView x, int root) override {
    return inner_.start_broadcast(x, root);
  }
  void barrier() override { inner_.barrier(); }
  std::vector<std::string> gather(std::string bytes) override {
    return inner_.gather(std::move(bytes));
  }
  std::unique_ptr<Communicator> split(int color) override {
    return std::make_unique<Staging>(inner_.split(color), stages_);
  }
  void abort(const std::string& reason) noexcept override { inner_.abort(reason); }
  bool stages() const override { return stages_; }

 private:
  std::unique_ptr<Communicator> owned_;
  Communicator& inner_;
  bool stages_;
};

std::string difference_over(const Case& c, models::Exchange exchange, models::Exchange planned) {
  Case asked = c;
  asked.strategy.exchange = planned;
  const Predicted plan = predicted(asked);
  std::string found;
  const bool stages = models::decisions::stages_sums(exchange, c.deterministic);
  comm::run_ranks(static_cast<int>(c.strategy.gpus), [&](Communicator& world) {
    Staging staging(world, stages);
    const RankMeasured one = measured(c, staging);
    if (world.rank() != 0) return;
    for (const runtime::StepResult& step : one.steps)
      if (found.empty()) found = first_difference(plan, step.memory);
  });
  return found;
}

TEST_CASE("deterministic sums over NCCL have a block in the plan and in the run, fast ones none") {
  for (const char* model : {"llama", "gpt2"})
    for (const int zero : {0, 1, 2, 3})
      for (const bool deterministic : {false, true})
        for (const std::int64_t bucket : {200, 25 << 20}) {
          Case c;
          if (model == std::string("llama")) {
            c.strategy.grad_dtype = DType::fp32;
            c.strategy.data.reduce_dtype = DType::bf16;
          }
          c.model = model;
          c.strategy.stack = models::Stack::plimsoll;
          c.strategy.device = models::Device::cpu;
          c.strategy.gpus = 3;
          c.strategy.data.zero = zero;
          c.strategy.data.bucket_cap = Bytes(bucket);
          c.batch = {.seq_len = 10, .micro_batch = 2, .grad_accum = 2};
          c.deterministic = deterministic;
          CAPTURE(text(c));
          CHECK(difference_over(c, models::Exchange::nccl, models::Exchange::nccl) == "");
          // Planned for threads, it is the block that is missed.
          const std::string missed =
              difference_over(c, models::Exchange::nccl, models::Exchange::threads);
          CHECK((missed.find("communicator.staging") != std::string::npos) == deterministic);
        }
}

}  // namespace
}  // namespace plimsoll::witness
