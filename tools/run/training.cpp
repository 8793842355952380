#include "tools/run/training.h"

#include <fmt/format.h>

#include <algorithm>
#include <mutex>

#include "models/decisions/mesh.h"
#include "models/run_names.h"
#include "reports/measurement_json.h"
#include "reports/workload_json.h"
#include "runtime/comm/ending.h"
#include "runtime/io/batches.h"
#include "runtime/probe.h"
#include "tools/cli/output.h"
#include "tools/run/adapter_tasks.h"
#include "tools/run/checkpoints.h"
#include "tools/run/ended_from_outside.h"
#include "tools/run/environment.h"
#include "tools/run/on_gpu.h"
#include "tools/run/packing.h"
#include "tools/run/profile_rows.h"
#include "tools/run/recorder.h"
#include "tools/run/saved_weights.h"
#include "tools/run/weights.h"

namespace plimsoll::tools {

namespace {
namespace io = runtime::io;
using runtime::comm::Communicator;

// Bytes fit any larger vocabulary.
std::unique_ptr<io::TokenSource> tokens_of(const Job& job, const RunOptions& options) {
  constexpr std::int64_t kBytes = 256;
  const std::int64_t vocab = job.model.decoder->vocab;
  const bool small = options.data.empty() && vocab < kBytes;
  return io::open_tokens(small ? "synthetic" : options.data, vocab, options.seed);
}

// One process's share of a run.
class Training {
 public:
  Training(const Job& job, const Checkpoints& checkpoints, Progress& progress)
      : job_(job),
        checkpoints_(checkpoints),
        options_(checkpoints.options()),
        progress_(progress),
        weights_(job, options_),
        saves_(save_options(job, options_)),
        tokens_(tokens_of(job, options_)),
        batches_(*tokens_, shape_of(job, *tokens_, checkpoints)) {}

  const Job& job() const { return job_; }
  std::int64_t steps_before() const { return checkpoints_.steps(); }
  // On every rank.
  void run(Communicator& world, runtime::Device& device) {
    expect_one_workload(world);
    const bool own = device.kind() == models::Device::cuda && has_a_gpu_;
    std::vector<reports::DriverReading> readings;
    if (context_) readings.push_back({"context", *context_, Bytes(0)});
    if (own) readings.push_back({"libraries", used_of_this_gpu(), Bytes(0)});
    if (world.rank() == 0)
      progress_.note(fmt::format("weights: {}; data: {}",
                                 checkpoints_.resumes() ? checkpoints_.origin() : weights_.origin(),
                                 tokens_->origin()));
    runtime::Profile profile(device);
    runtime::Trainer trainer(job_.model, *job_.model.numerics, trainer_options(),
                             options_.profile ? profile.device() : device, world);
    const bool tells = device.kind() == models::Device::cuda && world.rank() == 0;
    if (tells) describe_gpu(environment_);
    if (checkpoints_.resumes())
      checkpoints_.load(trainer);
    else
      load_weights(trainer, world.rank() == 0);
    const auto reserved = [&] { return trainer.worker().memory.reserved(); };
    if (own) readings.push_back({"weights", used_of_this_gpu(), reserved()});
    Recorder recorder(world.rank(), reserved(), job_.workload.strategy.optimizer_in_backward);
    const runtime::Tokens tokens = [&](std::int64_t step, std::int64_t micro,
                                       std::span<std::int32_t> ids,
                                       std::span<std::int32_t> targets) {
      batches_.fill(step, micro, world.rank(), ids, targets);
    };
    AdapterTasks tasks(trainer, weights_, options_.steps);
    if (world.rank() == 0) progress_.expect(tasks.steps_in_all());
    std::int64_t step = checkpoints_.steps() + 1;
    for (; step <= tasks.steps_in_all() || goes_on(world); ++step) {
      const std::optional<std::string> adapter = tasks.before(step);
      if (adapter && world.rank() == 0) progress_.note("adapter: " + *adapter);
      const runtime::StepResult result = trainer.step(tokens, rate(tasks.own(step)));
      if (own && step == 1) readings.push_back({"step 1", used_of_this_gpu(), reserved()});
      recorder.add(step, result);
      if (world.rank() == 0) {
        loop_.stepped();
        progress_.step(step, result, trainer.worker().memory.ledger().live());
        const std::lock_guard lock(mutex_);
        steps_.push_back(measured(step, result));
        if (tells) clocks_.read();
      }
      checkpoints_.stepped(trainer, step, batches_, *tokens_);
    }
    if (world.rank() == 0) loop_.end();
    reports::MeasuredRank rank = recorder.rank(reserved());
    if (own) {
      rank.device = used_of_this_gpu();
      readings.push_back({"steps", *rank.device, reserved()});
      rank.driver = std::move(readings);
    }
    tasks.each([&](const std::string& name) {
      for (const SaveOption& option : saves_)
        save_weights(option.below(name), job_, trainer.model(), trainer.worker().regime.compute,
                     world.rank() == 0);
    });
    checkpoints_.ended(trainer, batches_, *tokens_);
    collect(world, rank);
    if (world.rank() == 0 && tells) libraries_ = device.libraries();
    if (!options_.profile) return;
    if (world.rank() == 0) profile.begin(trainer.worker().memory.ledger());
    const runtime::StepResult result = trainer.step(tokens, rate(tasks.own(step)));
    if (world.rank() != 0) return;
    costs_ = profile.end();
    profiled_seconds_ = result.seconds;
  }

