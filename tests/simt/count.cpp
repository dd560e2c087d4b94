/* count.cpp - joins the accesses of a warp's lanes to requests and counts what they cost.
 *
 * Lanes run one after another, so each keeps a log. It is cut where the whole warp meets (a collective
 * of all lanes, a barrier, the end); between two cuts, the n-th access at one place by one lane belongs
 * to the n-th there by the others. */
#include "tests/simt/count.h"
#include "tests/simt/emulator.h"

#include <algorithm>
#include <map>
#include <set>
#include <unordered_map>

namespace simt {

struct Footprint {
    std::unordered_map<uint64_t, uint32_t> bytes; /* of each sector, as a mask */
    int64_t unique_bytes() const
    {
        int64_t n = 0;
        for (const auto& s : bytes) n += __builtin_popcount(s.second);
        return n;
    }
};

struct Tally {
    simt_line sum;
    Footprint launch; /* of the launch so far */
};
typedef std::map<std::tuple<std::string, int, const void*>, Tally> Tallies; /* pc NULL: the total */

static bool counting, paused;
static Tallies tallies;

struct Event {
    const void* pc;
    uint64_t address;
    int size;
    simt_kind kind;
};
static std::vector<Event> logs[MAX_THREADS];

/* ---- requests -------------------------------------------------------------------------------------- */

static bool is_shared(simt_kind kind) { return kind >= SIMT_SHARED_LOAD && kind < SIMT_MMA; }

/* Wavefronts of the lanes that share them. */
static int conflicts(const std::vector<Event>& lanes)
{
    std::set<uint64_t> words;
    int in_bank[32] = {0};
    for (const Event& e : lanes)
        for (uint64_t w = e.address / 4; w <= (e.address + (uint64_t)e.size - 1) / 4; w++)
            words.insert(w);
    for (const uint64_t w : words) in_bank[w % 32]++;
    return *std::max_element(in_bank, in_bank + 32);
}

/* by_lane[i].size is 0 where lane i takes no part. */
static void count_wavefronts(simt_line* sum, const Event (&by_lane)[32], int size)
{
    const int together = size <= 4 ? 32 : size <= 8 ? 16 : 8;
    for (int first = 0; first < 32; first += together) {
        std::vector<Event> lanes;
        for (int i = first; i < first + together; i++)
            if (by_lane[i].size > 0) lanes.push_back(by_lane[i]);
        sum->wavefronts += conflicts(lanes);
        sum->ideal += !lanes.empty();
    }
}

static void count_sectors(simt_line* sum, Footprint* launch, const Event (&by_lane)[32])
{
    std::set<uint64_t> sectors;
    for (const Event& e : by_lane)
        for (uint64_t b = e.address; b < e.address + (uint64_t)e.size; b++) {
            sectors.insert(b / 32);
            launch->bytes[b / 32] |= 1u << b % 32;
        }
    sum->sectors += (int64_t)sectors.size();
}

static void count_request(const Event (&by_lane)[32])
{
    const Event& some = *std::max_element(
        by_lane, by_lane + 32, [](const Event& a, const Event& b) { return a.size < b.size; });
    for (const void* pc : {some.pc, (const void*)nullptr}) {
        Tally* t = &tallies[{grid.name, some.kind, pc}];
        t->sum.kind = some.kind;
        t->sum.threads = block.threads;
        t->sum.dynamic_bytes = (int)grid.shared_bytes;
        t->sum.requests++;
        if (some.kind == SIMT_MMA) continue;
        for (const Event& e : by_lane) t->sum.bytes += e.size;
        if (is_shared(some.kind))
            count_wavefronts(&t->sum, by_lane, some.size);
        else
            count_sectors(&t->sum, &t->launch, by_lane);
    }
}

void cut_counts(int warp)
{
    if (!counting || paused) return;
    std::map<std::pair<const void*, int>, std::vector<std::pair<int, Event>>> requests[SIMT_MMA];
    for (int lane = 0; lane < 32; lane++) {
        std::map<std::pair<const void*, int>, int> seen;
        std::vector<Event>& log = logs[32 * warp + lane];
        for (const Event& e : log)
            requests[e.kind][{e.pc, seen[{e.pc, e.kind}]++}].push_back({lane, e});
        log.clear();
    }
    for (const auto& kind : requests)
        for (const auto& r : kind) {
            Event by_lane[32] = {};
            for (const auto& e : r.second) by_lane[e.first] = e.second;
            count_request(by_lane);
        }
}

void count_access(const void* p, int size, Access kind, const void* pc)
{
    if (!counting || paused) return;
    const bool shared = p >= __start_simt_shared && p < __stop_simt_shared;
    if (!shared && !is_device(p)) return;
    const uint64_t address =
        shared ? (uint64_t)((const char*)p - __start_simt_shared) : (uint64_t)p;
    const simt_kind first = shared ? SIMT_SHARED_LOAD : SIMT_LOAD;
    logs[current->linear].push_back({pc, address, size, (simt_kind)(first + kind)});
}

void pause_counts(bool pause) { paused = pause; }

void count_mma(const void* pc)
{
    if (!counting || paused) return;
    Event by_lane[32] = {};
    for (Event& e : by_lane) e = {pc, 0, 1, SIMT_MMA};
    count_request(by_lane);
}

void end_launch_counts()
{
    for (auto& t : tallies) {
        t.second.sum.unique_sectors += (int64_t)t.second.launch.bytes.size();
        t.second.sum.unique_bytes += t.second.launch.unique_bytes();
        t.second.launch.bytes.clear();
    }
}

/* ---- results --------------------------------------------------------------------------------------- */

static void add(simt_line* to, const simt_line& x)
{
    to->requests += x.requests;
    to->bytes += x.bytes;
    to->unique_bytes += x.unique_bytes;
    to->sectors += x.sectors;
    to->unique_sectors += x.unique_sectors;
    to->wavefronts += x.wavefronts;
    to->ideal += x.ideal;
}

/* Several instructions of one line become one. */
static std::vector<simt_line> by_line()
{
    std::map<std::tuple<std::string, int, std::string>, simt_line> lines;
    for (const auto& t : tallies) {
        const std::string& kernel = std::get<0>(t.first);
        const void* pc = std::get<2>(t.first);
        const std::string at = pc != nullptr ? place(pc) : "";
        simt_line* line = &lines[{kernel, (int)t.second.sum.kind, at}];
        line->kind = t.second.sum.kind;
        line->threads = t.second.sum.threads;
        line->dynamic_bytes = t.second.sum.dynamic_bytes;
        (void)snprintf(line->kernel, sizeof line->kernel, "%s", kernel.c_str());
        (void)snprintf(line->place, sizeof line->place, "%s", at.c_str());
        add(line, t.second.sum);
    }
    std::vector<simt_line> all;
    for (const auto& l : lines) all.push_back(l.second);
    return all;
}

} // namespace simt

extern "C" void simt_count_start(void)
{
    simt::tallies.clear();
    simt::counting = true;
}

extern "C" int simt_count_stop(simt_line* lines, int most)
{
    simt::counting = false;
    const std::vector<simt_line> all = simt::by_line();
    std::copy_n(all.begin(), std::min((size_t)most, all.size()), lines);
    return (int)all.size();
}
