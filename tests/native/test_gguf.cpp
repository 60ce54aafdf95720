// SPDX-License-Identifier: MIT
//
// One GGUF file: what is read, and the text of every refusal.
#include <limits>

#include "base/error.h"
#include "check.h"
#include "formats/gguf.h"
#include "gguf_bytes.h"

using namespace esker;
using esker::test::GgufBytes;
using esker::test::raw;
using esker::test::raw_string;
using esker::test::TempFolder;

using esker::test::check_contains;

namespace {

std::shared_ptr<const Gguf> open_bytes(const std::string& bytes) {
  const TempFolder folder;
  return Gguf::open(folder.write("test.gguf", bytes));
}

// The message with which these bytes are refused; the kind must be kFormat.
std::string refusal(const std::string& bytes) {
  try {
    open_bytes(bytes);
  } catch (const Error& error) {
    CHECK(error.kind() == ErrorKind::kFormat);
    CHECK(std::string(error.what()).find("test.gguf") != std::string::npos);
    return error.what();
  }
  return "nothing was thrown";
}

GgufBytes one_tensor() {
  GgufBytes g;
  g.set_string("general.architecture", "some");
  g.add("a", {4, 2});
  return g;
}

}  // namespace

TEST(gguf_reads_every_type_of_value) {
  GgufBytes g;
  g.set<uint8_t>("u8", 200);
  g.set<int8_t>("i8", -3);
  g.set<uint16_t>("u16", 60000);
  g.set<int16_t>("i16", -300);
  g.set<uint32_t>("u32", 4000000000u);
  g.set<int32_t>("i32", -70000);
  g.set<uint64_t>("u64", std::numeric_limits<uint64_t>::max());
  g.set<int64_t>("i64", std::numeric_limits<int64_t>::min());
  g.set("f32", 1.5f);
  g.set("f64", -2.25);
  g.set("bool", true);
  g.set_string("string", std::string("a\0b", 3));
  g.set_array<int16_t>("array", {1, -2, 3});
  g.set_array<bool>("bools", {true, false});
  g.set_raw("strings", MetaType::kArray,
            raw<uint32_t>(8) + raw<uint64_t>(2) + raw_string("x") + raw_string(""));
  const auto gguf = open_bytes(g.build());
  CHECK_EQUAL(gguf->metadata().size(), 15u);
  CHECK_EQUAL(gguf->require_uint("u8", 0, 255), 200u);
  CHECK_EQUAL(gguf->require_uint("u16", 0, 65535), 60000u);
  CHECK_EQUAL(gguf->require_uint("u32", 0, UINT64_MAX), 4000000000u);
  CHECK_EQUAL(gguf->require_uint("u64", 0, UINT64_MAX), UINT64_MAX);
  CHECK_EQUAL(std::get<int64_t>(gguf->find("i8")->value), -3);
  CHECK_EQUAL(std::get<int64_t>(gguf->find("i16")->value), -300);
  CHECK_EQUAL(std::get<int64_t>(gguf->find("i32")->value), -70000);
  CHECK_EQUAL(std::get<int64_t>(gguf->find("i64")->value), INT64_MIN);
  CHECK_EQUAL(gguf->require_float("f32"), 1.5);
  CHECK_EQUAL(gguf->require_float("f64"), -2.25);
  CHECK_EQUAL(std::get<uint64_t>(gguf->find("bool")->value), 1u);
  CHECK_EQUAL(gguf->require_string("string"), std::string("a\0b", 3));
  CHECK(gguf->require_uint_array("bools") == std::vector<uint64_t>{1, 0});
  const auto& array = std::get<MetaValue::Array>(gguf->find("array")->value);
  CHECK(std::get<std::vector<int64_t>>(array) == std::vector<int64_t>{1, -2, 3});
  const auto& strings = std::get<MetaValue::Array>(gguf->find("strings")->value);
  CHECK(std::get<std::vector<std::string>>(strings) == std::vector<std::string>{"x", ""});
  CHECK_EQUAL(gguf->find("strings")->type_name(), "ARRAY of STRING");
  CHECK(gguf->find("absent") == nullptr);
}

