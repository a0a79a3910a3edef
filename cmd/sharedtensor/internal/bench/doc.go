// Package bench measures what the promises of this module cost, each beside its floor: what the kernel and Go need for
// the same thing without this module, measured in the same run and in turn with it, so that noise of the machine meets
// both.
//
// Owners and clients are processes of their own: the running executable, started again as a worker ([Work]). Workers
// end with the benchmark on every path, and by themselves when the process that started them is gone.
package bench
