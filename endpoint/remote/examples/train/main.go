// Command train learns a linear function with one trainer and any number of workers, which may start and stop at any
// time:
//
//	sharedtensor serve &                     # an owner on this host
//	sharedtensor-gateway serve &             # NATS at 127.0.0.1:4222
//	train trainer & train worker & train worker
//
// Workers map the newest parameters without a copy, generate a batch of examples, and send the gradient of the loss on
// it. The trainer applies gradients that are at most two versions old and publishes the next version, until the loss
// that workers report is small.
package main

import (
	"context"
	"encoding/binary"
	"errors"
	"flag"
	"fmt"
	"log"
	"math"
	"math/rand/v2"
	"os"
	"os/signal"
	"strconv"
	"syscall"

	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/driver/host"
	"github.com/sharedtensor/sharedtensor/endpoint"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/bins"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/natslink"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/rl"
	"github.com/sharedtensor/sharedtensor/module"
	"github.com/sharedtensor/sharedtensor/tensor"
)

const (
	dimensions   = 16
	batch        = 64
	learningRate = 0.2
	goodLoss     = 1e-4
)

func main() {
	log.SetFlags(0)
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := start(ctx, os.Args[1:]); err != nil && !errors.Is(err, context.Canceled) {
		log.Fatal("train: ", err)
	}
}

func start(ctx context.Context, args []string) error {
	set := flag.NewFlagSet("train", flag.ContinueOnError)
	url := set.String("nats", "nats://127.0.0.1:4222", "NATS servers")
	socket := set.String("owner", "", "socket of the owner; the default one where it is empty")
	run := set.String("run", "linear", "name of the training run")
	name := set.String("name", "", "name of this process in the run")
	if len(args) == 0 || args[0] != "trainer" && args[0] != "worker" {
		return errors.New("run `train trainer` or `train worker`")
	}
	if err := set.Parse(args[1:]); err != nil {
		return err
	}
	dev, err := host.Open()
	if err != nil {
		return err
	}
	owner, err := endpoint.Dial(ctx, endpoint.ClientOptions{Socket: *socket, Devices: []driver.Device{dev}})
	if err != nil {
		return err
	}
	defer owner.Close()
	conn, err := natslink.Connect(*url)
	if err != nil {
		return err
	}
	defer conn.Close()
	opts := rl.Options{Run: *run, Name: *name, Conn: conn, Device: dev, Owner: owner, LocalOnly: true, Staleness: 2}
	if args[0] == "worker" {
		return work(ctx, opts)
	}
	return train(ctx, opts)
}

// train publishes parameters until the loss is small.
func train(ctx context.Context, opts rl.Options) error {
	trainer, err := rl.NewTrainer(ctx, opts)
	if err != nil {
		return err
	}
	defer trainer.Close()
	weights := make([]float32, dimensions)
	loss := math.Inf(1)
	for loss > goodLoss {
		version, err := publish(ctx, trainer, opts.Device, weights)
		if err != nil {
			return err
		}
		samples, err := trainer.Pull(ctx, 8)
		if err != nil {
			return err
		}
		for _, s := range samples {
			if err := apply(weights, s.Body, float32(len(samples))); err != nil {
				return err
			}
			if said, err := strconv.ParseFloat(s.Meta["loss"], 64); err == nil {
				loss = said
			}
			if err := s.Ack(ctx); err != nil {
				return err
			}
		}
		if version%20 == 0 {
			members, _ := trainer.Members(ctx)
			fmt.Printf("version %d, %d members, loss %.5f\n", version, len(members), loss)
		}
	}
	fmt.Printf("learned in %d versions, loss %.6f, %d stale gradients dropped\n", trainer.Version()+1, loss, trainer.Dropped())
	return nil
}

func publish(ctx context.Context, trainer *rl.Trainer, dev driver.Device, weights []float32) (int64, error) {
	t, err := tensor.FromSlice(dev, tensor.Shape{dimensions}, weights)
	if err != nil {
		return 0, err
	}
	sd := module.NewStateDict()
	defer sd.Close()
	if err := sd.Set("weights", t); err != nil {
		return 0, err
	}
	return trainer.Publish(ctx, sd)
}

// apply updates the weights with a gradient, which is little-endian float32.
func apply(weights []float32, gradient []byte, share float32) error {
	if len(gradient) != 4*len(weights) {
		return fmt.Errorf("a gradient has %d bytes, not %d", len(gradient), 4*len(weights))
	}
	for i := range weights {
		weights[i] -= learningRate / share * math.Float32frombits(binary.LittleEndian.Uint32(gradient[4*i:]))
	}
	return nil
}

// work sends gradients for the newest parameters until it is stopped.
func work(ctx context.Context, opts rl.Options) error {
	worker, err := rl.NewWorker(ctx, opts)
	if err != nil {
		return err
	}
	defer worker.Close()
	for version := int64(-1); ; {
		p, err := worker.Await(ctx, version)
		if err != nil {
			return err
		}
		version = p.Version()
		t, ok := p.StateDict().Get("weights")
		if !ok {
			return errors.Join(errors.New("the parameters have no weights"), p.Close())
		}
		weights, err := tensor.Data[float32](t)
		if err != nil {
			return errors.Join(err, p.Close())
		}
		gradient, loss := step(weights)
		err = worker.Add(ctx, bins.Value{Body: gradient, Meta: map[string]string{
			"loss": strconv.FormatFloat(loss, 'g', -1, 64), "shared": strconv.FormatBool(p.Shared()),
		}})
		if err = errors.Join(err, p.Close()); err != nil {
			return err
		}
	}
}

// truth returns weight i of the function to learn.
func truth(i int) float64 { return float64(i%5) - 2 }

// step returns the gradient and value of the squared error on a random batch.
func step(weights []float32) (gradient []byte, loss float64) {
	sum := make([]float64, len(weights))
	x := make([]float64, len(weights))
	for range batch {
		miss := 0.0
		for i := range x {
			x[i] = rand.NormFloat64()
			miss += x[i] * (float64(weights[i]) - truth(i))
		}
		loss += miss * miss / batch
		for i := range x {
			sum[i] += miss * x[i] / batch
		}
	}
	for _, g := range sum {
		gradient = binary.LittleEndian.AppendUint32(gradient, math.Float32bits(float32(g)))
	}
	return gradient, loss
}
