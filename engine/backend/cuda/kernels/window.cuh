// The window block in device memory: what changes from window to window. The host writes it, or the last kernel of a window
// writes it for the next one, so that a graph can be launched again before its results were read.
#pragma once
#include "platform.cuh"

struct Window {
    i64 rows;      // tokens of the window
    i64 position;  // cells before it
    i64 steps;     // windows since the host wrote the block: the place in the ring of what they picked
    i64 stopped;   // a token of the stop set was picked: later windows are no more than time
    i64 out_first, out_rows;  // rows whose logits are wanted
    i32 tokens[8];
};
