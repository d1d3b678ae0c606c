# libibverbs, as the imported target ibverbs::ibverbs, and libmlx5, which comes with it, as ibverbs::mlx5 if it is there.
# Installed with the package, which needs them too.
find_path(IBVERBS_INCLUDE_DIR infiniband/verbs.h)
find_library(IBVERBS_LIBRARY ibverbs)
find_path(MLX5_INCLUDE_DIR infiniband/mlx5dv.h)
find_library(MLX5_LIBRARY mlx5)
mark_as_advanced(IBVERBS_INCLUDE_DIR IBVERBS_LIBRARY MLX5_INCLUDE_DIR MLX5_LIBRARY)

include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(ibverbs REQUIRED_VARS IBVERBS_LIBRARY IBVERBS_INCLUDE_DIR)

if(ibverbs_FOUND AND NOT TARGET ibverbs::ibverbs)
  add_library(ibverbs::ibverbs UNKNOWN IMPORTED)
  set_target_properties(ibverbs::ibverbs PROPERTIES
    IMPORTED_LOCATION ${IBVERBS_LIBRARY} INTERFACE_INCLUDE_DIRECTORIES ${IBVERBS_INCLUDE_DIR})
endif()
if(ibverbs_FOUND AND MLX5_LIBRARY AND MLX5_INCLUDE_DIR AND NOT TARGET ibverbs::mlx5)
  add_library(ibverbs::mlx5 UNKNOWN IMPORTED)
  set_target_properties(ibverbs::mlx5 PROPERTIES
    IMPORTED_LOCATION ${MLX5_LIBRARY} INTERFACE_INCLUDE_DIRECTORIES ${MLX5_INCLUDE_DIR}
    INTERFACE_LINK_LIBRARIES ibverbs::ibverbs)
endif()
