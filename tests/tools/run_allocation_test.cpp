// Every allocation of a rank's training made to fail once, the host's own memory and not the
// arena's (a sample of them, evenly spread; PLIMSOLL_CASES=1000000 tries all): the job ends in time
// with an error that names the rank, leaks nothing, and leaves the files that were there before.
#include <doctest/doctest.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <new>
#include <sstream>

#include "reports/measurement_json.h"
#include "runtime/comm/threads.h"
#include "runtime/trainer.h"
#include "tests/failing_new.h"
#include "tests/scratch_folder.h"
#include "tools/cli/doors.h"
#include "tools/run/training.h"

using namespace plimsoll;
using namespace plimsoll::tools;
using plimsoll::test::ScratchFolder;
namespace fs = std::filesystem;

namespace {

constexpr double kInTime =
    20;  // seconds, on a busy machine; ranks that hang would take ten minutes

Job job_of(int ranks) {
  CommandLine line;
  line.argument = PLIMSOLL_SOURCE_ROOT "/tests/golden/numerics/gpt2";
  const std::string many = std::to_string(ranks), zero = ranks > 1 ? "3" : "0";
  for (const auto& [name, value] :
       std::initializer_list<std::pair<const char*, std::string>>{{"stack", "plimsoll"},
                                                                  {"device", "cpu"},
                                                                  {"gpus", many},
                                                                  {"zero", zero},
                                                                  {"seq-len", "8"},
                                                                  {"grad-accum", "2"},
                                                                  {"precision", "bf16-mixed"},
                                                                  {"recompute", "full"}})
    line.options.add(name, value);
  return job_from(fit_document(line), "plan.json", {});
}

std::int64_t sample_step(std::int64_t all) {
  const char* given = std::getenv("PLIMSOLL_CASES");
  return std::max<std::int64_t>(1, all / (given != nullptr ? std::atoll(given) : 150));
}

double seconds_since(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

// Two steps on all ranks, of which `rank` finds no memory at its allocation `at` (-1: it does),
// once or from there on. How many allocations that rank made.
std::int64_t train_ranks(const Job& job, int rank, std::int64_t at, bool for_ever = false) {
  const auto ranks = static_cast<int>(job.workload.strategy.gpus);
  std::int64_t made = 0;
  const auto one = [&](runtime::comm::Communicator& world) {
    const bool armed = world.rank() == rank;
    const std::int64_t before = tests::allocations_here();
    if (armed && at >= 0) tests::fail_allocation_here(at, for_ever);
    runtime::TrainerOptions options{.strategy = job.workload.strategy, .batch = job.workload.batch};
    runtime::Trainer trainer(job.model, *job.model.numerics, options, runtime::host_device(),
                             world);
    trainer.load([](const runtime::ModelParameter&, std::int64_t, std::span<float> to) {
      std::ranges::fill(to, 0.01f);
    });
    for (int step = 0; step < 2; ++step)
      trainer.step(
          [](std::int64_t, std::int64_t, std::span<std::int32_t> ids,
             std::span<std::int32_t> targets) {
            std::ranges::fill(ids, 1);
            std::ranges::fill(targets, 2);
          },
          1e-3f);
    if (armed) made = tests::allocations_here() - before;
  };
  runtime::comm::run_ranks(ranks, one, {.timeout_seconds = 600});
  return made;
}

struct Ending {
  ErrorKind kind = ErrorKind::internal;
  std::string message;  // "": nobody was left who could say a word
  double seconds = 0;
  bool unharmed = false;
};

Ending ending_of(const Job& job, int rank, std::int64_t at, bool for_ever) {
  Ending out;
  const auto begin = std::chrono::steady_clock::now();
  try {
    // Which of the ranks notes an operation down is chance: one that made fewer is not harmed.
    out.unharmed = train_ranks(job, rank, at, for_ever) <= at;
    out.message = "it came to its end";
  } catch (const Error& error) {
    tests::fail_allocation_here(-1);
    out.kind = error.kind();
    out.message = error.message();
  } catch (const std::bad_alloc&) {
    out.kind = ErrorKind::out_of_memory;
  }
  tests::fail_allocation_here(-1);
  out.seconds = seconds_since(begin);
  return out;
}

void fail_each_of_a_rank(const Job& job, int ranks, bool for_ever) {
  (void)train_ranks(job, 0, -1);  // fills what is kept for the whole process
  const std::int64_t all = train_ranks(job, 0, -1);
  const std::int64_t step = sample_step(all);
  std::int64_t failed = 0, with_bytes = 0;
  std::vector<char> has_said(static_cast<std::size_t>(ranks), 0);
  int rank = 0;
  for (std::int64_t at = 0; at < all; at += step, rank = (rank + 1) % ranks) {
    CAPTURE(at);
    CAPTURE(rank);
    const std::string start = "rank " + std::to_string(rank) + ": the host has no memory left";
    const std::int64_t live = tests::live_allocations();
    std::int64_t left = 0;
    {
      const Ending ending = ending_of(job, rank, at, for_ever);
      left = tests::live_allocations() - (ending.message.capacity() > 15 ? 1 : 0);
      CHECK(ending.seconds < kInTime);
      if (ending.unharmed) continue;
      CHECK(ending.kind == ErrorKind::out_of_memory);
      // One rank alone has nobody who would keep words for it.
      if (!for_ever || ranks > 1 || !ending.message.empty())
        CHECK_MESSAGE(ending.message.starts_with(start), ending.message);
      const bool names = ending.message.find(" B are in use:\n  ") != std::string::npos;
      with_bytes += names;
      // As soon as there is an arena every error says what is in it.
      const bool says = ending.message.find(" B are in use:\n") != std::string::npos;
      const bool said = std::exchange(has_said[static_cast<std::size_t>(rank)], says) != 0;
      if (!for_ever) CHECK_MESSAGE((says || !said), ending.message);
      if (says)
        CHECK_MESSAGE(names != (ending.message.find("; 0 of ") != std::string::npos),
                      ending.message);
    }
    CHECK(left <= live);
    ++failed;
  }
  MESSAGE(failed, " of ", all, " allocations of a rank made to fail, ", with_bytes,
          " named what lives");
  if (!for_ever) CHECK(with_bytes > failed / 2);
}

std::string content_of(const fs::path& path) {
  std::ostringstream out;
  out << std::ifstream(path, std::ios::binary).rdbuf();
  return out.str();
}

// What lies in a folder, by name.
std::string listing(const fs::path& folder) {
  std::vector<std::string> all;
  for (const auto& entry : fs::directory_iterator(folder))
    all.push_back(entry.path().filename().string() + "=" + content_of(entry.path()));
  std::ranges::sort(all);
  std::string text;
  for (const std::string& one : all) text += one + ";";
  return text;
}

void fill(const fs::path& folder) {
  for (const auto& entry : fs::directory_iterator(folder)) fs::remove_all(entry);
  std::ofstream(folder / "config.json") << "old";
  std::ofstream(folder / "model.safetensors") << "older";
}

}  // namespace

TEST_CASE("a rank that finds no memory on the host ends the job, and says who and what lived") {
  for (const int ranks : {1, 4}) {
    CAPTURE(ranks);
    const Job job = job_of(ranks);
    fail_each_of_a_rank(job, ranks, false);
    fail_each_of_a_rank(job, ranks, true);
  }
}

namespace {

// What rank 0 allocates to read what the others measured: left out, because the JSON library (3.11)
// allocates in a destructor, where a document goes that could not be read whole.
std::int64_t allocations_of_reading(const reports::Measurement& measured) {
  std::int64_t made = 0;
  for (std::size_t r = 1; r < measured.ranks.size(); ++r) {
    std::string text;
    reports::JsonWriter json(text, reports::JsonWriter::Style::compact);
    reports::write_measured_rank(json, measured.ranks[r]);
    const std::int64_t before = tests::allocations_here();
    (void)reports::read_measured_rank(text, "a rank");
    made += tests::allocations_here() - before;
  }
  return made;
}

}  // namespace

TEST_CASE("a run that finds no memory has an outcome, and leaves the last good files alone") {
  for (const int ranks : {1, 4}) {
    CAPTURE(ranks);
    const Job job = job_of(ranks);
    const ScratchFolder folder;
    fill(folder.path());
    RunOptions options;
    options.steps = 1;
    options.quiet = true;
    options.data = "synthetic";
    options.save_weights = folder.path().string();
    const auto act = [&] {
      Progress progress(true, 1);
      return train(job, options, {.version = "1", .commit = "1"}, progress,
                   [](const reports::Measurement&) {});
    };
    const std::int64_t reading = allocations_of_reading(act());
    const std::int64_t before = tests::allocations();
    REQUIRE(act().trained());
    // It is the last that is done; where the ranks' threads stand then is never quite the same.
    const std::int64_t all = tests::allocations() - before - reading * 21 / 20;
    const std::string saved = listing(folder.path());
    fill(folder.path());
    const std::string old = listing(folder.path());
    std::int64_t outcomes = 0, errors = 0, unharmed = 0, before_a_rank = 0;
    for (std::int64_t at = 0; at < all; at += sample_step(all)) {
      CAPTURE(at);
      const auto begin = std::chrono::steady_clock::now();
      std::string outcome, message;
      tests::fail_allocation(at);
      try {
        const reports::Measurement done = act();
        tests::fail_allocation(-1);
        outcome = done.outcome;
        if (done.error) message = done.error->message;
      } catch (const std::exception&) {  // before or behind the training itself
        outcome = "error";
      }
      tests::fail_allocation(-1);
      CHECK(seconds_since(begin) < kInTime);
      const std::string now = listing(folder.path());
      outcomes += outcome == "out_of_memory";
      errors += outcome == "error";
      unharmed += outcome == "completed";
      CHECK((now == old || now == saved));
      if (outcome == "out_of_memory") {
        const bool of_a_rank = message.starts_with("rank ") &&
                               message.find(": the host has no memory left") != std::string::npos;
        const bool started = message != "the host has no memory left to start the ranks";
        CHECK_MESSAGE((of_a_rank || !started), message);
        before_a_rank += !started;
      } else {
        CHECK((outcome == "error" || outcome == "completed"));
      }
      if (now != old) fill(folder.path());
    }
    MESSAGE(all, " allocations; of those tried ", outcomes, " ended the run, ", errors,
            " what is around it, ", unharmed, " nothing");
    CHECK(outcomes > errors);
    CHECK(before_a_rank <= outcomes / 20);  // some twenty allocations start the ranks
  }
}
