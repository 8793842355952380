// Who started this process: the environments of real launchers, and hostile ones.
#include "runtime/comm/launch.h"

#include <doctest/doctest.h>

#include <map>

#include "models/base/error.h"

namespace plimsoll::runtime::comm {
namespace {

using Variables = std::map<std::string, std::string>;

Launch launch(const Variables& variables) {
  return detect_launch([&](const char* name) -> std::optional<std::string> {
    const auto found = variables.find(name);
    return found == variables.end() ? std::nullopt : std::optional(found->second);
  });
}

std::string refusal(const Variables& variables) {
  try {
    launch(variables);
  } catch (const Error& error) {
    CHECK(error.kind() == ErrorKind::bad_input);
    return error.message();
  }
  return {};
}

Variables with(Variables variables, const std::string& name, const std::string& value) {
  variables[name] = value;
  return variables;
}
Variables without(Variables variables, const std::string& name) {
  variables.erase(name);
  return variables;
}

const Variables kTorchrun{{"RANK", "5"},
                          {"WORLD_SIZE", "8"},
                          {"LOCAL_RANK", "1"},
                          {"MASTER_ADDR", "node-a"},
                          {"MASTER_PORT", "29500"}};
const Variables kSlurm{{"SLURM_PROCID", "9"},  {"SLURM_NTASKS", "16"},
                       {"SLURM_LOCALID", "1"}, {"SLURM_JOB_ID", "71234"},
                       {"SLURM_STEP_ID", "0"}, {"SLURM_JOB_NODELIST", "gpu[003-004]"}};

TEST_CASE("an empty environment is one process") {
  const Launch found = launch({});
  CHECK(found.launcher == Launcher::none);
  CHECK(found.rank == 0);
  CHECK(found.world == 1);
  CHECK_FALSE(found.local_rank.has_value());
}

TEST_CASE("MPI comes before torchrun, and torchrun before Slurm") {
  Variables all = kTorchrun;
  all.insert(kSlurm.begin(), kSlurm.end());
  CHECK(launch(all).launcher == Launcher::torchrun);
  CHECK(launch(with(all, "PMIX_RANK", "0")).launcher == Launcher::mpi);
  CHECK(launch(with(all, "OMPI_COMM_WORLD_SIZE", "2")).launcher == Launcher::mpi);
}

TEST_CASE("MPI's own local rank comes before Slurm's") {
  const Launch found =
      launch({{"PMIX_RANK", "3"}, {"SLURM_LOCALID", "2"}, {"OMPI_COMM_WORLD_LOCAL_RANK", "1"}});
  CHECK(found.local_rank == 1);
  CHECK(launch({{"PMIX_RANK", "3"}, {"SLURM_LOCALID", "2"}}).local_rank == 2);
  CHECK_FALSE(launch({{"PMIX_RANK", "3"}}).local_rank.has_value());
}

TEST_CASE("MPI's world is what the environment says of it, or not known yet") {
  const Launch open =
      launch({{"OMPI_COMM_WORLD_SIZE", "4"}, {"OMPI_COMM_WORLD_RANK", "3"}, {"SLURM_NTASKS", "9"}});
  CHECK(open.world == 4);
  CHECK(open.rank == 3);
  // srun --mpi=pmix
  const Launch pmix = launch({{"PMIX_RANK", "2"}, {"SLURM_NTASKS", "16"}});
  CHECK(pmix.world == 16);
  CHECK(pmix.rank == 2);
  CHECK(launch({{"PMIX_RANK", "2"}, {"SLURM_STEP_NUM_TASKS", "8"}, {"SLURM_NTASKS", "16"}}).world ==
        8);
  CHECK(launch({{"PMIX_RANK", "0"}}).world == 0);
  CHECK(refusal({{"OMPI_COMM_WORLD_SIZE", "none"}}).starts_with("OMPI_COMM_WORLD_SIZE=none"));
}

TEST_CASE("processes exchange over MPI on hosts and over NCCL with GPUs; one alone has threads") {
  using models::Device;
  using models::Exchange;
  const Launch mpi = launch({{"OMPI_COMM_WORLD_SIZE", "2"}});
  const Launch one = launch({{"RANK", "0"},
                             {"WORLD_SIZE", "1"},
                             {"LOCAL_RANK", "0"},
                             {"MASTER_ADDR", "localhost"},
                             {"MASTER_PORT", "29500"}});
  CHECK(is_distributed(mpi));
  CHECK(is_distributed(launch(kTorchrun)));
  CHECK(is_distributed(launch(kSlurm)));
  CHECK_FALSE(is_distributed(one));
  CHECK_FALSE(is_distributed(launch({})));
  CHECK(exchange_here(mpi, Device::cpu) == Exchange::mpi);
  CHECK(exchange_here(mpi, Device::cuda) == Exchange::nccl);
  CHECK(exchange_here(launch(kSlurm), Device::cuda) == Exchange::nccl);
  CHECK(exchange_here(one, Device::cuda) == Exchange::threads);
  CHECK(exchange_here(launch({}), Device::cpu) == Exchange::threads);
}

TEST_CASE("torchrun's ranks meet at the port beside its own store") {
  const Launch found = launch(kTorchrun);
  CHECK(found.rank == 5);
  CHECK(found.world == 8);
  CHECK(found.local_rank == 1);
  CHECK(found.address == "node-a");
  CHECK(found.port == 29501);
}

TEST_CASE("what torchrun did not set, or not to a number, is named") {
  for (const char* name : {"LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT"})
    CHECK(refusal(without(kTorchrun, name)).starts_with(std::string(name) + " is not set"));
  CHECK(refusal(without(kTorchrun, "RANK")).starts_with("WORLD_SIZE=8, but RANK is not set"));
  CHECK(refusal(without(kTorchrun, "WORLD_SIZE")).starts_with("RANK=5, but WORLD_SIZE"));
  CHECK(refusal(with(kTorchrun, "RANK", "8")).starts_with("RANK=8: a whole number from 0 to 7"));
  CHECK(refusal(with(kTorchrun, "RANK", "-1")).starts_with("RANK=-1: "));
  CHECK(refusal(with(kTorchrun, "RANK", "5x")).starts_with("RANK=5x: "));
  CHECK(refusal(with(kTorchrun, "RANK", "")).starts_with("RANK=: "));
  CHECK(refusal(with(kTorchrun, "WORLD_SIZE", "0")).starts_with("WORLD_SIZE=0: "));
  CHECK(refusal(with(kTorchrun, "WORLD_SIZE", "99999999999")).starts_with("WORLD_SIZE=9999"));
  // Ours is the next one, and 65,535 is the last that there is.
  CHECK(refusal(with(kTorchrun, "MASTER_PORT", "65535")).starts_with("MASTER_PORT=65535: "));
  CHECK(refusal(with(kTorchrun, "MASTER_PORT", "0")).starts_with("MASTER_PORT=0: "));
  CHECK(launch(with(kTorchrun, "MASTER_PORT", "65534")).port == 65535);
  CHECK(launch(with(kTorchrun, "MASTER_PORT", "1")).port == 2);
  CHECK(refusal(with(kTorchrun, "MASTER_ADDR", "")).starts_with("MASTER_ADDR is not set"));
  CHECK(refusal(with(kTorchrun, "LOCAL_RANK", "6")).starts_with("LOCAL_RANK=6: "));
}

TEST_CASE("plain Slurm: the first host of the list, and a port that the job has to itself") {
  const Launch found = launch(kSlurm);
  CHECK(found.launcher == Launcher::slurm);
  CHECK(found.rank == 9);
  CHECK(found.world == 16);
  CHECK(found.local_rank == 1);
  CHECK(found.address == "gpu003");
  CHECK(found.port == 15000 + 11234);  // 71234 mod 15000
  CHECK(launch(with(kSlurm, "MASTER_ADDR", "head")).address == "head");
  CHECK(launch(with(kSlurm, "MASTER_PORT", "4000")).port == 4001);
  CHECK(launch(with(kSlurm, "SLURM_STEP_NODELIST", "gpu004")).address == "gpu004");
  CHECK(refusal(without(kSlurm, "SLURM_JOB_NODELIST")).find("MASTER_ADDR") != std::string::npos);
  CHECK(refusal(without(kSlurm, "SLURM_LOCALID")).starts_with("SLURM_LOCALID is not set"));
}

TEST_CASE("a batch script that srun did not start is one process, whatever the job's tasks") {
  CHECK(launch(without(kSlurm, "SLURM_STEP_ID")).launcher == Launcher::none);
  // Started by hand with the three variables alone.
  CHECK(launch(without(without(kSlurm, "SLURM_STEP_ID"), "SLURM_JOB_ID")).launcher ==
        Launcher::slurm);
}

TEST_CASE("one task of Slurm meets nobody and needs no node list") {
  const Launch found =
      launch({{"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "1"}, {"SLURM_LOCALID", "0"}});
  CHECK(found.world == 1);
  CHECK(found.address.empty());
}

TEST_CASE("the first host of a node list") {
  CHECK(first_host("n1") == "n1");
  CHECK(first_host("n1,n2") == "n1");
  CHECK(first_host("gpu[003-007,12],login1") == "gpu003");
  CHECK(first_host("gpu[12,003]") == "gpu12");
  CHECK(first_host("r[1-2]n[01-16]") == "r1n01");
  CHECK(first_host("a-b.c[7]-ib") == "a-b.c7-ib");
  CHECK(first_host("host.example.org") == "host.example.org");
  for (const char* bad : {"", ",n1", "[", "n[", "n[]", "n[-3]", "n[a-b]", "n 1", "n;reboot", "n]"})
    CHECK_THROWS_AS(first_host(bad), Error);
}

TEST_CASE("the host device under torchrun or plain Slurm says that it needs MPI") {
  expect_gpus(launch(kTorchrun), true);
  expect_gpus(launch({{"PMIX_RANK", "3"}}), false);
  expect_gpus(launch({}), false);
  try {
    expect_gpus(launch(kSlurm), false);
    FAIL("16 processes without MPI");
  } catch (const Error& error) {
    CHECK(error.kind() == ErrorKind::unsupported);
    CHECK(error.message().starts_with("started by srun as 16 processes: on --device cpu"));
  }
}

}  // namespace
}  // namespace plimsoll::runtime::comm