  std::mutex
      mutex_;  // guards steps_ and clocks_: a second thread writes them down where the job fails
  std::vector<reports::MeasuredStep> steps_;  // of rank 0
  std::vector<reports::MeasuredRank> ranks_;  // there alone
  reports::Environment environment_;  // the GPU's part of it
  ClockSamples clocks_;
  LoopClock loop_;  // of rank 0
  std::optional<runtime::LibraryUse> libraries_;  // of rank 0
  std::vector<runtime::KernelCost> costs_;  // of the step that was profiled there
  double profiled_seconds_ = 0;
  bool has_a_gpu_ = true;  // of its own, each rank
  std::optional<Bytes> context_;  // used on the GPU before anything but the context is there

 private:
  // By rank 0's clock.
  bool goes_on(Communicator& world) const {
    if (options_.seconds <= 0) return false;
    return world.gather(world.rank() == 0 ? loop_.seconds() : 0)[0] < options_.seconds;
  }
  // The arena only grows, so that its most is there in the end.
  static Bytes used_of_this_gpu() {
    const runtime::GpuReading now = runtime::read_gpu(runtime::this_gpu());
    return now.total - now.free;
  }
  runtime::TrainerOptions trainer_options() const {
    runtime::TrainerOptions out;
    out.strategy = job_.workload.strategy;
    out.batch = job_.workload.batch;
    out.deterministic = out.strategy.deterministic;
    out.seed = options_.seed;
    out.optimizer.kind = out.strategy.optimizer;
    out.optimizer.max_norm = static_cast<float>(options_.max_norm);
    out.optimizer.weight_decay = static_cast<float>(options_.weight_decay);
    out.memory.poison = options_.poison;
    if (job_.memory) out.memory.limit = *job_.memory;
    return out;
  }

  static io::BatchShape shape_of(const Job& job, const io::TokenSource& tokens,
                                 const Checkpoints& checkpoints) {
    io::BatchShape shape{.ranks = models::decisions::mesh_of(job.workload.strategy).data().ranks,
                         .micro_batches = job.workload.batch.grad_accum,
                         .sequences = job.workload.batch.micro_batch,
                         .length = job.workload.batch.seq_len};
    checkpoints.resume(tokens, shape);
    return shape;
  }

  void load_weights(runtime::Trainer& trainer, bool tells) {
    const runtime::ReadParameter read = [&](const runtime::ModelParameter& parameter,
                                            std::int64_t first, std::span<float> to) {
      weights_.read(parameter, first, to);
    };
    trainer.load(read, [&](const runtime::ModelParameter& p) { return weights_.packed(p); });
    const DType compute = trainer.worker().regime.compute;
    if (!tells || weights_.come_packed()) return;
    const std::string note = packing_note(job_.model, job_.workload.strategy, compute, read);
    if (!note.empty()) progress_.note(note);
  }

