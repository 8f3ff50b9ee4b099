// The machine that kernels run on when there is no card: blocks one after the other, every thread of a block a fiber with a
// stack of its own, the lanes of a warp and the threads of a block meeting at barriers.
//
// What a card would leave undefined is found and reported, with block and thread: threads that wait at different places,
// lanes that ask for what an absent lane holds, accesses outside of an array, at an odd address or outside of memory,
// writes behind the shared memory. Shared memory holds a pattern before each block. x86-64 Linux, one thread of the host.
#pragma once
#ifndef __x86_64__
#error "the stack switch is written for x86-64"
#endif
#include <csignal>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <link.h>
#include <sys/mman.h>
#include <ucontext.h>
#include <utility>
#include <vector>

struct Dim3 { u32 x, y, z; };

namespace on_cpu {

static constexpr u32 WARP = 32, MOST_THREADS = 1024, STACK = 256 << 10, GUARD = 4096;
static constexpr u8 PATTERN = 0xDB;
enum State { READY, AT_WARP, AT_BLOCK, ENDED };

struct Site {  // of a call in a kernel's source
    const char* file;
    int line;
    bool operator==(const Site& other) const { return line == other.line && file == other.file; }  // equal texts are one text
};
#define HERE {__builtin_FILE(), __builtin_LINE()}

struct Closed { u64 first, n_bytes, protection; };  // whole pages that may not be used as usual until the kernel before is awaited
struct Copy { void* to; const void* from; };
struct Fiber {
    void* stack_pointer;
    State state;
    Site site;  // where it waits
    int turn;   // parity of the lane's meetings: two sets of slots, since no lane can be two meetings ahead
    bool has_awaited;  // the kernel before
    Dim3 thread;
    std::vector<Copy> open;                 // asynchronous copies of no group yet
    std::vector<std::vector<Copy>> groups;  // the oldest first
};
struct Warp {
    alignas(16) u8 slots[2][WARP][64];
    bool present[WARP];  // at the last meeting
};

struct Machine {
    Fiber fibers[MOST_THREADS];
    Warp warps[MOST_THREADS / WARP];
    Fiber* current;
    Fiber* turns[WARP + 1];  // the lanes of the warp that runs, in the order of their turns; behind the last one nullptr
    Fiber** turn;            // of the current one
    Dim3 block, grid, size;
    void* scheduler_stack;
    u8* stacks;
    std::function<void()> body;
    u8* dynamic_shared;
    std::vector<Closed> closed;
    bool failed;
    char report[1024];
    u64 fault_address;
};
static Machine machine;

// saves what a call must keep, changes stacks, and goes on where the other one stopped
__attribute__((naked, noinline)) static void change_stack(void** /*from*/, void* /*to*/) {
    asm volatile(
        "pushq %rbp; pushq %rbx; pushq %r12; pushq %r13; pushq %r14; pushq %r15\n"
        "movq %rsp, (%rdi)\n"
        "movq %rsi, %rsp\n"
        "popq %r15; popq %r14; popq %r13; popq %r12; popq %rbx; popq %rbp\n"
        "ret\n");
}
// the same without saving: the fiber is given up
__attribute__((naked, noinline)) static void leave_for(void* /*to*/) {
    asm volatile(
        "movq %rdi, %rsp\n"
        "popq %r15; popq %r14; popq %r13; popq %r12; popq %rbx; popq %rbp\n"
        "ret\n");
}

// --- reports ---
__attribute__((format(printf, 1, 2))) static void report(const char* format, ...) {
    if (machine.failed) return;  // the first is the cause
    machine.failed = true;
    const Dim3& b = machine.block;
    int n = snprintf(machine.report, sizeof machine.report, "block (%u, %u, %u)", b.x, b.y, b.z);
    if (machine.current != nullptr) n += snprintf(machine.report + n, sizeof machine.report - n, ", thread %u", machine.current->thread.x);
    n += snprintf(machine.report + n, sizeof machine.report - n, ": ");
    va_list values;
    va_start(values, format);
    vsnprintf(machine.report + n, sizeof machine.report - n, format, values);
    va_end(values);
}
template <class... V> [[noreturn]] static void fail(const char* format, V... values) {
    if (machine.current == nullptr) abort();  // not in a kernel
    report(format, values...);
    leave_for(machine.scheduler_stack);
    __builtin_unreachable();
}
static const char* name_of(const char* file) {
    const char* slash = strrchr(file, '/');
    return slash ? slash + 1 : file;
}

// an access that the processor refused; the fiber is left, the launch ends with a report
static void on_fault(int signal_number, siginfo_t* info, void* context) {
    if (machine.current == nullptr) {  // not in a kernel: as without us
        signal(signal_number, SIG_DFL);
        return;
    }
    machine.fault_address = signal_number == SIGFPE ? 0 : (u64)info->si_addr;
    for (const Closed& c : machine.closed)
        if (machine.fault_address - c.first < c.n_bytes) report("the kernel before may still use this memory, and has not been awaited");
    report(signal_number == SIGFPE ? "a division by zero" : "an access outside of memory");
    greg_t* registers = ((ucontext_t*)context)->uc_mcontext.gregs;
    registers[REG_RIP] = (greg_t)leave_for;
    registers[REG_RDI] = (greg_t)machine.scheduler_stack;
}
class FaultHandlers {  // while a kernel runs
    static constexpr int SIGNALS[] = {SIGSEGV, SIGBUS, SIGFPE};
    struct sigaction before[3];
    stack_t stack_before;
    u8 stack[64 << 10];

public:
    FaultHandlers() {
        stack_t mine = {};
        mine.ss_sp = stack, mine.ss_size = sizeof stack;
        sigaltstack(&mine, &stack_before);
        struct sigaction action = {};
        action.sa_sigaction = on_fault, action.sa_flags = SA_SIGINFO | SA_ONSTACK;
        for (int i = 0; i < 3; ++i) sigaction(SIGNALS[i], &action, &before[i]);
    }
    ~FaultHandlers() {
        for (int i = 0; i < 3; ++i) sigaction(SIGNALS[i], &before[i], nullptr);
        sigaltstack(&stack_before, nullptr);
    }
};

// --- what the kernel before uses ---
static void close_memory(const Closed* closed, u32 n) {
    machine.closed.assign(closed, closed + n);
    for (const Closed& c : machine.closed) mprotect((void*)c.first, c.n_bytes, (int)c.protection);
}
static void open_memory() {
    for (const Closed& c : machine.closed) mprotect((void*)c.first, c.n_bytes, PROT_READ | PROT_WRITE);
    machine.closed.clear();
}

// --- fibers ---
static Fiber* next_turn(Fiber** turn) {
    while (*turn != nullptr && (*turn)->state != READY) ++turn;
    machine.turn = turn;
    return *turn;
}
// stops, and goes on with the next lane of the warp that can, else with the scheduler
static void pause(State why, Site site) {
    Fiber& f = *machine.current;
    f.state = why, f.site = site;
    machine.current = next_turn(machine.turn + 1);
    change_stack(&f.stack_pointer, machine.current != nullptr ? machine.current->stack_pointer : machine.scheduler_stack);
}
// one turn of every lane that can go on
static void run_turns() {
    machine.current = next_turn(machine.turns);
    if (machine.current != nullptr) change_stack(&machine.scheduler_stack, machine.current->stack_pointer);
    machine.current = nullptr;
}
static void fiber_main() {
    machine.body();
    pause(ENDED, {"", 0});
    abort();
}
static void start_fiber(u32 i) {
    u64* top = (u64*)(machine.stacks + (size_t)(i + 1) * STACK);
    *--top = 0;                // keeps the stack as a call would have it
    *--top = (u64)fiber_main;  // where change_stack returns to
    for (int r = 0; r < 6; ++r) *--top = 0;
    Fiber& f = machine.fibers[i];
    f.stack_pointer = top, f.state = READY, f.turn = 0, f.has_awaited = false, f.thread = {i, 0, 0};
    f.open.clear(), f.groups.clear();
}
static void apart(const Fiber& a, const Fiber& b) {
    static const char* const FOR[] = {"", "its warp", "the block"};
    report("threads wait for each other for ever, or at different places: thread %u for %s at %s:%d, thread %u for %s at %s:%d",
           a.thread.x, FOR[a.state], name_of(a.site.file), a.site.line, b.thread.x, FOR[b.state], name_of(b.site.file), b.site.line);
}

// orders in which what has no order is done: 0 as it is counted, 1 backwards, otherwise shuffled by the seed
class Order {
    u32 seed;
    u64 state;

public:
    explicit Order(u32 seed) : seed(seed), state(seed * 0x9E3779B97F4A7C15ull + 1) {}
    std::vector<u32> of(u32 n) {
        std::vector<u32> order(n);
        for (u32 i = 0; i < n; ++i) order[i] = seed == 1 ? n - 1 - i : i;
        for (u32 i = n; seed > 1 && i > 1; --i) {
            state ^= state << 13, state ^= state >> 7, state ^= state << 17;
            std::swap(order[i - 1], order[state % i]);
        }
        return order;
    }
};

// runs lanes first.. of a warp until all of them are at a barrier of the block or have ended
static bool run_warp(Warp& warp, u32 first, u32 lanes, const std::vector<u32>& order) {
    u32 n = 0;
    for (u32 lane : order)
        if (lane < lanes) machine.turns[n++] = &machine.fibers[first + lane];
    machine.turns[n] = nullptr;
    memset(warp.present, 0, sizeof warp.present);
    for (;;) {
        run_turns();
        if (machine.failed) return false;
        const Fiber *met = nullptr, *elsewhere = nullptr;
        for (u32 i = 0; i < lanes; ++i) {
            const Fiber& f = machine.fibers[first + i];
            warp.present[i] = f.state == AT_WARP;
            if (f.state == AT_WARP && met == nullptr) met = &f;
            if (f.state == AT_BLOCK || (f.state == AT_WARP && !(f.site == met->site))) elsewhere = &f;
        }
        if (met == nullptr) return true;
        if (elsewhere != nullptr) return apart(*met, *elsewhere), false;
        for (u32 i = 0; i < lanes; ++i)
            if (warp.present[i]) machine.fibers[first + i].state = READY;
    }
}

static bool run_block(u32 threads, Order& order) {
    for (u32 i = 0; i < threads; ++i) start_fiber(i);
    const std::vector<u32> warps = order.of((threads + WARP - 1) / WARP), lanes = order.of(WARP);
    for (;;) {
        for (u32 w : warps) {
            const u32 left = threads - w * WARP;
            if (!run_warp(machine.warps[w], w * WARP, left < WARP ? left : WARP, lanes)) return false;
        }
        const Fiber* met = nullptr;
        for (u32 i = 0; i < threads; ++i) {
            const Fiber& f = machine.fibers[i];
            if (f.state == ENDED) continue;
            if (met == nullptr) met = &f;
            if (!(f.site == met->site)) return apart(*met, f), false;
        }
        if (met == nullptr) return true;
        for (u32 i = 0; i < threads; ++i)
            if (machine.fibers[i].state == AT_BLOCK) machine.fibers[i].state = READY;
    }
}

// --- shared memory: static arrays are thread-local variables, of which a program has no others, dynamic memory is one piece ---
static thread_local volatile u8 marker;
struct Memory { u8* start; size_t n_bytes; };

static Memory static_shared() {
    marker = 0;  // has the host's thread get them
    Memory found = {nullptr, 0};
    dl_iterate_phdr([](dl_phdr_info* info, size_t, void* result) {
        Memory tls = {nullptr, 0};
        bool ours = false;
        for (int i = 0; i < info->dlpi_phnum; ++i) {
            const auto& part = info->dlpi_phdr[i];
            const u64 start = info->dlpi_addr + part.p_vaddr;
            if (part.p_type == PT_LOAD && (u64)&machine - start < part.p_memsz) ours = true;
            if (part.p_type == PT_TLS) tls = {(u8*)info->dlpi_tls_data, part.p_memsz};
        }
        if (ours) *(Memory*)result = tls;
        return (int)ours;
    }, &found);
    return found;
}

template <class F> static int run_grid(const u32* grid, u32 threads, u32 most_threads, u32 shared_bytes, u32 seed, u32 dependent, const Closed* closed, u32 n_closed, F body) {
    machine.current = nullptr, machine.failed = false, machine.fault_address = 0;
    machine.block = {0, 0, 0};
    machine.grid = {grid[0], grid[1], grid[2]}, machine.size = {threads, 1, 1};
    if (threads == 0 || threads > most_threads) return report("%u threads; the kernel is made for 1 to %u", threads, most_threads), 1;
    if (machine.stacks == nullptr)
        machine.stacks = (u8*)mmap(nullptr, (size_t)MOST_THREADS * STACK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    machine.body = body;
    const Memory shared = static_shared();
    const size_t rounded = (shared_bytes + GUARD + 127) / 128 * 128;
    machine.dynamic_shared = (u8*)aligned_alloc(128, rounded);
    std::vector<u8> guard(rounded - shared_bytes, PATTERN);
    Order order(seed);
    FaultHandlers handlers;
    close_memory(closed, n_closed);
    for (u32 b : order.of(grid[0] * grid[1] * grid[2])) {
        machine.block = {b % grid[0], b / grid[0] % grid[1], b / grid[0] / grid[1]};
        memset(shared.start, PATTERN, shared.n_bytes);
        memset(machine.dynamic_shared, PATTERN, rounded);
        if (!run_block(threads, order)) break;
        if (memcmp(machine.dynamic_shared + shared_bytes, guard.data(), guard.size()) != 0) {
            report("the dynamic shared memory of %u bytes was written behind its end", shared_bytes);
            break;
        }
        bool awaited = !dependent;
        for (u32 i = 0; i < threads; ++i) awaited |= machine.fibers[i].has_awaited;
        if (!awaited) {
            report("no thread waits for the kernel before, beside which this one was started");
            break;
        }
    }
    open_memory();
    free(machine.dynamic_shared);
    machine.dynamic_shared = nullptr;
    return machine.failed;
}

static Warp& my_warp() { return machine.warps[machine.current->thread.x / WARP]; }
// what every lane of the warp brings to a meeting, in slots that stay until the one after the next
template <class V> static u8 (*meet(const V& mine, Site site))[64] {
    static_assert(sizeof(V) <= 64, "too much for a slot");
    const int turn = machine.current->turn;
    machine.current->turn ^= 1;
    memcpy(my_warp().slots[turn][machine.current->thread.x % WARP], &mine, sizeof(V));
    pause(AT_WARP, site);
    return my_warp().slots[turn];
}
static void must_be_present(u32 lane, Site site) {
    if (!my_warp().present[lane]) fail("asks at %s:%d for what lane %u holds, which is not there", name_of(site.file), site.line, lane);
}

}  // namespace on_cpu

// --- what the compiler's checks of array bounds and of alignment call ---
struct CheckedPlace { const char* file; u32 line, column; };
extern "C" void __ubsan_handle_out_of_bounds(const CheckedPlace* place, u64 index) {
    on_cpu::fail("index %lld is outside of an array at %s:%u", (long long)index, on_cpu::name_of(place->file), place->line);
}
extern "C" void __ubsan_handle_type_mismatch_v1(const CheckedPlace* place, u64 address) {
    on_cpu::machine.fault_address = address;
    on_cpu::fail("an access at an odd address, or outside of an object, at %s:%u", on_cpu::name_of(place->file), place->line);
}

extern "C" const char* on_cpu_report() { return on_cpu::machine.report; }
extern "C" u64 on_cpu_fault_address() { return on_cpu::machine.fault_address; }
