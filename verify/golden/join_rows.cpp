// See join_rows.hpp.
#include "verify/golden/join_rows.hpp"

#include <map>

#include "model/core/contract.hpp"

namespace assay::verify {

std::vector<std::string> join_rows(const std::vector<std::string>& legal,
                                   const std::vector<std::string>& got) {
  CONTRACT(legal.size() == got.size(), legal.size(), got.size());
  std::multimap<std::string, std::size_t> free;  // row, its place among the legal ones
  for (std::size_t i = 0; i < legal.size(); ++i) free.emplace(legal[i], i);
  std::vector<std::string> placed(got.size());
  std::vector<std::size_t> open;
  std::vector<bool> taken(legal.size());
  for (std::size_t i = 0; i < got.size(); ++i) {
    const auto match = free.find(got[i]);
    if (match == free.end()) {
      open.push_back(i);
      continue;
    }
    placed[i] = match->first;
    taken[match->second] = true;
    free.erase(match);  // a row that is there twice has lost another
  }
  std::size_t next = 0;
  for (std::size_t i = 0; i < legal.size(); ++i) {
    if (!taken[i]) placed[open[next++]] = legal[i];
  }
  return placed;
}

}  // namespace assay::verify
