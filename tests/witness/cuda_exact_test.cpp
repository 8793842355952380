// L1 and L2 on a GPU: what exact_test.cpp shows on the host, with ranks as threads of one GPU.
//
// cuda_exact_test [WORKLOADS [SECONDS]]: of the covering set, and of 24 drawn ones in 8 bits behind
// it, the first WORKLOADS (40), as many as begin within SECONDS (240). One line of JSON for each;
// 77 without a GPU.
#include <chrono>
#include <cstdio>
#include <cstdlib>

#include "reports/json_writer.h"
#include "runtime/device_cuda.h"
#include "tests/witness/covering.h"
#include "tests/witness/drawn.h"

namespace {

using namespace plimsoll;

std::string line_of(const witness::Case& c, const std::string& difference, double seconds) {
  std::string line;
  reports::JsonWriter json(line, reports::JsonWriter::Style::compact);
  json.begin_object();
  json.member("workload", witness::text(c));
  json.member("ranks", c.strategy.gpus);
  json.member("difference", difference);
  json.member("seconds", seconds);
  json.end_object();
  return line;
}

int run(std::size_t workloads, double budget) {
  using Clock = std::chrono::steady_clock;
  const auto since = [](Clock::time_point then) {
    return std::chrono::duration<double>(Clock::now() - then).count();
  };
  const Clock::time_point began = Clock::now();
  int differ = 0;
  std::vector<witness::Case> cases = witness::covering(200, 1);
  for (witness::Case& c : witness::planned_in_float8(24)) cases.push_back(std::move(c));
  for (const witness::Case& c : cases) {
    if (workloads-- == 0 || since(began) > budget) break;
    const Clock::time_point start = Clock::now();
    const std::string difference = witness::difference_of(c);
    differ += difference.empty() ? 0 : 1;
    std::printf("%s\n", line_of(c, difference, since(start)).c_str());
    std::fflush(stdout);
  }
  return differ == 0 ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  const std::string why = runtime::why_no_cuda(0);
  if (!why.empty()) {
    std::fprintf(stderr, "skipped: %s\n", why.c_str());
    return 77;  // Meson: skipped
  }
  witness::run_on(runtime::cuda_device(0));
  return run(argc > 1 ? std::strtoul(argv[1], nullptr, 10) : 40,
             argc > 2 ? std::strtod(argv[2], nullptr) : 240);
}
