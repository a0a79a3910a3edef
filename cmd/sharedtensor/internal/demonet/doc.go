// Package demonet is the network of the demo command: a small decoder-only transformer in plain Go with synthetic
// weights. For any other model, it makes one pass over all bytes.
//
// It shows that processes that share weights compute the same results. Everything is deterministic: weights are derived
// from their names, and sums are added in a fixed order.
//
// One layer is x += out(attention(norm1(x))); x += down(relu(up(norm2(x)))), with RMS norms, heads of 64 channels and
// causal attention. The embedding and the output projection are one tensor under two names.
package demonet