TEST(gguf_reads_tensors) {
  for (const uint32_t version : {2u, 3u}) {
    for (const uint64_t alignment : {1u, 8u, 24u, 32u, 4096u}) {
      GgufBytes g = one_tensor();
      g.version = version;
      g.alignment = alignment;
      g.set<uint32_t>("general.alignment", static_cast<uint32_t>(alignment));
      g.add("b", {3});
      const std::string bytes = g.build();
      const TempFolder folder;
      const auto gguf = Gguf::open(folder.write("test.gguf", bytes));
      CHECK_EQUAL(gguf->tensors().size(), 2u);
      const TensorInfo* b = gguf->find_tensor("b");
      CHECK(b != nullptr);
      CHECK_EQUAL(b->bytes, 12u);
      CHECK_EQUAL(b->offset % alignment, 0u);
      CHECK(std::string(reinterpret_cast<const char*>(gguf->data(*b)), 12) ==
            g.tensor("b").data);
      CHECK_EQUAL(gguf->find_tensor("a")->shape(), "[4, 2]");
      CHECK_EQUAL(gguf->find_tensor("a")->type_name(), "F32");
      CHECK_EQUAL(gguf->find_tensor("a")->elements, 8u);
      CHECK(gguf->find_tensor("c") == nullptr);
    }
  }
}

TEST(gguf_reads_the_oracles_file) {
  const auto gguf = Gguf::open(std::string(ESKER_TEST_DATA) + "/oracle/micro-f16.gguf");
  CHECK_EQUAL(gguf->tensors().size(), 113u);
  CHECK_EQUAL(gguf->require_string("general.architecture"), "qwen4exp");
  CHECK_EQUAL(gguf->find_tensor("blk.3.attn_v.weight")->offset, 2459456u);
}

TEST(gguf_refuses_what_is_no_gguf) {
  check_contains(refusal(""), "[gguf] the file is empty: got 0 bytes");
  std::string text = refusal("<!DOCTYPE html>\n<html><title>404</title></html>");
  check_contains(text, "this is not a GGUF file: got a web page (HTML): \"<!DOCTYPE html>");
  check_contains(text, "want a file that begins with \"GGUF\"");
  check_contains(text, "hint: the download failed");
  check_contains(refusal("{\"error\": \"no access\"}"), "got text: \"{\"error\"");
  check_contains(refusal("version https://git-lfs.github.com/spec/v1\noid"), "git-lfs pointer");
  check_contains(refusal(std::string(1000, '\0')), "got zeros");
  check_contains(refusal(std::string("\x7f" "ELF\x01\x00\x00\x00", 8)), "\\x7fELF\\x01");
  check_contains(refusal("GG"), "the file ends inside its header: got 2 bytes, want at least 4");
  check_contains(refusal("GGX"), "this is not a GGUF file");
}

TEST(gguf_refuses_other_versions) {
  GgufBytes g = one_tensor();
  g.version = 0x03000000;
  check_contains(refusal(g.build()), "the file is big-endian: got version 3");
  g.version = 1;
  check_contains(refusal(g.build()), "not supported: got version 1, want version 2 or 3");
  g.version = 4;
  check_contains(refusal(g.build()), "not supported: got version 4, want version 2 or 3");
}

// Whatever the length at which a file is cut, the refusal says how many bytes there are.
TEST(gguf_refuses_a_cut_file_at_every_byte) {
  GgufBytes g = one_tensor();
  g.set_array<int32_t>("numbers", {1, 2, 3});
  const std::string whole = g.build();
  const size_t header = g.header().size();
  const size_t data_start = (header + 31) / 32 * 32;
  for (size_t bytes = 1; bytes < whole.size(); ++bytes) {
    const std::string text = refusal(whole.substr(0, bytes));
    const char* part = bytes < 24 ? "the file ends inside its header"
                       : bytes < header - 41 ? "the file ends inside its metadata"
                       : bytes < header ? "the file ends inside its tensor table"
                       : bytes <= data_start ? "the file is only a header"
                                        : "a tensor reaches past the end of the file";
    check_contains(text, part);
    check_contains(text, "got " + std::to_string(bytes) + " bytes, want at least ");
  }
  check_contains(refusal(whole.substr(0, whole.size() - 1)), "tensor a, offset");
}

