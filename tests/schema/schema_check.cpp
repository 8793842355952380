// schema_check SCHEMA.json: validates each JSON document of standard input; exit status 1 where one
// does not validate, with the reasons.
#include <fstream>
#include <iostream>
#include <nlohmann/json.hpp>
#include <valijson/adapters/nlohmann_json_adapter.hpp>
#include <valijson/schema.hpp>
#include <valijson/schema_parser.hpp>
#include <valijson/validation_results.hpp>
#include <valijson/validator.hpp>

namespace {
using Adapter = valijson::adapters::NlohmannJsonAdapter;

bool validates(const valijson::Schema& schema, const nlohmann::json& document) {
  valijson::Validator validator;
  valijson::ValidationResults results;
  if (validator.validate(schema, Adapter(document), &results)) return true;
  for (valijson::ValidationResults::Error error; results.popError(error);) {
    for (const std::string& part : error.context) std::cout << part;
    std::cout << ": " << error.description << '\n';
  }
  return false;
}
}  // namespace

int main(int count, char** words) {
  if (count != 2) return 2;
  nlohmann::json text;
  std::ifstream(words[1]) >> text;
  valijson::Schema schema;
  valijson::SchemaParser().populateSchema(Adapter(text), schema);
  bool all = true;
  int documents = 0;
  while (std::cin >> std::ws && std::cin.peek() != EOF) {
    nlohmann::json document;
    std::cin >> document;
    all = validates(schema, document) && all;
    ++documents;
  }
  std::cout << documents << " documents\n";
  return all && documents > 0 ? 0 : 1;
}
