// What a schema forbids, in the words of the refusal.
#include "reports/schema_check.h"

#include <doctest/doctest.h>

#include <nlohmann/json.hpp>

#include "reports/checked_document.h"
#include "reports/fingerprint.h"
#include "reports/plan_json.h"
#include "tests/reports/made_up_plan.h"

using namespace plimsoll;
using namespace plimsoll::reports;

TEST_CASE("what a schema forbids is named with its place, what it is and what is needed") {
  const auto said = [](const char* schema, const char* value) {
    return complaint(nlohmann::json::parse(schema), nlohmann::json::parse(value));
  };
  CHECK(said(R"({"type": "object"})", "[1, 2]") ==
        "the document is a list of 2, but an object is needed");
  CHECK(said(R"({"type": ["integer", "null"]})", "1.5") ==
        "the document is 1.5, but a whole number below 2^63 or null is needed");
  CHECK(said(R"({"type": "integer"})", "9223372036854775807") == "");
  CHECK(said(R"({"type": "integer"})", "9223372036854775808") != "");
  CHECK(said(R"({"items": {"type": "string"}})", R"(["a", 1])") ==
        "[1] is 1, but a string is needed");
  CHECK(said(R"({"items": {"type": "string"}})", "3") == "");
  CHECK(said(R"({"minItems": 2})", "[1]") ==
        "the document is a list of 1, but a list of at least 2 is needed");
  CHECK(said(R"({"minItems": 2})", "[1, 2]") == "");
  CHECK(said(R"({"maxItems": 1})", "[1]") == "");
  CHECK(said(R"({"maxItems": 1})", "[1, 2]") ==
        "the document is a list of 2, but a list of at most 1 is needed");
  CHECK(said(R"({"minimum": 0})", "0") == "");
  CHECK(said(R"({"minimum": 0})", "-1") == "the document is -1, but a number from 0 is needed");
  CHECK(said(R"({"maximum": 4})", "4") == "");
  CHECK(said(R"({"maximum": 4})", "5") == "the document is 5, but a number up to 4 is needed");
  CHECK(said(R"({"const": "a"})", R"("a")") == "");
  CHECK(said(R"({"const": "a"})", R"("b")") == "the document is \"b\", but \"a\" is needed");
  CHECK(said(R"({"enum": [1, 2]})", "2") == "");
  CHECK(said(R"({"enum": [1, 2]})", "3") == "the document is 3, but one of 1, 2 is needed");
  CHECK(said(R"({"pattern": "^a+$"})", R"("aa")") == "");
  CHECK(said(R"({"pattern": "^a+$"})", R"("ab")") ==
        "the document is \"ab\", but a text like ^a+$ is needed");
  CHECK(said(R"({"required": ["a"]})", R"({"b": 1})") == "a is missing");
  CHECK(said(R"({"properties": {"a": {"type": "boolean"}}})", R"({"a": 1})") ==
        "a is 1, but true or false is needed");
  CHECK(said(R"({"properties": {"a": {"items": {"type": "number"}}}})", R"({"a": [true]})") ==
        "a[0] is true, but a number is needed");
  CHECK(said(R"({"properties": {"a": {"properties": {"b": {"type": "array"}}}}})",
             R"({"a": {"b": 1}})") == "a.b is 1, but a list is needed");
  CHECK(said(R"({"additionalProperties": false})", R"({"a": 1})") == "a is not known here");
  CHECK(said(R"({"additionalProperties": true})", R"({"a": 1})") == "");
  CHECK(said(R"({"definitions": {"n": {"type": "number"}}, "$ref": "#/definitions/n"})", "1") ==
        "");
  CHECK(said(R"({"definitions": {"n": {"type": "number"}}, "$ref": "#/definitions/n"})",
             R"("x")") == "the document is \"x\", but a number is needed");
}

// 58 characters and two quotes are 60: shown whole. One more, and 57 are shown with dots behind.
TEST_CASE("a long value is shown by its first 57 characters") {
  const auto said = [](std::size_t length) {
    return complaint(nlohmann::json::parse(R"({"type": "object"})"), std::string(length, 'x'));
  };
  CHECK(said(58) == "the document is \"" + std::string(58, 'x') + "\", but an object is needed");
  CHECK(said(59) == "the document is \"" + std::string(56, 'x') + "..., but an object is needed");
}

TEST_CASE("of several ways the one counts that the value was meant to be") {
  const auto schema = nlohmann::json::parse(R"({"anyOf": [
      {"type": "object", "properties": {"kind": {"const": "a"}, "n": {"type": "integer"}}},
      {"type": "object", "properties": {"kind": {"const": "b"}, "n": {"type": "string"}}},
      {"type": "null"}]})");
  const auto said = [&](const char* value) {
    return complaint(schema, nlohmann::json::parse(value));
  };
  CHECK(said("null") == "");
  CHECK(said(R"({"kind": "a", "n": 1})") == "");
  CHECK(said(R"({"kind": "b", "n": 1})") == "n is 1, but a string is needed");
  CHECK(said(R"({"kind": "a", "n": "x"})") ==
        "n is \"x\", but a whole number below 2^63 is needed");
}

// Of a document with no answer the workload alone is looked at, and in it what the schema's
// definitions say: the batch is one of them.
TEST_CASE("a question without an answer is held against what its schema says of a workload") {
  using nlohmann::json;
  const json plan = json::parse(pretty([](JsonWriter& writer) {
    write_plan(writer, made_up_plan(), {"1", "abc"});
  }));
  const auto said = [&](const char* pointer, const json& value) -> std::string {
    json workload = plan["workload"];
    if (*pointer != '\0') workload[json::json_pointer(pointer)] = value;
    json named = workload;
    named.erase("fingerprint");
    named["model"].erase("name");
    workload["fingerprint"] = fingerprint(named.dump());
    const json question{{"schema", "plimsoll.plan/1"}, {"workload", workload}};
    try {
      const CheckedDocument read(question.dump(), "q", "plan");
      return read.is_question() ? "a question" : "a plan";
    } catch (const Error& error) {
      return error.message();
    }
  };
  CHECK(said("", nullptr) == "a question");
  CHECK(said("/batch/seq_len", 7) == "a question");
  CHECK(said("/batch/seq_len", 0).starts_with("q: workload: "));
  CHECK(said("/batch/seq_len", "long").starts_with("q: workload: "));
  CHECK(said("/batch/rows", 3).starts_with("q: workload: "));
  CHECK(said("/strategy/zero", 4).starts_with("q: workload: "));
}
