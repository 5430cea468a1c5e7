// The configuration as a JSON schema, for editors that complete and check TOML by one.
#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "base/config.h"
#include "tools/commands.h"

namespace accel::tools {
namespace {

using nlohmann::ordered_json;

ordered_json words(std::string_view allowed) {
  ordered_json all = ordered_json::array();
  while (!allowed.empty()) {
    const size_t bar = allowed.find(" | ");
    all.push_back(allowed.substr(0, bar));
    allowed = bar == std::string_view::npos ? std::string_view{} : allowed.substr(bar + 3);
  }
  return all;
}

template <class E>
ordered_json words() {
  ordered_json all = ordered_json::array();
  for (std::string_view w : kWords<E>) all.push_back(w);
  return all;
}

ordered_json value_of(const SettingText& row) {
  ordered_json value = {{"description", row.help}};
  unsigned long long least = 0, most = 0;
  if (row.name == "require") {
    value["anyOf"] = {{{"enum", words(row.allowed)}}, {{"type", "boolean"}}};
  } else if (row.allowed == "text") {
    value["type"] = "string";
  } else if (row.allowed == "true | false") {
    value["anyOf"] = {{{"type", "boolean"}}, {{"enum", {0, 1}}}};
  } else if (std::sscanf(std::string(row.allowed).c_str(), "%llu-%llu", &least, &most) == 2) {
    value["anyOf"] = {{{"type", "integer"}, {"minimum", least}, {"maximum", most}},
                      {{"type", "string"}, {"pattern", "^[0-9]+([KMG]B?)?$"}}};
  } else {
    value["enum"] = words(row.allowed);
  }
  if (row.allowed == "text" || row.quoted)
    value["default"] = row.default_value;
  else
    value["default"] = ordered_json::parse(row.default_value);
  return value;
}

}  // namespace

void print_schema() {
  ordered_json settings = ordered_json::object();
  for (const SettingText& row : setting_texts()) settings[std::string(row.name)] = value_of(row);
  ordered_json rule = {
      {"type", "object"},
      {"additionalProperties", false},
      {"anyOf", {{{"required", {"path"}}}, {{"required", {"iwarp"}}}}},
      {"properties",
       {{"role", {{"enum", words<Role>()}}},
        {"address", {{"type", "string"}, {"description", "\"10.0.0.0/8\", \"2001:db8::/32\", \"*\""}}},
        {"ports",
         {{"anyOf",
           {{{"type", "integer"}, {"minimum", 0}, {"maximum", 65535}},
            {{"type", "string"}, {"pattern", "^([0-9]+(-[0-9]+)?|\\*)$"}}}}}},
        {"path", {{"enum", words<Path>()}}},
        {"iwarp", {{"enum", words<Iwarp>()}}}}}};
  ordered_json application = settings;
  application["name"] = {{"type", "string"}, {"description", "Glob on the program's name."}};
  application["user_id"] = {{"type", "string"}, {"description", "Compared with $ACCEL_APP_ID."}};
  application["rule"] = {{"type", "array"}, {"items", rule}};
  const ordered_json file_name = {{"type", "string"}, {"minLength", 1}};
  ordered_json schema = {
      {"$schema", "http://json-schema.org/draft-07/schema#"},
      {"title", "libaccel.toml"},
      {"type", "object"},
      {"additionalProperties", false},
      {"properties",
       {{"include",
         {{"description", "Files that are read before this one; relative to its folder."},
          {"anyOf", {file_name, {{"type", "array"}, {"items", file_name}}}}}},
        {"default", {{"type", "object"}, {"additionalProperties", false}, {"properties", settings}}},
        {"application",
         {{"type", "array"},
          {"items",
           {{"type", "object"},
            {"additionalProperties", false},
            {"anyOf", {{{"required", {"name"}}}, {{"required", {"user_id"}}}}},
            {"properties", application}}}}}}}};
  fmt::print("{}\n", schema.dump(2));
}

}  // namespace accel::tools
