// A team of every size walks through many regions; run under the thread sanitizer by test_build.py.
#include "team.h"

#include <cstdio>
#include <vector>

namespace {

constexpr int LAYERS = 5;

// Each stage turns its row round, so that every number depends on the stage before it being whole.
bool is_right(hr::Team& team, int round, std::vector<long>& a, std::vector<long>& b) {
    const int n = 1 + round * 37 % 997;
    team.run(1 + 2 * LAYERS, [&](hr::Team::Member& me) {
        me.share(n, [&](int begin, int end) {
            for (int i = begin; i < end; ++i) a[i] = i + round;
        });
        for (int layer = 0; layer < LAYERS; ++layer) {
            me.share(n, 3, [&](int begin, int end) {
                for (int i = begin; i < end; ++i) b[i] = a[n - 1 - i] + 1;
            });
            me.share(n, [&](int begin, int end) {
                for (int i = begin; i < end; ++i) a[i] = b[n - 1 - i];
            });
        }
    });
    for (int i = 0; i < n; ++i) {
        if (a[i] != i + round + LAYERS) return false;
    }
    return true;
}

}  // namespace

int main() {
    std::vector<long> a(1000), b(1000);
    for (int size : {1, 2, 3, 5}) {
        hr::Team team(size, false);
        for (int round = 0; round < 300; ++round) {
            if (!is_right(team, round, a, b)) return std::printf("wrong: size %d, round %d\n", size, round), 1;
        }
    }
    return 0;
}
