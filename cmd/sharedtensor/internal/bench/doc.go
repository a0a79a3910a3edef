// Package bench measures the performance that this module promises. Each figure has a floor: what the kernel and Go
// need for the same work without this module. Figure and floor are measured in turn in the same run, so that noise
// affects both.
//
// Owners and clients are separate processes: the running executable, started again as a worker ([Work]). Workers end
// when the benchmark ends, and also if its process is killed.
package bench
