package bench

import (
	"context"
	"time"
)

// Ping measures the round trip of an empty request between two processes. The floor is a round trip of 64 bytes over a
// bare Unix socket between two processes.
func Ping(ctx context.Context, o Options) ([]Result, error) {
	o.stage("ping")
	s, err := newStage(ctx, o)
	if err != nil {
		return nil, err
	}
	defer s.close()
	_, socket, err := s.owner()
	if err != nil {
		return nil, err
	}
	client, err := s.client(socket)
	if err != nil {
		return nil, err
	}
	bare, err := s.far(order{Do: "echo"})
	if err != nil {
		return nil, err
	}
	all, err := alternate(ctx, pingSchedule(o),
		subject{rounds: pingRounds, run: timed(func(ctx context.Context) error {
			_, err := client.Ping(ctx)
			return err
		})},
		subject{rounds: pingRounds, run: barePinger(bare)})
	if err != nil {
		return nil, err
	}
	ours, floor := all[0], all[1]
	return []Result{
		figure("ping-p50", µs(ours.quiet()), "µs").over(µs(floor.quiet())).within(Ratio, 1.3),
		figure("ping-p99", µs(ours.all().quantile(0.99)), "µs").over(µs(floor.all().quantile(0.99))),
	}, nil
}

// pingRounds is the number of consecutive pings of one kind.
const pingRounds = 200

func pingSchedule(o Options) schedule {
	return schedule{turns: pick(o.Effort, 500, 60, 2), limit: pick(o.Effort, 10*time.Second, 2*time.Second, time.Second)}
}
