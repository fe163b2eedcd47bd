// Every tensor file that Assay reads or writes: golden vectors, traces, captures. Decides which
// files are accepted (SPEC COR-2.3: what the format's reference implementation accepts, minus what
// two readers could understand differently) and how ours are laid out. What the tensors mean is
// decided by the schema in the file's metadata, by those who read them.
//
//   ASSAY_TRY(const TensorFile file, TensorFile::open("trace.safetensors"));
//   ASSAY_CHECK(file.schema_version("assay.trace", 1));
//   ASSAY_TRY(const TensorView ids, file.tensor("topk_ids"));
//   ASSAY_CHECK(ids.expect({Dtype::kI16}, {{"tokens"}, {"layers", 24}, {"top_k"}}));
//   ASSAY_TRY(const auto id, ids.as<std::int16_t>());   // id[i], i in row-major order
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "model/core/dtype.hpp"
#include "model/core/expected.hpp"
#include "model/core/mapped_file.hpp"

namespace assay {

static_assert(std::endian::native == std::endian::little,
              "tensor files are little-endian and are read in place");

using Shape = std::vector<std::uint64_t>;
std::string shape_text(const Shape& shape);  // "[30, 64, 16]"

// The elements of a tensor, read one at a time. Files need not align tensors to their element size,
// so this is not a span: operator[] copies, which costs nothing where the address is aligned.
template <class T>
class Elements {
 public:
  explicit Elements(std::span<const std::byte> bytes) : bytes_(bytes) {}
  std::size_t size() const { return bytes_.size() / sizeof(T); }
  T operator[](std::size_t index) const {
    T value;
    std::memcpy(&value, bytes_.data() + index * sizeof(T), sizeof(T));
    return value;
  }
  std::vector<T> copy() const {
    std::vector<T> values(size());
    if (!values.empty()) std::memcpy(values.data(), bytes_.data(), values.size() * sizeof(T));
    return values;
  }

 private:
  std::span<const std::byte> bytes_;
};

// One axis of an expected shape. Without a size, any size will do.
struct Axis {
  const char* name;
  std::optional<std::uint64_t> size = std::nullopt;
};

// A tensor inside an open TensorFile, row-major. Valid while the file is.
struct TensorView {
  std::string_view name;
  Dtype dtype = Dtype::kU8;
  Shape shape;
  std::span<const std::byte> bytes;

  std::uint64_t num_elements() const { return bytes.size() * 8 / dtype_bits(dtype); }

  // Error unless the dtype is one of `dtypes` and the shape has exactly these axes.
  Status expect(std::initializer_list<Dtype> dtypes, std::initializer_list<Axis> axes) const;

  // The elements as T. Error unless the tensor's dtype is `expected`, whose elements are as wide as
  // T.
  template <class T>
  Expected<Elements<T>> as(Dtype expected = dtype_of<T>()) const {
    CONTRACT(dtype_bits(expected) == 8 * sizeof(T), dtype_name(expected), sizeof(T));
    if (dtype != expected) return wrong_dtype({expected});
    return Elements<T>(bytes);
  }

 private:
  Error wrong_dtype(std::initializer_list<Dtype> expected) const;
};

// An open tensor file. Opening reads and checks the header only; data is mapped.
class TensorFile {
 public:
  // Errors: those of MappedFile::open, and one sentence per way a file can be malformed (COR-2.3).
  static Expected<TensorFile> open(const std::string& path);

  const std::string& path() const { return path_; }
  // In the order of their data in the file.
  const std::vector<TensorView>& tensors() const { return tensors_; }
  bool has(std::string_view name) const { return by_name_.find(name) != by_name_.end(); }
  // Error, with the names there are, when the file has no such tensor.
  Expected<TensorView> tensor(std::string_view name) const;

  // The value of a metadata key, if present; require_metadata makes absence an error.
  std::optional<std::string> metadata(std::string_view key) const;
  Expected<std::string> require_metadata(std::string_view key) const;
  const std::map<std::string, std::string, std::less<>>& metadata() const { return metadata_; }

  // Refuses a file whose metadata does not say schema=`schema` and version=1..`version_max`;
  // returns the version (SPEC COR-2.5).
  Expected<std::uint32_t> schema_version(std::string_view schema, std::uint32_t version_max) const;

 private:
  std::string path_;
  MappedFile file_;
  std::vector<TensorView> tensors_;
  std::map<std::string, std::size_t, std::less<>> by_name_;
  std::map<std::string, std::string, std::less<>> metadata_;
};

// Collects tensors and writes them as one file. Equal content gives equal bytes, whatever the order
// of the calls: tensors are laid out by descending element width, then name, so that each is
// aligned to its element (SPEC COR-2.4).
class TensorFileWriter {
 public:
  // `bytes` is not copied: it must live until write() returns.
  void add(std::string name, Dtype dtype, Shape shape, std::span<const std::byte> bytes);
  template <class T>
  void add(std::string name, Shape shape, std::span<const T> values) {
    add(std::move(name), dtype_of<T>(), std::move(shape), std::as_bytes(values));
  }
  void set_metadata(std::string key, std::string value);
  void set_schema(std::string_view schema, std::uint32_t version);

  // Writes as write_file() does. Errors: its errors, and every content that TensorFile::open would
  // refuse (two tensors of one name, bytes that do not fit dtype and shape, names not in UTF-8).
  Status write(const std::string& path) const;

 private:
  struct Entry {
    std::string name;
    Dtype dtype;
    Shape shape;
    std::span<const std::byte> bytes;
  };
  std::vector<Entry> entries_;
  std::map<std::string, std::string> metadata_;
};

}  // namespace assay
