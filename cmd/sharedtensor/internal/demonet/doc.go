// Package demonet is the network that the command's demo runs: a small decoder-only transformer in plain Go over
// synthetic weights, and, for any other model, one pass over all of its bytes.
//
// It is there to show that processes which share weights compute the same from them, so all of it is deterministic: the
// weights follow from their names, and every sum is added in one order.
//
// One layer is x += out(attention(norm1(x))); x += down(relu(up(norm2(x)))), with RMS norms, heads of 64 channels and
// causal attention. The embedding and the output projection are one tensor under two names.
package demonet
