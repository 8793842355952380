// What is said of published rows whose answers are made up: the table, the document, the picture.
#include <doctest/doctest.h>

#include <filesystem>

#include "models/base/error.h"
#include "tests/scratch_folder.h"
#include "tools/published/report.h"

using namespace plimsoll;
using namespace plimsoll::tools;

namespace {

PublishedAnswer row(const char* id, std::size_t source, bool in_sample = false) {
  PublishedAnswer out;
  out.id = id;
  out.model = "gpt2";
  out.gpu = "t4";
  out.source = source;
  out.in_sample = in_sample;
  out.options.add("gpu", "t4");
  reports::Plan& plan = out.plan.emplace();
  plan.verdict = reports::Verdict::fits;
  plan.usable = 14_GiB;
  plan.peak = 10_GiB;
  plan.reserved = 12_GiB;
  plan.device = 13_GiB;
  plan.time.tokens_per_second_per_gpu = 100;
  return out;
}

// Of two documents. Peaks of 10 GiB are planned and 8 and 16 were published: 25 % too much and 37.5
// % too little; 100 tokens/s of 80 and, in the sample, of 160: 25 % and -37.5 %.
std::vector<PublishedAnswers> all() {
  PublishedAnswers one, two;
  one.document.name = "memory";
  one.document.sources = {"Some Page (of a wiki), line 3", "\"quoted\" alone"};
  one.document.stand_ins = {{1, "its own program"}};
  one.document.left_out = {{"not stated", 2}};
  one.answers = {row("a", 0), row("b", 0), row("c", 1), row("d", 0), row("e", 0)};
  one.answers[0].peak = 8_GiB;
  one.answers[1].peak = 16_GiB;
  one.answers[2].stand_in = true;
  one.answers[2].reserved = 24_GiB;
  one.answers[3].plan.reset();
  one.answers[3].refusal = "no such thing";
  one.answers[3].device = 1_GiB;
  one.answers[4].upper_bound = true;
  one.answers[4].reserved = 12_GiB;
  one.answers[4].device = 14_GiB;
  two.document.name = "speed";
  two.document.sources = {"other/page @1"};
  two.answers = {row("f", 0), row("g", 0, true), row("h", 0)};
  two.answers[0].speed = 80;
  two.answers[0].plan->verdict = reports::Verdict::does_not_fit;
  two.answers[1].speed = 160;
  two.answers[2].out_of_memory = true;
  for (PublishedAnswers* answers : {&one, &two})
    for (const PublishedAnswer& answer : answers->answers) answers->document.rows.push_back(answer);
  return {one, two};
}

constexpr const char* kTable =
    R"--(ANSWERED: 6 of 10 published figures as stated, 60 %; 1 more by a stand-in for
    their program, 10 %

Error, planned against published
                                        rows     median  95 of 100    largest
  peak allocated                           2     31.2 %     37.5 %     37.5 %
  reserved                                 1       50 %       50 %       50 %
  throughput                               1       25 %       25 %       25 %
  throughput, in sample                    1     37.5 %     37.5 %     37.5 %

By source
                                        rows     median  95 of 100    largest
  memory 1, peak allocated                 2     31.2 %     37.5 %     37.5 %
  memory 2, reserved                       1       50 %       50 %       50 %
  speed 1, throughput                      1       25 %       25 %       25 %
  speed 1, throughput, in sample           1     37.5 %     37.5 %     37.5 %

  memory 1: Some Page
  memory 2: "quoted" alone (stand-in)
  speed 1: other/page

Bounds, of runs whose sequences are no longer than is asked: 2 figures, 1 not
    above the plan.

As stated: ran out of memory 1 rows, 1 of them planned to fit, barely 0; ran 4
    rows, 1 of them planned not to.

Refused or left out
    1  no such thing
    2  not stated
)--";

