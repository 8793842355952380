// Integer programs by CBC (COIN-OR branch and cut, EPL-2.0, github.com/coin-or/Cbc), which is
// loaded when it is first needed: the program links neither it nor the BLAS that it brings.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace plimsoll::tools {

// Integers within bounds and rows of sums within bounds; the sum of `cost` is to be least.
struct IntegerProgram {
  struct Column {
    double least = 0, most = 0, cost = 0;
  };
  struct Term {
    std::size_t column;
    double factor;
  };
  struct Row {
    std::vector<Term> terms;
    double least, most;
  };
  std::vector<Column> columns;
  std::vector<Row> rows;

  std::size_t add_column(Column column) {
    columns.push_back(column);
    return columns.size() - 1;
  }
};

struct IntegerSolution {
  bool found = false;  // else `values` is empty
  bool optimal = false;  // proven
  std::vector<std::int64_t> values;
  double cost = 0, bound = 0;  // no solution costs less than `bound`
};

// "CBC 2.10.8". Error{unsupported}: it is not here; the message says how to get it.
std::string solver_version();

// The best that is found in `seconds`. Error{unsupported} as above; Error{internal}: what it
// returned is no solution.
IntegerSolution solve(const IntegerProgram& program, double seconds);

}  // namespace plimsoll::tools
