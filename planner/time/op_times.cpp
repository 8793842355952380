#include "planner/time/op_times.h"

#include <algorithm>
#include <deque>
#include <map>
#include <utility>

#include "planner/stack_step.h"
#include "planner/stacks/stack_info.h"
#include "planner/time/compute_time.h"

namespace plimsoll::planner {

namespace {

class Table {
 public:
  Table(const models::StepProgram& program, const Works& works, const GpuRates& gpu,
        const Execution& execution, double micros)
      : p_(program), works_(works), gpu_(gpu), execution_(execution), micros_(micros) {}

  std::vector<OpTime> rows() {
    of_op_.assign(p_.ops.size(), nullptr);
    for (const models::Segment& segment : p_.segments)
      for (std::uint32_t i = segment.op_begin; i < segment.op_end; ++i) add_rest(segment, i);
    for (const Works::GemmOf& of : works_.gemms())
      if (const Row* row = of_op_[of.op]) {
        const double times = micros_ * times_of(p_, *row->segment, of.gemm);
        add(*row->time, times, flops_of(of.gemm), cost_of(gpu_, of.gemm));
      }
    for (const Works::AttentionOf& of : works_.attentions())
      if (const Row* row = of_op_[of.op])
        add(*row->time, micros_ * static_cast<double>(p_.repeats(*row->segment)),
            of.attention.flops, cost_of(gpu_, execution_, of.attention));
    std::vector<OpTime> out;
    out.reserve(times_.size());
    for (auto& [key, time] : times_) out.push_back(std::move(time));
    std::ranges::stable_sort(out, std::ranges::greater{}, &OpTime::seconds);
    return out;
  }

 private:
  struct Row {
    OpTime* time;
    const models::Segment* segment;
  };

  void add_rest(const models::Segment& segment, std::uint32_t i) {
    const models::Op& op = p_.ops[i];
    if (!is_computed(p_, op)) return;
    const double times = micros_ * static_cast<double>(p_.repeats(segment));
    std::string name = op.name;
    if (segment.group != models::kNoGroup)
      name = std::string(p_.groups[static_cast<std::size_t>(segment.group)].prefix) + ".*." + name;
    OpTime& time = times_[{name, static_cast<int>(op.phase)}];
    if (time.op.empty()) {
      time.op = std::move(name);
      time.phase = models::name_of(op.phase);
    }
    of_op_[i] = &kept_.emplace_back(Row{&time, &segment});
    const WorkSum rest = rest_of_op(p_, works_, i);
    const Cost cost = cost_of_rest(gpu_, execution_, rest);
    time.times += times;
    time.bytes += times * cost.memory * gpu_.memory;
    time.kernels += times * (execution_.fused ? rest.fused_kernels : rest.kernels);
    time.seconds += times * cost.busy();
  }

  static void add(OpTime& time, double times, double flops, const Cost& cost) {
    time.flops += times * flops;
    time.seconds += times * cost.busy();
  }

  const models::StepProgram& p_;
  const Works& works_;
  const GpuRates& gpu_;
  const Execution& execution_;
  double micros_;
  std::map<std::pair<std::string, int>, OpTime> times_;
  std::deque<Row> kept_;
  std::vector<const Row*> of_op_;
};

}  // namespace

std::vector<OpTime> op_times(const Question& question) {
  if (!question.cluster.gpu || question.model == nullptr || !question.model->decoder) return {};
  const bool own = stack_info(question.strategy.stack).own_kernels;
  const GpuRates gpu = gpu_rates(*question.cluster.gpu, own ? Kernels::own : Kernels::torch);
  const Execution execution = execution_of(question.strategy);
  if (gpu.memory <= 0 || gpu.peaks[rate_index(execution.compute)] <= 0) return {};
  Question one = question;
  one.strategy = computing_part(question.strategy);
  one.batch.grad_accum = 1;
  const ModelParts parts = model_parts(*question.model, question.strategy);
  models::StepProgram program;
  Works works;
  stack_info(one.strategy.stack).write_compute(one, parts, program, works);
  return Table(program, works, gpu, execution, static_cast<double>(question.batch.grad_accum))
      .rows();
}

}  // namespace plimsoll::planner
