/* Checks of the C interface that are written in C. Each returns how many of its claims were wrong, and prints them. */
#ifndef TESTS_KVS_C_INTERFACE_H_
#define TESTS_KVS_C_INTERFACE_H_

#include "kvs/kvs.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Each works on a client that it opens, and leaves the store empty. */
int c_one_key(kvs_store_t* store);
int c_binary_empty_and_large(kvs_store_t* store);
int c_compare_and_set(kvs_store_t* store);
int c_modify(kvs_store_t* store);
int c_expiry(kvs_store_t* store);
int c_many_keys(kvs_store_t* store);
int c_scan(kvs_store_t* store);
int c_statistics(kvs_store_t* store);
int c_poll(kvs_store_t* store);
int c_bad_arguments(kvs_store_t* store);

int c_refused_stores(void);
int c_names(void);

#ifdef __cplusplus
}
#endif

#endif /* TESTS_KVS_C_INTERFACE_H_ */
