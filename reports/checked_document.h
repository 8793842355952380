// A document whose shape is its schema's and whose fingerprint is its workload's, and what it says
// of itself where a figure is not what it should be. Of plan_check.cpp and measurement_check.cpp.
#pragma once

#include <cstdint>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace plimsoll::reports {

class CheckedDocument {
 public:
  using Json = nlohmann::json;

  // `kind`: "plan", "measurement". Error{bad_input} naming `source`: not JSON, a key twice, another
  // schema, a field that the schema does not allow, another workload's fingerprint.
  CheckedDocument(std::string_view text, std::string source, std::string_view kind);

  const Json& root() const { return root_; }
  // A workload without any figure: it can be planned, run and exported, and claims nothing. Only
  // the workload was held against the schema.
  bool is_question() const;

  // Error{bad_input} with `field`, `value`, what is expected and `why`.
  void expect(const std::string& field, const Json& value, const Json& expected,
              std::string_view why) const;
  void expect_near(const std::string& field, const Json& value, double expected,
                   std::string_view why) const;
  void expect_at_most(const std::string& field, const Json& value, const Json& most,
                      std::string_view why) const;  // null: nothing is known
  [[noreturn]] void refuse(const std::string& what) const;  // in full

 private:
  void check_fingerprint() const;

  std::string source_;
  Json root_;
};

// Of a number, of an object's members that are numbers. Error{bad_input}: a sum beyond 2^63.
std::int64_t whole(const nlohmann::json& value);
std::int64_t sum_of_members(const nlohmann::json& parts);

// Runs `checks`; an error of theirs that names no file, as of a sum beyond 2^63, names `source`.
void name_source(const std::string& source, const std::function<void()>& checks);

}  // namespace plimsoll::reports
