package inference

import (
	"maps"
	"slices"
	"sync"
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
	queue                duration
	input, infer, output duration
	last                 atomic.Int64  // milliseconds since 1970
	inferences           atomic.Uint64 // rows of successful requests; a request without batching is one

	mu      sync.Mutex
	batches map[int64]*batchStats // calls of the function by their number of rows
}

// batchStats counts the calls with one number of rows.
type batchStats struct {
	count                uint64
	input, infer, output time.Duration
}

// timing is the time spent in the stages of a request.
type timing struct {
	begin                       time.Time
	queue, input, infer, output time.Duration
	rows                        int64 // of a request that was part of a batch, which has counted the call; otherwise 0
}

// end records a request.
func (r *recorder) end(t *timing, err error) {
	took := time.Since(t.begin)
	if err != nil {
		r.fail.add(took)
		return
	}
	r.success.add(took)
	r.queue.add(t.queue)
	r.input.add(t.input)
	r.infer.add(t.infer)
	r.output.add(t.output)
	if r.inferences.Add(uint64(max(1, t.rows))); t.rows == 0 {
		r.batch(1, t.input, t.infer, t.output)
	}
	r.last.Store(t.begin.UnixMilli())
}

// maxBatchSizes limits the numbers of rows that are counted separately. The protocol limits batches to fewer.
const maxBatchSizes = 4096

// batch counts a call of the function.
func (r *recorder) batch(rows int64, input, infer, output time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	b := r.batches[rows]
	if b == nil {
		if r.batches == nil {
			r.batches = make(map[int64]*batchStats)
		}
		if len(r.batches) >= maxBatchSizes {
			return
		}
		b = &batchStats{}
		r.batches[rows] = b
	}
	b.count++
	b.input, b.infer, b.output = b.input+input, b.infer+infer, b.output+output
}

// batchMessages returns the calls by their numbers of rows, and their total.
func (r *recorder) batchMessages() (list []*pb.InferBatchStatistics, executions uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, rows := range slices.Sorted(maps.Keys(r.batches)) {
		b := r.batches[rows]
		spent := func(d time.Duration) *pb.StatisticDuration {
			return &pb.StatisticDuration{Count: b.count, Ns: uint64(d)}
		}
		list = append(list, &pb.InferBatchStatistics{
			BatchSize: uint64(rows), ComputeInput: spent(b.input), ComputeInfer: spent(b.infer), ComputeOutput: spent(b.output),
		})
		executions += b.count
	}
	return list, executions
}

// message returns the figures in the protocol's format.
func (r *recorder) message(name, version string) *pb.ModelStatistics {
	none := &pb.StatisticDuration{}
	batches, executions := r.batchMessages()
	m := &pb.ModelStatistics{
		Name: name, Version: version, LastInference: uint64(r.last.Load()),
		InferenceCount: r.inferences.Load(), ExecutionCount: executions, BatchStats: batches,
		InferenceStats: &pb.InferStatistics{
			Success: r.success.message(), Fail: r.fail.message(), Queue: r.queue.message(),
			ComputeInput: r.input.message(), ComputeInfer: r.infer.message(), ComputeOutput: r.output.message(), CacheHit: none, CacheMiss: none,
		},
	}
	return m
}