TEST(gguf_refuses_impossible_counts) {
  std::string bytes = one_tensor().build();
  std::string many = bytes;
  many.replace(8, 8, raw<uint64_t>(uint64_t{1} << 60));
  check_contains(refusal(many), "ends inside its tensor table");
  many = bytes;
  many.replace(16, 8, raw<uint64_t>(UINT64_MAX));
  check_contains(refusal(many), "more than 2^64 bytes");
  GgufBytes g = one_tensor();
  g.set_raw("array", MetaType::kArray, raw<uint32_t>(10) + raw<uint64_t>(uint64_t{1} << 61));
  check_contains(refusal(g.build()), "key array");
  g.set_raw("array", MetaType::kArray, raw<uint32_t>(8) + raw<uint64_t>(1) + raw<uint64_t>(~0ull));
  check_contains(refusal(g.build()), "the file ends inside its metadata");
  g.set_raw("array", MetaType::kString, raw<uint64_t>(1000000));
  check_contains(refusal(g.build()), "key array");
}

TEST(gguf_refuses_bad_metadata) {
  GgufBytes g = one_tensor();
  g.keys.push_back(g.keys[0]);
  check_contains(refusal(g.build()), "a metadata key stands twice");
  g = one_tensor();
  g.set_raw("nested", MetaType::kArray, raw<uint32_t>(9) + raw<uint64_t>(1) + std::string(64, 0));
  check_contains(refusal(g.build()), "a metadata array holds arrays");
  g = one_tensor();
  g.set_raw("odd", static_cast<MetaType>(13), std::string(8, 0));
  check_contains(refusal(g.build()), "unknown type: got 13");
  g = one_tensor();
  g.set_raw("truth", MetaType::kBool, "\x02");
  check_contains(refusal(g.build()), "neither true nor false: got 2, want 0 or 1");
  g = one_tensor();
  g.set<uint32_t>("bad\nname", 1);
  check_contains(refusal(g.build()), "a name is not readable: got \"bad\\x0aname\"");
  g = one_tensor();
  g.set<uint32_t>("", 1);
  check_contains(refusal(g.build()), "a name is not readable");
  for (const uint32_t alignment : {0u, 12u, 1u << 30, ~0u}) {
    g = one_tensor();
    g.set<uint32_t>("general.alignment", alignment);
    check_contains(refusal(g.build()), "key general.alignment cannot be used: got UINT32 ");
  }
  g = one_tensor();
  g.set_string("general.alignment", "32");
  check_contains(refusal(g.build()), "general.alignment cannot be used: got STRING \"32\"");
}

TEST(gguf_refuses_bad_tensors) {
  const auto with = [](auto spoil) {
    GgufBytes g = one_tensor();
    g.add("b", {32});
    spoil(g.tensor("b"));
    return refusal(g.build());
  };
  check_contains(with([](auto& t) { t.name = "a"; }), "a tensor stands twice: a");
  check_contains(with([](auto& t) { t.name = std::string(300, 'n'); }), "a name is too long");
  check_contains(with([](auto& t) { t.dims = {}; }), "number of dimensions: got 0, want 1 to 4");
  check_contains(with([](auto& t) { t.dims = {2, 2, 2, 2, 2}; }), "got 5, want 1 to 4");
  check_contains(with([](auto& t) { t.dims = {4, 0}; }), "empty dimension: got [4, 0]");
  check_contains(with([](auto& t) { t.dims = {1ull << 32, 1ull << 32}; }), "impossibly large");
  check_contains(with([](auto& t) { t.dims = {1ull << 60}; }), "impossibly large");
  check_contains(with([](auto& t) { t.dims = {1000}; }), "past the end of the file");
  check_contains(with([](auto& t) { t.offset = 16; }), "not aligned: got offset 16, want a mult");
  check_contains(with([](auto& t) { t.offset = 0; }), "two tensors overlap");
  check_contains(with([](auto& t) { t.offset = 1ll << 40; }), "past the end of the file");
  check_contains(with([](auto& t) { t.offset = INT64_MAX - 31; }), "past the end of the file");
  check_contains(with([](auto& t) {
                   t.type = 12;
                   t.dims = {128, 2};
                 }),
                 "rows are not whole blocks: got Q4_K rows of 128, want a multiple of 256");
}

TEST(gguf_notes_an_unknown_type) {
  GgufBytes g = one_tensor();
  g.tensor("a").type = 99;
  const auto gguf = open_bytes(g.build());
  CHECK_EQUAL(gguf->find_tensor("a")->bytes, 0u);
  CHECK_EQUAL(gguf->find_tensor("a")->type_name(), "unknown type 99");
}