constexpr const char* kDocument = R"--({
  "schema": "plimsoll.published/1",
  "tool": {"version": "1", "commit": "abc"},
  "summary": {
    "published": 10,
    "answered": 6,
    "by_stand_in": 1,
    "refused": [
      {"reason": "no such thing", "count": 1},
      {"reason": "not stated", "count": 2}
    ],
    "runs": {"ran": 4, "ran_planned_not_to_fit": 1, "out_of_memory": 1, "out_of_memory_planned_to_fit": 1, "out_of_memory_planned_barely": 0},
    "bounds": {"figures": 2, "hold": 1},
    "errors": [
      {"figure": "peak_bytes", "in_sample": false, "rows": 2, "median": 0.3125, "p95": 0.375, "largest": 0.375},
      {"figure": "reserved_bytes", "in_sample": false, "rows": 1, "median": 0.5, "p95": 0.5, "largest": 0.5},
      {"figure": "tokens_per_second_per_gpu", "in_sample": false, "rows": 1, "median": 0.25, "p95": 0.25, "largest": 0.25},
      {"figure": "tokens_per_second_per_gpu", "in_sample": true, "rows": 1, "median": 0.375, "p95": 0.375, "largest": 0.375}
    ]
  },
  "documents": [
    {
      "name": "memory",
      "sources": [
        "Some Page (of a wiki), line 3",
        "\"quoted\" alone"
      ],
      "published": 7,
      "answered": 3,
      "by_stand_in": 1,
      "refused": [
        {"reason": "no such thing", "count": 1},
        {"reason": "not stated", "count": 2}
      ],
      "runs": {"ran": 2, "ran_planned_not_to_fit": 0, "out_of_memory": 0, "out_of_memory_planned_to_fit": 0, "out_of_memory_planned_barely": 0},
      "bounds": {"figures": 2, "hold": 1}
    },
    {
      "name": "speed",
      "sources": [
        "other/page @1"
      ],
      "published": 3,
      "answered": 3,
      "by_stand_in": 0,
      "refused": [],
      "runs": {"ran": 2, "ran_planned_not_to_fit": 1, "out_of_memory": 1, "out_of_memory_planned_to_fit": 1, "out_of_memory_planned_barely": 0},
      "bounds": {"figures": 0, "hold": 0}
    }
  ],
  "by_source": [
    {"document": "memory", "source": 0, "figure": "peak_bytes", "in_sample": false, "rows": 2, "median": 0.3125, "p95": 0.375, "largest": 0.375},
    {"document": "memory", "source": 1, "figure": "reserved_bytes", "in_sample": false, "rows": 1, "median": 0.5, "p95": 0.5, "largest": 0.5},
    {"document": "speed", "source": 0, "figure": "tokens_per_second_per_gpu", "in_sample": false, "rows": 1, "median": 0.25, "p95": 0.25, "largest": 0.25},
    {"document": "speed", "source": 0, "figure": "tokens_per_second_per_gpu", "in_sample": true, "rows": 1, "median": 0.375, "p95": 0.375, "largest": 0.375}
  ],
  "rows": [
    {
      "id": "a",
      "document": "memory",
      "source": 0,
      "command": "plimsoll fit gpt2 --gpu t4",
      "config": null,
      "stand_in": false,
      "in_sample": false,
      "upper_bound": false,
      "out_of_memory": false,
      "verdict": "fits",
      "refusal": null,
      "figures": [
        {"figure": "peak_bytes", "published": 8589934592.0, "planned": 10737418240.0, "error": 0.25}
      ]
    },
    {
      "id": "b",
      "document": "memory",
      "source": 0,
      "command": "plimsoll fit gpt2 --gpu t4",
      "config": null,
      "stand_in": false,
      "in_sample": false,
      "upper_bound": false,
      "out_of_memory": false,
      "verdict": "fits",
      "refusal": null,
      "figures": [
        {"figure": "peak_bytes", "published": 17179869184.0, "planned": 10737418240.0, "error": -0.375}
      ]
    },
    {
      "id": "c",
      "document": "memory",
      "source": 1,
      "command": "plimsoll fit gpt2 --gpu t4",
      "config": null,
      "stand_in": true,
      "in_sample": false,
      "upper_bound": false,
      "out_of_memory": false,
      "verdict": "fits",
      "refusal": null,
      "figures": [
        {"figure": "reserved_bytes", "published": 25769803776.0, "planned": 12884901888.0, "error": -0.5}
      ]
    },
    {
      "id": "d",
      "document": "memory",
      "source": 0,
      "command": "plimsoll fit gpt2 --gpu t4",
      "config": null,
      "stand_in": false,
      "in_sample": false,
      "upper_bound": false,
      "out_of_memory": false,
      "verdict": null,
      "refusal": "no such thing",
      "figures": [
        {"figure": "device_bytes", "published": 1073741824.0, "planned": null, "error": null}
      ]
    },
    {
      "id": "e",
      "document": "memory",
      "source": 0,
      "command": "plimsoll fit gpt2 --gpu t4",
      "config": null,
      "stand_in": false,
      "in_sample": false,
      "upper_bound": true,
      "out_of_memory": false,
      "verdict": "fits",
      "refusal": null,
      "figures": [
        {"figure": "reserved_bytes", "published": 12884901888.0, "planned": 12884901888.0, "error": null},
        {"figure": "device_bytes", "published": 15032385536.0, "planned": 13958643712.0, "error": null}
      ]
    },
    {
      "id": "f",
      "document": "speed",
      "source": 0,
      "command": "plimsoll fit gpt2 --gpu t4",
      "config": null,
      "stand_in": false,
      "in_sample": false,
      "upper_bound": false,
      "out_of_memory": false,
      "verdict": "does not fit",
      "refusal": null,
      "figures": [
        {"figure": "tokens_per_second_per_gpu", "published": 80.0, "planned": 100.0, "error": 0.25}
      ]
    },
    {
      "id": "g",
      "document": "speed",
      "source": 0,
      "command": "plimsoll fit gpt2 --gpu t4",
      "config": null,
      "stand_in": false,
      "in_sample": true,
      "upper_bound": false,
      "out_of_memory": false,
      "verdict": "fits",
      "refusal": null,
      "figures": [
        {"figure": "tokens_per_second_per_gpu", "published": 160.0, "planned": 100.0, "error": -0.375}
      ]
    },
    {
      "id": "h",
      "document": "speed",
      "source": 0,
      "command": "plimsoll fit gpt2 --gpu t4",
      "config": null,
      "stand_in": false,
      "in_sample": false,
      "upper_bound": false,
      "out_of_memory": true,
      "verdict": "fits",
      "refusal": null,
      "figures": []
    }
  ]
}
)--";

}  // namespace

