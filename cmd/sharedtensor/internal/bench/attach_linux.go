package bench

import (
	"context"
	"fmt"
	"time"

	"github.com/sharedtensor/sharedtensor/endpoint"
)

// floorBytes is the size that the floor of Attach maps.
const floorBytes = 64 << 20

// Attach measures the time until the tensors of another process can be used, for several tensor counts. The floor
// passes one descriptor over a bare Unix socket on request and maps 64 MiB.
func Attach(ctx context.Context, o Options) ([]Result, error) {
	o.stage("attach")
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
	bare, err := s.far(order{Do: "pass", Bytes: floorBytes})
	if err != nil {
		return nil, err
	}
	subjects := []subject{{rounds: 40, run: func(context.Context) (time.Duration, error) { return attachBare(bare, floorBytes) }}}
	counts := []int{1, 100, 1000, 10000}
	for _, n := range counts {
		name := fmt.Sprint(n)
		if _, err := owner.do(order{Do: "publish", Name: name, Tensors: n, Bytes: 1 << 20}); err != nil {
			return nil, err
		}
		subjects = append(subjects, subject{rounds: max(8, 40/n), run: attacher(client, name)})
	}
	all, err := alternate(ctx, schedule{
		turns: pick(o.Effort, 60, 15, 1), limit: pick(o.Effort, 15*time.Second, 3*time.Second, time.Second),
	}, subjects...)
	if err != nil {
		return nil, err
	}
	floor := µs(all[0].quiet())
	var results []Result
	for i, n := range counts {
		r := figure(fmt.Sprintf("attach-%d", n), µs(all[i+1].quiet()), "µs").over(floor)
		if n == 1000 {
			r = r.within(Value, 2000)
		}
		results = append(results, r)
	}
	last := len(counts) - 1
	slope := µs(all[last+1].quiet()-all[last].quiet()) / float64(counts[last]-counts[last-1])
	return append(results, figure("attach-each", slope, "µs").within(Value, 1)), nil
}

// attacher returns a run that attaches a model. Only attaching is measured. The run then releases the model and waits
// until the owner has processed the release.
func attacher(client *endpoint.Client, name string) func(context.Context) (time.Duration, error) {
	return func(ctx context.Context) (time.Duration, error) {
		start := time.Now()
		h, err := client.Acquire(ctx, name)
		took := time.Since(start)
		if err != nil {
			return 0, err
		}
		if err := h.Close(); err != nil {
			return 0, err
		}
		_, err = client.Ping(ctx)
		return took, err
	}
}
