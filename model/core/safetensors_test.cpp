// Tensor files: what is written is read back, and every malformed header has its own sentence.
#include "model/core/safetensors.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "model/core/safetensors_header.hpp"
#include "model/core/testing.hpp"
#include "model/core/testing_files.hpp"

using namespace assay;
using assay::testing::TempDir;

namespace {

std::string with_length(const std::string& json, const std::string& data) {
  std::uint64_t length = json.size();
  std::string bytes(sizeof(length), '\0');
  std::memcpy(bytes.data(), &length, sizeof(length));
  return bytes + json + data;
}

Expected<TensorHeader> parse(const std::string& bytes) {
  return parse_tensor_file(std::as_bytes(std::span(bytes.data(), bytes.size())));
}

// The sentence that refuses `json` followed by `data_bytes` bytes of data; "" when it is accepted.
std::string refusal(const std::string& json, std::size_t data_bytes = 0) {
  const auto parsed = parse(with_length(json, std::string(data_bytes, 'x')));
  return parsed ? "" : parsed.error().sentence;
}

std::string tensor(const std::string& name, const std::string& fields) {
  return fmt::format("\"{}\":{{{}}}", name, fields);
}
std::string tensor(const std::string& name, const std::string& dtype, const std::string& shape,
                   const std::string& offsets) {
  return tensor(
      name, fmt::format("\"dtype\":{},\"shape\":{},\"data_offsets\":{}", dtype, shape, offsets));
}
std::string object(const std::string& fields) { return fmt::format("{{{}}}", fields); }
std::string one(const std::string& dtype, const std::string& shape, const std::string& offsets) {
  return object(tensor("x", dtype, shape, offsets));
}

struct Made {  // a tensor of a random file
  std::string name;
  Dtype dtype;
  Shape shape;
  std::vector<std::byte> bytes;
};

// Random names (any UTF-8 that RapidCheck's ASCII and a few escapes give), dtypes and small shapes.
std::vector<Made> random_tensors() {
  std::vector<Made> made;
  const int count = *rc::gen::inRange(0, 6);
  for (int i = 0; i < count; ++i) {
    Made tensor;
    tensor.name =
        std::to_string(i) + *rc::gen::element<std::string>("", "\"\\", "\n\x01", "äß€", "a.b/c");
    tensor.dtype = *rc::gen::elementOf(std::vector<Dtype>(std::begin(kDtypes), std::end(kDtypes)));
    tensor.shape = *rc::gen::container<Shape>(3, rc::gen::inRange<std::uint64_t>(0, 5));
    tensor.shape.resize(*rc::gen::inRange<std::size_t>(0, 4), 1);
    tensor.shape.push_back(4);  // four elements of any dtype fill whole bytes
    std::uint64_t bits = dtype_bits(tensor.dtype);
    for (const std::uint64_t extent : tensor.shape) bits *= extent;
    for (std::uint64_t b = 0; b < bits / 8; ++b) {
      tensor.bytes.push_back(static_cast<std::byte>(*rc::gen::arbitrary<std::uint8_t>()));
    }
    made.push_back(std::move(tensor));
  }
  return made;
}

Status write_all(const std::vector<Made>& made, const std::string& path) {
  TensorFileWriter writer;
  for (const Made& tensor : made) writer.add(tensor.name, tensor.dtype, tensor.shape, tensor.bytes);
  writer.set_schema("assay.test", 3);
  return writer.write(path);
}

}  // namespace

TEST_CASE("the format's dtypes are known by name and size", "[COR-2.2]") {
  REQUIRE(std::size(kDtypes) == 22);
  for (const Dtype dtype : kDtypes) {
    REQUIRE(dtype_named(dtype_name(dtype)) == dtype);
    const std::string name(dtype_name(dtype));
    // Every name but BOOL carries its width: F8_E4M3 is 8 bits, BF16 is 16.
    if (name != "BOOL") {
      REQUIRE(std::stoul(name.substr(name.find_first_of("0123456789"))) == dtype_bits(dtype));
    }
  }
  REQUIRE(dtype_bits(Dtype::kBool) == 8);
  REQUIRE(!dtype_named("bf16"));
  REQUIRE(!dtype_named("F8_E4M3X"));
}

