// How this process was started: one of several, by whom, and where the first one listens. Decided
// from the environment alone, before any library is initialised.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "models/run_spec.h"

namespace plimsoll::runtime::comm {

enum class Launcher { mpi, torchrun, slurm, none };

struct Launch {
  Launcher launcher = Launcher::none;
  int rank = 0;
  int world = 1;  // 0: started by MPI, which says it later
  std::optional<int> local_rank;  // among the ranks of this machine: the number of its GPU
  std::string address;  // torchrun, slurm: the host of rank 0
  int port = 0;  // and the port at which its ranks meet
};

// A variable's value, or nothing; std::getenv's by default.
using Environment = std::function<std::optional<std::string>(const char* name)>;
Environment process_environment();

// In this order: MPI (OMPI_COMM_WORLD_SIZE or PMIX_RANK), torchrun (RANK and WORLD_SIZE), plain
// Slurm (SLURM_PROCID and SLURM_NTASKS, but for a batch script outside of srun), none.
// Error{bad_input} names the variable, its value and what is accepted.
Launch detect_launch(const Environment& environment = process_environment());

// Several processes, each of which is one rank.
bool is_distributed(const Launch& launch);
std::string_view name_of(Launcher launcher);  // the command: "mpirun", "torchrun", "srun"

// How the ranks of this job exchange data.
models::Exchange exchange_here(const Launch& launch, models::Device device);

// The first host of a Slurm node list: "gpu[003-007,12],login1" is gpu003. Error{bad_input}.
std::string first_host(std::string_view node_list);

// torchrun and plain Slurm start ranks that meet over NCCL. Error{unsupported} on the host device:
// it needs MPI.
void expect_gpus(const Launch& launch, bool on_gpus);

}  // namespace plimsoll::runtime::comm
