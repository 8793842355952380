#include "tools/fleet/solver.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <array>
#include <cmath>
#include <memory>

#include "models/base/error.h"

namespace plimsoll::tools {

namespace {
// Of Cbc_C_Interface.h, 2.10 (Debian 12 and Ubuntu 24.04 have 2.10.8 and 2.10.11).
using Model = void;
struct Cbc {
  Model* (*create)();
  void (*destroy)(Model*);
  const char* (*version)();
  void (*load)(Model*, int columns, int rows, const int* starts, const int* indices,
               const double* factors, const double* column_least, const double* column_most,
               const double* cost, const double* row_least, const double* row_most);
  void (*set_integer)(Model*, int column);
  void (*set_parameter)(Model*, const char* name, const char* value);
  void (*set_log_level)(Model*, int level);
  int (*solve)(Model*);
  int (*is_optimal)(Model*);
  int (*is_infeasible)(Model*);
  const double* (*best_solution)(Model*);
  double (*best_possible)(Model*);
};

template <class Function>
void find(void* library, const char* name, Function*& function) {
  function = reinterpret_cast<Function*>(::dlsym(library, name));
  check(function != nullptr, ErrorKind::unsupported, [&] {
    return fmt::format("the CBC that is installed has no function {}: 2.10 is needed", name);
  });
}

void* opened() {
  // The name that Debian and Ubuntu give it, and the one of a build of one's own.
  for (const char* file : {"libCbcSolver.so.3", "libCbcSolver.so"})
    if (void* library = ::dlopen(file, RTLD_NOW | RTLD_LOCAL)) return library;
  fail(ErrorKind::unsupported,
       "--fleet needs the solver CBC, and libCbcSolver.so.3 cannot be loaded (Debian, Ubuntu: "
       "apt-get install coinor-cbc)");
}

const Cbc& cbc() {
  static const Cbc loaded = [] {
    void* library = opened();
    Cbc out{};
    find(library, "Cbc_newModel", out.create);
    find(library, "Cbc_deleteModel", out.destroy);
    find(library, "Cbc_getVersion", out.version);
    find(library, "Cbc_loadProblem", out.load);
    find(library, "Cbc_setInteger", out.set_integer);
    find(library, "Cbc_setParameter", out.set_parameter);
    find(library, "Cbc_setLogLevel", out.set_log_level);
    find(library, "Cbc_solve", out.solve);
    find(library, "Cbc_isProvenOptimal", out.is_optimal);
    find(library, "Cbc_isProvenInfeasible", out.is_infeasible);
    find(library, "Cbc_bestSolution", out.best_solution);
    find(library, "Cbc_getBestPossibleObjValue", out.best_possible);
    return out;
  }();
  return loaded;
}

// Column by column, as CBC takes it.
void load(const IntegerProgram& program, Model* model) {
  const std::size_t columns = program.columns.size(), rows = program.rows.size();
  std::vector<std::vector<std::pair<int, double>>> of_column(columns);
  std::vector<double> row_least, row_most;
  for (std::size_t i = 0; i < rows; ++i) {
    for (const auto& [column, factor] : program.rows[i].terms)
      of_column[column].emplace_back(static_cast<int>(i), factor);
    row_least.push_back(program.rows[i].least);
    row_most.push_back(program.rows[i].most);
  }
  std::vector<int> starts{0}, indices;
  std::vector<double> factors, least, most, cost;
  for (std::size_t i = 0; i < columns; ++i) {
    for (const auto& [row, factor] : of_column[i]) {
      indices.push_back(row);
      factors.push_back(factor);
    }
    starts.push_back(static_cast<int>(indices.size()));
    least.push_back(program.columns[i].least);
    most.push_back(program.columns[i].most);
    cost.push_back(program.columns[i].cost);
  }
  cbc().load(model, static_cast<int>(columns), static_cast<int>(rows), starts.data(),
             indices.data(), factors.data(), least.data(), most.data(), cost.data(),
             row_least.data(), row_most.data());
  for (std::size_t i = 0; i < columns; ++i) cbc().set_integer(model, static_cast<int>(i));
}

// A solver works with a tolerance; what is handed on holds exactly (factors and bounds of rows are
// whole numbers, but for sums of prices).
void verify(const IntegerProgram& program, const std::vector<std::int64_t>& values) {
  constexpr double kRounding = 1e-6;  // of sums that are no whole numbers
  for (const IntegerProgram::Row& row : program.rows) {
    double sum = 0;
    for (const auto& [column, factor] : row.terms)
      sum += factor * static_cast<double>(values[column]);
    const double slack = kRounding * std::max(1.0, std::fabs(sum));
    check(sum >= row.least - slack && sum <= row.most + slack, ErrorKind::internal,
          "CBC returned an assignment that breaks a limit");
  }
}
}  // namespace

std::string solver_version() {
  return std::string("CBC ") + cbc().version();
}

IntegerSolution solve(const IntegerProgram& program, double seconds) {
  const std::unique_ptr<Model, void (*)(Model*)> model(cbc().create(), cbc().destroy);
  cbc().set_log_level(model.get(), 0);
  load(program, model.get());
  const std::string limit = fmt::format("{:.3f}", seconds);
  for (const auto& [name, value] :
       std::array<std::pair<const char*, const char*>, 5>{{{"log", "0"},
                                                           {"sec", limit.c_str()},
                                                           {"timeMode", "elapsed"},
                                                           {"ratioGap", "0"},
                                                           {"randomSeed", "1"}}})
    cbc().set_parameter(model.get(), name, value);
  cbc().solve(model.get());
  IntegerSolution out;
  const double* best = cbc().best_solution(model.get());
  if (best == nullptr) {
    out.optimal = cbc().is_infeasible(model.get()) != 0;
    return out;
  }
  for (std::size_t i = 0; i < program.columns.size(); ++i) {
    out.values.push_back(std::llround(best[i]));
    out.cost += program.columns[i].cost * static_cast<double>(out.values.back());
  }
  verify(program, out.values);
  out.found = true;
  out.optimal = cbc().is_optimal(model.get()) != 0;
  out.bound = out.optimal ? out.cost : std::min(out.cost, cbc().best_possible(model.get()));
  return out;
}

}  // namespace plimsoll::tools