TEST_CASE("a written file is read back in every bit, whatever the dtypes", "[COR-2.2][COR-2.4]") {
  const TempDir directory;
  testing::prop("write, open, compare", [&] {
    const std::vector<Made> made = random_tensors();
    const std::string path = directory.file("t.safetensors");
    RC_ASSERT(write_all(made, path).has_value());
    const auto file = TensorFile::open(path);
    RC_ASSERT(file.has_value());
    RC_ASSERT(file->tensors().size() == made.size());
    for (const Made& tensor : made) {
      const auto view = file->tensor(tensor.name);
      RC_ASSERT(view.has_value());
      RC_ASSERT(view->dtype == tensor.dtype);
      RC_ASSERT(view->shape == tensor.shape);
      RC_ASSERT(std::equal(view->bytes.begin(), view->bytes.end(), tensor.bytes.begin(),
                           tensor.bytes.end()));
      // Aligned to the element, for those who copy rows with wide loads.
      const auto address = reinterpret_cast<std::uintptr_t>(view->bytes.data());
      RC_ASSERT(address % std::max(1u, dtype_bits(tensor.dtype) / 8) == 0);
    }
    RC_ASSERT(*file->metadata("schema") == "assay.test");
  });
}

TEST_CASE("equal content gives equal bytes in any order of add", "[COR-2.4]") {
  const TempDir directory;
  testing::prop("shuffled", [&] {
    std::vector<Made> made = random_tensors();
    RC_ASSERT(write_all(made, directory.file("a")).has_value());
    std::reverse(made.begin(), made.end());
    RC_ASSERT(write_all(made, directory.file("b")).has_value());
    RC_ASSERT(testing::read_bytes(directory.file("a")) == testing::read_bytes(directory.file("b")));
  });
}

TEST_CASE("no mutation of a valid file crashes the reader", "[COR-2.3]") {
  const TempDir directory;
  const std::string path = directory.file("t.safetensors");
  int refused = 0, accepted = 0;
  testing::prop("flip, cut, insert", [&] {
    RC_ASSERT(write_all(random_tensors(), path).has_value());
    std::string bytes = testing::read_bytes(path);
    const int edits = *rc::gen::inRange(1, 4);
    for (int i = 0; i < edits && !bytes.empty(); ++i) {
      const std::size_t at = *rc::gen::inRange<std::size_t>(0, bytes.size());
      switch (*rc::gen::inRange(0, 5)) {
        case 0:
          bytes[at] = *rc::gen::arbitrary<char>();
          break;
        case 1:
          bytes[at] = *rc::gen::elementOf(std::string("{}[]\",:0-19.e\\"));
          break;
        case 2:
          bytes.resize(at);
          break;
        case 3:
          bytes.insert(at, bytes.substr(at, *rc::gen::inRange<std::size_t>(0, 20)));
          break;
        default:
          bytes.erase(at, *rc::gen::inRange<std::size_t>(0, 20));
          break;
      }
    }
    testing::write_bytes(path, bytes);
    const auto file = TensorFile::open(path);
    ++(file ? accepted : refused);
    if (!file) {
      RC_ASSERT(file.error().sentence.starts_with(path + ": "));
      RC_ASSERT(file.error().sentence.size() < 1000u);
      RC_ASSERT(std::none_of(file.error().sentence.begin(), file.error().sentence.end(),
                             [](unsigned char c) { return c < 0x20; }));
      return;
    }
    // What is accepted can be read to its last byte (under ASan this is the check).
    std::size_t covered = 0;
    unsigned sum = 0;
    for (const TensorView& view : file->tensors()) {
      covered += view.bytes.size();
      for (const std::byte byte : view.bytes) sum += static_cast<unsigned>(byte);
    }
    RC_ASSERT(covered <= bytes.size());
    RC_ASSERT(sum <= 255u * covered);
  });
  REQUIRE(refused > 20);
  REQUIRE(accepted > 0);
}

TEST_CASE("a valid file cut anywhere is refused", "[COR-2.3]") {
  const std::string bytes = with_length(object(tensor("x", "\"U8\"", "[5]", "[0,5]")), "abcde");
  REQUIRE(parse(bytes));
  for (std::size_t size = 0; size < bytes.size(); ++size) REQUIRE(!parse(bytes.substr(0, size)));
  REQUIRE(!parse(bytes + "f"));
}

