#include "tests/runtime/ledger_lines.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <memory>

namespace plimsoll::runtime::test {

Lines behind(const std::string& prefix, Phase phase, Lines lines) {
  static std::vector<std::unique_ptr<std::string>> names;  // outlive the lines
  for (Line& line : lines) {
    names.push_back(std::make_unique<std::string>(prefix + line.op));
    line.op = names.back()->c_str();
    if (line.phase == Phase::forward) line.phase = phase;
  }
  return lines;
}
Lines together(std::initializer_list<Lines> parts) {
  Lines all;
  for (const Lines& part : parts) all.insert(all.end(), part.begin(), part.end());
  return all;
}

Batch six_tokens(std::int64_t sequences) {
  return {sequences, 6 / sequences, {3, 1, 4, 1, 5, 9}, {1, 4, 1, 5, 9, 2}};
}

void check_ledger(const models::ModelSpec& spec, const models::Strategy& strategy,
                  std::int64_t sequences, const Lines& lines) {
  TinyModel model(spec, strategy, six_tokens(sequences));
  model.set_random();
  model.step(true);
  const StepRecord& record = model.record();
  const std::int64_t element =
      bits(models::decisions::regime_of(strategy).compute) / 8 * 6;  // tokens
  const auto elements = [&](Bytes bytes) {
    CHECK((bytes - record.resident).value() % element == 0);
    return (bytes - record.resident).value() / element;
  };
  std::int64_t before = 0;
  for (std::size_t i = 0; i < std::max(lines.size(), record.ops.size()); ++i) {
    REQUIRE(i < record.ops.size());
    CAPTURE(i);
    CAPTURE(record.ops[i].name);
    REQUIRE(i < lines.size());
    CHECK(record.ops[i].name == lines[i].op);
    CHECK(record.ops[i].phase == lines[i].phase);
    CHECK(elements(record.ops[i].allocated) == lines[i].after);
    CHECK(elements(record.ops[i].high_water) == std::max({lines[i].high, lines[i].after, before}));
    before = lines[i].after;
  }
}

}  // namespace plimsoll::runtime::test