  // Processes plan each for themselves, perhaps from files of their own.
  void expect_one_workload(Communicator& world) const {
    const std::vector<std::string> all = world.gather(job_.workload.fingerprint);
    const auto other =
        std::ranges::find_if(all, [&](const std::string& one) { return one != all[0]; });
    check(other == all.end(), ErrorKind::bad_input, [&] {
      return fmt::format("rank {} was given workload {}, rank 0 {}: all ranks run one plan",
                         other - all.begin(), *other, all[0]);
    });
  }

  float rate(std::int64_t step) const {
    const double share = static_cast<double>(step) / static_cast<double>(options_.warmup);
    return static_cast<float>(options_.learning_rate *
                              (options_.warmup > 0 ? std::min(1., share) : 1));
  }

  reports::MeasuredStep measured(std::int64_t step, const runtime::StepResult& result) const {
    reports::MeasuredStep out{.step = step, .seconds = result.seconds, .skipped = result.skipped};
    out.loss = result.loss;
    if (!job_.workload.strategy.optimizer_in_backward) out.grad_norm = result.grad_norm;
    if (result.seconds > 0)
      out.tokens_per_second = static_cast<double>(result.tokens) / result.seconds;
    return out;
  }

  void collect(Communicator& world, const reports::MeasuredRank& rank) {
    std::string text;
    reports::JsonWriter json(text, reports::JsonWriter::Style::compact);
    reports::write_measured_rank(json, rank);
    const std::vector<std::string> all = world.gather(std::move(text));
    if (world.rank() != 0) return;
    ranks_.push_back(rank);
    for (std::size_t r = 1; r < all.size(); ++r)
      ranks_.push_back(reports::read_measured_rank(all[r], "what a rank measured"));
  }

