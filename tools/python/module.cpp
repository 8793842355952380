// The commands as functions that return their documents: plimsoll/__init__.py turns those into
// objects, and errors into exceptions.
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "models/base/error.h"
#include "tools/cli/doors.h"
#include "tools/cli/launch_line.h"
#include "tools/cli/query_json.h"

namespace nb = nanobind;

namespace plimsoll::tools {

namespace {
// The kind of an error, "" for none; the document, or the error's message.
using Answer = std::pair<std::string, std::string>;

template <class Ask>
Answer answered(Ask ask) {
  const nb::gil_scoped_release others_run;
  try {
    return {"", ask()};
  } catch (const Error& error) {
    return {std::string(name_of(error.kind())), error.message()};
  } catch (const std::exception& error) {
    return {std::string(name_of(ErrorKind::internal)), error.what()};
  }
}

const Command& command_called(std::string_view name) {
  for (const Command& command : commands())
    if (command.name == name) return command;
  fail(ErrorKind::internal, "no such command");
}

// `query`: as a line of `plimsoll batch`, with the command's own options.
CommandLine line_of(std::string_view name, const std::string& query,
                    const std::vector<std::string>& launch) {
  CommandLine line;
  line.command = &command_called(name);
  std::string id;
  Query asked = query_from(query, id, line.command->own_options);
  line.argument = asked.model;
  line.options = std::move(asked.options);
  if (!launch.empty()) add_launch_line(launch, line.options);
  return line;
}

Options search_for(const std::optional<std::string>& text) {
  Options options;
  if (text) options.add("search", *text);
  return options;
}

using Words = std::vector<std::string>;
}  // namespace

NB_MODULE(_plimsoll, m) {
  m.def("fit", [](const std::string& query, const Words& launch) {
    return answered([&] { return fit_document(line_of("fit", query, launch)); });
  });
  m.def("recommend", [](const std::string& query, const Words& launch) {
    return answered([&] { return recommend_document(line_of("recommend", query, launch)); });
  });
  m.def("compare", [](const std::string& prediction, const Words& measurements, double tolerance) {
    return answered([&] { return compare_document(prediction, measurements, tolerance); });
  });
  m.def("compare_snapshots", [](const std::string& prediction,
                                const std::vector<nb::bytes>& snapshots, double tolerance) {
    Words contents;
    for (const nb::bytes& one : snapshots) contents.emplace_back(one.c_str(), one.size());
    return answered([&] { return compare_document(prediction, contents, tolerance); });
  });
  m.def(
      "models",
      [](const std::optional<std::string>& text) {
        return answered([&] { return models_document(search_for(text)); });
      },
      nb::arg("text").none());
  m.def(
      "gpus",
      [](const std::optional<std::string>& text) {
        return answered([&] { return gpus_document(search_for(text)); });
      },
      nb::arg("text").none());
  m.def("version", [] { return this_tool().version; });
}

}  // namespace plimsoll::tools
