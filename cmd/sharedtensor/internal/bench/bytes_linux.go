package bench

import (
	"context"
	"fmt"
	"math"
	"runtime"
	"time"

	"github.com/sharedtensor/sharedtensor/endpoint"
)

const (
	smallBytes    = 1 << 20
	bytesTensors  = 100
	smallName     = "small"
	largeName     = "large"
	attachesInRow = 20
)

// Bytes measures whether the cost of attaching depends on the size of the model: models of a hundred tensors and up to
// 4 GiB, each in turn with one of a hundred tensors and 1 MiB. It skips models over a quarter of the available memory.
func Bytes(ctx context.Context, o Options) ([]Result, error) {
	s, err := newStage(ctx, o)
	if err != nil {
		return nil, err
	}
	defer s.close()
	owner, socket, err := s.owner()
	if err != nil {
		return nil, err
	}
	client, err := s.client(socket)
	if err != nil {
		return nil, err
	}
	if _, err := owner.do(order{Do: "publish", Name: smallName, Tensors: bytesTensors, Bytes: smallBytes}); err != nil {
		return nil, err
	}
	var results []Result
	var heap Result
	for _, size := range pick(o.Effort, []int64{16 << 20, 256 << 20, 1 << 30, 4 << 30}, []int64{64 << 20, 1 << 30}, []int64{4 << 20}) {
		fits, err := s.publishLarge(owner, size)
		if err != nil {
			return nil, err
		}
		if !fits {
			continue
		}
		r, err := attachBytes(ctx, o, client, size)
		if err != nil {
			return nil, err
		}
		results = append(results, r)
		if heap, err = attachHeap(ctx, o, client); err != nil {
			return nil, err
		}
		if _, err := owner.do(order{Do: "withdraw", Name: largeName}); err != nil {
			return nil, err
		}
	}
	if len(results) > 0 {
		results = append(results, heap)
	}
	return results, nil
}

// publishLarge makes the owner publish a model. It returns false if there is not enough memory.
func (s *stage) publishLarge(owner *process, size int64) (bool, error) {
	o := &s.options
	o.stage("attach %s", sizeName(size))
	limit, err := affordable()
	if err != nil {
		return false, err
	}
	if size > limit {
		o.note("attach-%s is left out: it is more than a quarter of the available memory", sizeName(size))
		return false, nil
	}
	_, err = owner.do(order{Do: "publish", Name: largeName, Tensors: bytesTensors, Bytes: size})
	if outOfMemory(err) {
		o.note("attach-%s is left out: %v", sizeName(size), err)
		return false, nil
	}
	return err == nil, err
}

// attachBytes compares the time to attach the large model and the small one.
func attachBytes(ctx context.Context, o Options, client *endpoint.Client, size int64) (Result, error) {
	all, err := alternate(ctx, schedule{
		turns: pick(o.Effort, 300, 50, 1), limit: pick(o.Effort, 5*time.Second, 1500*time.Millisecond, time.Second),
	},
		subject{rounds: attachesInRow, run: attacher(client, largeName)},
		subject{rounds: attachesInRow, run: attacher(client, smallName)})
	if err != nil {
		return Result{}, err
	}
	return figure("attach-"+sizeName(size), µs(all[0].quiet()), "µs").over(µs(all[1].quiet())).within(Ratio, 1.1), nil
}

// attachHeap compares the heap allocations of attaching the two models.
func attachHeap(ctx context.Context, o Options, client *endpoint.Client) (Result, error) {
	rounds := pick(o.Effort, 20, 10, 3)
	large, err := allocated(ctx, rounds, attacher(client, largeName))
	if err != nil {
		return Result{}, err
	}
	small, err := allocated(ctx, rounds, attacher(client, smallName))
	if err != nil {
		return Result{}, err
	}
	// One percent allows for allocations of the runtime.
	return figure("attach-heap", large, "B").over(small).within(Ratio, 1.01), nil
}

// allocated returns the heap bytes that one run of f allocates. Other allocations only add to a measurement, so it
// returns the minimum of several.
func allocated(ctx context.Context, rounds int, f func(context.Context) (time.Duration, error)) (float64, error) {
	least := math.Inf(1)
	var before, after runtime.MemStats
	for range rounds {
		runtime.ReadMemStats(&before)
		for range attachesInRow {
			if _, err := f(ctx); err != nil {
				return 0, err
			}
		}
		runtime.ReadMemStats(&after)
		least = min(least, float64(after.TotalAlloc-before.TotalAlloc)/attachesInRow)
	}
	return least, nil
}

// sizeName returns a size for use in a figure's name, such as "64MiB".
func sizeName(bytes int64) string {
	if bytes >= 1<<30 {
		return fmt.Sprintf("%dGiB", bytes>>30)
	}
	return fmt.Sprintf("%dMiB", bytes>>20)
}