TEST_CASE("what the format allows is accepted", "[COR-2.3]") {
  REQUIRE(refusal("{}") == "");
  REQUIRE(refusal("{}   ") == "");
  REQUIRE(refusal(one("\"F32\"", "[]", "[0,4]"), 4) == "");
  REQUIRE(refusal(one("\"F32\"", "[3,0,5]", "[0,0]"), 0) == "");
  REQUIRE(refusal(one("\"F4\"", "[2,3]", "[0,3]"), 3) == "");
  REQUIRE(refusal(one("\"F6_E2M3\"", "[4]", "[0,3]"), 3) == "");
  REQUIRE(refusal(object("\"__metadata__\":{}," + tensor("x", "\"U8\"", "[1]", "[0,1]")), 1) == "");
  // Empty tensors anywhere between others, and tensors in any order of offsets.
  REQUIRE(refusal(object(tensor("b", "\"U8\"", "[2]", "[1,3]") + "," +
                         tensor("e", "\"U8\"", "[0]", "[1,1]") + "," +
                         tensor("a", "\"U8\"", "[1]", "[0,1]")),
                  3) == "");
}

TEST_CASE("every malformed header has a sentence with the tensor and its values", "[COR-2.3]") {
  const auto two = [](const std::string& a, const std::string& b) {
    return object(tensor("a", "\"U8\"", "[8]", a) + "," + tensor("b", "\"U8\"", "[8]", b));
  };
  const std::string u8 = "\"U8\"";
  // Offsets.
  CHECK(refusal(two("[0,8]", "[4,12]"), 12) ==
        "tensor \"b\" at bytes [4, 12] overlaps tensor \"a\" at bytes [0, 8]");
  CHECK(refusal(two("[0,8]", "[0,8]"), 8) ==
        "tensor \"b\" at bytes [0, 8] overlaps tensor \"a\" at bytes [0, 8]");
  CHECK(refusal(two("[0,8]", "[10,18]"), 18) ==
        "bytes 8 to 10 before tensor \"b\" belong to no tensor");
  CHECK(refusal(two("[0,8]", "[8,16]"), 20) ==
        "the last 4 of 20 bytes of data belong to no tensor");
  CHECK(refusal(two("[0,8]", "[8,16]"), 15) ==
        "tensor \"b\": data_offsets [8, 16] end beyond the 15 bytes of data in the file: it is "
        "truncated, or the offsets are wrong");
  CHECK(refusal(one(u8, "[0]", "[8,0]"), 8) ==
        "tensor \"x\": data_offsets [8, 0] end before they begin");
  CHECK(refusal(one(u8, "[18446744073709551615]", "[0,18446744073709551615]"), 8) ==
        "tensor \"x\": shape [18446744073709551615] of U8 has more than 2^64-1 bits");
  CHECK(refusal(one(u8, "[1]", "[18446744073709551615,0]"), 8) ==
        "tensor \"x\": data_offsets [18446744073709551615, 0] end before they begin");
  CHECK(refusal(one(u8, "[1]", "[0]"), 1) ==
        "tensor \"x\": data_offsets has 1 entries; allowed are 2 (begin, end)");
  CHECK(refusal(one(u8, "[1]", "[0,1,2]"), 1) ==
        "tensor \"x\": data_offsets has 3 entries; allowed are 2 (begin, end)");
  CHECK(refusal(one(u8, "[1]", "[-1,0]"), 1) ==
        "tensor \"x\": data_offsets[0] is -1; allowed are integers from 0 to 2^64-1");
  CHECK(refusal(one(u8, "[1]", "{}"), 1) ==
        "tensor \"x\": data_offsets is an object; allowed is an array of integers");
  // Shapes.
  CHECK(refusal(one(u8, "[2,-3]", "[0,6]"), 6) ==
        "tensor \"x\": shape[1] is -3; allowed are integers from 0 to 2^64-1");
  CHECK(refusal(one(u8, "[-0]", "[0,0]")) ==
        "tensor \"x\": shape[0] is -0; allowed are integers from 0 to 2^64-1");
  CHECK(refusal(one(u8, "[1.5]", "[0,1]"), 1) ==
        "tensor \"x\": shape[0] is 1.5; allowed are integers from 0 to 2^64-1");
  CHECK(refusal(one(u8, "[1e2]", "[0,100]"), 100) ==
        "tensor \"x\": shape[0] is 1e2; allowed are integers from 0 to 2^64-1");
  CHECK(refusal(one(u8, "[18446744073709551616]", "[0,1]"), 1) ==
        "tensor \"x\": shape[0] is 18446744073709551616; allowed are integers from 0 to 2^64-1");
  CHECK(refusal(one(u8, "[4294967296,4294967296]", "[0,0]")) ==
        "tensor \"x\": shape [4294967296, 4294967296] of U8 has more than 2^64-1 bits");
  CHECK(refusal(one(u8, "[[1]]", "[0,1]"), 1) ==
        "tensor \"x\": shape[0] is an array; allowed are integers from 0 to 2^64-1");
  CHECK(refusal(one(u8, "4", "[0,4]"), 4) ==
        "tensor \"x\": shape is 4; allowed is an array of integers");
  CHECK(refusal(one("\"F32\"", "[2,3]", "[0,12]"), 12) ==
        "tensor \"x\": data_offsets [0, 12] span 12 bytes, but shape [2, 3] of F32 needs 24");
  CHECK(refusal(one("\"F4\"", "[3]", "[0,2]"), 2) ==
        "tensor \"x\": shape [3] of F4 is 12 bits, not a whole number of bytes");
  std::string ones = "1";
  for (std::size_t i = 0; i < kTensorAxesMax; ++i) ones += ",1";
  CHECK(refusal(one(u8, "[" + ones + "]", "[0,1]"), 1) ==
        "tensor \"x\": shape has more than 64 axes");
  // Names, keys and dtypes.
  CHECK(refusal(object(tensor("x", u8, "[1]", "[0,1]") + "," + tensor("x", u8, "[1]", "[1,2]")),
                2) == "tensor \"x\" appears twice");
  CHECK(refusal(object(tensor("x", "\"dtype\":\"U8\",\"dtype\":\"I8\""))) ==
        "tensor \"x\": dtype appears twice");
  CHECK(refusal(object(tensor("x", "\"dtype\":\"U8\",\"shape\":[0]"))) ==
        "tensor \"x\" has no data_offsets");
  CHECK(refusal(object(tensor("x", "\"type\":\"U8\""))) ==
        "tensor \"x\": key \"type\" is unknown; allowed are dtype, shape, data_offsets");
  CHECK(refusal(one("\"FP8\"", "[0]", "[0,0]"))
            .starts_with("tensor \"x\": dtype \"FP8\" is unknown; allowed are BOOL, F4, "));
  CHECK(refusal(one("7", "[0]", "[0,0]")) == "tensor \"x\": dtype is 7; allowed is a string");
  CHECK(refusal("{\"x\":[]}") ==
        "tensor \"x\" is an array; allowed is an object with dtype, shape and data_offsets");
  CHECK(refusal("{\"a\\u001b[2J\":null}") ==
        "tensor \"a\\x1b[2J\" is null; allowed is an object with dtype, shape and data_offsets");
  // Metadata.
  CHECK(refusal("{\"__metadata__\":{\"a\":1}}") == "metadata key \"a\" is 1; allowed are strings");
  CHECK(refusal("{\"__metadata__\":{\"a\":\"1\",\"a\":\"2\"}}") ==
        "metadata key \"a\" appears twice");
  CHECK(refusal("{\"__metadata__\":{},\"__metadata__\":{}}") == "__metadata__ appears twice");
  CHECK(refusal("{\"__metadata__\":true}") ==
        "__metadata__ is true; allowed is an object of strings");
  // Not the JSON it should be.
  CHECK(refusal("") == "header begins with nothing; allowed is {");
  CHECK(refusal("[]") == "header begins with \"[\"; allowed is {");
  CHECK(refusal(" {}") == "header begins with \" \"; allowed is {");
  CHECK(refusal("{").starts_with("header is not JSON at its byte 1: "));
  CHECK(refusal("{} {}").starts_with("header is not JSON at its byte 3: "));
  CHECK(refusal("{\"a\xff\":1}") == "header is not UTF-8 at its byte 3 (0xff)");
  CHECK(refusal("{\"\xed\xa0\x80\":1}") == "header is not UTF-8 at its byte 2 (0xed)");
  CHECK(refusal("{\"\\ud800\":1}").starts_with("header is not JSON at its byte "));
  CHECK(refusal(std::string("{}\0{\"x\":1}", 10)) == "header has a zero byte at its byte 2");
  CHECK(refusal("{\"x\":" + std::string(1'000'000, '[')) ==
        "tensor \"x\" is an array; allowed is an object with dtype, shape and data_offsets");
  std::string nested;
  for (int i = 0; i < 100'000; ++i) nested += "{\"x\":";
  CHECK(refusal(nested) ==
        "tensor \"x\": key \"x\" is unknown; allowed are dtype, shape, "
        "data_offsets");
}

TEST_CASE("the header length is limited and must fit the file", "[COR-2.3]") {
  const auto length_only = [](std::uint64_t length) {
    std::string bytes(8, '\0');
    std::memcpy(bytes.data(), &length, 8);
    return parse(bytes + "{}").error().sentence;
  };
  CHECK(length_only(100'000'001) ==
        "header length is 100000001 bytes; allowed are at most 100000000");
  CHECK(length_only(~std::uint64_t{0}) ==
        "header length is 18446744073709551615 bytes; allowed are at most 100000000");
  CHECK(length_only(100'000'000) ==
        "header length is 100000000 bytes, but only 2 follow: the file is truncated");
  CHECK(parse("1234567").error().sentence ==
        "file has 7 bytes; a tensor file begins with 8 bytes of header length");
}

TEST_CASE("the writer refuses what the reader would refuse", "[COR-2.4]") {
  const TempDir directory;
  const std::string path = directory.file("t");
  const std::array<std::byte, 4> bytes{};
  const auto refused = [&](auto fill) {
    TensorFileWriter writer;
    fill(writer);
    const Status status = writer.write(path);
    CHECK(!std::filesystem::exists(path));
    return status ? std::string() : status.error().sentence;
  };
  CHECK(refused([&](TensorFileWriter& w) {
          w.add("x", Dtype::kU8, {4}, bytes);
          w.add("x", Dtype::kU8, {4}, bytes);
        }) == path + ": tensor \"x\" appears twice");
  CHECK(refused([&](TensorFileWriter& w) { w.add("x", Dtype::kF32, {4}, bytes); }) ==
        path + ": tensor \"x\": data_offsets [0, 4] span 4 bytes, but shape [4] of F32 needs 16");
  CHECK(refused([&](TensorFileWriter& w) { w.add("\xff", Dtype::kU8, {4}, bytes); }) ==
        "tensor name \"\\xff\" is not UTF-8");
  CHECK(refused([&](TensorFileWriter& w) { w.add("__metadata__", Dtype::kU8, {4}, bytes); }) ==
        "a tensor may not be named __metadata__");
}

TEST_CASE("lookups say what there is", "[COR-1.2][COR-2.5]") {
  const TempDir directory;
  const std::string path = directory.file("t");
  const std::array<std::int16_t, 6> ids{1, 2, 3, 4, 5, -6};
  TensorFileWriter writer;
  writer.add("ids", {2, 3}, std::span<const std::int16_t>(ids));
  writer.set_schema("assay.trace", 2);
  REQUIRE(writer.write(path));
  const TensorFile file = *TensorFile::open(path);

  const TensorView view = *file.tensor("ids");
  REQUIRE(view.num_elements() == 6);
  const auto elements = *view.as<std::int16_t>();
  REQUIRE(elements[5] == -6);
  REQUIRE(elements.copy() == std::vector<std::int16_t>(ids.begin(), ids.end()));
  CHECK(view.as<float>().error().sentence == "tensor \"ids\" has dtype I16; allowed is F32");
  CHECK(file.tensor("id").error().sentence == path + ": no tensor \"id\"; the file has \"ids\"");
  CHECK(view.expect({Dtype::kI16}, {{"tokens"}, {"top_k", 3}}));
  CHECK(view.expect({Dtype::kI32, Dtype::kI64}, {{"tokens"}, {"top_k"}}).error().sentence ==
        "tensor \"ids\" has dtype I16; allowed is I32 or I64");
  CHECK(view.expect({Dtype::kI16}, {{"tokens"}, {"top_k", 4}}).error().sentence ==
        "tensor \"ids\" has shape [2, 3]; allowed is [tokens, top_k=4]");
  CHECK(!view.expect({Dtype::kI16}, {{"tokens"}}));

  CHECK(*file.schema_version("assay.trace", 2) == 2);
  CHECK(file.schema_version("assay.trace", 1).error().sentence ==
        path + ": version \"2\" of schema \"assay.trace\" is unknown; allowed are 1 to 1");
  CHECK(file.schema_version("assay.golden", 2).error().sentence ==
        path + ": schema is \"assay.trace\"; allowed is \"assay.golden\"");
  for (const std::string bad : {"0", "1x", "", "-1", "4294967297", "+1"}) {
    TensorFileWriter other;
    other.set_schema("assay.trace", 1);
    other.set_metadata("version", bad);
    REQUIRE(other.write(path + "v"));
    CHECK(!TensorFile::open(path + "v")->schema_version("assay.trace", 1));
  }
  TensorFileWriter none;
  REQUIRE(none.write(path + "n"));
  CHECK(TensorFile::open(path + "n")->schema_version("assay.trace", 1).error().sentence ==
        path + "n: no metadata key \"schema\"; the file has none");
}