// Eight rows and two left out; answered as stated are all but c, which stands in, and d.
TEST_CASE("the table of published rows, from the first line to the last") {
  CHECK(published_table(all(), {}) == kTable);
  CHECK(published_table({}, {}).starts_with("ANSWERED: 0 of 0 published figures as stated, 0 %"));
}

TEST_CASE("the document of published rows, from the first line to the last") {
  CHECK(published_json(all(), {.version = "1", .commit = "abc"}) == kDocument);
}

TEST_CASE("the goals' lines have what was asked for, out of the sample") {
  CHECK(
      goal_lines(all(), {"peak_bytes", "reserved_bytes", "tokens_per_second_per_gpu"}) ==
      "* answered as stated: 6 of 10 published figures, 60 %; by a stand-in for their program: 1, "
      "10 %\n"
      "* peak allocated: median error 31.2 %, 95th percentile 37.5 % (2 rows)\n"
      "* reserved: median error 50 %, 95th percentile 50 % (1 rows)\n"
      "* throughput: median error 25 %, 95th percentile 25 % (1 rows)\n"
      "* bounds, of runs whose sequences are no longer than is asked: 2 figures, 1 not above the "
      "plan\n"
      "* ran out of memory: 1 rows, 1 of them planned to fit, barely 0; ran: 4 rows, 1 of them "
      "planned not to\n");
}

TEST_CASE("the picture has a point for each error, in the panel of its figure") {
  const std::string svg = published_svg(all());
  for (const char* title :
       {"peak allocated: 2 runs", "reserved: 1 runs", "nvidia-smi: 0 runs", "throughput: 2 runs"})
    CHECK_MESSAGE((svg.find(title) != std::string::npos) == (title[0] != 'n'), title);
  std::size_t points = 0;
  for (std::size_t at = 0; (at = svg.find("<circle", at)) != std::string::npos; ++at) ++points;
  CHECK(points == 5);
  CHECK(published_svg({}).empty());
}

// Segments that are given back as it runs: 9 GiB stay reserved, and 1 GiB stands outside.
TEST_CASE("reserved and device bytes are those within the card") {
  PublishedAnswer answer = row("a", 0);
  answer.reserved = 10_GiB;
  answer.device = 8_GiB;
  CHECK(answer.reserved_error() == 12.0 / 10 - 1);
  CHECK(answer.device_error() == 13.0 / 8 - 1);
  answer.plan->flushing.emplace().reserved = 9_GiB;
  answer.plan->overhead = {.context = 1_GiB};
  CHECK(answer.reserved_error() == 9.0 / 10 - 1);
  CHECK(answer.device_error() == 10.0 / 8 - 1);
}

TEST_CASE("documents of a folder are read by name, each of at most 64 MiB") {
  const test::ScratchFolder folder;
  const char* empty = R"({"sources": [], "left_out": {}, "rows": []})";
  folder.write("b.json", empty);
  folder.write("a.json", empty);
  folder.write("c.txt", "no document");
  const auto documents = published_documents(folder.path().string());
  REQUIRE(documents.size() == 2);
  CHECK(documents[0].name == "a");
  CHECK(documents[1].name == "b");
  const auto large = folder.write("large.json", "");
  const auto refused = [&](std::uintmax_t bytes) -> std::string {
    std::filesystem::resize_file(large, bytes);
    try {
      (void)published_documents(folder.path().string());
    } catch (const Error& error) {
      CHECK(error.kind() == ErrorKind::bad_input);
      return error.message();
    }
    return "";
  };
  CHECK(refused((64 << 20) + 1) == large.string() + ": 67108865 bytes, at most 67108864 are read");
  CHECK(refused(64 << 20).find("at most") == std::string::npos);  // zeros are no document
  const test::ScratchFolder none;
  CHECK_THROWS_WITH_AS((void)published_documents(none.path().string()),
                       doctest::Contains("no folder with documents"), Error);
}
