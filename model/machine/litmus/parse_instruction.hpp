// Reads one instruction of a litmus test, for parse.cpp.
#pragma once

#include <string>
#include <vector>

#include "model/machine/litmus/litmus.hpp"

namespace assay::machine::litmus {

// `text` is one line, such as "ld.acquire.gpu r0 y". Registers must be introduced in order: the
// thread's num_registers grows by what is new.
Expected<Instruction> parse_instruction(const std::string& text, const Test& test,
                                        ThreadCode& thread);

std::vector<std::string> split_words(const std::string& text);
bool parse_u32(const std::string& text, std::uint32_t& value);
bool is_name(const std::string& text);

}  // namespace assay::machine::litmus
