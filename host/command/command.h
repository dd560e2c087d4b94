/* command.h - the sub-commands of grove. Level 9: the only place that knows them all. */
#pragma once
#include "host/config.h"

typedef struct gr_command {
    const char* name;
    const char* summary;               /* one line for `grove --help` */
    int (*run)(int argc, char** argv); /* argv[0] is the command's name; returns the exit status */
} gr_command;

extern const gr_command* const gr_commands[]; /* NULL-terminated */

/* Registers the blocks of all worlds, strategies, scorers and estimators. */
void gr_command_register(gr_config* c);
/* Prints "grove: <reason>" as one line and returns 1. */
int gr_command_fail(void);
