// SPDX-License-Identifier: MIT
#include "metal_text.h"

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <stdexcept>
#include <string_view>
#include <vector>

namespace fake {
namespace {

bool is_word(char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_'; }

std::string_view trimmed(std::string_view s) {
  while (!s.empty() && std::isspace(static_cast<unsigned char>(s.front())) != 0) s.remove_prefix(1);
  while (!s.empty() && std::isspace(static_cast<unsigned char>(s.back())) != 0) s.remove_suffix(1);
  return s;
}

// The word that ends before `end`, blanks between left out.
std::string_view word_before(std::string_view text, size_t end) {
  const std::string_view head = trimmed(text.substr(0, end));
  size_t begin = head.size();
  while (begin > 0 && is_word(head[begin - 1])) --begin;
  return head.substr(begin);
}

std::string_view between(std::string_view text, std::string_view from, std::string_view to) {
  const size_t begin = text.find(from);
  if (begin == text.npos) return {};
  const size_t end = text.find(to, begin + from.size());
  return end == text.npos ? std::string_view{} : trimmed(text.substr(begin + from.size(), end - begin - from.size()));
}

std::string without_comments(std::string_view text) {
  std::string out(text);
  for (size_t i = 0; i + 1 < out.size(); ++i) {
    if (out[i] != '/' || (out[i + 1] != '/' && out[i + 1] != '*')) continue;
    const bool line = out[i + 1] == '/';
    const size_t end = std::min(out.find(line ? "\n" : "*/", i + 2), out.size());
    for (; i < end; ++i) out[i] = out[i] == '\n' ? '\n' : ' ';
    if (!line && end < out.size()) out[end] = out[end + 1] = ' ';
  }
  return out;
}

// A number, or the enumerator of one.
uint64_t number(std::string_view text, std::string_view word) {
  if (!word.empty() && std::isdigit(static_cast<unsigned char>(word[0])) != 0) {
    return std::strtoull(std::string(word).c_str(), nullptr, 10);
  }
  for (size_t at = 0; (at = text.find(word, at)) != text.npos; at += word.size()) {
    if (at > 0 && is_word(text[at - 1])) continue;
    const std::string_view rest = trimmed(text.substr(at + word.size(), 40));
    if (rest.empty() || rest[0] != '=') continue;
    const std::string digits(trimmed(rest.substr(1)).substr(0, 20));
    if (std::isdigit(static_cast<unsigned char>(digits[0])) != 0) return std::strtoull(digits.c_str(), nullptr, 10);
  }
  throw std::runtime_error("program_source: error: use of undeclared identifier '" + std::string(word) + "'");
}

std::vector<std::string_view> parts(std::string_view list) {
  std::vector<std::string_view> found;
  int depth = 0;
  size_t begin = 0;
  for (size_t i = 0; i <= list.size(); ++i) {
    const char c = i < list.size() ? list[i] : ',';
    if (c == '(' || c == '[' || c == '<') ++depth;
    if (c == ')' || c == ']' || c == '>') --depth;
    if (c != ',' || (depth != 0 && i < list.size())) continue;
    found.push_back(trimmed(list.substr(begin, i - begin)));
    begin = i + 1;
  }
  return found;
}

MetalText::KernelText parameters(std::string_view text, std::string_view list) {
  MetalText::KernelText kernel;
  for (const std::string_view p : parts(list)) {
    const std::string_view index = between(p, "[[buffer(", ")");
    if (index.empty()) continue;
    const std::string_view type = p.substr(0, p.find("[["));
    const bool writable = type.starts_with("device") && type.find("const ") == type.npos;
    kernel.buffers[number(text, index)] = {std::string(word_before(type, type.size())), writable};
  }
  return kernel;
}

// Of "[[other]] void name(parameters) ...": name and parameters, up to the last ')'. Empty where no function begins.
std::string_view signature(std::string_view text) {
  for (text = trimmed(text); text.starts_with("[["); text = trimmed(text)) {
    text.remove_prefix(std::min(text.find("]]"), text.size() - 2) + 2);
  }
  if (!text.starts_with("void ")) return {};
  text.remove_prefix(5);
  int depth = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '(') ++depth;
    if (text[i] == ')' && --depth == 0) return text.substr(0, i);
  }
  return {};
}

bool is_template(std::string_view text, size_t at) {
  const size_t begin = text.find_last_of(";}", at);
  return text.substr(begin == text.npos ? 0 : begin, at - (begin == text.npos ? 0 : begin)).find("template") != text.npos;
}

}  // namespace

MetalText read_metal(const std::string& source) {
  const std::string text = without_comments(source);
  const std::string_view view = text;
  if (const std::string_view file = between(view, "#include \"", "\""); !file.empty()) {
    throw std::runtime_error("program_source: fatal error: '" + std::string(file) + "' file not found");
  }
  MetalText found;
  std::map<std::string, MetalText::KernelText> templates;
  for (const std::string_view mark : {"[[kernel]]", "kernel void"}) {
    for (size_t at = 0; (at = view.find(mark, at)) != view.npos; at += mark.size()) {
      if (at > 0 && is_word(view[at - 1])) continue;
      const std::string_view head = signature(view.substr(at + mark.size() - (mark[0] == '[' ? 0 : 4)));
      if (head.empty()) continue;
      const size_t open = head.find('(');
      (is_template(view, at) ? templates : found.kernels)[std::string(trimmed(head.substr(0, open)))] =
          parameters(view, head.substr(open + 1));
    }
  }
  constexpr std::string_view kInstance = "host_name(\"";
  for (size_t at = 0; (at = view.find(kInstance, at)) != view.npos; at += kInstance.size()) {
    const std::string_view rest = view.substr(at);
    const std::string name(between(rest, kInstance, "\""));
    const auto of = templates.find(std::string(between(rest, "decltype(", "<")));
    if (of == templates.end()) throw std::runtime_error("program_source: error: no template for " + name);
    found.kernels[name] = of->second;
  }
  constexpr std::string_view kConstant = "[[function_constant(";
  for (size_t at = 0; (at = view.find(kConstant, at)) != view.npos; at += kConstant.size()) {
    const std::string_view name = word_before(view, at);
    const size_t begin = static_cast<size_t>(name.data() - view.data());
    found.constants[number(view, between(view.substr(at), kConstant, ")"))] = word_before(view, begin);
  }
  return found;
}

}  // namespace fake
