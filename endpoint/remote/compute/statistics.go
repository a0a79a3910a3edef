package compute

import (
	"math"
	"slices"
	"sync"
	"time"
)

// Samples is the number of most recent durations in a Distribution.
const Samples = 1000

// Distribution describes durations in milliseconds.
type Distribution struct {
	// Count is the number of samples, at most Samples.
	Count int `json:"count"`
	// Mean, Median, Min, Max, P95, P99 and Std are in milliseconds.
	Mean, Median, Min, Max, P95, P99, Std float64
	// Histogram counts the samples in each of 20 equal intervals from Min to Max.
	Histogram []int `json:"histogram,omitempty"`
}

// Statistics holds the figures of a server or of one function.
type Statistics struct {
	// Requests counts all requests since the start, Failures those that failed, and InFlight those that run or wait
	// now.
	Requests, Failures, InFlight uint64
	// BytesIn and BytesOut count the bytes of tensors on the wire.
	BytesIn, BytesOut uint64
	// PerSecond is the rate over the last ten seconds.
	PerSecond float64
	// Queue is the time that requests waited for a worker. Decode and Encode are the times to read and write tensors,
	// and Compute is the time in the function.
	Queue, Decode, Compute, Encode Distribution
}

// recorder counts requests. Its methods are safe for concurrent use.
type recorder struct {
	mu                                 sync.Mutex
	requests, failures, inFlight       uint64
	bytesIn, bytesOut                  uint64
	queue, decode, computation, encode samples
	rate                               rate
}

// timing is the time spent in the stages of one request.
type timing struct {
	queue, decode, compute, encode time.Duration
	in, out                        int
}

func (r *recorder) begin() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.inFlight++
}

func (r *recorder) end(t timing, failed bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.inFlight--
	r.requests++
	r.rate.add(time.Now())
	r.bytesIn += uint64(t.in)
	r.bytesOut += uint64(t.out)
	if failed {
		r.failures++
		return
	}
	r.queue.add(t.queue)
	r.decode.add(t.decode)
	r.computation.add(t.compute)
	r.encode.add(t.encode)
}

// total returns the number of requests.
func (r *recorder) total() uint64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.requests
}

func (r *recorder) statistics() Statistics {
	r.mu.Lock()
	s := Statistics{
		Requests: r.requests, Failures: r.failures, InFlight: r.inFlight, BytesIn: r.bytesIn, BytesOut: r.bytesOut,
		PerSecond: r.rate.perSecond(time.Now()),
	}
	queue, decode, computation, encode := r.queue.copy(), r.decode.copy(), r.computation.copy(), r.encode.copy()
	r.mu.Unlock()
	s.Queue, s.Decode, s.Compute, s.Encode = distribution(queue), distribution(decode), distribution(computation), distribution(encode)
	return s
}

// samples holds the most recent durations.
type samples struct {
	last []time.Duration
	next int
}

func (s *samples) add(d time.Duration) {
	if len(s.last) < Samples {
		s.last = append(s.last, d)
		return
	}
	s.last[s.next] = d
	s.next = (s.next + 1) % Samples
}

func (s *samples) copy() []time.Duration { return slices.Clone(s.last) }

// distribution sorts its argument.
func distribution(last []time.Duration) (d Distribution) {
	d.Count = len(last)
	if d.Count == 0 {
		return d
	}
	slices.Sort(last)
	ms := make([]float64, len(last))
	for i, v := range last {
		ms[i] = v.Seconds() * 1000
		d.Mean += ms[i] / float64(len(ms))
	}
	for _, v := range ms {
		d.Std += (v - d.Mean) * (v - d.Mean) / float64(len(ms))
	}
	d.Std = math.Sqrt(d.Std)
	at := func(q float64) float64 { return ms[int(q*float64(len(ms)-1)+0.5)] }
	d.Min, d.Median, d.P95, d.P99, d.Max = ms[0], at(0.5), at(0.95), at(0.99), ms[len(ms)-1]
	d.Histogram = make([]int, 20)
	for _, v := range ms {
		step := 0
		if d.Max > d.Min {
			step = min(19, int((v-d.Min)/(d.Max-d.Min)*20))
		}
		d.Histogram[step]++
	}
	return d
}

// rate counts requests by second.
type rate struct {
	seconds [11]struct {
		at    int64
		count uint64
	}
}

func (r *rate) add(now time.Time) {
	s := &r.seconds[now.Unix()%int64(len(r.seconds))]
	if s.at != now.Unix() {
		s.at, s.count = now.Unix(), 0
	}
	s.count++
}

// perSecond returns the rate over the last ten complete seconds.
func (r *rate) perSecond(now time.Time) float64 {
	n := uint64(0)
	for _, s := range r.seconds {
		if age := now.Unix() - s.at; age >= 1 && age <= 10 {
			n += s.count
		}
	}
	return float64(n) / 10
}
