// One line of a batch as options.
#include "tools/cli/query_json.h"

#include <doctest/doctest.h>

#include "models/base/error.h"

using namespace plimsoll;
using namespace plimsoll::tools;

namespace {

std::string refusal(std::string_view line) {
  try {
    std::string id;
    (void)query_from(line, id);
  } catch (const Error& error) {
    CHECK(error.kind() == ErrorKind::bad_input);
    return error.message();
  }
  return "";
}

}  // namespace

TEST_CASE("keys are options, with _ or -; null is not given, false is no flag") {
  std::string id;
  const Query query = query_from(
      R"({"id": "a\"b", "model": "gpt2", "seq_len": 128, "grad-accum": null, "hold_outputs": true, "lora_targets": ["q", "v"]})",
      id);
  CHECK(id == R"("a\"b")");
  CHECK(query.model == "gpt2");
  CHECK(*query.options.find("seq-len") == "128");
  CHECK_FALSE(query.options.has("grad-accum"));
  CHECK(query.options.has("hold-outputs"));
  CHECK(*query.options.find("lora-targets") == "q,v");
  CHECK(query.options.given().size() == 3);
  CHECK_FALSE(query_from(R"({"hold_outputs": false})", id).options.has("hold-outputs"));
}

TEST_CASE("a key that is there twice is refused, wherever it stands and however it is written") {
  CHECK(refusal(R"({"gpus": 1, "zero": 0, "gpus": 2})") == "\"gpus\": is there twice");
  CHECK(refusal(R"({"seq_len": 1, "gpus": 1, "seq-len": 2})") == "\"seq-len\": is there twice");
  CHECK(refusal(R"({"id": 1, "gpus": 1, "id": 2})") == "\"id\": is there twice");
}

TEST_CASE("what is no object, or has an id of another kind, is refused") {
  for (const char* line : {"[1]", "3", "null", "\"gpt2\""})
    CHECK(refusal(line).find("a query is a JSON object") != std::string::npos);
  CHECK(refusal("{\"gpus\": 1") == "not JSON");
  CHECK(refusal(R"({"id": [1]})") == "\"id\": must be a string or a number");
}

// What a command writes is no key of a question: it is not offered either.
TEST_CASE("an unknown key is refused with the nearest of those that there are") {
  CHECK(refusal(R"({"seqlen": 1})") == "unknown key \"seqlen\"; did you mean \"seq-len\"?");
  CHECK(refusal(R"({"modle": "a"})") == "unknown key \"modle\"; did you mean \"model\"?");
  CHECK(refusal(R"({"json": "a"})") ==
        "unknown key \"json\" (keys are \"model\" and the options of fit)");
  CHECK(refusal(R"({"zzzzzzzzzz": 1})") ==
        "unknown key \"zzzzzzzzzz\" (keys are \"model\" and the options of fit)");
}
