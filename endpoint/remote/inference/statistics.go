package inference

import (
	"sync/atomic"
	"time"

	pb "github.com/sharedtensor/sharedtensor/endpoint/remote/inference/inferencepb"
)

// duration counts events and their total time.
type duration struct{ count, ns atomic.Uint64 }

func (d *duration) add(took time.Duration) {
	d.count.Add(1)
	d.ns.Add(uint64(max(took, 0)))
}

func (d *duration) message() *pb.StatisticDuration {
	return &pb.StatisticDuration{Count: d.count.Load(), Ns: d.ns.Load()}
}

// recorder counts the requests of a model.
type recorder struct {
	success, fail        duration
	input, infer, output duration
	last                 atomic.Int64 // milliseconds since 1970
	executions           atomic.Uint64
}

// timing is the time spent in the stages of a request.
type timing struct {
	begin                time.Time
	input, infer, output time.Duration
}

// end records a request.
func (r *recorder) end(t *timing, err error) {
	took := time.Since(t.begin)
	if err != nil {
		r.fail.add(took)
		return
	}
	r.success.add(took)
	r.input.add(t.input)
	r.infer.add(t.infer)
	r.output.add(t.output)
	r.executions.Add(1)
	r.last.Store(t.begin.UnixMilli())
}

// message returns the figures in the protocol's format. There is no queue, and requests are not batched.
func (r *recorder) message(name, version string) *pb.ModelStatistics {
	none := &pb.StatisticDuration{}
	m := &pb.ModelStatistics{
		Name: name, Version: version, LastInference: uint64(r.last.Load()),
		InferenceCount: r.success.count.Load(), ExecutionCount: r.executions.Load(),
		InferenceStats: &pb.InferStatistics{
			Success: r.success.message(), Fail: r.fail.message(), Queue: &pb.StatisticDuration{Count: r.success.count.Load()},
			ComputeInput: r.input.message(), ComputeInfer: r.infer.message(), ComputeOutput: r.output.message(), CacheHit: none, CacheMiss: none,
		},
	}
	if m.ExecutionCount > 0 {
		m.BatchStats = []*pb.InferBatchStatistics{{
			BatchSize: 1, ComputeInput: r.input.message(), ComputeInfer: r.infer.message(), ComputeOutput: r.output.message(),
		}}
	}
	return m
}
