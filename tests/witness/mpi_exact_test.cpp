// Under mpirun: each process's ledger against the plan with a staging block, its numbers against
// those of threads.
#include <cstdio>

#include "runtime/comm/mpi_ranks.h"
#include "tests/witness/case.h"

namespace plimsoll::witness {
namespace {

Case base(const char* model, std::int64_t ranks, int zero) {
  Case c;
  c.model = model;
  c.strategy.exchange = models::Exchange::mpi;
  c.strategy.stack = models::Stack::plimsoll;
  c.strategy.device = models::Device::cpu;
  c.strategy.precision = models::Precision::bf16_mixed;
  c.strategy.gpus = ranks;
  c.strategy.data.zero = zero;
  c.batch = {.seq_len = 10, .micro_batch = 2};
  c.steps = 2;
  return c;
}

std::vector<Case> cases(std::int64_t ranks) {
  std::vector<Case> all;
  for (const int zero : {0, 1, 2, 3}) {
    Case c = base("llama", ranks, zero);
    all.push_back(c);
    c.deterministic = true;
    c.batch.grad_accum = 3;
    c.strategy.precision = models::Precision::fp16_mixed;
    all.push_back(c);
    // Messages of at most 200 B: no multiple of the pieces' alignment.
    c = base("gpt2-dropout", ranks, zero);
    c.strategy.data.bucket_cap = Bytes(200);
    all.push_back(c);
    // Two trained parts in a unit: the larger one's message.
    c = base("qwen3", ranks, zero);
    c.strategy.lora = models::Lora{.rank = 3, .alpha = 6, .targets = {"all-linear"}};
    all.push_back(c);
    c.strategy.train = {"*norm*"};
    all.push_back(c);
    // Cast for the exchange: the block is of the cast.
    c = base("llama", ranks, zero);
    c.strategy.precision = models::Precision::fp32;
    c.strategy.data.reduce_dtype = DType::bf16;
    c.batch.grad_accum = 2;
    all.push_back(c);
    if (ranks % 2 != 0 || ranks < 4) continue;
    c.strategy.data.shard_group = 2;
    all.push_back(c);
    c = base("llama", ranks, zero);
    c.strategy.data.shard_group = 2;
    all.push_back(c);
  }
  return all;
}

void expect(const std::string& difference) {
  check(difference.empty(), ErrorKind::internal, difference);
}

void check_case(const Case& c, runtime::comm::Communicator& world) {
  const Predicted plan = predicted(c);
  const RankMeasured processes = measured(c, world);
  const Measured threads = measured(c);
  const auto& as_threads = threads.ranks[static_cast<std::size_t>(world.rank())];
  for (std::size_t i = 0; i < processes.steps.size(); ++i) {
    const runtime::StepResult& step = processes.steps[i];
    const std::string difference = first_difference(plan, step.memory);
    expect(difference.empty() ? "" : text(c) + ": " + difference);
    expect(step.loss == as_threads[i].loss && step.grad_norm == as_threads[i].grad_norm
               ? ""
               : text(c) + ": loss or norm are not those of threads");
  }
  expect(processes.parameters == threads.parameters
             ? ""
             : text(c) + ": weights are not those of threads");
  // Without the block the plan is not this run's: the comparison sees it.
  Case unstaged = c;
  unstaged.strategy.exchange = models::Exchange::threads;
  expect(first_difference(predicted(unstaged), processes.steps[0].memory)
                     .find("communicator.staging") == std::string::npos
             ? text(c) + ": the staging block is not missed"
             : "");
}

}  // namespace
}  // namespace plimsoll::witness

int main() {
  namespace comm = plimsoll::runtime::comm;
  if (!comm::started_by_mpi()) {
    std::fprintf(stderr, "not started by mpirun\n");
    return 77;
  }
  comm::MpiOptions options;
  options.timeout_seconds = 60;
  options.ending.report = [](const plimsoll::Error& error) {
    std::fprintf(stderr, "%s\n", error.message().c_str());
  };
  comm::run_mpi_rank(
      [](comm::Communicator& world) {
        for (const auto& c : plimsoll::witness::cases(world.size()))
          plimsoll::witness::check_case(c, world);
      },
      options);
  return 0;
}