  const Job& job_;
  const Checkpoints& checkpoints_;
  const RunOptions& options_;
  Progress& progress_;
  Weights weights_;
  std::vector<SaveOption> saves_;
  std::unique_ptr<io::TokenSource> tokens_;
  io::Batches batches_;
};

void run_ranks(const Job& job, const RunOptions& options, Training& training,
               std::function<void(const Error&)> record) {
  namespace comm = runtime::comm;
  const bool threads = !comm::is_distributed(comm::detect_launch());
  training.has_a_gpu_ =
      !threads || !models::decisions::mesh_of(job.workload.strategy).communicates();
  if (threads && training.has_a_gpu_ && job.workload.strategy.device == models::Device::cuda) {
    const runtime::GpuReading first = runtime::read_gpu(0);  // makes the context
    training.context_ = first.total - first.free;
  }
  comm::run_job(job_options(job.workload.strategy, options.timeout_seconds, std::move(record)),
                [&](Communicator& world, runtime::Device& device) { training.run(world, device); });
}

bool is_users(const Error& error) {
  return error.kind() == ErrorKind::bad_input || error.kind() == ErrorKind::unsupported;
}

void add_what_was_measured(Training& training, reports::Measurement& out) {
  if (training.job().workload.strategy.device == models::Device::cuda) {
    out.kind = "gpu";
    const reports::Environment& gpu = training.environment_;
    out.environment.device = gpu.device.empty() ? "GPU" : gpu.device;
    out.environment.capacity = gpu.capacity;
    out.environment.driver = gpu.driver;
    out.environment.other_processes = gpu.other_processes;
    for (const auto& version : gpu.versions) out.environment.versions.push_back(version);
    std::ranges::sort(out.environment.versions);
    out.peak_flops = peak_flops_of(gpu.device, training.job().workload.strategy.precision);
    out.clocks = training.clocks_.medians();
    if (training.libraries_) {
      for (const auto& version : training.libraries_->versions)
        out.environment.versions.push_back(version);
      std::ranges::sort(out.environment.versions);
      out.libraries = notes_of(*training.libraries_);
    }
  }
  out.loop = training.loop_.seen();
  if (!training.costs_.empty()) {
    out.profile = profile_of(training.costs_, training.profiled_seconds_, out.peak_flops,
                             bytes_per_second_of(out.environment.device));
    // Every rank has as many rows as rank 0.
    out.hardware_flops = 0;
    for (const runtime::KernelCost& cost : training.costs_)
      *out.hardware_flops += cost.flops * static_cast<double>(out.world);
  }
  {
    const std::lock_guard lock(training.mutex_);
    out.steps = training.steps_;
  }
  for (reports::MeasuredStep& step : out.steps)
    step.mfu = reports::utilization(out, out.flops->model, step.seconds);
}

// What there is of a run that has ended early: `begun` with its steps, and why.
reports::Measurement failed(const reports::Measurement& begun, Training& training,
                            const Error& error) {
  reports::Measurement out = begun;
  add_what_was_measured(training, out);
  out.outcome = error.kind() == ErrorKind::out_of_memory ? "out_of_memory" : "failed";
  out.error =
      reports::Failure{std::string(name_of(error.kind())), error.message(),
                       (out.steps.empty() ? training.steps_before() : out.steps.back().step) + 1};
  for (std::int64_t rank = 0; rank < out.world; ++rank) out.ranks.emplace_back().rank = rank;
  return out;
}

// Stepping in the backward clips nothing, unless somebody says otherwise.
RunOptions without_clipping(RunOptions options, const models::Strategy& strategy) {
  if (strategy.optimizer_in_backward && !options.given.contains("max-norm")) options.max_norm = 0;
  return options;
}

}  // namespace

reports::Measurement train(const Job& job, const RunOptions& options, const reports::Tool& tool,
                           Progress& progress,
                           const std::function<void(const reports::Measurement&)>& record) {
  reports::Measurement out;
  out.source = "the measurement";
  out.measured_at = utc_now();
  out.fingerprint = job.workload.fingerprint;
  out.workload = job.workload_json;
  out.model = job.workload.model_name;
  out.stack = name_of(job.workload.strategy.stack);
  out.world = models::decisions::mesh_of(job.workload.strategy).ranks();
  out.environment = environment_of(runtime::host_device(), job.memory, tool);
  // By the definition, of the model that is run: the plan's figure is not asked.
  const models::Strategy& strategy = job.workload.strategy;
  out.flops = models::step_flops(job.model, strategy, job.workload.batch);
  out.tokens_per_step = static_cast<double>(checked_multiply(
      checked_multiply(job.workload.batch.tokens(), job.workload.batch.grad_accum), out.world));
  expect_launch(job.workload.strategy);
  const Checkpoints checkpoints(without_clipping(options, strategy));
  check(checkpoints.options().max_norm == 0 || !strategy.optimizer_in_backward,
        ErrorKind::bad_input, [&] {
          return fmt::format(
              "--max-norm {}: --optimizer-in-backward knows no norm of all gradients; --max-norm 0",
              checkpoints.options().max_norm);
        });
  Training training(job, checkpoints, progress);
  std::mutex writing;
  bool written = false;
  // Of several processes: by a second thread perhaps, while the first goes on. Once.
  const auto before_the_end = [&](const Error& error) {
    const std::lock_guard lock(writing);
    if (written || is_users(error)) return;
    written = true;
    record(failed(out, training, error));
  };
  // Another rank that died without a word is seen by the launcher alone.
  const runtime::comm::Launch launch = runtime::comm::detect_launch();
  std::optional<EndedFromOutside> ended;
  if (is_distributed(launch) && launch.rank == 0)
    ended.emplace(
        [&] {
          before_the_end(Error(ErrorKind::communicator,
                               "ended from outside (SIGTERM): another rank has died without a "
                               "word, or the job was cancelled"));
        },
        3);
  try {
    run_ranks(job, options, training, before_the_end);
  } catch (const std::bad_alloc&) {  // what ends a rank is an Error that names it
    return failed(
        out, training,
        Error(ErrorKind::out_of_memory, "the host has no memory left to start the ranks"));
  } catch (const std::exception&) {
    const Error error = runtime::comm::current_error();
    if (is_users(error)) throw;
    return failed(out, training, error);
  }
  add_what_was_measured(training, out);
  out.ranks = std::move(training.ranks_);
  reports::judge_training(out);
  return out;
}

}  // namespace plimsoll::tools
