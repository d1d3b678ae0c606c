#include "krcore/rnic/sdc/mutation.h"

#ifdef SURGEKV_MUTATIONS
enum sdc_mutation sdc_active_mutation = SDC_MUTATION_NONE;
#endif
