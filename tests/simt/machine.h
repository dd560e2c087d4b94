/* machine.h - the machine that the emulator pretends to run on, for tests of the ways in which a GPU
 * can be missing. */
#pragma once

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

#ifdef __cplusplus
}
#endif
