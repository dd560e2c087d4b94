/* machine.h - what tests ask of the emulated machine: to look as if a GPU were missing, and what was
 * sent to it. */
#pragma once
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct simt_machine {
    int driver; /* newest CUDA it serves, as 1000 major + 10 minor; 0: there is none */
    int gpus;
    int major; /* of their compute capability */
} simt_machine;

/* From now on; at first a machine with one GPU of 9.0 and the driver of this CUDA. */
void simt_pretend(simt_machine machine);

int64_t simt_uploads(void); /* copies from host to device, so far */

#ifdef __cplusplus
}
#endif
