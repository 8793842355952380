#include "planner/time/compute_time.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <map>
#include <mutex>
#include <utility>
#include <vector>

#include "planner/plan.h"
#include "planner/stack_step.h"
#include "planner/stacks/stack_info.h"

namespace plimsoll::planner {

using models::Batch;
using models::RecomputeKind;
using models::Strategy;

namespace {

double between(double two, double three, double x) {
  return two + x * (three - two);
}

Gemm between(const Gemm& two, const Gemm& three, double x) {
  Gemm gemm = two;
  gemm.m = between(two.m, three.m, x);
  gemm.n = between(two.n, three.n, x);
  gemm.k = between(two.k, three.k, x);
  gemm.count = between(two.count, three.count, x);
  return gemm;
}

bool equal(const Gemm& a, const Gemm& b) {
  return a.dtype == b.dtype && a.m == b.m && a.n == b.n && a.k == b.k && a.count == b.count &&
         a.cut == b.cut && a.rows == b.rows && a.tokens_summed == b.tokens_summed &&
         a.unaligned == b.unaligned;
}

// Of a micro-batch, whatever decides its ops.
constexpr std::size_t kSequences = 1;
std::array<std::int64_t, 5> sizes_of(const Batch& batch) {
  return {batch.seq_len, batch.micro_batch, batch.row_tokens, batch.row_samples, batch.real_tokens};
}

std::uint64_t next_id() {
  static std::atomic<std::uint64_t> last{0};
  return ++last;
}

}  // namespace

WorkByBatch::Line WorkByBatch::line_of(const WorkSum& two, const WorkSum& three) {
  check(two.gemms.size() == three.gemms.size() && two.attentions.size() == three.attentions.size(),
        ErrorKind::internal, "two batches of one strategy have other GEMMs");
  Line line;
  for (std::size_t i = 0; i < two.gemms.size(); ++i) {
    const auto same = [&](const GemmLine& other) {
      return equal(other.at_two, two.gemms[i]) && equal(other.at_three, three.gemms[i]);
    };
    const auto known = std::ranges::find_if(line.gemms, same);
    if (known != line.gemms.end())
      ++known->times;
    else
      line.gemms.push_back({two.gemms[i], three.gemms[i]});
  }
  for (std::size_t i = 0; i < two.attentions.size(); ++i)
    line.attentions.push_back(
        {two.attentions[i], three.attentions[i].flops - two.attentions[i].flops});
  line.at_two = two;
  line.at_three = three;
  for (WorkSum* sum : {&line.at_two, &line.at_three}) {
    sum->gemms.clear();
    sum->attentions.clear();
  }
  return line;
}

WorkByBatch::WorkByBatch(const StepWork& two, const StepWork& three) {
  check(two.layers.size() == three.layers.size(), ErrorKind::internal,
        "two batches of one strategy have other layers");
  const auto add = [&](const WorkOfPart& a, const WorkOfPart& b) {
    lines_.push_back(line_of(a.forward, b.forward));
    lines_.push_back(line_of(a.backward, b.backward));
  };
  for (std::size_t i = 0; i < two.layers.size(); ++i) add(two.layers[i], three.layers[i]);
  add(two.ends, three.ends);
}

Cost WorkByBatch::cost(const GpuRates& gpu, const Execution& e, const Line& line, double x) {
  Cost cost;
  for (const GemmLine& gemm : line.gemms)
    cost += gemm.times * cost_of(gpu, between(gemm.at_two, gemm.at_three, x));
  for (const AttentionLine& of : line.attentions) {
    FusedAttention attention = of.at_two;
    attention.flops += x * of.more;
    cost += cost_of(gpu, e, attention);
  }
  const Cost two = cost_of_rest(gpu, e, line.at_two), three = cost_of_rest(gpu, e, line.at_three);
  cost.memory += between(two.memory, three.memory, x);
  cost.launches += between(two.launches, three.launches, x);
  return cost;
}

void WorkByBatch::cost(const GpuRates& gpu, const Execution& e, double sequences,
                       ComputeCost& out) const {
  const double x = sequences - 2;
  const std::size_t layers = lines_.size() / 2 - 1;
  const auto part = [&](std::size_t i) {
    return PartCost{cost(gpu, e, lines_[2 * i], x), cost(gpu, e, lines_[2 * i + 1], x)};
  };
  out.layers.clear();
  for (std::size_t i = 0; i < layers; ++i) out.layers.push_back(part(i));
  out.ends = part(layers);
}

// Written once for each length of the sequences: for one sequence, and for more. What was drawn
// has a program of its own.
struct ComputeTime::Known {
  std::mutex mutex;
  std::map<std::array<std::int64_t, 5>, WorkByBatch> works;
};

ComputeTime::ComputeTime(const ModelParts& parts, const models::ClusterSpec& cluster,
                         const GpuRates& gpu, const Strategy& strategy)
    : id_(next_id()),
      parts_(parts),
      cluster_(cluster),
      gpu_(gpu),
      strategy_(strategy),
      execution_(execution_of(strategy)),
      known_(std::make_shared<Known>()) {}

WorkByBatch ComputeTime::write(Batch batch) const {
  Question question;
  question.strategy = strategy_;
  question.cluster = cluster_;
  batch.grad_accum = 1;
  models::StepProgram program;
  Works works;
  const auto of = [&](std::int64_t sequences) {
    batch.micro_batch = sequences;
    works.clear();
    question.batch = batch;
    stack_info(strategy_.stack).write_compute(question, parts_, program, works);
    return work_of_step(program, works);
  };
  if (batch.micro_batch == 1) return WorkByBatch(of(1));
  // Under the mask of one row attention grows with the square of its tokens: no line.
  if (strategy_.rows == models::Rows::flattened) return WorkByBatch(of(batch.micro_batch));
  const StepWork two = of(2);
  return WorkByBatch(two, of(3));
}

const WorkByBatch& ComputeTime::work(const Batch& batch) const {
  const std::lock_guard lock(known_->mutex);
  std::array<std::int64_t, 5> key = sizes_of(batch);
  if (strategy_.rows != models::Rows::flattened)
    key[kSequences] = std::min<std::int64_t>(key[kSequences], 2);
  const auto known = known_->works.find(key);
  if (known != known_->works.end()) return known->second;
  return known_->works.emplace(key, write(batch)).first->second;
}

// In a search most strategies differ in how they share memory, and compute alike.
const ComputeCost& ComputeTime::of(const Batch& batch) const {
  struct Last {
    std::uint64_t id = 0;
    std::array<std::int64_t, 5> sizes{};
    ComputeCost cost;
  };
  thread_local std::vector<Last> all(std::size_t{1} << 11);
  const std::array<std::int64_t, 5> sizes = sizes_of(batch);
  std::uint64_t h = id_ * 0x9E3779B97F4A7C15;
  for (const std::int64_t part : sizes) {
    h = (h ^ static_cast<std::uint64_t>(part)) * 0x9E3779B97F4A7C15;
    h ^= h >> 32;
  }
  Last& last = all[h % all.size()];
  if (last.id == id_ && last.sizes == sizes) return last.cost;
  last.id = 0;  // until it is whole
  work(batch).cost(gpu_, execution_, static_cast<double>(batch.micro_batch), last.cost);
  last.sizes = sizes;
  last.id = id_;
  return last.cost;
}

// What is sent, and the optimizer, have a time of their own.
Strategy compute_of_one_gpu(const Strategy& s) {
  Strategy out = stack_info(s.stack).compute_as(s);
  out.allocator = {};
  out.hold_outputs = false;
  if (!s.optimizer_in_backward) {
    out.optimizer = models::Optimizer::adamw;
    out.optimizer_impl.reset();
  }
  out.master_weights.reset();
  out.grad_dtype.reset();
  return out;
}

// Checkpoints of several layers run the same ops as those of one, but for the last GEMM of all
// layers of a checkpoint except its last one, which only those run again.
Strategy computing_part(const Strategy& s) {
  Strategy out = compute_of_one_gpu(s);
  if (models::groups_layers(s.recompute.kind)) out.recompute = {RecomputeKind::full, 1};
  return out;
}

}  // namespace plimsoll::planner
