// SPDX-License-Identifier: MIT
//
// Direct reads and read_exactly on real files: every kind of offset, length and address, refused
// direct reads, files that are cut, missing or no files, and what the page cache keeps.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <random>
#include <span>

#include "base/aligned_buffer.h"
#include "check.h"
#include "fault_file.h"
#include "io/file.h"

using namespace esker;
using namespace esker::test;

namespace {

// A folder of its own, gone with all it holds at the end.
class TempFolder {
 public:
  explicit TempFolder(const std::string& parent) {
    std::string name = parent + "/esker-test-XXXXXX";
    CHECK(mkdtemp(name.data()) != nullptr);
    path_ = name;
  }
  ~TempFolder() { std::filesystem::remove_all(path_); }
  TempFolder(const TempFolder&) = delete;
  TempFolder& operator=(const TempFolder&) = delete;

  std::string write(const std::string& name, const std::vector<uint8_t>& bytes) const {
    const std::string path = path_ + "/" + name;
    std::ofstream out(path, std::ios::binary);
    out.write(reinterpret_cast<const char*>(bytes.data()),
              static_cast<std::streamsize>(bytes.size()));
    CHECK(out.good());
    return path;
  }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

std::vector<std::string> parents() {
  std::vector<std::string> all = {std::filesystem::temp_directory_path().string()};
  if (std::filesystem::is_directory("/dev/shm")) all.push_back("/dev/shm");
  return all;
}

// Reads [offset, offset + n) to an address `skew` bytes past a page and compares.
void check_range(File& file, const std::vector<uint8_t>& bytes, uint64_t offset, size_t n,
                 size_t skew) {
  AlignedBuffer to(skew + n + 1, "a test");
  to.data()[skew + n] = 0xa5;
  read_exactly(file, to.data() + skew, n, offset);
  const auto want = std::span(bytes).subspan(offset, n);
  CHECK(std::ranges::equal(std::span(to.data() + skew, n), want));
  CHECK_EQUAL(to.data()[skew + n], 0xa5);
}

void check_file(File& file, const std::vector<uint8_t>& bytes) {
  const size_t size = bytes.size();
  CHECK_EQUAL(file.size_bytes(), size);
  check_range(file, bytes, 0, size, 0);
  check_range(file, bytes, 0, size, 1);
  if (size == 0) return;
  check_range(file, bytes, size - 1, 1, 0);
  for (const uint64_t at : {0u, 1u, 511u, 512u, 4095u, 4096u, 4097u, 8192u}) {
    if (at >= size) continue;
    for (const size_t n : {size_t{1}, size_t{4095}, size_t{4096}, size_t{12288}, size - at}) {
      check_range(file, bytes, at, std::min(n, size - at), at % 3);
    }
  }
  std::mt19937 random(static_cast<uint32_t>(size));
  for (int i = 0; i < 30; ++i) {
    const uint64_t at = random() % size;
    const size_t n = 1 + random() % (size - at);
    check_range(file, bytes, at, n, random() % 2 ? 0 : random() % 4096);
  }
}

}  // namespace

TEST(file_direct_any_offset_length_and_address) {
  for (const std::string& parent : parents()) {
    const TempFolder folder(parent);
    // Past the bounce buffer too, and never a multiple of a block but where it is one.
    for (const size_t size : {0u, 1u, 511u, 4095u, 4096u, 4097u, 70001u, 1u << 20, 3145999u}) {
      const auto bytes = pattern_bytes(size, size);
      const auto file = open_direct(folder.write("f", bytes));
      check_file(*file, bytes);
    }
  }
}

TEST(file_direct_many_threads_share_a_file) {
  const TempFolder folder(parents()[0]);
  const auto bytes = pattern_bytes(500001, 3);
  const auto file = open_direct(folder.write("f", bytes));
  std::atomic<int> failed{0};
  std::vector<std::thread> threads;
  for (uint32_t t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      std::mt19937 random(t);
      try {
        for (int i = 0; i < 50; ++i) {
          const uint64_t at = random() % bytes.size();
          check_range(*file, bytes, at, 1 + random() % (bytes.size() - at), t);
        }
      } catch (const std::exception&) {
        ++failed;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK_EQUAL(failed.load(), 0);
}

TEST(file_direct_at_and_after_the_end) {
  const TempFolder folder(parents()[0]);
  const auto bytes = pattern_bytes(10000, 4);
  const auto file = open_direct(folder.write("f", bytes));
  AlignedBuffer to(16384, "a test");
  CHECK_EQUAL(file->read_some(to.data(), 0, 5), 0);
  CHECK_EQUAL(file->read_some(to.data(), 10, 10000), 0);
  CHECK_EQUAL(file->read_some(to.data(), 4096, 12288), 0);
  CHECK_EQUAL(file->read_some(to.data(), 4096, 1 << 30), 0);
  CHECK_EQUAL(file->read_some(to.data() + 1, 4096, 9999), 1);
  CHECK_EQUAL(to.data()[1], bytes[9999]);
}

TEST(file_direct_refused_falls_back) {
  const TempFolder folder(parents()[0]);
  const auto bytes = pattern_bytes(300001, 5);
  const auto file = open_direct(folder.write("f", bytes));
  // An offset that no file system takes is refused as a misaligned one would be.
  uint8_t byte = 0;
  CHECK_EQUAL(file->read_some(&byte, 1, uint64_t{1} << 63), -EINVAL);
#ifdef __linux__
  CHECK(!file->is_direct());
  // Refuses the open already.
  const auto status = open_direct("/proc/self/status");
  CHECK(!status->is_direct());
  char text[6] = {};
  read_exactly(*status, text, 5, 0);
  CHECK_EQUAL(std::string(text), "Name:");
#endif
  check_file(*file, bytes);
}

#ifdef __linux__
TEST(file_direct_leaves_nothing_in_the_page_cache) {
  const TempFolder folder(parents()[0]);
  const auto bytes = pattern_bytes(size_t{1} << 20, 6);
  const std::string path = folder.write("f", bytes);
  const int fd = ::open(path.c_str(), O_RDONLY);
  CHECK(fd >= 0);
  const auto cached_pages = [&] {
    void* at = mmap(nullptr, bytes.size(), PROT_READ, MAP_SHARED, fd, 0);
    CHECK(at != MAP_FAILED);
    std::vector<unsigned char> in_core(bytes.size() / 4096);
    const int rc = mincore(at, bytes.size(), in_core.data());
    munmap(at, bytes.size());
    CHECK_EQUAL(rc, 0);
    return std::count_if(in_core.begin(), in_core.end(), [](unsigned char c) { return c & 1; });
  };
  CHECK_EQUAL(fsync(fd), 0);
  posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
  const auto file = open_direct(path);
  // A file system may keep all pages whatever it is told (tmpfs does): nothing to see there.
  if (cached_pages() == 0 && file->is_direct()) {
    check_range(*file, bytes, 0, bytes.size(), 0);
    check_range(*file, bytes, 1234, 500000, 7);
    CHECK_EQUAL(cached_pages(), 0);
    uint8_t byte = 0;
    file->read_some(&byte, 1, uint64_t{1} << 63);
    CHECK(!file->is_direct());
    check_range(*file, bytes, 1234, 500000, 7);
    CHECK_EQUAL(cached_pages(), 0);
  }
  ::close(fd);
}
#endif

TEST(file_direct_cut_while_open) {
  const TempFolder folder(parents()[0]);
  const auto bytes = pattern_bytes(20000, 7);
  const std::string path = folder.write("f", bytes);
  const auto file = open_direct(path);
  CHECK_EQUAL(truncate(path.c_str(), 5000), 0);
  AlignedBuffer to(16384, "a test");
  const Error error = error_of([&] { read_exactly(*file, to.data(), 10000, 1000); });
  CHECK(error.kind() == ErrorKind::kRead);
  const std::string text = error.what();
  CHECK(contains(text, "[io] the file ends too early: got 4000 bytes, want 10000 bytes"));
  CHECK(contains(text, path + ", offset 1000"));
  CHECK(contains(text, "hint: the file was cut"));
  check_range(*file, bytes, 1000, 4000, 0);
}

TEST(file_direct_cannot_open) {
  const TempFolder folder(parents()[0]);
  const Error missing = error_of([&] { open_direct(folder.path() + "/none"); });
  CHECK(missing.kind() == ErrorKind::kRead);
  CHECK(contains(missing.what(), "[io] cannot open the file: No such file or directory"));
  CHECK(contains(missing.what(), folder.path() + "/none"));
  CHECK(contains(missing.what(), "hint: "));
  CHECK(contains(error_of([&] { open_direct(folder.path()); }).what(), "not a regular file"));
  const std::string fifo = folder.path() + "/fifo";
  CHECK_EQUAL(mkfifo(fifo.c_str(), 0600), 0);
  CHECK(contains(error_of([&] { open_direct(fifo); }).what(), "cannot open the file"));
}

TEST(read_exactly_resumes_short_and_interrupted_reads) {
  FaultFile file(pattern_bytes(10000, 8));
  std::vector<uint8_t> to(9000);
  for (const size_t n_max : {1u, 7u, 4096u}) {
    file.set_hook(short_reads(n_max, 3));
    read_exactly(file, to.data(), to.size(), 1000);
    CHECK(std::memcmp(to.data(), file.bytes().data() + 1000, to.size()) == 0);
    std::fill(to.begin(), to.end(), uint8_t{0});
  }
  read_exactly(file, nullptr, 0, 20000);
}

TEST(read_exactly_retries_once) {
  FaultFile file(pattern_bytes(10000, 9));
  std::vector<uint8_t> to(9000);
  file.set_hook(fail_reads(0, 1, EIO));
  read_exactly(file, to.data(), to.size(), 1000);
  CHECK(std::memcmp(to.data(), file.bytes().data() + 1000, to.size()) == 0);

  file.set_hook([](FaultFile& f, FaultFile::Read read) -> int64_t {
    if (read.index > 0) return -EIO;
    read.n = 100;
    return f.serve(read);
  });
  const Error error = error_of([&] { read_exactly(file, to.data(), to.size(), 1000); });
  CHECK(error.kind() == ErrorKind::kRead);
  CHECK(contains(error.what(), "[io] cannot read the file: Input/output error: got 100 bytes, "
                               "want 9000 bytes (fault.bin, offset 1000)\nhint: "));
}

TEST(read_exactly_reports_a_cut_file) {
  FaultFile file(pattern_bytes(10000, 10));
  std::vector<uint8_t> to(9000);
  file.cut(3000);
  const Error error = error_of([&] { read_exactly(file, to.data(), to.size(), 1000); });
  CHECK(contains(error.what(), "ends too early: got 2000 bytes, want 9000 bytes"));
}
