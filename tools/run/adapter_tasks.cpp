#include "tools/run/adapter_tasks.h"

namespace plimsoll::tools {

AdapterTasks::AdapterTasks(runtime::Trainer& trainer, const Weights& weights, std::int64_t steps)
    : trainer_(trainer), weights_(weights), steps_(steps) {
  if (weights_.tasks() > 0) adapters_.emplace(trainer_);
}

std::int64_t AdapterTasks::steps_in_all() const {
  return adapters_ ? checked_multiply(steps_, static_cast<std::int64_t>(weights_.tasks())) : steps_;
}

std::int64_t AdapterTasks::own(std::int64_t step) const {
  return adapters_ ? (step - 1) % steps_ + 1 : step;
}

std::optional<std::string> AdapterTasks::before(std::int64_t step) {
  if (!adapters_ || own(step) > 1) return {};
  const auto task = static_cast<std::size_t>((step - 1) / steps_);
  if (task > 0) {
    done_.push_back(adapters_->save());
    adapters_->load([&](const runtime::ModelParameter& parameter, std::int64_t first,
                        std::span<float> to) { weights_.read(parameter, first, to, task); });
  }
  return weights_.name(task);
}

void AdapterTasks::each(const std::function<void(const std::string&)>& use) {
  if (!adapters_) return use("");
  done_.push_back(adapters_->save());
  for (std::size_t task = 0; task < done_.size(); ++task) {
    adapters_->swap(done_[task]);
    use(weights_.name(task));
  }
}

}  // namespace plimsoll::tools
