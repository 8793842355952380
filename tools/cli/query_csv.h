// Questions of a batch as rows of a table (RFC 4180, a row a line): the first row names the
// options.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace plimsoll::tools {

// The cells of a line. Error{bad_input}: a quote that is not closed, or text behind a closed one.
std::vector<std::string> csv_cells(std::string_view line);

// The keys of a first line that is such a table's: every cell an option of fit, "model" or "id",
// and one of them "model" or "params". Nothing: it is a query itself.
std::optional<std::vector<std::string>> csv_keys(std::string_view line);

// A row as a query's JSON object: an empty cell is not given; flags are yes or no.
// Error{bad_input}: more cells than keys, or fewer.
std::string csv_query(const std::vector<std::string>& keys, std::string_view line);

}  // namespace plimsoll::tools
