// Views of a mirrored pool: the chain of replicas of each configuration number.
#ifndef TESTS_MODEL_CHAIN_VIEWS_H_
#define TESTS_MODEL_CHAIN_VIEWS_H_

#include <algorithm>
#include <array>
#include <cstdint>
#include <string>
#include <vector>

namespace model {

inline constexpr int kMaxReplicas = 4;

struct ChainView {
  int length = 0;
  std::array<int, kMaxReplicas> chain{};
  int learner = -1;       // joins behind the tail
  bool handover = false;  // with a learner: READs look at the tail and at the learner

  int head() const { return chain[0]; }
  int tail() const { return chain[length - 1]; }
  bool Has(int replica) const { return std::find(chain.begin(), chain.begin() + length, replica) != end(); }
  // A mask of the replicas that get what is written.
  uint8_t Members(bool with_learner = true) const {
    int mask = with_learner && learner >= 0 ? 1 << learner : 0;
    for (int i = 0; i < length; ++i) mask |= 1 << chain[i];
    return static_cast<uint8_t>(mask);
  }
  bool Keeps(int replica) const { return (Members() >> replica & 1) != 0; }

 private:
  std::array<int, kMaxReplicas>::const_iterator end() const { return chain.begin() + length; }
};

// Whether the learner of view number `view - 1` is a member of the chain of `view`.
inline bool Promotes(const std::vector<ChainView>& views, int view) {
  return view > 0 && views[view - 1].learner >= 0 && views[view].Has(views[view - 1].learner);
}

// Whether `next` only gives up the promotion that led to `now`: the replica that became the tail is the learner again.
inline bool GivesUpPromotion(const ChainView& now, const ChainView& next) {
  return next.learner >= 0 && now.Has(next.learner);
}

// Parses "01,1,1+2,12": a chain for each view, head to tail. "+2": replica 2 is the learner. "=2": so, with a handover.
inline bool ParseViews(const std::string& text, std::vector<ChainView>* views) {
  const auto replica_of = [](char digit) { return digit >= '0' && digit < '0' + kMaxReplicas ? digit - '0' : -1; };
  views->assign(1, {});
  for (size_t i = 0; i < text.size(); ++i) {
    ChainView& view = views->back();
    if (text[i] == ',') {
      views->emplace_back();
    } else if (text[i] == '+' || text[i] == '=') {
      view.handover = text[i] == '=';
      view.learner = ++i < text.size() ? replica_of(text[i]) : -1;
      if (view.learner < 0) return false;
    } else {
      const int replica = replica_of(text[i]);
      if (replica < 0 || view.Has(replica)) return false;
      view.chain[view.length++] = replica;
    }
  }
  return std::all_of(views->begin(), views->end(), [](const ChainView& view) { return view.length > 0; });
}

}  // namespace model

#endif  // TESTS_MODEL_CHAIN_VIEWS_H_
