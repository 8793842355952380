// --data, --padding, --packing: the question is that of the worst batch.
#include "tools/cli/rows.h"

#include <doctest/doctest.h>

#include <filesystem>
#include <fstream>

#include "tests/scratch_folder.h"
#include "tools/cli/request.h"

using namespace plimsoll;
using namespace plimsoll::tools;
using models::Rows;
using plimsoll::test::ScratchFolder;

namespace {
using Given = std::vector<std::pair<std::string, std::string>>;

// A hundred samples: 99 of 100 tokens, one of 1000.
std::string histogram() {
  static const ScratchFolder folder;
  return folder.write("rows.csv", "length,count\n100,99\n1000,1\n");
}

Request request(const Given& given) {
  Options options;
  options.add("gpu", "h100");
  for (const auto& [name, value] : given) options.add(name, value);
  Sources sources;
  return request_from("llama-3.2-1b", options, sources);
}

std::string refusal(const Given& given) {
  try {
    (void)answer(request(given));
  } catch (const Error& error) {
    return error.message();
  }
  return "";
}
}  // namespace

TEST_CASE("lengths make the question that of the worst micro-batch, with the median beside it") {
  const Request r = request({{"data", histogram()}, {"micro-batch", "4"}});
  CHECK(r.question.strategy.rows == Rows::padded);
  CHECK(r.question.batch.seq_len == 1000);
  CHECK(r.question.batch.real_tokens == 1300);
  const reports::Plan plan = answer(r);
  REQUIRE(plan.data);
  CHECK(plan.data->batches.median.batch.seq_len == 100);
  CHECK(plan.data->median_peak < plan.peak);
  // A plain question of the same rows has the same answer.
  const reports::Plan same =
      answer(request({{"seq-len", "1000"}, {"micro-batch", "4"}, {"padding-mask", "yes"}}));
  CHECK(same.peak == plan.peak);
}

TEST_CASE("what cannot be is refused with its option") {
  const std::string data = histogram();
  CHECK(refusal({{"packing", "bfd"}}) == "--packing bfd: needs --data, the samples' lengths");
  CHECK(refusal({{"padding", "longest"}}).starts_with("--padding longest: needs --data"));
  CHECK(
      refusal({{"padding", "free"}, {"padding-mask", "yes"}}).starts_with("--padding-mask yes: "));
  CHECK(refusal({{"data", data}, {"padding-mask", "yes"}}).starts_with("--padding-mask yes: "));
  CHECK(refusal({{"data", data}, {"packing", "bfd"}}).starts_with("--packing needs --seq-len"));
  CHECK(refusal({{"data", data}, {"padding", "max"}}).starts_with("--padding max needs --seq-len"));
  CHECK(refusal({{"data", data}, {"packing", "bfd"}, {"padding", "max"}, {"seq-len", "512"}})
            .starts_with("--padding max: TRL flattens"));
  CHECK(refusal({{"data", "no/such/file"}}).find("no/such/file") != std::string::npos);
  CHECK(refusal({{"padding-mask", "yes"}, {"stack", "deepspeed"}}).empty());
  CHECK(refusal({{"padding-mask", "yes"}, {"stack", "deepspeed"}, {"attention", "math"}})
            .starts_with("--padding-mask yes with --attention math"));
  CHECK(refusal({{"padding-mask", "yes"}, {"attention", "math"}})
            .starts_with("--padding-mask yes with --attention math"));
  CHECK(refusal({{"padding", "free"}, {"transformers-version", "4.57"}})
            .starts_with("--padding free is modelled with Transformers 5.17"));
}

TEST_CASE("packed rows are flattened, and as long as max_length") {
  const Request r = request(
      {{"data", histogram()}, {"packing", "bfd"}, {"seq-len", "512"}, {"micro-batch", "2"}});
  CHECK(r.question.strategy.rows == Rows::flattened);
  // 99 samples of 100 fill rows of 5, the cut one a row of its own: 512 and 500 tokens together.
  CHECK(r.question.batch.row_tokens == 1012);
  CHECK(r.question.batch.row_samples == 6);
}

TEST_CASE("padding that is not there costs nothing, and the mask of a row does") {
  const auto peak = [](const Given& given) { return answer(request(given)).peak; };
  const Given rows{{"seq-len", "512"}, {"micro-batch", "8"}, {"precision", "bf16"}};
  const auto with = [&](Given more) {
    more.insert(more.end(), rows.begin(), rows.end());
    return more;
  };
  const Bytes full = peak(rows);
  CHECK(peak(with({{"padding-mask", "yes"}})) > full);
  CHECK(peak(with({{"padding", "free"}})) > full);  // SDPA: a mask of 4096 x 4096
  CHECK(peak(with({{"padding", "free"}, {"attention", "flash-2"}})) <
        peak(with({{"padding-mask", "yes"}, {"attention", "flash-2"}})));
}