TEST(gguf_typed_access_says_what_stands_there) {
  GgufBytes g = one_tensor();
  g.set<int32_t>("negative", -5);
  g.set<uint32_t>("five", 5);
  g.set("float", 1.0f);
  g.set("nan", std::numeric_limits<float>::quiet_NaN());
  g.set("truth", true);
  g.set_array<int32_t>("array", {1, -1});
  const TempFolder folder;
  const auto gguf = Gguf::open(folder.write("test.gguf", g.build()));
  std::string text = MESSAGE_OF(Error, gguf->require_uint("absent", 1, 9));
  check_contains(text, "[gguf] metadata key absent is missing: got no such key, "
                       "want an integer from 1 to 9 (");
  check_contains(text, "test.gguf)");
  check_contains(MESSAGE_OF(Error, gguf->require_uint("negative", 0, 9)),
                 "metadata key negative is out of range: got INT32 -5, want an integer from 0 to");
  check_contains(MESSAGE_OF(Error, gguf->require_uint("five", 6, 9)), "got UINT32 5, want an");
  check_contains(MESSAGE_OF(Error, gguf->require_uint("five", 1, 4)), "got UINT32 5, want an");
  check_contains(MESSAGE_OF(Error, gguf->require_uint("float", 0, 9)),
                 "metadata key float has the wrong type: got FLOAT32 1, want an integer");
  check_contains(MESSAGE_OF(Error, gguf->require_uint("truth", 0, 9)), "got BOOL true");
  check_contains(MESSAGE_OF(Error, gguf->require_uint("array", 0, 9)), "got ARRAY of INT32 with 2");
  check_contains(MESSAGE_OF(Error, gguf->require_float("five")), "wrong type: got UINT32 5");
  check_contains(MESSAGE_OF(Error, gguf->require_float("nan")), "out of range: got FLOAT32");
  check_contains(MESSAGE_OF(Error, gguf->require_string("five")), "got UINT32 5, want a STRING");
  check_contains(MESSAGE_OF(Error, gguf->require_uint_array("five")), "want an array of integers");
  check_contains(MESSAGE_OF(Error, gguf->require_uint_array("array")), "got -1 in entry 1");
}

TEST(gguf_opens_a_header_alone_when_asked_to) {
  GgufBytes g = one_tensor();
  const TempFolder folder;
  for (const bool padded : {false, true}) {
    const std::string path =
        folder.write("head.gguf", padded ? g.build().substr(0, g.build().size() - 1) : g.header());
    const auto gguf = Gguf::open(path, Extent::kHeaderOnly);
    const TensorInfo& a = *gguf->find_tensor("a");
    CHECK(gguf->extent() == Extent::kHeaderOnly);
    CHECK(a.bytes > 0 && a.offset >= g.header().size());
    CHECK(gguf->data(a) == nullptr);
  }
  const std::string text = refusal(g.header());
  check_contains(text, "[gguf] the file is only a header, without the tensors' data: got " +
                           std::to_string(g.header().size()) + " bytes, want at least ");
  check_contains(text, "hint: esker plan --header plans with it; to run the model, fetch the w");
}

TEST(gguf_header_alone_is_as_strict_with_what_stands_in_it) {
  const TempFolder folder;
  const auto refused = [&](const GgufBytes& g, size_t cut) {
    const std::string header = g.header();
    const std::string path = folder.write("head.gguf", header.substr(0, header.size() - cut));
    return std::string(MESSAGE_OF(Error, Gguf::open(path, Extent::kHeaderOnly)));
  };
  GgufBytes g = one_tensor();
  check_contains(refused(g, 1), "the file ends inside its tensor table");
  g.tensor("a").offset = int64_t{1} << 50;
  check_contains(refused(g, 0), "a tensor reaches past the end of any file");
  g.tensor("a").offset = 16;
  check_contains(refused(g, 0), "not aligned: got offset 16");
}

TEST(gguf_believes_a_file_that_calls_itself_a_header) {
  GgufBytes g = one_tensor();
  g.set(kHeaderOnlyKey, true);
  check_contains(refusal(g.build()), "the file is only a header, without the tensors' data: got " +
                                         std::to_string(g.build().size()) +
                                         " bytes, esker.header_only, want at least ");
  g.set(kHeaderOnlyKey, false);
  CHECK(open_bytes(g.build())->find_tensor("a") != nullptr);
  g.set_string(kHeaderOnlyKey, "true");  // of another type: someone else's key
  CHECK(open_bytes(g.build())->find_tensor("a") != nullptr);
}
