#include "runtime/comm/launch.h"

#include <charconv>
#include <cstdlib>
#include <limits>

#include "models/base/error.h"

namespace plimsoll::runtime::comm {

namespace {

constexpr int kMostRanks = 1 << 20;
constexpr int kHighestPort = 65535;
// Where plain Slurm has no MASTER_PORT: jobs of one machine seldom meet, and ports that systems
// hand out by themselves begin at 32768 (Linux, ip_local_port_range).
constexpr int kSlurmPort = 15000, kSlurmPorts = 15000;

using Value = std::optional<std::string>;

int whole(const char* name, const std::string& text, int least, int most) {
  int value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  check(error == std::errc() && end == text.data() + text.size() && value >= least && value <= most,
        ErrorKind::bad_input, [&] {
          return std::string(name) + "=" + text + ": a whole number from " + std::to_string(least) +
                 " to " + std::to_string(most) + " is needed";
        });
  return value;
}

std::string needed(const Environment& environment, const char* name, const char* because) {
  const Value value = environment(name);
  check(value && !value->empty(), ErrorKind::bad_input,
        [&] { return std::string(name) + " is not set, but " + because; });
  return *value;
}

// The socket of rank 0 is beside the port that torchrun's own store uses.
int port_beside(const Environment& environment, const char* because) {
  return whole("MASTER_PORT", needed(environment, "MASTER_PORT", because), 1, kHighestPort - 1) + 1;
}

Launch by_torchrun(const Environment& environment, const std::string& rank,
                   const std::string& world) {
  const char* because = "RANK and WORLD_SIZE are, as torchrun sets them";
  Launch launch;
  launch.launcher = Launcher::torchrun;
  launch.world = whole("WORLD_SIZE", world, 1, kMostRanks);
  launch.rank = whole("RANK", rank, 0, launch.world - 1);
  launch.local_rank =
      whole("LOCAL_RANK", needed(environment, "LOCAL_RANK", because), 0, launch.rank);
  launch.address = needed(environment, "MASTER_ADDR", because);
  launch.port = port_beside(environment, because);
  return launch;
}

Launch by_slurm(const Environment& environment, const std::string& rank, const std::string& world) {
  const char* because = "SLURM_PROCID and SLURM_NTASKS are, as srun sets them";
  Launch launch;
  launch.launcher = Launcher::slurm;
  launch.world = whole("SLURM_NTASKS", world, 1, kMostRanks);
  launch.rank = whole("SLURM_PROCID", rank, 0, launch.world - 1);
  launch.local_rank =
      whole("SLURM_LOCALID", needed(environment, "SLURM_LOCALID", because), 0, launch.rank);
  if (launch.world == 1) return launch;  // nobody to meet
  if (const Value address = environment("MASTER_ADDR"); address && !address->empty()) {
    launch.address = *address;
  } else {
    Value nodes = environment("SLURM_STEP_NODELIST");
    if (!nodes) nodes = environment("SLURM_JOB_NODELIST");
    if (!nodes) nodes = environment("SLURM_NODELIST");
    check(nodes.has_value(), ErrorKind::bad_input,
          "neither MASTER_ADDR nor SLURM_JOB_NODELIST says where rank 0 is");
    launch.address = first_host(*nodes);
  }
  if (environment("MASTER_PORT")) {
    launch.port = port_beside(environment, because);
  } else {
    const Value job = environment("SLURM_JOB_ID");
    const int number = job ? whole("SLURM_JOB_ID", *job, 0, std::numeric_limits<int>::max()) : 0;
    launch.port = kSlurmPort + number % kSlurmPorts;
  }
  return launch;
}

}  // namespace

Environment process_environment() {
  return [](const char* name) -> Value {
    const char* value = std::getenv(name);
    return value == nullptr ? Value() : Value(value);
  };
}

Launch detect_launch(const Environment& environment) {
  Launch launch;
  if (environment("OMPI_COMM_WORLD_SIZE") || environment("PMIX_RANK")) {
    launch.launcher = Launcher::mpi;
    launch.world = 0;
    // PMIx, under srun, leaves the size to Slurm.
    for (const char* name : {"OMPI_COMM_WORLD_SIZE", "SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"})
      if (const Value size = environment(name); size && launch.world == 0)
        launch.world = whole(name, *size, 1, kMostRanks);
    for (const char* name : {"OMPI_COMM_WORLD_RANK", "PMIX_RANK"})
      if (const Value rank = environment(name); rank && launch.rank == 0)
        launch.rank = whole(name, *rank, 0, kMostRanks);
    for (const char* name : {"OMPI_COMM_WORLD_LOCAL_RANK", "SLURM_LOCALID"})
      if (const Value local = environment(name); local && !launch.local_rank)
        launch.local_rank = whole(name, *local, 0, kMostRanks);
    return launch;
  }
  const Value rank = environment("RANK"), world = environment("WORLD_SIZE");
  check(rank.has_value() == world.has_value(), ErrorKind::bad_input, [&] {
    return std::string(rank ? "RANK" : "WORLD_SIZE") + "=" + (rank ? *rank : *world) + ", but " +
           (rank ? "WORLD_SIZE" : "RANK") +
           " is not set: torchrun sets both; unset it to run on one process";
  });
  if (rank) return by_torchrun(environment, *rank, *world);
  const Value task = environment("SLURM_PROCID"), tasks = environment("SLURM_NTASKS");
  // A batch script has a SLURM_PROCID too, but only srun begins a step.
  const bool batch_script =
      environment("SLURM_JOB_ID") && !environment("SLURM_STEP_ID") && !environment("SLURM_STEPID");
  if (task && tasks && !batch_script) return by_slurm(environment, *task, *tasks);
  return launch;
}

std::string first_host(std::string_view node_list) {
  const auto bad = [&](const char* why) {
    fail(ErrorKind::bad_input, "node list \"" + std::string(node_list) + "\": " + why);
  };
  const auto bracket = node_list.find_first_of("[,");
  std::string host(node_list.substr(0, bracket));
  if (bracket != std::string_view::npos && node_list[bracket] == '[') {
    const auto close = node_list.find(']', bracket);
    if (close == std::string_view::npos) bad("a bracket is not closed");
    const std::string_view inside = node_list.substr(bracket + 1, close - bracket - 1);
    const std::string_view first = inside.substr(0, inside.find_first_of("-,"));
    if (first.empty() || first.find_first_not_of("0123456789") != std::string_view::npos)
      bad("a bracket begins with a number");
    host += first;  // with its zeros
    const std::string_view rest = node_list.substr(close + 1);
    // Racks and nodes: "r[1-2]n[01-16]".
    if (!rest.empty() && rest.front() != ',') host += first_host(rest);
  }
  if (host.empty()) bad("it names no host");
  for (const char c : host) {
    const bool fine = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                      c == '-' || c == '.' || c == '_';
    if (!fine) bad("a host's name has letters, digits, '-', '_' and '.'");
  }
  return host;
}

bool is_distributed(const Launch& launch) {
  return launch.launcher == Launcher::mpi ||
         (launch.launcher != Launcher::none && launch.world > 1);
}

std::string_view name_of(Launcher launcher) {
  switch (launcher) {
    case Launcher::mpi:
      return "mpirun";
    case Launcher::torchrun:
      return "torchrun";
    case Launcher::slurm:
      return "srun";
    case Launcher::none:
      break;
  }
  return "nobody";
}

models::Exchange exchange_here(const Launch& launch, models::Device device) {
  if (!is_distributed(launch)) return models::Exchange::threads;
  return device == models::Device::cuda ? models::Exchange::nccl : models::Exchange::mpi;
}

void expect_gpus(const Launch& launch, bool on_gpus) {
  if (on_gpus || launch.world == 1) return;
  check(
      launch.launcher == Launcher::none || launch.launcher == Launcher::mpi, ErrorKind::unsupported,
      [&] {
        return "started by " + std::string(name_of(launch.launcher)) + " as " +
               std::to_string(launch.world) +
               " processes: on --device cpu they need MPI (mpirun, or srun --mpi=pmix), or run one "
               "process with --ranks " +
               std::to_string(launch.world);
      });
}

}  // namespace plimsoll::runtime::comm
