// The functions behind pointers in libibverbs' structures.
#ifndef TESTS_RNIC_MLX5_FAKE_POSTS_H_
#define TESTS_RNIC_MLX5_FAKE_POSTS_H_

#include "tests/rnic/mlx5/fake_nic.h"

namespace krcore::rnic::verbs::testing {

void FillPosting(FakeQp& qp);
void FillOps(ibv_context* context);

}  // namespace krcore::rnic::verbs::testing

#endif  // TESTS_RNIC_MLX5_FAKE_POSTS_H_
