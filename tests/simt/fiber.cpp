/* fiber.cpp - one stack per CUDA thread, switched by hand where the CPU is known. */
#include "tests/simt/emulator.h"

#include <stdlib.h>
#include <sys/mman.h>

#if !defined(__x86_64__)
#include <ucontext.h>
#endif

namespace simt {

Fiber fibers[MAX_THREADS];
Thread* current;

constexpr size_t STACK = 128 << 10, GUARD_PAGE = 4096;

static void map_stack(Fiber* f)
{
    char* p = (char*)mmap(nullptr, STACK + GUARD_PAGE, PROT_READ | PROT_WRITE,
                          MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED || mprotect(p, GUARD_PAGE, PROT_NONE) != 0) abort();
    f->stack = p + GUARD_PAGE;
    f->stack_bytes = STACK;
}

#if defined(__x86_64__)

/* Saves the callee-saved registers on the old stack, takes them from the new one (System V ABI). */
extern "C" void simt_switch(void** save, void* to);
asm(".text\n"
    ".globl simt_switch\n"
    ".type simt_switch, @function\n"
    "simt_switch:\n"
    "  push %rbp\n  push %rbx\n  push %r12\n  push %r13\n  push %r14\n  push %r15\n"
    "  mov %rsp, (%rdi)\n"
    "  mov %rsi, %rsp\n"
    "  pop %r15\n  pop %r14\n  pop %r13\n  pop %r12\n  pop %rbx\n  pop %rbp\n"
    "  ret\n"
    ".size simt_switch, . - simt_switch\n");

static void* scheduler_pointer;

void prepare_fiber(Fiber* f, void (*main)())
{
    if (f->stack == nullptr) map_stack(f);
    void** top = (void**)(((uintptr_t)f->stack + f->stack_bytes) & ~(uintptr_t)15);
    *--top = nullptr; /* main's return address: it never returns */
    *--top = (void*)main;
    for (int i = 0; i < 6; i++) *--top = nullptr;
    f->stack_pointer = top;
}
void switch_to(Fiber* f)
{
    current = f;
    simt_switch(&scheduler_pointer, f->stack_pointer);
    current = nullptr;
}
void switch_to_scheduler() { simt_switch(&self()->stack_pointer, scheduler_pointer); }

#else

static ucontext_t scheduler_context, contexts[MAX_THREADS];

void prepare_fiber(Fiber* f, void (*main)())
{
    if (f->stack == nullptr) map_stack(f);
    ucontext_t* c = &contexts[f - fibers];
    getcontext(c);
    c->uc_stack.ss_sp = f->stack;
    c->uc_stack.ss_size = f->stack_bytes;
    c->uc_link = nullptr;
    makecontext(c, main, 0);
}
void switch_to(Fiber* f)
{
    current = f;
    swapcontext(&scheduler_context, &contexts[f - fibers]);
    current = nullptr;
}
void switch_to_scheduler() { swapcontext(&contexts[self() - fibers], &scheduler_context); }

#endif

} // namespace simt
