// What a whole process costs, in CPU time of user and system together: the figure that a script
// with a thousand questions feels. PLIMSOLL names the program.
#include <benchmark/benchmark.h>
#include <fcntl.h>
#include <spawn.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <string>
#include <vector>

namespace {
// CPU seconds of one run, its standard output thrown away; negative where it was not run at all.
double cpu_seconds(std::vector<std::string> words) {
  std::vector<char*> arguments;
  for (std::string& word : words) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, STDOUT_FILENO, "/dev/null", O_WRONLY, 0);
  posix_spawn_file_actions_addopen(&actions, STDERR_FILENO, "/dev/null", O_WRONLY, 0);
  pid_t pid = 0;
  const int error = posix_spawn(&pid, arguments[0], &actions, nullptr, arguments.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  int status = 0;
  rusage usage{};
  if (error != 0 || wait4(pid, &status, 0, &usage) != pid) return -1;
  if (!WIFEXITED(status) || WEXITSTATUS(status) > 1) return -1;
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + 1e-6 * static_cast<double>(time.tv_usec);
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

std::string program() {
  const char* path = std::getenv("PLIMSOLL");
  return path == nullptr ? "build/tools/plimsoll" : path;
}

// Manual time is CPU time.
void run(benchmark::State& state, const std::vector<std::string>& words) {
  for (auto _ : state) {
    const double seconds = cpu_seconds(words);
    if (seconds < 0) {
      state.SkipWithError("the program failed");
      return;
    }
    state.SetIterationTime(seconds);
  }
}

void fit_states(benchmark::State& state) {
  run(state, {program(), "fit", "--params", "7.5e9", "--gpu", "h100"});
}

void fit_model(benchmark::State& state) {
  run(state, {program(), "fit", "llama-3.1-70b", "--gpu", "h100", "--gpus", "64", "--zero", "3",
              "--recompute", "full"});
}

void fit_model_json(benchmark::State& state) {
  run(state, {program(), "fit", "llama-3.1-70b", "--gpu", "h100", "--gpus", "64", "--zero", "3",
              "--recompute", "full", "--json", "-"});
}

void fit_with_remedies(benchmark::State& state) {
  run(state, {program(), "fit", "llama-3.1-70b", "--gpu", "h100"});
}

void batch(benchmark::State& state) {
  constexpr int kLines = 2000;
  std::string path = "/tmp/plimsoll_XXXXXX";
  const int descriptor = mkstemp(path.data());
  std::ofstream queries(path);
  for (int i = 0; i < kLines; ++i)
    queries << R"({"model": "llama-3.1-8b", "gpu": "h100", "gpus": 8, "zero": 3, "seq_len": )"
            << 1024 + i << "}\n";
  queries.close();
  run(state, {program(), "batch", path});
  state.counters["lines/s"] = benchmark::Counter(kLines * static_cast<double>(state.iterations()),
                                                 benchmark::Counter::kIsRate);
  close(descriptor);
  std::remove(path.c_str());
}

constexpr auto kUnit = benchmark::kMillisecond;
BENCHMARK(fit_states)->UseManualTime()->Unit(kUnit);
BENCHMARK(fit_model)->UseManualTime()->Unit(kUnit);
BENCHMARK(fit_model_json)->UseManualTime()->Unit(kUnit);
BENCHMARK(fit_with_remedies)->UseManualTime()->Unit(kUnit);
BENCHMARK(batch)->UseManualTime()->Unit(kUnit);
}  // namespace

BENCHMARK_MAIN();
