#include "tools/run/job.h"

#include <fmt/format.h>

#include "models/config_reader.h"
#include "models/decisions/exchange.h"
#include "models/model_reader.h"
#include "models/run_names.h"
#include "reports/workload_json.h"
#include "runtime/comm/launch.h"
#include "runtime/device_cuda.h"

namespace plimsoll::tools {

namespace {

void check_runnable(const models::Workload& workload, const RunOptions& options,
                    const std::string& source) {
  const models::Strategy& s = workload.strategy;
  check(!workload.model_config.empty(), ErrorKind::bad_input,
        [&] { return source + ": a plan of a bare parameter count cannot be run"; });
  check(s.stack == models::Stack::plimsoll, ErrorKind::bad_input, [&] {
    return fmt::format("{}: a plan of --stack {}; only plans of --stack plimsoll can be run",
                       source, name_of(s.stack));
  });
  const std::string fingerprint = reports::fingerprint_of(workload);
  check(workload.fingerprint == fingerprint, ErrorKind::bad_input, [&] {
    return fmt::format("{}: the fingerprint {} is not the workload's, {}", source,
                       workload.fingerprint.substr(0, 40), fingerprint);
  });
  check(!options.ranks || *options.ranks == s.gpus, ErrorKind::bad_input,
        [&] { return fmt::format("--ranks {}: the plan is for {}", *options.ranks, s.gpus); });
  check(!options.device || *options.device == s.device, ErrorKind::bad_input, [&] {
    return fmt::format("--device {}: the plan is for {}", name_of(*options.device),
                       name_of(s.device));
  });
}
}  // namespace

Job job_from(const std::string& plan, const std::string& source, const RunOptions& options) {
  Job job;
  job.workload = models::read_workload(plan, source);
  check_runnable(job.workload, options, source);
  const models::Config document = models::Config::parse(plan, source);
  if (const auto workload = document.section("workload")) job.workload_json = workload->dump();
  job.model = models::read_model(job.workload.model_config, job.workload.model_name,
                                 source + ": workload.model.config");
  check(job.model.decoder && job.model.numerics, ErrorKind::unsupported, [&] {
    return fmt::format("{}: the training step of model_type '{}' is not modelled", source,
                       job.model.model_type);
  });
  job.memory = options.memory;
  if (const auto environment = document.section("environment"))
    if (const auto cluster = environment->section("cluster"))
      if (!job.memory && cluster->has("gpu_memory_bytes"))
        job.memory = Bytes(cluster->count("gpu_memory_bytes", 1)) -
                     Bytes(cluster->natural("reserve_bytes", 0));
  return job;
}

void expect_launch(const models::Strategy& strategy) {
  namespace comm = runtime::comm;
  const comm::Launch launch = comm::detect_launch();
  comm::expect_gpus(launch, strategy.device == models::Device::cuda);
  const models::Exchange here = comm::exchange_here(launch, strategy.device);
  const models::Exchange planned = models::decisions::exchange_of(strategy);
  check(strategy.gpus == 1 || here == planned, ErrorKind::bad_input, [&] {
    return fmt::format(
        "the plan is for ranks over {}, and here they are over {}: plan with --exchange {}, or let "
        "`plimsoll run` do it",
        name_of(planned), name_of(here), name_of(here));
  });
  if (strategy.device != models::Device::cuda) return;
  const std::string why = runtime::why_no_cuda(launch.local_rank.value_or(0));
  check(why.empty(), ErrorKind::device, why);  // before weights are drawn
}

}  // namespace plimsoll::tools
