// SPDX-License-Identifier: MIT
//
// Files that change under a Mapping. Truncation really raises SIGBUS here; the sanitizers let our
// handler stand (they allow others' handlers by default), so nothing is skipped under them.
#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <thread>

#include "base/error.h"
#include "check.h"
#include "gguf_bytes.h"
#include "io/file.h"

using esker::Error;
using esker::ErrorKind;
using esker::Mapping;
using esker::test::TempFolder;

namespace {

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

// Reads one byte in a way that the compiler cannot leave out.
uint8_t peek(const Mapping& mapping, uint64_t offset) {
  return *const_cast<const volatile uint8_t*>(mapping.data() + offset);
}

void set_modified(const std::string& path, int64_t seconds) {
  struct timespec times[2] = {};
  times[0].tv_sec = times[1].tv_sec = seconds;
  CHECK(utimensat(AT_FDCWD, path.c_str(), times, 0) == 0);
}

}  // namespace

TEST(mapping_shows_the_files_bytes) {
  const TempFolder folder;
  const std::string path = folder.write("a", "hello");
  const Mapping mapping(path);
  CHECK_EQUAL(mapping.size_bytes(), 5u);
  CHECK_EQUAL(mapping.path(), path);
  CHECK_EQUAL(std::string(reinterpret_cast<const char*>(mapping.data()), 5), "hello");
  mapping.check_unchanged();
}

TEST(mapping_of_an_empty_file_is_empty) {
  const TempFolder folder;
  const Mapping mapping(folder.write("a", ""));
  CHECK_EQUAL(mapping.size_bytes(), 0u);
  CHECK(mapping.data() == nullptr);
  mapping.check_unchanged();
}

TEST(mapping_names_a_path_that_cannot_be_opened) {
  const TempFolder folder;
  const std::string missing = folder.path("missing.gguf");
  std::string message = MESSAGE_OF(Error, Mapping{missing});
  CHECK(contains(message, "[io] cannot open the file: got No such file"));
  CHECK(contains(message, missing));
  message = MESSAGE_OF(Error, Mapping{folder.path("")});
  CHECK(contains(message, "a directory"));
  const std::string pipe = folder.path("pipe");
  CHECK(mkfifo(pipe.c_str(), 0600) == 0);
  message = MESSAGE_OF(Error, Mapping{pipe});
  CHECK(contains(message, "pipe"));
}

TEST(mapping_of_a_cut_file_reads_zeros_and_reports_it) {
  const TempFolder folder;
  const std::string path = folder.write("a", std::string(1 << 20, 'x'));
  const Mapping mapping(path);
  CHECK_EQUAL(peek(mapping, 700000), 'x');
  std::filesystem::resize_file(path, 100000);
  CHECK_EQUAL(peek(mapping, 700000), 0);
  CHECK_EQUAL(peek(mapping, 1000), 'x');
  const std::string message = MESSAGE_OF(Error, mapping.check_unchanged());
  CHECK(contains(message, "[io] the file was cut since it was opened"));
  CHECK(contains(message, "got 100000 bytes, want 1048576 bytes"));
  CHECK(contains(message, path));
}

TEST(mapping_remembers_a_loss_after_the_file_is_whole_again) {
  const TempFolder folder;
  const std::string path = folder.write("a", std::string(1 << 20, 'x'));
  set_modified(path, 1000000000);
  const Mapping mapping(path);
  std::filesystem::resize_file(path, 0);
  CHECK_EQUAL(peek(mapping, 4096), 0);
  std::filesystem::resize_file(path, 1 << 20);
  set_modified(path, 1000000000);
  CHECK(contains(MESSAGE_OF(Error, mapping.check_unchanged()), "could not be read"));
}

TEST(mapping_survives_a_cut_under_several_threads) {
  const TempFolder folder;
  const std::string path = folder.write("a", std::string(1 << 20, 'x'));
  const Mapping mapping(path);
  std::filesystem::resize_file(path, 0);
  std::vector<std::thread> threads;
  std::atomic<uint64_t> sum{0};
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (uint64_t at = 0; at < mapping.size_bytes(); at += 4096) sum += peek(mapping, at);
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK_EQUAL(sum.load(), 0u);
}

TEST(mapping_reports_a_replaced_file) {
  const TempFolder folder;
  const std::string path = folder.write("a", "first");
  const Mapping mapping(path);
  std::filesystem::rename(folder.write("b", "other"), path);
  CHECK(contains(MESSAGE_OF(Error, mapping.check_unchanged()), "replaced"));
  CHECK_EQUAL(peek(mapping, 0), 'f');
  std::filesystem::remove(path);
  CHECK(contains(MESSAGE_OF(Error, mapping.check_unchanged()), "gone"));
}

TEST(mapping_reports_a_rewritten_file) {
  const TempFolder folder;
  const std::string path = folder.write("a", "first");
  set_modified(path, 1000000000);
  const Mapping mapping(path);
  mapping.check_unchanged();
  folder.write("a", "other");
  CHECK(contains(MESSAGE_OF(Error, mapping.check_unchanged()), "rewritten"));
  folder.write("a", "longer than before");
  CHECK(contains(MESSAGE_OF(Error, mapping.check_unchanged()), "grown"));
}

TEST(mapping_errors_are_read_errors) {
  try {
    const Mapping mapping("/nonexistent");
  } catch (const Error& error) {
    CHECK(error.kind() == ErrorKind::kRead);
    return;
  }
  CHECK(false);
}

// Whoever handled SIGBUS before keeps the faults that are not ours. In a child process, since the
// fault is meant to end it.
TEST(mapping_passes_other_faults_on) {
  const TempFolder folder;
  const std::string path = folder.write("a", std::string(1 << 16, 'x'));
  { const Mapping mapping(path); }  // installs the handler; its range is no longer ours
  const pid_t child = fork();
  CHECK(child >= 0);
  if (child == 0) {
    const int quiet = open("/dev/null", O_WRONLY);
    dup2(quiet, STDERR_FILENO);  // a sanitizer would describe the crash at length
    const int fd = open(path.c_str(), O_RDWR);
    void* memory = mmap(nullptr, 1 << 16, PROT_READ, MAP_SHARED, fd, 0);
    if (memory == MAP_FAILED || ftruncate(fd, 0) != 0) _exit(0);
    (void)*static_cast<const volatile uint8_t*>(memory);
    _exit(0);
  }
  int status = 0;
  CHECK(waitpid(child, &status, 0) == child);
  // The default action is death by the signal; a sanitizer reports and exits with its own code.
  CHECK(WIFSIGNALED(status) ? WTERMSIG(status) == SIGBUS || WTERMSIG(status) == SIGABRT
                            : WEXITSTATUS(status) != 0);
}
