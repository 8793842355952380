// The catalogs, with what trains on what.
#include <fmt/format.h>

#include "reports/page/sections.h"
#include "reports/text.h"

namespace plimsoll::reports {

namespace {
std::string count_text(const Json& value) {
  return value.is_null() ? "–" : whole_number(value.get<double>());
}

void ways_table(const Json& document, Html& html) {
  if (!document.contains("ways")) return;
  Table table("The ways that were asked, on stack pytorch in bf16-mixed with AdamW",
              {text_cell("way"), text_cell("options of plimsoll fit")});
  for (const Json& way : document.at("ways"))
    table.row(
        {text_cell(text(way, "name")), {"<code>" + xml_escaped(text(way, "options")) + "</code>"}});
  html.raw(table.take());
}

// "rtx-4090 and 21 more", opened: all of them.
std::string names_html(const Json& names) {
  if (names.empty()) return "<span class=\"faint\">none</span>";
  const std::string first = xml_escaped(names.front().get<std::string>());
  if (names.size() == 1) return first;
  std::string all;
  for (const Json& name : names) all += (all.empty() ? "" : ", ") + name.get<std::string>();
  return fmt::format("<details><summary>{} and {} more</summary><small>{}</small></details>", first,
                     names.size() - 1, xml_escaped(all));
}

// The largest first.
std::string largest_html(const Json& names) {
  Json reversed = Json::array();
  for (auto name = names.rbegin(); name != names.rend(); ++name) reversed.push_back(*name);
  return names_html(reversed);
}

std::string head_html(std::initializer_list<const char*> columns, const Json& document) {
  std::string out = "<div class=\"wide\" tabindex=\"0\"><table><thead><tr>";
  for (const char* column : columns) out += fmt::format("<th scope=\"col\">{}</th>", column);
  if (document.contains("ways"))
    for (const Json& way : document.at("ways"))
      out += "<th scope=\"col\">" + xml_escaped(text(way, "name")) + "</th>";
  return out + "</tr></thead>\n<tbody>\n";
}

std::string cell_html(const std::string& html, bool is_number = false) {
  return fmt::format("<td class=\"{}\">{}</td>", is_number ? "n" : "w", html);
}
}  // namespace

void models_page(const Json& document, Html& html) {
  html.heading(1, "Models, and the GPUs that train them");
  html.paragraph("Of each way the smallest GPU on which it fits; a row opens to show all.");
  ways_table(document, html);
  html.raw(head_html({"model", "parameters", "active", "context"}, document));
  for (const Json& model : document.at("models")) {
    const bool all = model.at("parameters") == model.at("active_parameters");
    std::string row = cell_html(xml_escaped(text(model, "name"))) +
                      cell_html(count_text(model.at("parameters")), true) +
                      cell_html(all ? "all" : count_text(model.at("active_parameters")), true) +
                      cell_html(count_text(model.at("max_positions")), true);
    if (model.contains("trains"))
      for (const Json& names : model.at("trains")) row += cell_html(names_html(names));
    else if (document.contains("ways"))
      row += fmt::format("<td class=\"faint\" colspan=\"{}\">counts and model states only</td>",
                         document.at("ways").size());
    html.raw("<tr>" + row + "</tr>\n");
  }
  html.raw("</tbody></table></div>\n");
}

void gpus_page(const Json& document, Html& html) {
  html.heading(1, "GPUs, and the models that they train");
  html.paragraph("Of each way the largest model that fits; a row opens to show all.");
  ways_table(document, html);
  html.raw(head_html({"GPU", "capacity", "bf16 TFLOP/s", "memory GB/s"}, document));
  const auto rates = [](const Json& value, double unit) {
    return value.is_null() ? "–" : whole_number(value.get<double>() / unit);
  };
  const Json none = Json::array();
  const Json& trained = document.contains("models_of_gpus") ? document.at("models_of_gpus") : none;
  for (const Json& gpu : document.at("gpus")) {
    std::string row = cell_html(xml_escaped(text(gpu, "name")) + "<br><small>" +
                                xml_escaped(text(gpu, "title")) + "</small>") +
                      cell_html(bytes_cell(bytes_of(gpu.at("cuda_total"), "bytes")).html, true) +
                      cell_html(rates(gpu.at("peak_flops").at("bf16"), 1e12), true) +
                      cell_html(rates(gpu.at("memory_bytes_per_second"), 1e9), true);
    for (const Json& one : trained)
      if (text(one, "gpu") == text(gpu, "name"))
        for (const Json& names : one.at("trains")) row += cell_html(largest_html(names));
    html.raw("<tr>" + row + "</tr>\n");
  }
  html.raw("</tbody></table></div>\n");
}

}  // namespace plimsoll::reports
