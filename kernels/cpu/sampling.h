/* sampling.h - one token from one row of logits. */
#pragma once
#include "kernels/cpu/cpu.h"

typedef struct sampling_row {
    acc* z;      /* (v) logits / temperature; those of excluded ids are overwritten */
    acc* weight; /* (v) work space */
    int v;
    acc max;      /* of z */
    uint64_t uid; /* key and counter of the noise */
    int32_t index;
} sampling_row;

int32_t OP(sample)(const sampling_row* row, const gr_sampling* how);
