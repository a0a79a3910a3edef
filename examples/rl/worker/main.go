// Command worker plays cart and pole with the newest policy that a trainer has published, in place on its weights, and
// publishes its observations for the trainer. train.py starts three of them.
//
//	go run ./examples/rl/worker SOCKET NUMBER STEPS
package main

import (
	"context"
	"errors"
	"fmt"
	"log"
	"os"
	"os/signal"
	"strconv"
	"syscall"
	"time"

	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/driver/host"
	"github.com/sharedtensor/sharedtensor/endpoint"
	"github.com/sharedtensor/sharedtensor/examples/rl/cartpole"
	"github.com/sharedtensor/sharedtensor/tensor"
)

func main() {
	if len(os.Args) != 4 {
		log.Fatal("usage: worker SOCKET NUMBER STEPS")
	}
	number, err1 := strconv.ParseUint(os.Args[2], 10, 16)
	steps, err2 := strconv.ParseUint(os.Args[3], 10, 24)
	if err := errors.Join(err1, err2); err != nil {
		log.Fatal(err)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := work(ctx, os.Args[1], number, int64(steps)); err != nil && ctx.Err() == nil {
		log.Fatal(err)
	}
}

// work plays a rollout with each new policy until ctx ends.
func work(ctx context.Context, socket string, number uint64, steps int64) error {
	dev, err := host.Open()
	if err != nil {
		return err
	}
	defer dev.Close()
	client, err := endpoint.Dial(ctx, endpoint.ClientOptions{
		Socket: socket, Devices: []driver.Device{dev}, Label: fmt.Sprintf("rollout worker %d", number),
	})
	if err != nil {
		return err
	}
	defer client.Close()
	env := cartpole.New(number<<32 + uint64(os.Getpid()))
	for {
		handle, err := client.Acquire(ctx, "policy", endpoint.AcquireOptions{})
		if err != nil {
			return err
		}
		if err := play(ctx, client, dev, handle, env, number, steps); err != nil {
			return errors.Join(err, handle.Close())
		}
		if err := newer(ctx, handle); err != nil {
			return errors.Join(err, handle.Close())
		}
		if err := handle.Close(); err != nil {
			return err
		}
	}
}

// play fills a rollout with the policy of the handle and publishes it.
func play(
	ctx context.Context, client *endpoint.Client, dev driver.Device, handle *endpoint.Handle, env *cartpole.Env, number uint64, steps int64,
) error {
	weights := handle.StateDict()
	p, err := newPolicy(weights)
	if err != nil {
		return err
	}
	r, err := newRollout(dev, steps)
	if err != nil {
		return err
	}
	defer r.sd.Close()
	r.facts[0] = int64(handle.Version())
	if at, ok := weights.Get("published_at"); ok {
		published, err := tensor.Data[int64](at)
		if err != nil {
			return err
		}
		r.facts[1] = time.Now().UnixNano() - published[0]
	}
	r.fill(env, p)
	_, err = client.Publish(ctx, fmt.Sprintf("rollout-%d", number), r.sd, endpoint.PublishOptions{}) // borrows the memory, which the trainer reads in place
	return err
}

// newer waits for a later version than that of the handle.
func newer(ctx context.Context, handle *endpoint.Handle) error {
	for {
		changed := handle.Changed()
		if handle.Newest() > handle.Version() {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		}
		if !handle.Leased() {
			return errors.New("the owner is gone")
		}
	}
}
