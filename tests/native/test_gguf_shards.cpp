// SPDX-License-Identifier: MIT
//
// A model in several files: found from any of them, and refused when they do not belong together.
#include "base/error.h"
#include "check.h"
#include "formats/gguf.h"
#include "gguf_bytes.h"

using namespace esker;
using esker::test::GgufBytes;
using esker::test::TempFolder;

using esker::test::check_contains;

namespace {

std::string shard_name(size_t number, size_t count) {
  char name[64];
  std::snprintf(name, sizeof name, "m-%05zu-of-%05zu.gguf", number, count);
  return name;
}

// Three shards as llama-gguf-split writes them: tensors a and b, c, d.
std::vector<GgufBytes> three_shards() {
  std::vector<GgufBytes> shards(3);
  shards[0].set_string("general.architecture", "some");
  for (uint16_t i = 0; i < 3; ++i) {
    shards[i].set<uint16_t>("split.no", i);
    shards[i].set<uint16_t>("split.count", 3);
    shards[i].set<int32_t>("split.tensors.count", 4);
  }
  shards[0].add("a", {4});
  shards[0].add("b", {5});
  shards[1].add("c", {6});
  shards[2].add("d", {7});
  return shards;
}

void write_shards(const TempFolder& folder, const std::vector<GgufBytes>& shards) {
  for (size_t i = 0; i < shards.size(); ++i) {
    folder.write(shard_name(i + 1, shards.size()), shards[i].build());
  }
}

std::string refusal(const TempFolder& folder, size_t opened) {
  try {
    Gguf::open(folder.path(shard_name(opened, 3)));
  } catch (const Error& error) {
    CHECK(error.kind() == ErrorKind::kFormat);
    return error.what();
  }
  return "nothing was thrown";
}

}  // namespace

TEST(shards_are_found_from_any_of_them) {
  const TempFolder folder;
  write_shards(folder, three_shards());
  for (size_t opened = 1; opened <= 3; ++opened) {
    const auto gguf = Gguf::open(folder.path(shard_name(opened, 3)));
    CHECK_EQUAL(gguf->files().size(), 3u);
    CHECK_EQUAL(gguf->path(), folder.path(shard_name(1, 3)));
    CHECK_EQUAL(gguf->tensors().size(), 4u);
    CHECK_EQUAL(gguf->find_tensor("d")->file, 2u);
    CHECK_EQUAL(gguf->find_tensor("d")->bytes, 28u);
    CHECK(gguf->data(*gguf->find_tensor("c")) >= gguf->files()[1]->data());
    CHECK_EQUAL(gguf->require_string("general.architecture"), "some");
  }
}

TEST(a_single_shard_may_have_any_name) {
  const TempFolder folder;
  GgufBytes g = three_shards()[0];
  g.set<uint16_t>("split.count", 1);
  g.set<int32_t>("split.tensors.count", 2);
  CHECK_EQUAL(Gguf::open(folder.write("renamed.gguf", g.build()))->tensors().size(), 2u);
  g.set<int32_t>("split.tensors.count", 3);
  check_contains(MESSAGE_OF(Error, Gguf::open(folder.write("renamed.gguf", g.build()))),
                 "the shards do not make up the model: got 2 tensors, want 3");
}

TEST(a_renamed_shard_is_refused) {
  const TempFolder folder;
  const std::string path = folder.write("renamed.gguf", three_shards()[1].build());
  check_contains(MESSAGE_OF(Error, Gguf::open(path)),
                 "does not lead to the others: got renamed.gguf, want NAME-00002-of-00003.gguf");
}

TEST(missing_shards_are_named) {
  const TempFolder folder;
  write_shards(folder, three_shards());
  std::filesystem::remove(folder.path(shard_name(2, 3)));
  check_contains(refusal(folder, 1), "shards of the model are missing: m-00002-of-00003.gguf: got "
                                     "2 shards, want 3 shards");
  std::filesystem::remove(folder.path(shard_name(1, 3)));
  check_contains(refusal(folder, 3), "missing: m-00001-of-00003.gguf, m-00002-of-00003.gguf");
}

TEST(an_empty_shard_is_named) {
  const TempFolder folder;
  write_shards(folder, three_shards());
  folder.write(shard_name(2, 3), "");
  const std::string text = refusal(folder, 1);
  check_contains(text, "the file is empty");
  check_contains(text, shard_name(2, 3));
}

TEST(swapped_shards_are_refused) {
  const TempFolder folder;
  std::vector<GgufBytes> shards = three_shards();
  std::swap(shards[1], shards[2]);
  write_shards(folder, shards);
  for (size_t opened = 1; opened <= 3; ++opened) {
    check_contains(refusal(folder, opened), "a shard's name and content disagree: got m-0000");
  }
}

TEST(foreign_shards_are_refused) {
  const auto with = [](auto spoil) {
    const TempFolder folder;
    std::vector<GgufBytes> shards = three_shards();
    spoil(shards[1]);
    write_shards(folder, shards);
    const std::string text = refusal(folder, 1);
    check_contains(text, shard_name(2, 3));
    return text;
  };
  check_contains(with([](auto& g) { g.template set<uint16_t>("split.count", 4); }),
                 "belongs to another model: got split.count 4, want split.count 3");
  check_contains(with([](auto& g) { g.template set<int32_t>("split.tensors.count", 9); }),
                 "belongs to another model: got split.tensors.count INT32 9, want INT32 4");
  check_contains(with([](auto& g) { g.set_string("general.architecture", "other"); }),
                 "got general.architecture STRING \"other\", want STRING \"some\"");
  check_contains(with([](auto& g) { g.tensors[0].name = "a"; }),
                 "a tensor stands twice: a: got a second one in m-00002-of-00003.gguf");
  const TempFolder folder;
  std::vector<GgufBytes> shards = three_shards();
  shards[1].add("e", {1});
  write_shards(folder, shards);
  check_contains(refusal(folder, 1), "got 5 tensors in 3 shards, want 4 (split.tensors.count)");
}

TEST(spoilt_split_keys_are_refused) {
  const TempFolder folder;
  std::vector<GgufBytes> shards = three_shards();
  shards[0].set<uint16_t>("split.no", 7);
  write_shards(folder, shards);
  check_contains(refusal(folder, 1), "split.no is out of range: got 7, want less than split.count");
  shards[0].set<int32_t>("split.no", -1);
  write_shards(folder, shards);
  check_contains(refusal(folder, 1), "metadata key split.no is out of range: got INT32 -1");
  shards[0].set<uint32_t>("split.count", ~0u);
  write_shards(folder, shards);
  check_contains(refusal(folder, 1), "metadata key split.count is out of range: got UINT32");
}
